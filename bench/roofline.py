#!/usr/bin/env python3
"""Estimates an update of GPT-2 124M and of BERT-base on one GPU from its plan. NOT A MEASUREMENT: no GPU is used.

    bench/roofline.py                        gpt2-1024, bert-512 and bert-128, of bench/gpu_vs_pytorch.sh
    bench/roofline.py --keep FOLDER          also keeps the parts of the plans that it read, one file per model
    bench/roofline.py --before FOLDER        also shows another commit's estimate, from its --keep

It counts the nodes and steps of an update from `fsdp-run plan --device cuda --json`. The counts are FLOP of products
and attention, bytes of all other nodes, and launches. A time is a count over an assumed rate. Default rates are an
H200's (--products, --head, --attention, --memory, --gap; the first line of the output repeats them). The estimate
omits:

- bytes from the cache, and products bound by memory
- stores narrower than the memory's sectors
- partial sums of deterministic attention
- waves that do not fill the card

Updates count as if nothing ran at the same time.

- A product's FLOP follow from its shapes. The head's products have an axis of the vocabulary. For the fastest kernels
  that axis is a multiple of 8 elements, or the plan leaves room between rows. A head without aligned operands has its
  own rate.
- Attention has 2 products forward and 5 backward; a causal mask halves each.
- Launches of an operator come from the emulated device. It counts the CUDA kernels on its stream in an update of the
  same network with two narrow layers. Launches of other steps are counted from kernels/cuda/device/arithmetic.cu.
- MFU: a token's FLOP by 6 N and attention (bench/gpu_vs_pytorch.py) over the estimated time and the peak.

Needs build/release/fsdp-run and build/release/tests/device/libemulated_device.so, and the models that
bench/gpu_vs_pytorch.sh exports; $PEER_PYTHON, with torch and transformers, exports missing models.
"""
import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SETTINGS = {"gpt2-1024": ("gpt2", 1024, 64, True), "bert-512": ("bert", 512, 128, False), "bert-128": ("bert", 128, 512, False)}
PRODUCTS = {"MatMul", "ofsdp.MatMul", "com.microsoft.FusedMatMul", "Gemm", "ofsdp.GemmEpilogue", "ofsdp.KeptRowsGemm"}
LINEAR_LOSS = "ofsdp.LinearCrossEntropy"  # the products of a head and loss, in chunks of rows
LOOKUPS = {"Gather", "GatherND"}  # they read the rows that they write
SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "bool": 1}
TILE = 8  # 16-bit elements in 16 bytes
# As in kernels/cuda/device/arithmetic.cu: a reduction squares, adds, and then the update follows.
STEP_LAUNCHES = {"Gather": 1, "Accumulate": 1, "Update": 1, "ReduceUpdate": 3, "Reduce": 2, "Clip": 1, "CheckLoss": 1}
OF_AN_UPDATE = 1  # begin_kernel
ROWS = ["products of blocks", "head", "attention", "passes", "loss", "updates", "gaps"]


def settings_of(file, batch, more):
    return [str(file), "--loss", "cross_entropy", "--param-dtype", "bfloat16", "--data", "synthetic", "--eval-data", "none",
            "--optimizer", "adamw", "--lr", "1e-4", "--batch-size", str(batch), "--nproc-per-node", "1", "--device", "cuda", *more]


