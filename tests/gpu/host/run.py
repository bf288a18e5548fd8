"""The checks of run.sh, and their table of results. Needs only the standard library."""

import concurrent.futures
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = ROOT / os.environ["OFSDP_BUILD"]
OUT = pathlib.Path(os.environ.get("OUT") or ROOT / "build/gpu/out")
PROGRAM = str(BUILD / "fsdp-run")
FIXTURES = ROOT / "tests/fixtures"
SAMPLES = ROOT / "samples"
# Seconds per command. A part takes less than ten minutes: some hosts end a longer command.
PATIENCE = {"first": 90, "checks": 240, "training": 120, "sanitizer": 170, "speed": 170, "kernels": 570, "products": 590}
# Untimed commands of a part run at once: a small run mostly waits for libraries to start on the host.
AT_ONCE = max(1, min(8, (os.cpu_count() or 1) // 2))
rows = []


def at_once(function, calls):
    """Runs all calls at once. Each call is a tuple of arguments."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(function, *call) for call in calls]:
            done.result()


def say(part, name, verdict, seconds, note=""):
    rows.append((part, name, verdict, f"{seconds:.1f}", note))
    print(f"{part:9} {name:34} {verdict:5} {seconds:6.1f} s  {note}", flush=True)


def run(part, name, command, environment=None):
    """Returns status, both outputs, seconds. The status is None if time ran out. The log gets the whole output."""
    began = time.monotonic()
    log = OUT / f"{part}.log"
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=PATIENCE[part],
                              env={**os.environ, **(environment or {})})
        status, text = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, text = None, (late.stdout or b"").decode(errors="replace")
    with open(log, "a") as file:
        file.write(f"\n==== {name}: {' '.join(map(str, command))}\n{text}\n==== status {status}\n")
    return status, text, time.monotonic() - began


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:150] if lines else ""


# --- checks: GoogleTest programs ---

FIRST = ["test_gpu_device_table", "test_gpu_cuda_movement", "test_gpu_cuda_pointwise"]
WITHOUT_CUDNN = {"OFSDP_CUDNN_LIBRARY": "none"}  # our own kernels, which cuDNN would replace
SHARDED = "test_gpu_operators"  # makes each kernel several times, and cuDNN's plans take a second each
SHARDS = 8


def run_shards(name, command, environment):
    """Works like `run`, with all shards of a GoogleTest program at once."""
    began = time.monotonic()

    def one(shard):
        return run("checks", f"{name}, shard {shard}", command,
                   {**(environment or {}), "GTEST_TOTAL_SHARDS": str(SHARDS), "GTEST_SHARD_INDEX": str(shard)})

    with concurrent.futures.ThreadPoolExecutor(SHARDS) as pool:
        done = list(pool.map(one, range(SHARDS)))
    statuses = [status for status, _, _ in done]
    worst = None if None in statuses else next((s for s in statuses if s != 0), 0)
    return worst, "\n".join(text for _, text, _ in done), time.monotonic() - began


def run_check(name, command, environment):
    return run("checks", name, command, environment)


def checks():
    found = {p.name: p for p in BUILD.rglob("test_gpu_*") if p.is_file() and os.access(p, os.X_OK)}
    order = [n for n in FIRST if n in found] + sorted(n for n in found if n not in FIRST)
    commands = [(name, name, None) for name in order]
    if "test_gpu_operators" in found:
        commands.append(("test_gpu_operators without cuDNN", "test_gpu_operators", WITHOUT_CUDNN))

    def check(name, program, environment):
        status, text, seconds = (run_shards if program == SHARDED else run_check)(name, [str(found[program])], environment)
        passed = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", text))
        skipped = len(set(re.findall(r"\[  SKIPPED \] (\S+)", text)))
        failed = sorted(set(re.findall(r"\[  FAILED  \] ([^\s,]+/[^\s,]+|\w+\.\w+)", text)))
        verdict = "ok" if status == 0 and not skipped else "skip" if status == 0 else "FAIL"
        note = f"{passed} passed"
        if skipped:
            why = re.search(r"Skipped\n(.*)|no CUDA device", text)
            note += f", {skipped} skipped: {(why.group(1) or why.group(0))[:110] if why else ''}"
        if failed:
            note += f", {len(failed)} failed: " + " ".join(f.split("/")[-1] for f in failed[:12])
        if status is None:
            note += ", out of time"
        elif status not in (0, 1):
            note += f", status {status}: {last_line(text)}"
        say("checks", name, verdict, seconds, note)

    at_once(check, [c for c in commands if is_wanted(c[0])])


# --- training ---


def words(text):
    return [w.replace("FIXTURES", str(FIXTURES)).replace("SAMPLES", str(SAMPLES)) for w in text.split()]


MLP = ("FIXTURES/mlp/model.onnx --loss cross_entropy --no-shuffle --optimizer sgd --lr 0.05 --momentum 0.9 "
       "--weight-decay 1e-4 --lr-schedule step --step-size 16 --gamma 0.5 --schedule-unit step "
       "--global-batch-size 24 --steps 32 --min-params 1000")
BERT = ("FIXTURES/bert_tiny/model.onnx --loss cross_entropy --optimizer adamw --lr 0.001 --weight-decay 0.01 "
        "--lr-schedule linear --warmup-steps 4 --total-steps 24 --clip-grad-norm 1 "
        "--freeze bert.embeddings.position_ids --freeze bert.embeddings.token_type_ids --no-shuffle "
        "--global-batch-size 12 --epochs 1000000 --steps 24")
MADE = "--loss cross_entropy --data synthetic --eval-data none"

# name, command, PyTorch's losses or none, tolerance
CASES = [
    ("mlp", MLP, "mlp", 2e-5),
    ("mlp, 2 forwards", MLP + " --grad-accum 2", "mlp", 2e-5),
    ("bert_tiny", BERT, "bert_tiny", 2e-5),
    ("gpt2_tiny", f"FIXTURES/gpt2_tiny/model.onnx {MADE} --batch-size 4 --steps 8 --clip-grad-norm 1", None, 5e-5),
    ("dropout", f"FIXTURES/dropout/model.onnx {MADE} --batch-size 5 --steps 9", None, 5e-5),
    ("norms", "FIXTURES/norms/model.onnx --loss cross_entropy --eval-data none --steps 6", None, 5e-5),
    ("blocks", f"FIXTURES/blocks/model.onnx {MADE} --batch-size 4 --steps 6", None, 5e-5),
    ("mnist", "SAMPLES/mnist/mnist.onnx --data synthetic --eval-data none --batch-size 16 --steps 10", None, 2e-4),
    ("bert sample", "SAMPLES/bert/bert.onnx --data synthetic --eval-data none --global-batch-size 8 --steps 6", None, 5e-5),
    ("gpt sample", "SAMPLES/gpt/gpt.onnx --eval-data none --global-batch-size 4 --steps 6", None, 5e-5),
    ("lamb", f"FIXTURES/bert_tiny/model.onnx {MADE} --batch-size 4 --steps 8 --optimizer lamb", None, 5e-5),
    ("traced", f"FIXTURES/gpt2_tiny/model.onnx {MADE} --batch-size 4 --steps 8 --trace {OUT}/trace.json", None, 5e-5),
    ("mlp TF32", MLP + " --matmul-precision high", "mlp", 5e-3),
    ("mlp bfloat16", MLP + " --param-dtype bfloat16", None, 5e-3),
    ("mlp float16", MLP + " --param-dtype float16", None, 5e-3),
    ("bert_tiny bfloat16", BERT + " --param-dtype bfloat16", None, 5e-3),
    ("gpt sample bfloat16",
     "SAMPLES/gpt/gpt.onnx --eval-data none --global-batch-size 4 --steps 6 --param-dtype bfloat16", None, 5e-3),
    ("mnist bfloat16",
     "SAMPLES/mnist/mnist.onnx --data synthetic --eval-data none --batch-size 16 --steps 10 --param-dtype bfloat16",
     None, 1e-2),
]


def train(case, name, command, folder, more, ranks=1, part="training", environment=None):
    """Returns (rows of metrics, hash of the trained file, seconds), or a message about the failure."""
    metrics, trained = folder / f"{name}.jsonl", folder / f"{name}.onnx"
    status, text, seconds = run(
        part, f"{case} {name}",
        [PROGRAM, *words(command), "--nproc-per-node", str(ranks), "--log-interval", "1", "--metrics", str(metrics),
         "--output", str(trained), *more], environment)
    if status != 0:
        return f"{name}: {'out of time' if status is None else last_line(text)}"
    found = [json.loads(line) for line in open(metrics)]
    return found, hashlib.sha256(trained.read_bytes()).hexdigest(), seconds


def losses(found):
    return [row["loss"] for row in found if row["kind"] == "step"]


def farthest(found, expected):
    if len(found) != len(expected) or len(found) < 2:
        return float("inf")
    worst = 0.0
    for a, b in zip(found, expected):
        if a is None or b is None:
            return float("inf")
        worst = max(worst, abs(a - b) / max(abs(b), 1e-30))
    return worst


def is_wanted(name):
    return re.search(os.environ.get("OFSDP_ONLY", ""), name) is not None


def training():
    def within(*case):
        with tempfile.TemporaryDirectory(dir=OUT) as name:
            one_case(*case, pathlib.Path(name))

    at_once(within, [case for case in CASES if is_wanted(case[0])])


def one_case(case, command, torch, allowed, folder, **how):
    part = how.get("part", "training")
    cuda = ["--device", "cuda"]
    got = {}
    for name, more in (("cuda", cuda), ("again", cuda), ("launched", [*cuda, "--cuda-graph", "off"]),
                       ("cpu", ["--device", "cpu"])):
        if name == "cpu" and torch:
            continue
        got[name] = train(case, name, command, folder, more, **how)
        if isinstance(got[name], str):
            return say(part, case, "skip" if "has no CUDA kernel" in got[name] else "FAIL", 0, got[name])
    found, trained, seconds = got["cuda"]
    expected = json.load(open(FIXTURES / torch / "expected.json"))["losses"] if torch else losses(got["cpu"][0])
    error = farthest(losses(found), expected)
    notes = [f"error {error:.1e} of {allowed:.0e} against {'PyTorch' if torch else 'the CPU'}"]
    good = error <= allowed
    for name in ("again", "launched"):
        same = trained == got[name][1] and losses(found) == losses(got[name][0])
        good = good and same
        notes.append(f"{name}: {'same bits' if same else 'OTHER BITS'}")
    end = found[-1]
    if end["peak_bytes"] != end["planned_peak_bytes"]:
        good = False
        notes.append(f"peak {end['peak_bytes']} of planned {end['planned_peak_bytes']}")
    say(part, case, "ok" if good else "FAIL", seconds, ", ".join(notes))
    return None


# --- first ---

# For ranks that share a card, under NCCL 2.30 or newer.
ON_ONE_CARD = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "1"}
FIRST_MINUTES = 10
FEW = MLP.replace("--steps 32", "--steps 8")
TINY = BERT.replace("--steps 24", "--steps 6")

# name, ranks, command, tolerance
TOGETHER = [
    ("full_shard", 2, FEW, 5e-5),
    ("shard_grad_op", 2, FEW + " --strategy shard_grad_op", 5e-5),
    ("no_shard", 2, FEW + " --strategy no_shard", 5e-5),
    ("zero1, accumulated", 2, FEW + " --strategy zero1 --grad-accum 2 --clip-grad-norm 0.1", 5e-5),
    ("copies alone", 2, FEW + " --strategy hybrid_shard --shard-size 1", 5e-5),
    ("hybrid 2 x 2", 4, FEW + " --strategy hybrid_shard --shard-size 2", 5e-5),
    ("hybrid 2 x 2, zero2", 4, FEW + " --strategy hybrid_shard_zero2 --shard-size 2 --clip-grad-norm 0.1", 5e-5),
    ("bfloat16, float32 sums", 2, TINY + " --param-dtype bfloat16", 5e-3),
    ("bfloat16, accumulated", 2, TINY + " --param-dtype bfloat16 --grad-accum 2", 5e-3),
    ("bfloat16 sums", 2, TINY + " --param-dtype bfloat16 --reduce-dtype bfloat16", 2e-2),
    ("gpt2_tiny, recomputed", 2,
     f"FIXTURES/gpt2_tiny/model.onnx {MADE} --batch-size 4 --steps 6 --activation-checkpointing unit", 5e-5),
]


def text_of(*command):
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def first():
    began = time.monotonic()
    card = text_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader") or "no nvidia-smi"
    version = (text_of(PROGRAM, "version").splitlines() or ["no version"])[0]
    commit = text_of("git", "rev-parse", "--short=8", "HEAD") or version
    say("first", "card, date, commit", "ok", 0, f"{card}; {datetime.date.today()}; {commit}")

    def left():
        return 60 * FIRST_MINUTES - (time.monotonic() - began)

    for case, ranks, command, allowed in TOGETHER:
        if not is_wanted(case):
            continue
        if left() < 30:
            say("first", case, "skip", 0, "not run: the time is over")
            continue
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            one_case(case, command, None, allowed, pathlib.Path(folder), ranks=ranks, part="first", environment=ON_ONE_CARD)
    own = next(BUILD.rglob("test_gpu_ranks"), None)
    if own and is_wanted("ranks_test") and left() > 60:
        status, text, seconds = run("first", "ranks_test", [str(own)], ON_ONE_CARD)
        say("first", "ranks_test", "ok" if status == 0 else "FAIL", seconds, last_line(text))
    minutes = left() / 60 - 0.5
    if minutes > 1 and is_wanted("throughput"):
        os.environ["OFSDP_THROUGHPUT"] = f"--models bert-512-mask,bert-512,gpt2-1024,gpt2-1024-mask --pairs 1 --minutes {minutes:.1f}"
        throughput()


# --- sanitizer ---

SMALL = [
    ("mlp", MLP.replace("--steps 32", "--steps 3")),
    ("bert_tiny", BERT.replace("--steps 24", "--steps 2")),
    ("gpt2_tiny bfloat16",
     f"FIXTURES/gpt2_tiny/model.onnx {MADE} --batch-size 2 --steps 2 --clip-grad-norm 1 --param-dtype bfloat16"),
    ("mnist", "SAMPLES/mnist/mnist.onnx --data synthetic --eval-data none --batch-size 2 --steps 2"),
    ("dropout", f"FIXTURES/dropout/model.onnx {MADE} --batch-size 5 --steps 2"),
]


def sanitizer():
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return say("sanitizer", "all", "skip", 0, "no compute-sanitizer")

    def look(kind, name, command):
        status, text, seconds = run(
            "sanitizer", f"{kind} {name}",
            [tool, "--tool", kind, "--error-exitcode", "9", PROGRAM, *words(command), "--nproc-per-node", "1",
             "--device", "cuda", "--cuda-graph", "off"])
        summary = re.search(r"(ERROR|RACECHECK) SUMMARY: (.*)", text)
        first = re.search(r"========= (?!COMPUTE|ERROR|RACECHECK)(\S.*)", text)
        note = summary.group(2) if summary else last_line(text)
        if status != 0 and first:
            note += "; " + first.group(1)[:110]
        say("sanitizer", f"{kind} {name}", "ok" if status == 0 else "FAIL", seconds, note)

    return at_once(look, [(kind, name, command) for kind in ("memcheck", "racecheck", "initcheck", "synccheck")
                          for name, command in SMALL if is_wanted(name)])


# --- speed ---


def bench(part, name, note):
    """Runs one program of bench/ and prints its output as the result."""
    program = BUILD / "bench" / name
    if not program.exists():
        return say(part, name, "skip", 0, f"{program} was not built")
    status, text, seconds = run(part, name, [str(program)])
    print(text)
    good = status == 0
    return say(part, name, "ok" if good else "FAIL", seconds,
               note if good else "out of time" if status is None else last_line(text))


def kernels():
    bench("kernels", "cuda_kernels", "shares of the copy bandwidth are above")


def products():
    bench("products", "products", "rates are above")


def speed():
    for name, command in (("mnist", "SAMPLES/mnist/mnist.onnx --data synthetic --eval-data none --batch-size 256"),
                          ("bert sample", "SAMPLES/bert/bert.onnx --data synthetic --eval-data none --global-batch-size 64"),
                          ("gpt sample", "SAMPLES/gpt/gpt.onnx --eval-data none --global-batch-size 64")):
        for dtype in ("float32", "bfloat16"):
            with tempfile.TemporaryDirectory(dir=OUT) as folder:
                metrics = folder + "/metrics.jsonl"
                status, text, seconds = run(
                    "speed", f"{name} {dtype}",
                    [PROGRAM, *words(command), "--nproc-per-node", "1", "--device", "cuda", "--steps", "200",
                     "--param-dtype", dtype, "--metrics", metrics, "--output", folder + "/out.onnx"])
                note = last_line(text)
                if status == 0:
                    end = [json.loads(line) for line in open(metrics)][-1]
                    note = f"median step {end['median_step_ms']} ms"
                say("speed", f"{name} {dtype}", "ok" if status == 0 else "FAIL", seconds, note)


# --- throughput ---


def throughput():
    """Runs the throughput bench, which prints during its run, and adds its lines to the table."""
    results = OUT / "throughput.jsonl"
    results.unlink(missing_ok=True)
    began = time.monotonic()
    status = subprocess.run([str(ROOT / "bench/gpu_vs_pytorch.sh"), "--results", str(results), "--log", str(OUT / "throughput.log"),
                             *shlex.split(os.environ.get("OFSDP_THROUGHPUT", ""))], cwd=ROOT, check=False).returncode
    for row in map(json.loads, open(results) if results.exists() else []):
        rows.append(("throughput", f"{row['setting']} {row['what']}", "FAIL" if row.get("failed") else "ok",
                     f"{row.get('seconds', 0):.1f}", row["text"].strip()))
    say("throughput", "all", "FAIL" if status else "ok", time.monotonic() - began, f"status {status}")


PARTS = {"first": first, "checks": checks, "training": training, "sanitizer": sanitizer, "products": products, "kernels": kernels, "speed": speed,
         "throughput": throughput}


def main():
    wanted = sys.argv[1:] or ["checks", "training"]
    for part in wanted:
        if part not in PARTS:
            sys.exit(f"no part {part}; there are {', '.join(PARTS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    smi = shutil.which("nvidia-smi")
    if smi:
        print(subprocess.run([smi, "-L"], text=True, stdout=subprocess.PIPE, check=False).stdout, end="")
    for part in wanted:
        (OUT / f"{part}.log").unlink(missing_ok=True)
        PARTS[part]()
    print("\n| part | what | | s | |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    failed = [row for row in rows if row[2] == "FAIL"]
    print(f"\n{len(rows)} lines, {len(failed)} of them FAIL; logs in {OUT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
