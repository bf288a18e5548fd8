#!/usr/bin/env python3
"""Makes docs/internals/census.md from the results of run.py and, if given, of counterparts.py.

    report.py RESULTS.jsonl [--folder FILES] [--planted PLANTED.jsonl] [--onnxsim RESULTS.jsonl]
              [--onnxruntime RESULTS.jsonl] [--date DATE] > docs/internals/census.md
"""
import argparse
import collections
import glob
import importlib.metadata
import json
import re

VARIANTS = (("dynamo", r"dynamo\d+"), ("TorchScript", r"torchscript\d+"), ("ORT basic, extended", "ort_.*"), ("fused", "fused"),
            ("float16", "(fused_)?float16"), ("dynamic int8", "dynamic_int8"), ("QDQ", "qdq(_channel)?"), ("QLinear", "qoperator"),
            ("NBits", r"nbits\d"), ("onnxslim, onnxsim", "onnxs.*"))
PACKAGES = ("torch", "transformers", "timm", "torchvision", "onnx", "onnxscript", "onnxruntime", "onnxslim", "onnxsim")
REASONS = (   # the meaning of wordy messages
    (r"operators without a kernel: (.*)", lambda m: "no kernel: " + ", ".join(re.findall(r"([\w.]+) \(\d+ nodes?", m[1]))),
    (r"number of iterations is not known", lambda m: "a Loop whose number of iterations depends on the batch"),
)


def rows_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def variant_of(name):
    tail = name.removesuffix(".onnx").rsplit(".", 1)[1]
    return next((title for title, pattern in VARIANTS if re.fullmatch(pattern, tail)), tail)


def reason_of(row):
    if row["verdict"] in ("wrong", "unresolved"):
        parts = []
        if not row.get("imports", True):
            parts.append(f"first loss {row['loss']:.6g}, ONNX Runtime's {row['reference']:.6g}")
        if row.get("gradient") != "right":
            parts.append("gradient " + (row.get("surrogate") or "; ".join(row.get("wrong", [])) or "not resolved by differences"))
        if not row.get("written", True):
            parts.append(f"written file: {row.get('message') or row.get('written_loss')}")
        return ", ".join(parts)
    text = re.sub(r"^fsdp-run: (\S+\.onnx: )?", "", row.get("message", "")).split("\n")[0]
    for pattern, words in REASONS:
        found = re.search(pattern, text)
        if found and pattern.startswith("number"):
            return words(found)
    found = re.match(REASONS[0][0], text)
    return REASONS[0][1](found) if found and re.findall(r"\(\d+ nodes?", text) else text[:200]


def cell(count):
    return f"{count['right']}/{sum(count.values())}" if count else ""


def short(text):
    return text.replace("|", "\\|")


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


OTHER_REASONS = (   # the meaning of a counterpart's messages: a pattern and a name
    (r"no gradient rule for op type '(\w+)'", "no gradient of {}"),
    (r"gradient builder has not been registered: (\w+)", "no gradient of {}"),
    (r"Gather with rank-\d+ indices", "no gradient of Gather with indices of two axes or more"),
    (r"No Op registered for (\w+) with domain_version", "an operator of a newer opset"),
    (r"No Previous Version of|Opset \d+ is under development", "an operator of a newer opset"),
    (r"gradient_builder_base.h:\d+", "outputs of LayerNormalization that are not there"),
    (r"no float32 initializer", "no float32 parameter (integers, float16)"),
    (r"schema\(::(\w+):\d+\)", "{} of opset 18"),
    (r"QuantizeLinear", "its rules for pairs of QuantizeLinear and DequantizeLinear"),
    (r"not output of any previous nodes|must be topologically sorted", "nodes out of order"),
    (r"no step within", "no step in the time given"),
)


def other_reason(message):
    for pattern, words in OTHER_REASONS:
        found = re.search(pattern, message)
        if found:
            return words.format(*found.groups())
    return "others"


def others(paths):
    """Returns the section on other trainers. `paths` maps titles to result files."""
    lines, reasons, titles = [], [], []
    for title, path in paths.items():
        rows = [r for r in rows_of(path) if r["verdict"] != "census failed"]
        last = [r.get("helped") or r for r in rows]
        for name, verdicts in ((title, [r["verdict"] for r in rows]), (title + ", helped", [r["verdict"] for r in last])):
            tools = collections.defaultdict(collections.Counter)
            for r, verdict in zip(rows, verdicts):
                tools[variant_of(r["file"])]["right" if verdict == "right" else "other"] += 1
            titles = titles or [t for t, _ in VARIANTS if t in tools]
            counts = collections.Counter(verdicts)
            total = f"{counts['right']}/{len(rows)} ({100 * counts['right'] / max(1, len(rows)):.1f} %)"
            other = ", ".join(f"{counts[v]} {v}" for v in ("wrong", "unresolved", "no step", "refused", "crashed") if counts[v])
            lines.append(f"| {name} | {total} | {other} | " + " | ".join(cell(tools[t]) for t in titles) + " |")
        why = collections.Counter(other_reason(r["message"]) for r in last if r["verdict"] in ("refused", "crashed"))
        reasons.append(f"- {title}: " + ", ".join(f"{text} ({n})" for text, n in why.most_common(14)) + ".")
    return "\n".join([
        "## Other trainers", "",
        "The same files, loss and differences, with a mean squared error, which each of them can train, and the parameters of float32 that",
        "fsdp-run trains (`bench/census/counterparts.py`, whose first comment says how each is called). *Helped*: files that were refused,",
        "tried again after what somebody could do to them by hand: nodes sorted, float16 made float32, axes fixed, onnxsim.simplify, an older",
        "opset, outputs of LayerNormalization named; and with weights of two axes or more alone.", "",
        "| trainer | right | the others | " + " | ".join(titles) + " |", "| --- |" + " --- |" * (len(titles) + 2), *lines, "",
        "Why files are refused, helped (times):", "", *reasons])