class Reader:
    def __init__(self, a):
        self.a = a
        self.program = a.build / "fsdp-run"
        self.environment = {**os.environ, "OFSDP_CUDA_LIBRARY": str(a.build / "tests/device/libemulated_device.so")}

    def model(self, name, tiny):
        model, sequence, _, _ = SETTINGS[name]
        file = self.a.models / f"gpu_{name}{'_tiny' if tiny else ''}.onnx"
        if not pathlib.Path(f"{file}.json").exists():
            self.a.models.mkdir(parents=True, exist_ok=True)
            subprocess.run([os.environ.get("PEER_PYTHON", "python3"), str(ROOT / "bench/pytorch_gpu.py"), "--model", model,
                            "--sequence", str(min(sequence, 32) if tiny else sequence), "--export", str(file),
                            *(["--tiny"] if tiny else [])], check=True)
        return file

    def run(self, command, more=None):
        done = subprocess.run([str(self.program), *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**self.environment, **(more or {})}, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def launches(self, name):
        """Returns each operator's launches per run, counted by the emulated device."""
        with tempfile.NamedTemporaryFile() as report:
            self.run(settings_of(self.model(name, True), 2, ["--steps", "1"]), {"COUNTING_DEVICE_REPORT": report.name})
            counts = dict(line.rsplit(" ", 1) for line in open(report.name, encoding="utf-8") if " " in line)
        runs = {key[5:]: int(n) for key, n in counts.items() if key.startswith("runs:")}
        return {op: int(counts[f"launches:{op}"]) / n for op, n in runs.items()}

    def read(self, name):
        """Returns the estimate's inputs: the steps of an update's program, the operators' launches, FLOP per token."""
        file = self.model(name, False)
        plan = json.loads(self.run(["plan", *settings_of(file, SETTINGS[name][2], ["--steps", "1", "--json"])]))
        program = next(p for p in plan["programs"] if p["training"] and p["times_an_update"])
        return {"name": name, "schedule": program["schedule"], "launches": self.launches(name),
                "flops_per_token": json.loads(pathlib.Path(f"{file}.json").read_text(encoding="utf-8"))["flops_per_token"]}


# --- counts ---


def shape_of(text):
    return [int(n) for n in re.findall(r"\d+", text.partition("[")[2])]


def product_flop(step):
    """Returns 2 batch rows inner columns. The square root of the product of the three matrix sizes is rows inner
    columns."""
    a, b, y = (shape_of(text) for text in (step["inputs"][0], step["inputs"][1], step["outputs"][0]))
    batch = math.prod(b[:-2])
    return 2 * batch * math.sqrt(math.prod(a) * math.prod(b) * math.prod(y) / batch**3)


def attention_flop(step, name):
    """Computes from dY or Y, with batch x heads x queries x width elements."""
    _, sequence, batch, causal = SETTINGS[name]
    grad = step["op"].endswith("Grad")
    elements = math.prod(shape_of(step["inputs"][0] if grad else step["outputs"][0]))
    return (5 if grad else 2) * 2 * elements * sequence / (2 if causal else 1)


def dense_bytes(step):
    """Returns the bytes of the step's operands, without room between rows."""
    return sum(math.prod(shape_of(text)) * SIZES[text.partition("[")[0]] for text in step["inputs"] + step["outputs"] if text)


def is_loss(step):
    return "CrossEntropy" in step.get("op", "")


def vocabulary_of(steps):
    """Returns the number of classes in the largest scores. A loss in chunks has its product's operands: X [N, K] and
    W of K and V."""
    sizes = []
    for step in filter(is_loss, steps):
        shapes = [shape_of(text) for text in step["inputs"]]
        if step["op"] == LINEAR_LOSS:
            sizes.append(math.prod(shapes[2]) // shapes[1][1])
        else:
            sizes += [shape[-1] for shape in shapes if len(shape) > 1]
    return max(sizes)


def bytes_of(step):
    if step.get("op") in LOOKUPS:
        return 2 * step["written_bytes"]
    return step["read_bytes"] + step["written_bytes"]


def counted(read):
    """Counts an update: FLOP or bytes by row; all launches; whether the head is aligned; operators not seen to run."""
    steps = read["schedule"]
    vocabulary = vocabulary_of(steps)
    counts = dict.fromkeys(["products of blocks", "head", "attention", "passes", "loss", "updates"], 0.0)
    launches, unknown = OF_AN_UPDATE, set()
    for step in steps:
        if step["step"] != "Run":
            moved = bytes_of(step)
            counts["updates"] += moved
            launches += STEP_LAUNCHES.get(step["step"], 0) if moved or step["step"] in ("Clip", "CheckLoss") else 0
            continue
        op = step["op"]
        if op not in read["launches"]:
            unknown.add(op)
        launches += read["launches"].get(op, 1)
        if op in PRODUCTS:
            head = any(vocabulary in shape_of(text) for text in step["inputs"] + step["outputs"])
            counts["head" if head else "products of blocks"] += product_flop(step)
        elif op == LINEAR_LOSS:
            rows, inner = shape_of(step["inputs"][1])
            counts["head"] += 3 * 2 * rows * inner * vocabulary
            counts["loss"] += 2 * rows * vocabulary * SIZES[step["inputs"][1].split("[")[0]]
        elif "Attention" in op:
            counts["attention"] += attention_flop(step, read["name"])
        else:
            counts["loss" if is_loss(step) else "passes"] += bytes_of(step)
    padded = any(bytes_of(s) > dense_bytes(s) for s in steps if is_loss(s))
    return counts, round(launches), padded or vocabulary % TILE == 0, sorted(unknown)


# --- times ---


def estimated(read, a):
    counts, launches, aligned, unknown = counted(read)
    rates = {"products of blocks": a.products, "attention": a.attention, "head": a.products if aligned else a.head}
    ms = {row: amount / (rates[row] * 1e12 if row in rates else a.memory * 1e12) * 1e3 for row, amount in counts.items()}
    ms["gaps"] = launches * a.gap * 1e-3
    _, sequence, batch, _ = SETTINGS[read["name"]]
    flop = read["flops_per_token"] * sequence * batch
    whole = sum(ms.values())
    # FLOP counted in another way: attention's backward pass counts five products here, and four in flops_per_token.
    products = counts["products of blocks"] + counts["head"] + counts["attention"] * 6 / 7
    if abs(products / flop - 1) > 0.01:
        sys.exit(f"{read['name']}: {products / 1e12:.1f} TFLOP by the plan's products, {flop / 1e12:.1f} by the parameters")
    return {"counts": counts, "launches": launches, "ms": ms, "sum": whole, "mfu": flop / (whole * 1e-3 * a.peak * 1e12),
            "other": counts["passes"] + counts["loss"] + counts["updates"], "unknown": unknown, "aligned": aligned}


def cell(e, row):
    if row == "gaps":
        return f"{e['launches']} launches, {e['ms'][row]:.1f} ms"
    unit = ("TFLOP", 1e12) if row in ("products of blocks", "head", "attention") else ("GB", 1e9)
    note = "" if row != "head" or e["aligned"] else ", not aligned"
    return f"{e['counts'][row] / unit[1]:.1f} {unit[0]}{note}, {e['ms'][row]:.1f} ms"


def print_table(name, columns):
    print(f"\n| {name}, an update, estimated | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns))
    for row in ROWS:
        print(f"| {row} | " + " | ".join(cell(e, row) for e in columns.values()) + " |")
    for label, text in (("outside of products and attention", lambda e: f"{e['other'] / 1e9:.1f} GB, {e['launches']} launches in all"),
                        ("sum", lambda e: f"{e['sum']:.0f} ms"), ("MFU", lambda e: f"{100 * e['mfu']:.0f} %")):
        print(f"| {label} | " + " | ".join(text(e) for e in columns.values()) + " |")
    made = list(columns.values())
    if len(made) == 2:
        print(f"\n{name}: {100 * made[1]['other'] / made[0]['other']:.0f} % of the bytes outside of products and attention, "
              f"{made[0]['launches'] - made[1]['launches']} launches fewer, {made[0]['sum'] - made[1]['sum']:.0f} ms fewer")
    for column, e in columns.items():
        if e["unknown"]:
            print(f"{column}: one launch assumed of {', '.join(e['unknown'])}")


def print_passes(read):
    """Prints the operators that move the bytes, most first."""
    moved = {}
    for step in read["schedule"]:
        if step["step"] == "Run" and step["op"] not in PRODUCTS and "Attention" not in step["op"]:
            n, size = moved.get(step["op"], (0, 0))
            moved[step["op"]] = (n + 1, size + bytes_of(step))
    for op, (n, size) in sorted(moved.items(), key=lambda item: -item[1][1]):
        print(f"  {op:44} {n:5} nodes {size / 1e9:8.2f} GB")


def main():
    p = argparse.ArgumentParser(prog="roofline.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default=",".join(SETTINGS), help="which, comma-separated")
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    p.add_argument("--models", type=pathlib.Path, default=ROOT / "build/peer_models")
    p.add_argument("--keep", type=pathlib.Path)
    p.add_argument("--before", type=pathlib.Path, help="a folder of --keep")
    p.add_argument("--passes", action="store_true", help="also list the operators behind the bytes")
    p.add_argument("--peak", type=float, default=989, help="TFLOP/s of MFU (%(default)s)")
    p.add_argument("--products", type=float, default=620, help="TFLOP/s of products (%(default)s)")
    p.add_argument("--head", type=float, default=250, help="TFLOP/s of products that are not aligned (%(default)s)")
    p.add_argument("--attention", type=float, default=375, help="TFLOP/s (%(default)s)")
    p.add_argument("--memory", type=float, default=3.75, help="TB/s of passes (%(default)s)")
    p.add_argument("--gap", type=float, default=1, help="microseconds between launches (%(default)s)")
    a = p.parse_args()
    names = a.only.split(",")
    if unknown := set(names) - set(SETTINGS):
        p.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(SETTINGS)}")
    print(f"Estimated, not measured: products {a.products:g} TFLOP/s (not aligned {a.head:g}), attention {a.attention:g}, memory "
          f"{a.memory:g} TB/s, {a.gap:g} us a launch, peak {a.peak:g}")
    reader = Reader(a)
    for name in names:
        read = reader.read(name)
        if a.keep:
            a.keep.mkdir(parents=True, exist_ok=True)
            (a.keep / f"{name}.json").write_text(json.dumps(read), encoding="utf-8")
        columns = {}
        if a.before:
            columns["before"] = estimated(json.loads((a.before / f"{name}.json").read_text(encoding="utf-8")), a)
        columns["now"] = estimated(read, a)
        print_table(name, columns)
        if a.passes:
            print_passes(read)
    return 0


if __name__ == "__main__":
    sys.exit(main())
