#!/usr/bin/env python3
"""Runs `fsdp-run check` on each folder's model, with the options of the folder's own run.

    check_sweep.py FOLDER... --fsdp-run build/release/fsdp-run [--limit 60] [--extra '--param-dtype bfloat16']
                   [--json FILE]

A folder has one of three forms:

- case.json with `args`
- expected.json with `flags`; a check.py next to or above the folder turns them into options
- ONNX files, each with a YAML file of the same name; any other YAML files are further runs

A folder with none of these means all folders in it. A single ONNX file is checked with only --extra. If it has arrays
next to it (bench/census/generate.py), it is checked as the census trains it; this needs numpy, onnx and onnxruntime.
Prints a line for each model, then the counts:

- agrees: how many parameters were compared, and how many not
- loss only: no parameter was compared within the time
- nothing compared
- differs: parameter, value, node
- refused, although a run takes the model; or refused as the run is
- failed
- late: longer than the limit

Exit status 0 only if every model agrees or is refused as the run is; else 1.
"""
import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time


def recorded(folder):
    """Yields the arguments for the runs of expected.json, one per graph. check.py prints its command; the program
    given to it fails at once."""
    with open(os.path.join(folder, "expected.json")) as file:
        graphs = json.load(file)["graphs"]
    script = os.path.join(folder, "..", "check.py")
    for graph in graphs:
        command = [sys.executable, script, folder, "--fsdp-run", "/bin/false", "--graph", graph, "--ranks", "1", "--print"]
        printed = subprocess.run(command, capture_output=True, text=True).stdout
        line = next((s for s in printed.splitlines() if s.startswith("/bin/false ")), None)
        if line is None:
            print("no command for", graph, "of", folder, file=sys.stderr)
        else:
            yield graph, shlex.split(line)[1:], True


def configured(folder):
    names = os.listdir(folder)
    for model in sorted(n for n in names if n.endswith(".onnx")):
        base = os.path.join(folder, model)
        runs = [n for n in sorted(names) if n.endswith(".yaml") and "strategy:" in open(os.path.join(folder, n)).read()]
        for run in runs:
            yield run, [base] if run == model[:-5] + ".yaml" else [base, "--config", os.path.join(folder, run)], True


def of_census(path, scratch):
    """Returns the arguments with which the census trains a file, or nothing."""
    stem = path[:-len(".onnx")]
    if not any(os.path.exists(s + ".npz") for s in (stem, stem.rsplit(".", 1)[0])):
        return None
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/census"))
    import numpy
    import run as census
    random = numpy.random.default_rng(0)
    case = census.Case(path)
    model = case.model()
    wide = census.graphs.widened(model) if census.kind_of(model) == "narrow" else model
    feeds, prediction = case.feeds(model, random), case.prediction(model)
    loss = case.loss(census.graphs.values(wide, [prediction], feeds)[prediction], random)
    data = os.path.join(scratch, os.path.basename(stem))
    os.makedirs(data, exist_ok=True)
    rows = case.save(data, feeds, loss)
    return [path, "--data", data, "--loss", loss.kind, "--prediction", prediction, "--labels", "labels", "--batch-size", str(rows),
            "--no-shuffle"]


def runs_of(folder, scratch):
    """Yields (label, arguments, whether a run takes them) for each run of a folder."""
    here = os.path.basename(os.path.normpath(folder))
    if os.path.isfile(folder):
        try:
            args = of_census(folder, scratch)
        except Exception as e:  # noqa: BLE001: ONNX Runtime's own reason
            print("no reference for", here, "-", str(e).splitlines()[0][:200], file=sys.stderr)
            return
        if args:
            yield here, args, True
            return
        yield here, [folder], True
    elif os.path.exists(os.path.join(folder, "case.json")):
        with open(os.path.join(folder, "case.json")) as file:
            case = json.load(file)
        if "args" in case:
            args = [a.replace("{case}", folder).replace("{tmp}", scratch).replace("{out}", scratch) for a in case["args"]]
            yield here, args, not case.get("exit")
    elif os.path.exists(os.path.join(folder, "expected.json")):
        yield from (("%s/%s" % (here, label), args, taken) for label, args, taken in recorded(folder))
    elif found := list(configured(folder)):
        yield from (("%s/%s" % (here, label), args, taken) for label, args, taken in found)
    else:
        for name in sorted(os.listdir(folder)):
            if os.path.isdir(os.path.join(folder, name)) and name != "data":
                yield from runs_of(os.path.join(folder, name), scratch)


def check(program, args, limit):
    """Returns (exit status or None, the JSON object or None, stderr, wall seconds, user seconds)."""
    command = [program, "check", *args, "--json", "--limit", "%ds" % limit]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid or time.monotonic() - began > 1.5 * limit:
                break
            time.sleep(0.02)
        wall = time.monotonic() - began
        if not pid:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        out.seek(0)
        err.seek(0)
        text = out.read()
        code = os.waitstatus_to_exitcode(status) if pid else None
        return code, json.loads(text) if text.startswith("{") else None, err.read().strip(), wall, usage.ru_utime


def judge(result, taken, limit):
    code, found, errors, wall, user = result
    if code is None or min(wall, user) > limit:
        return "late", errors
    if code == 2:
        return ("refused" if taken else "refused as the run is"), errors
    if code != 0:
        return ("differs" if code == 1 and found else "failed"), errors
    if found["parameters"]:
        return "agrees", ""
    # a model without trained parameters has nothing to compare, so nothing is missed
    return ("nothing compared" if found["loss"][1] is None else "loss only" if found["not_checked"] else "agrees"), ""


def differences(found):
    """Returns each parameter's difference. JSON has null for a difference that is not a number."""
    return {name: math.inf if value is None else value for name, value in (found or {}).get("parameters", {}).items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--fsdp-run", required=True)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--extra", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows, counts = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        for folder in options.folders:
            for label, args, taken in runs_of(os.path.abspath(folder), scratch):
                if options.only not in label:
                    continue
                result = check(options.fsdp_run, [*args, *shlex.split(options.extra)], options.limit)
                verdict, text = judge(result, taken, options.limit)
                largest = max(differences(result[1]).values(), default=0)
                compared, left = len(differences(result[1])), len((result[1] or {}).get("not_checked", []))
                print("%-21s %s: %.1f s, %.1f s of user time; %d parameters compared, %d not; largest %.2g %s"
                      % (verdict, label, result[3], result[4], compared, left, largest, text), flush=True)
                counts[verdict] = counts.get(verdict, 0) + 1
                rows.append({"label": label, "args": args, "verdict": verdict, "text": text, "json": result[1],
                             "wall": result[3], "user": result[4]})
    print("; ".join("%s %d" % item for item in sorted(counts.items())), "- longest %.1f s" % max((r["wall"] for r in rows), default=0))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0 if set(counts) <= {"agrees", "refused as the run is"} else 1


if __name__ == "__main__":
    sys.exit(main())