def main():
    words = argparse.ArgumentParser()
    words.add_argument("results")
    words.add_argument("--folder")
    words.add_argument("--planted")
    words.add_argument("--onnxsim")
    words.add_argument("--onnxruntime")
    words.add_argument("--date", default="")
    options = words.parse_args()
    rows = [r for r in rows_of(options.results) if r["verdict"] != "no reference"]
    right = sum(r["verdict"] == "right" for r in rows)
    tools = collections.defaultdict(collections.Counter)
    families = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for r in rows:
        family, variant = r["file"].split(".")[0], variant_of(r["file"])
        families[family][variant][r["verdict"]] += 1
        tools[variant][r["verdict"]] += 1
    titles = [t for t, _ in VARIANTS if t in tools]
    names = {".".join(r["file"].split(".")[:2]) for r in rows}
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    print(f"""# Census

Of {len(rows)} files of {len(names)} architectures, {right} ({100 * right / max(1, len(rows)):.1f} %) import, train with right gradients, and come
back as files that ONNX Runtime runs with the same loss.

The networks are tiny and have random weights. Two exporters of PyTorch wrote them; optimizers and quantizers of other projects
changed them (`bench/census/README.md`). A file counts as right when four things hold.

- *Imports*: the first loss is that of ONNX Runtime's outputs.
- *Trains*: a step ends with exit status 0.
- *Gradient*: products of the gradient with random directions equal central differences of another program's loss. It computes in
  float64 where it can. Rounding has no useful derivative; in quantized files the check uses the straight-through estimate: the clipped
  value plus a constant. Low-bit weights are frozen, and what else the file trains is checked. What differences do not find right,
  PyTorch's autograd decides, tensor by tensor, on the same graph in float64.
- *Written*: after three steps ONNX Runtime loads the written file, and its loss there is the program's own.

Right / files, by family and by the tool that wrote the file:
""")
    print("| family | all | " + " | ".join(titles) + " |")
    print("| --- |" + " --- |" * (len(titles) + 1))
    for family in sorted(families):
        every = sum((families[family][t] for t in titles), collections.Counter())
        print(f"| {family} | {cell(every)} | " + " | ".join(cell(families[family][t]) for t in titles) + " |")
    print("| all | " + cell(sum((tools[t] for t in titles), collections.Counter())) + " | " + " | ".join(
        cell(tools[t]) for t in titles) + " |")
    if options.folder:
        left = len(glob.glob(options.folder + "/*.onnx")) - len(rows_of(options.results))
        if left > 0:
            print(f"\nNot measured yet: {left} more files that the generator wrote, and what it has still to write (its families are those of "
                  "`architectures.py`).")
    print("\n## Those that are not right\n")
    groups = collections.defaultdict(list)
    for r in rows:
        if r["verdict"] != "right":
            groups[r["verdict"], reason_of(r)].append(r["file"].removesuffix(".onnx"))
    print("| verdict | reason | files |\n| --- | --- | --- |")
    for (verdict, reason), files in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        listed = ", ".join(files[:6]) + (f" and {len(files) - 6} more" if len(files) > 6 else "")
        print(f"| {verdict} | {short(reason)} | {listed} |")
    print("""
A refusal ends with exit status 2 and one line before anything is written. `unresolved` says that neither differences nor autograd
decide.""")
    if options.planted:
        planted = rows_of(options.planted)
        seen = sum(r.get("gradient") == "wrong" for r in planted)
        print(f"\nThe check itself: one tensor's gradient was spoiled in {len(planted)} runs (10 % longer, zero, or shifted by an element); {seen} were "
              "found wrong.")
    given = {t: p for t, p in (("onnxsim 0.8.1", options.onnxsim), ("onnxruntime-training 1.19.2", options.onnxruntime)) if p}
    if given:
        print("\n" + others(given))
    print(f"\n{options.date + ', ' if options.date else ''}{processor()}; {versions}.")


if __name__ == "__main__":
    main()
