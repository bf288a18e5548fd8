#!/usr/bin/env python3
"""Compares the measured with the predicted time of an update and of exposed communication, by model, strategy and
ranks.

    bench/predicted_steps.py [--ranks 1,2,4] [--strategies no_shard,full_shard] [--steps 60] [MODEL.onnx ...]

Default models: the models in samples/. Each row is a plan (`fsdp-run plan --json`, which measures the kernels), a
run for the median update time, and a short run with `--trace`. Communication is exposed while a rank waits, gathers
or reduces and computes nothing. The figure is the median update of the rank with the most. Ratios are measured /
predicted. Run it on an idle machine: if a prediction changes between calls, the machine is the cause, not the plan.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SAMPLES = ["mnist/mnist.onnx", "halves/halves.onnx", "bert/bert.onnx", "gpt/gpt.onnx"]
STRATEGIES = "no_shard,zero1,shard_grad_op,full_shard"


def ran(words):
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def uncovered(spans, covers):
    """Returns the total length of `spans` outside of `covers`."""
    total, covers = 0.0, sorted(covers)
    for begin, end in sorted(spans):
        at = begin
        for first, last in covers:
            if last <= at:
                continue
            if first >= end:
                break
            total += max(0.0, first - at)
            at = max(at, last)
        total += max(0.0, end - at)
    return total


def exposed(path):
    """Returns milliseconds per update: the median over updates, for the rank with the most."""
    rows = {}
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        if event["ph"] != "X" or event["name"].startswith("update "):
            continue
        key = (event["pid"], event["args"]["update"])
        rows.setdefault(key, ([], []))[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    ranks = {}
    for (rank, update), (computes, communicates) in rows.items():
        if update > 2:  # the first updates warm up
            ranks.setdefault(rank, []).append(uncovered(communicates, computes) / 1e3)
    return max(statistics.median(updates) for updates in ranks.values())


def measured(program, options, steps):
    """Returns a row: planned and measured update, planned and measured exposed communication, in milliseconds."""
    plan = json.loads(ran([program, "plan", *options, "--json"]))["update"]
    with tempfile.TemporaryDirectory() as folder:
        metrics, trace = pathlib.Path(folder, "m.jsonl"), pathlib.Path(folder, "t.json")
        run = [program, *options, "--run-dir", "none", "--steps"]
        ran([*run, str(steps), "--metrics", str(metrics)])
        ran([*run, "12", "--trace", str(trace)])
        ms = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])["median_step_ms"]
        return plan["ms"], ms, plan["exposed_ms"], exposed(trace)


def ratio(found, expected):
    return f"{found / expected:6.2f}" if expected > 0 else f"{'-':>6}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[str(ROOT / "samples" / s) for s in SAMPLES])
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--program", default=str(ROOT / "build/release/fsdp-run"))
    a = parser.parse_args()
    print(f"{'model':20} {'strategy':14} {'ranks':>5} {'predicted ms':>12} {'measured':>9} {'ratio':>6} {'exposed ms':>10} {'measured':>9} "
          f"{'ratio':>6}")
    for model in a.models:
        for ranks in a.ranks.split(","):
            for strategy in a.strategies.split(",") if ranks != "1" else ["no_shard"]:
                options = [model, "--eval-data", "none", "--nproc-per-node", ranks, "--strategy", strategy, "--seed", "1"]
                predicted, found, predicted_exposed, found_exposed = measured(a.program, options, a.steps)
                print(f"{pathlib.Path(model).stem:20} {strategy:14} {ranks:>5} {predicted:12.2f} {found:9.2f} {ratio(found, predicted)} "
                      f"{predicted_exposed:10.2f} {found_exposed:9.2f} {ratio(found_exposed, predicted_exposed)}", flush=True)


main()
