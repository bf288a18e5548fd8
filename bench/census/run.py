#!/usr/bin/env python3
"""Trains every file in a folder for a step with fsdp-run and reports the result, one JSON object per file.

    run.py FOLDER --fsdp-run build/release/fsdp-run --results RESULTS.jsonl [--only PATTERN]
           [--plant scale|zero|roll] [--again]

Inputs for NAME.VARIANT.onnx are the arrays in NAME.npz or NAME.VARIANT.npz next to it. Other files get random inputs by
their types. The loss compares the first floating output with random labels. It is cross entropy if the output's last
axis has 2 to 512 classes, else the mean squared error. A second program answers four questions for each file:

  imports   fsdp-run's first loss equals the loss from ONNX Runtime's outputs, to 2e-5 (float16 files: to 1e-4, against
            the file in float32). With integers: to 1e-3, or four times the change in ONNX Runtime's own loss when
            inputs and scales change by a rounding.
  trains    a step ends with exit status 0; the message of a refusal (2) or a fault (1) is kept
  gradient  an SGD step with rate LR gives the gradient: (before - after)/LR, from the float32 masters in the checkpoint
            of the single rank. Its products with two directions equal central differences of ONNX Runtime's loss. The
            directions cover one to eight tensors each, and all tensors at once. For files with integers, the loss of
            the graph in graphs.py is used.
  written   after three AdamW steps the written file loads in ONNX Runtime, and its loss there equals fsdp-run's
            evaluation; with integers, to four times the change by such a rounding in this file

Products and differences agree within 2 % of the gradient's length (10 % if such a rounding changes the loss by more
than 1e-4). Differences are taken at several widths; the width with the least sum of rounding and curvature counts. A
probe is `unresolved` if this sum is above a tenth of the gradient. If differences do not confirm a gradient,
PyTorch's autograd decides (autograd.py). `--plant` spoils the gradient of one tensor after training, to see the
check fail. Existing results are kept, unless --again. Needs numpy, onnx, onnxruntime; torch for autograd.py.
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import zlib

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import graphs

WIDTHS = {True: (1e-5, 1e-6, 1e-7), False: (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)}   # in double, in float32
SECONDS = 0.5   # processor time for a file's differences; it decides how many tensors are sampled
RATE = 1e4
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def inputs_of(path, model, random):
    """Returns arrays for the graph's inputs."""
    stem = path.removesuffix(".onnx")
    known = {}
    for candidate in (stem + ".npz", stem.rsplit(".", 1)[0] + ".npz"):
        if os.path.exists(candidate):
            known = dict(np.load(candidate))
            break
    initializers = {t.name for t in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in initializers:
            continue
        t = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
        if value.name in known:
            feeds[value.name] = known[value.name].astype(dtype)
            continue
        shape = [d.dim_value or (3 if k == 0 else 8) for k, d in enumerate(t.shape.dim)]
        if dtype.kind == "f":
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            top = 2 if "mask" in value.name or "type" in value.name or dtype.kind == "b" else 8
            feeds[value.name] = (np.ones(shape) if "mask" in value.name else random.integers(0, top, shape)).astype(dtype)
    return feeds


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Loss:
    """The loss of a prediction, in double: its kind and labels. fsdp-run gets the same kind and labels."""

    def __init__(self, output, random):
        classes = output.shape[-1] if output.ndim > 1 else 0
        self.kind = "cross_entropy" if 2 <= classes <= 512 and output.ndim <= 3 else "mse"
        self.labels = (random.integers(0, classes, output.shape[:-1]) if self.kind == "cross_entropy"
                       else random.standard_normal(output.shape).astype(np.float32))

    def __call__(self, output):
        output = np.asarray(output, np.float64)
        if self.kind == "cross_entropy":
            picked = np.take_along_axis(log_softmax(output), self.labels[..., None], -1)
            return float(-picked.mean())
        return float(((output - self.labels) ** 2).mean())


def run(*words, limit=120):
    environment = {**os.environ, "OFSDP_RUN_DIR": "none"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=limit, env=environment)
    lines = [line for line in done.stderr.strip().splitlines() if ": warning: " not in line]
    return done.returncode, done.stdout, "\n".join(lines)


def last_rows(path):
    rows = [json.loads(line) for line in open(path)]
    return {kind: [r for r in rows if r["kind"] == kind] for kind in ("step", "eval")}


def close(a, b, room):
    return graphs.finite(a) and graphs.finite(b) and abs(a - b) <= room * max(abs(a), abs(b), 1e-3)


def spoil(gradients, plant, name):
    g = gradients[name]
    gradients[name] = {"scale": g * 1.1, "zero": g * 0, "roll": np.roll(g.reshape(-1), 1).reshape(g.shape)}[plant]


def probe_one(probe, name_list, gradients, scales, direction, floor, room=0.02):
    """Returns 'right', 'wrong' or 'unresolved', with the derivative by the gradient and by differences."""
    expected = sum(float((gradients[n].astype(np.float64) * direction[n]).sum()) for n in name_list)
    size = np.sqrt(sum(float((direction[n].astype(np.float64) ** 2).sum()) for n in name_list))
    length = np.sqrt(sum(float((gradients[n].astype(np.float64) ** 2).sum()) for n in name_list))
    unit = max(length, floor) * size / np.sqrt(max(1, sum(np.count_nonzero(direction[n]) for n in name_list)))
    estimates = []
    for width in WIDTHS[probe.double]:
        ends = []
        for sign in (1, -1):
            ends.append(probe({n: (probe.base[n] + sign * width * direction[n] / scales.get(n, 1))
                               for n in name_list}))
        up, down = ends
        estimates.append(((ends[0] - ends[1]) / (2 * width), probe.noise / width))
    best = None
    for (value, noise), (after, after_noise) in zip(estimates, estimates[1:]):
        total = abs(value - after) + noise + after_noise
        if graphs.finite(total) and (best is None or total < best[1]):
            best = (after if after_noise < abs(value - after) else value, total)
    if best is None:
        return "unresolved", expected, None
    if probe.double:   # at a kink (a tie of MaxPool, the edge of a Relu) the two sides differ, and any value between is a gradient
        sides = [(up - probe.at_base) / width, (probe.at_base - down) / width]
        if abs(sides[0] - sides[1]) > 4 * best[1] + 0.01 * unit:
            between = min(sides) - room * unit <= expected <= max(sides) + room * unit
            return "right" if between else "wrong", expected, best[0]
    scale = max(abs(expected), abs(best[0]), unit)
    if best[1] > 0.1 * scale:
        # Undecidable, except that a difference far beyond the uncertainty is wrong.
        return ("wrong" if abs(best[0] - expected) > 5 * best[1] else "unresolved"), expected, best[0]
    return ("right" if abs(best[0] - expected) <= room * scale + best[1] else "wrong"), expected, best[0]


def check_gradient(probe, gradients, scales, random, room=0.02):
    names = sorted(n for n in gradients if n in probe.base)
    norms = {n: float(np.sqrt((gradients[n].astype(np.float64) ** 2).sum())) for n in names}
    floor = 1e-4 * max(norms.values())
    count = int(SECONDS / (4 * len(WIDTHS[probe.double]) * max(probe.seconds, 1e-5))) - 1
    some = list(random.permutation(names)[:min(8, max(1, count))])
    counts, wrong = {"right": 0, "wrong": 0, "unresolved": 0}, []
    for group in [*[[n] for n in some], names]:
        for along in (True, False):
            direction = {}
            for n in group:
                g = gradients[n].astype(np.float64)
                d = g * random.uniform(0.5, 1.5, g.shape) if along and norms[n] > floor else random.standard_normal(g.shape)
                values = probe.base[n][np.isfinite(probe.base[n])].astype(np.float64)
                wide = max(float(np.sqrt((values ** 2).mean() if values.size else 0)) * float(np.mean(scales.get(n, 1))), 0.02)
                rms = np.sqrt((d ** 2).sum() / max(1, np.count_nonzero(np.abs(d) > 0.1 * np.abs(d).max())))
                direction[n] = d / max(rms, 1e-30) * wide
            if len(group) > 1:   # many tensors move at once
                direction = {n: d / np.sqrt(len(group)) for n, d in direction.items()}
            verdict, expected, measured = probe_one(probe, group, gradients, scales, direction, floor, room)
            counts[verdict] += 1
            if verdict == "wrong":
                wrong.append(f"{group[0] if len(group) == 1 else 'all'}: {expected:.4g} is {measured:.4g}")
    verdict = "wrong" if counts["wrong"] else "right" if counts["right"] >= counts["unresolved"] else "unresolved"
    return verdict, counts, wrong[:3]


def apart_from(a, b, name):
    return float(np.linalg.norm(a[name] - b[name]) / max(np.linalg.norm(b[name]), 1e-30))


def by_autograd(model, gradients, scales, feeds, prediction, loss, reference, room, pairs=None, spread=False):
    """The verdict of PyTorch's autograd, in double, on the graph that the differences used. Every tensor must agree
    within 2 % of its length, or of 1e-4 of the longest tensor if it is shorter. In a graph with `pairs`, rounding
    decides which values are clipped, and this changes the gradient of ten samples. So the gradient may also equal
    the gradient for PyTorch's integers, or for scales moved by a rounding. With `spread` it may be as far from them
    as two of them are from each other. Empty if autograd.py lacks an operator."""
    tries = [(model, scales, None)]
    if pairs is not None:
        tries += [(pairs, {}, None), *((pairs, {}, np.random.default_rng(k)) for k in range(4))]
    results, drawn, reason = [], [], ""
    for graph, by, nudge in tries:
        try:
            import autograd
            value, found = autograd.gradients(graph, set(gradients), feeds, prediction, loss, nudge)
            if not close(value, reference, room):
                raise ValueError(f"loss {value} is not {reference}")
            found = {n: found[n] / np.asarray(by.get(n, 1), np.float64) for n in gradients}
        except Exception as e:  # noqa: BLE001: said in the row
            reason = reason or f"{type(e).__name__}: {str(e)[:200]}"
            continue
        lengths = {n: float(np.linalg.norm(g)) for n, g in found.items()}
        floor = 1e-4 * max(lengths.values())
        drawn += [found] if nudge is not None else []
        rounding = 2.0 ** -24 * abs(reference)   # for the float32 terms in a sum that may be 0: a bias before a Softmax
        results.append({n: float(np.maximum(0.0, np.linalg.norm(gradients[n] - found[n]) - rounding)) / max(lengths[n], floor)
                        for n in gradients})
    if not results:
        return {"autograd": reason}
    nearest = min(results, key=lambda apart: max(a if graphs.finite(a) else np.inf for a in apart.values()))
    room = {n: 0.02 for n in gradients}
    if spread and len(drawn) > 1:
        room = {n: max(0.02, 1.5 * max(apart_from(drawn[0], d, n) for d in drawn[1:])) for n in gradients}
    wrong = [f"{n}: {100 * a:.2g} % off autograd" for n, a in nearest.items() if not a <= room[n]]
    return {"autograd": max(nearest.values()), "gradient": "wrong" if wrong else "right", "wrong": wrong[:3]}


def rounding_spread(model, feeds, prediction, loss, random):
    """Returns the relative change in a file's loss when inputs and scales move by a float32 rounding. In a file with
    integers, an activation on the border of two integers then takes the other one, and so do later activations."""
    moved = []
    for _ in range(4):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        for t in copy.graph.initializer:
            if t.data_type == TensorProto.FLOAT and t.name.endswith("_scale"):
                a = numpy_helper.to_array(t)
                t.CopyFrom(numpy_helper.from_array((a * (1 + 3e-7 * random.standard_normal(a.shape))).astype(np.float32), t.name))
        near = {k: (v * (1 + 3e-7 * random.standard_normal(v.shape))).astype(v.dtype) if v.dtype.kind == "f" else v
                for k, v in feeds.items()}
        moved.append(loss(graphs.values(copy, [prediction], near)[prediction]))
    return max(moved) / max(min(moved), 1e-3) - 1


def kind_of(model):
    if graphs.quantized(model):
        return "integers"
    return "narrow" if graphs.has_narrow(model) else "float"


class Case:
    """The trial of a file: its inputs, its loss and further options. bench/shipped defines other cases."""

    options = ()   # for fsdp-run
    every = False    # whether autograd also judges every tensor with right differences
    spread = False   # whether gradients with integers may differ as much as roundings move PyTorch's own
    loss = Loss

    def __init__(self, path):
        self.path = path

    def model(self):
        return onnx.load(self.path)

    def prediction(self, model):
        return [o.name for o in model.graph.output if o.type.tensor_type.elem_type in FLOATS][0]

    def feeds(self, model, random):
        return inputs_of(self.path, model, random)

    def save(self, folder, feeds, loss):
        """Writes the columns; returns the number of rows."""
        for name, array in feeds.items():
            np.save(f"{folder}/{name}.npy", array)
        np.save(folder + "/labels.npy", loss.labels)
        return len(next(iter(feeds.values())))


ROOM = {"float": (2e-5, 1e-4), "narrow": (1e-4, 2e-2), "integers": (1e-3, 2e-2)}   # first loss, written file's


def census(path, program, plant, folder, case=None):
    case = case or Case(path)
    random = np.random.default_rng(zlib.crc32(os.path.basename(path).encode()))
    model = case.model()
    kind = kind_of(model)
    row = {"file": os.path.basename(path), "kind": kind, "operators": sorted({
        (n.domain + "." if n.domain not in ("", "ai.onnx") else "") + n.op_type for n in model.graph.node})}
    feeds = case.feeds(model, random)
    try:
        wide = graphs.widened(model) if kind == "narrow" else model
        prediction = case.prediction(model)
        output = graphs.values(wide, [prediction], feeds)[prediction]
    except Exception as e:  # noqa: BLE001: ONNX Runtime's own reason
        return {**row, "verdict": "no reference", "message": str(e).splitlines()[0][:300]}
    loss = case.loss(output, random)
    reference = loss(output)
    flips = rounding_spread(model, feeds, prediction, loss, random) if kind == "integers" else 0.0
    row["flips"] = flips
    data = folder + "/data"
    os.makedirs(data)
    rows = str(case.save(data, feeds, loss))
    common = [program, path, "--data", data, "--loss", loss.kind, "--prediction", prediction, "--labels", "labels", "--batch-size",
              rows, "--no-shuffle", "--threads", "1", "--metrics", folder + "/metrics.jsonl", "--verbose", "on",
              *case.options]  # the run's table lists the trained parameters
    began = time.time()
    status, out, message = run(*common, "--steps", "1", "--optimizer", "sgd", "--lr", str(RATE), "--checkpoint-dir", folder + "/ck")
    row.update(status=status, seconds=round(time.time() - began, 2), loss_kind=loss.kind, reference=reference)
    if status != 0:
        return {**row, "verdict": "refused" if status == 2 else "fault", "message": message}
    row["loss"] = last_rows(folder + "/metrics.jsonl")["step"][0]["loss"]
    row["imports"] = close(row["loss"], reference, max(ROOM[kind][0], 4 * flips))
    trained = re.findall(r"^train   (\S.*?) +\[[\d, ]*\]", out, re.M)
    if not trained:
        raise ValueError("the run printed no table of what it trains")
    row["trained"] = len(trained)
    checkpoint = glob.glob(folder + "/ck/step-*")[0]
    after = {t.name: numpy_helper.to_array(t) for t in onnx.load(glob.glob(checkpoint + "/*.onnx")[0]).graph.initializer}

    masters = {}
    if kind == "integers":
        try:
            wide, masters = graphs.straight_through(graphs.widened(model), feeds)
        except Exception as e:  # noqa: BLE001: said in the row
            row["surrogate"] = f"{type(e).__name__}: {str(e)[:200]}"
    elif kind == "narrow":
        wide = graphs.widened(model)
    try:
        probe = graphs.Probe(wide, set(trained), feeds, prediction, loss)
        gradients, scales = {}, {}
        for name in trained:
            if name not in after or name not in probe.base:
                continue
            before = probe.base[name]
            if name in masters:
                scale, zero = masters[name]
                before = (before - zero) * scale
                scales[name] = scale
            later = after[name].astype(np.float64).reshape(before.shape)
            with np.errstate(invalid="ignore"):   # a mask of -inf stays
                gradients[name] = np.where(before == later, 0.0, before.astype(np.float64) - later) / RATE
        row["compared"] = len(gradients)
        if plant:
            spoil(gradients, plant, max(gradients, key=lambda n: float(np.abs(gradients[n]).sum())))
        row.update(surrogate_loss=probe.at_base, by=probe.by, noise=probe.noise)
        row["gradient"], row["probes"], row["wrong"] = check_gradient(
            probe, gradients, scales, random, 0.02 if flips < 1e-4 else 0.1)
        if not close(probe.at_base, reference, 1e-3):
            row["gradient"] = "unresolved"
            row["surrogate"] = f"loss {probe.at_base} is not {reference}"
        if row["gradient"] != "right" or case.every:
            row["differences"] = row["wrong"]
            row.update(by_autograd(
                wide, gradients, scales, feeds, prediction, loss, reference, max(1e-3, 4 * flips),
                graphs.with_pairs(graphs.widened(model)) if masters else None, case.spread))
    except Exception as e:  # noqa: BLE001: said in the row
        row["gradient"], row["surrogate"] = "unresolved", row.get("surrogate") or f"{type(e).__name__}: {str(e)[:200]}"

    written = folder + "/trained.onnx"
    status, _, message = run(*common, "--eval-data", data, "--steps", "3", "--optimizer", "adamw", "--lr", "0.001", "--output", written,
                             "--eval-interval", "100step")
    if status != 0:
        return {**row, "verdict": "fault", "message": message}
    try:
        back = onnx.load(written)
        out = graphs.values(graphs.widened(back) if kind == "narrow" else back, [prediction], feeds)[prediction]
        row["written_loss"], row["evaluated"] = loss(out), last_rows(folder + "/metrics.jsonl")["eval"][-1]["loss"]
        row["written_flips"] = rounding_spread(back, feeds, prediction, loss, random) if kind == "integers" else 0.0
        row["written"] = close(row["written_loss"], row["evaluated"], max(ROOM[kind][1], 4 * row["written_flips"]))
        import onnxruntime as ort
        ort.InferenceSession(written, providers=["CPUExecutionProvider"])
    except Exception as e:  # noqa: BLE001
        row["written"], row["message"] = False, str(e).splitlines()[0][:300]
    good = row["imports"] and row["gradient"] == "right" and row["written"]
    row["verdict"] = "right" if good else "wrong" if not row["imports"] or row["gradient"] == "wrong" or not row["written"] else "unresolved"
    return row


def main():
    words = argparse.ArgumentParser()
    words.add_argument("folder")
    words.add_argument("--fsdp-run", default="build/release/fsdp-run")
    words.add_argument("--results", required=True)
    words.add_argument("--only", default="")
    words.add_argument("--plant", choices=["scale", "zero", "roll"])
    words.add_argument("--again", action="store_true")
    options = words.parse_args()
    done = {}
    if os.path.exists(options.results):
        done = {json.loads(line)["file"]: line for line in open(options.results)}
    for path in sorted(glob.glob(options.folder + "/*.onnx")):
        name = os.path.basename(path)
        if not re.search(options.only, name) or name in done and not options.again:
            continue
        folder = tempfile.mkdtemp(prefix="census")
        try:
            row = census(path, options.fsdp_run, options.plant, folder)
        except Exception as e:  # noqa: BLE001: a fault of the census itself, seen in the report
            row = {"file": name, "verdict": "census failed", "message": f"{type(e).__name__}: {str(e)[:300]}"}
        shutil.rmtree(folder)
        done[name] = json.dumps(row)
        print(f"{row['verdict']:12} {name} {row.get('message') or row.get('wrong') or row.get('surrogate') or ''}"[:400], flush=True)
        with open(options.results + ".part", "w") as file:
            file.writelines(line.rstrip("\n") + "\n" for line in done.values())
        os.rename(options.results + ".part", options.results)


if __name__ == "__main__":
    main()
