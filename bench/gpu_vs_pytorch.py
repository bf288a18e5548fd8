"""The measurements of gpu_vs_pytorch.sh: exports, then fsdp-run and PyTorch in turn for each setting, with a line
for each run. Needs only the standard library."""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from card_memory import Card

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = ROOT / os.environ["OFSDP_BUILD"] / "fsdp-run"
PEER = [os.environ.get("PEER_PYTHON", "python3"), str(ROOT / "bench/pytorch_gpu.py")]
PEAK = float(os.environ.get("PEAK_TFLOPS", "989")) * 1e12
MODELS = ["mnist", "bert-128", "gpt2-1024", "bert-512", "bert-512-mask", "gpt2-1024-mask"]
WINDOWS = 3  # on either side; the figure is the median of their means
# Our goal against one peer: this many times its rate, this share of its memory.
ASKED = {"eager": 3.0, "fsdp2": 1.8, "compile": 1.0, "memory": 0.85}
NAMES = {"on": "fsdp-run, deterministic on", "off": "fsdp-run, deterministic off", "eager": "PyTorch eager",
         "fsdp2": "PyTorch eager FSDP2", "compile": "PyTorch torch.compile with FSDP2"}


@dataclasses.dataclass
class Setting:
    name: str
    model: str
    sequence: int  # 0: images
    batch: int
    kinds: list  # peers
    warmup: int
    steps: int  # in a window
    patience: int  # seconds a run
    mask: bool = False  # texts fill half to all of the tokens; the rest is padding
    file: pathlib.Path = None
    flops: int = 0  # a token
    rows: dict = dataclasses.field(default_factory=dict)  # program -> a row a pair

    def rate(self, row):
        """Returns tokens per second, or for images steps per second."""
        return 1e3 / row["median_ms"] * (self.batch * self.sequence or 1)


def settings(a):
    both = ["fsdp2", "compile"]
    made = [Setting("mnist", "mnist", 0, 64, ["eager"], 40, 300, 60),
            Setting("bert-128", "bert", 128, 512, both, 8, 10, 150),
            Setting("gpt2-1024", "gpt2", 1024, 64, both, 8, 10, 150),
            Setting("bert-512", "bert", 512, 128, both, 8, 10, 150),
            Setting("bert-512-mask", "bert", 512, 128, both, 8, 10, 150, mask=True),
            Setting("gpt2-1024-mask", "gpt2", 1024, 64, both, 8, 10, 150, mask=True)]
    for s in made:
        if a.tiny:
            s.batch, s.warmup, s.steps, s.patience = 2, 4, 2, 300
            s.sequence = min(s.sequence, 32)
        s.batch = a.batch.get(s.name, s.batch)
        s.steps = a.steps or s.steps
    return [s for s in made if s.name in a.models]


LATE = "not done after"


def reason(err):
    """Returns the line with the reason: fsdp-run's, or PyTorch's exception (more lines may follow it), or the last
    line."""
    lines = [line for line in err.splitlines() if line.strip()] or [""]
    ours = [line for line in lines if line.startswith("fsdp-run: ")]
    raised = [line for line in lines if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception)\b", line)]
    return lines[-1] if lines[-1].startswith(LATE) else ours[0] if ours else raised[-1] if raised else lines[-1]


class Bench:
    def __init__(self, a):
        self.a, self.failed = a, 0
        self.deadline = time.monotonic() + 60 * a.minutes
        self.lock = threading.Lock()
        self.log = open(a.log, "w", encoding="utf-8")
        self.results = open(a.results, "w", encoding="utf-8")

    def run(self, command, patience, environment=None):
        """Returns (output, None), or (None, reason)."""
        left = self.deadline - time.monotonic()
        if left < (5 if self.a.tiny else 20):
            return None, "not run: the time is over (--minutes)"
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True,
                                   env=environment or {**os.environ, "OMP_WAIT_POLICY": "passive"})
        try:
            out, err = process.communicate(timeout=min(patience, left))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err += f"\n{LATE} {time.monotonic() - began:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        with self.lock:
            self.log.write(f"\n==== {' '.join(map(str, command))}\n{out}{err}\n==== status {process.returncode}, "
                           f"{time.monotonic() - began:.1f} s\n")
            self.log.flush()
        if process.returncode == 0:
            return out, None
        return None, f"status {process.returncode}: {reason(err)[:200]}"

    def peer(self, arguments, patience):
        environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "OMP_WAIT_POLICY")}
        found = os.environ.get("OFSDP_HOST_LIBRARY_PATH")
        if found:
            environment["LD_LIBRARY_PATH"] = found
        tiny = ["--tiny"] if self.a.tiny else []
        return self.run([*PEER, *map(str, arguments), *tiny], patience, environment)

    def export(self, s):
        """Exports the setting's model if it is missing, and sets `s.file`. MNIST's model is in the repository."""
        if s.model == "mnist":
            s.file = ROOT / "samples/mnist/mnist.onnx"
            return
        folder = ROOT / "build/peer_models"
        folder.mkdir(parents=True, exist_ok=True)
        s.file = folder / f"gpu_{s.name}{'_tiny' if self.a.tiny else ''}.onnx"
        cost = pathlib.Path(f"{s.file}.json")
        began = time.monotonic()
        why = None
        if not cost.exists():  # written last
            _, why = self.peer(["--model", s.model, "--sequence", s.sequence, "--batch", s.batch, "--export", s.file,
                                *(["--mask"] if s.mask else [])], 200)
        if why is None:
            found = json.loads(cost.read_text(encoding="utf-8"))
            s.flops = found["flops_per_token"]
            seconds = time.monotonic() - began
            self.tell(s, "export", f"{found['parameters'] / 1e6:.1f} million parameters, {s.flops / 1e6:.1f} MFLOP a token; "
                      f"batch {s.batch} x {s.sequence} tokens; {seconds:.0f} s", {"seconds": seconds})
        else:
            self.missing(s, "export", why)
            s.file = None

    def ours(self, s, deterministic):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
            # Images are read from a file: making 50,000 normal numbers takes longer than a step.
            kind = ["--loss", "nll", "--prediction", "logits", "--data", ROOT / "samples/mnist/data.yaml"] if s.model == "mnist" else [
                "--loss", "cross_entropy", "--param-dtype", "bfloat16", "--data", f"{s.file}.data" if s.mask else "synthetic"]
            _, why = self.run(
                [PROGRAM, s.file, *kind, "--eval-data", "none", "--optimizer", "adamw", "--lr", "1e-4",
                 "--batch-size", str(s.batch), "--steps", str(s.warmup + WINDOWS * s.steps), "--device", "cuda",
                 "--nproc-per-node", "1", "--deterministic", deterministic, "--metrics", metrics.name], s.patience)
            if why:
                return None, why
            rows = [json.loads(line) for line in open(metrics.name, encoding="utf-8")]
        times = [row["step_ms"] for row in rows if row["kind"] == "step"][s.warmup:]
        windows = [statistics.mean(times[i:i + s.steps]) for i in range(0, len(times), s.steps)]
        end = rows[-1]
        return {"median_ms": statistics.median(windows), "windows_ms": windows, "loss": rows[-2]["loss"],
                "peak": end["peak_bytes"][0], "planned": end["planned_peak_bytes"][0]}, None

    def theirs(self, s, kind):
        out, why = self.peer(["--model", s.model, "--sequence", s.sequence, "--kind", kind, "--batch", s.batch,
                              "--warmup", s.warmup, "--steps", s.steps, "--windows", WINDOWS,
                              "--device", self.a.peer_device, *(["--mask"] if s.mask else [])], s.patience)
        return (None, why) if why else (json.loads(out.splitlines()[-1]), None)

    def one(self, s, pair, what):
        began = time.monotonic()
        card = Card()
        row, why = self.ours(s, what) if what in ("on", "off") else self.theirs(s, what)
        card.ended.set()
        if why:
            return self.missing(s, f"pair {pair}: {NAMES[what]}", why)
        row["card"], row["rate"], row["seconds"] = card.most, s.rate(row), time.monotonic() - began
        s.rows.setdefault(what, {})[pair] = row
        self.tell(s, f"pair {pair}: {NAMES[what]}", described(s, row), row)

    def missing(self, s, what, why):
        self.failed += 1
        self.tell(s, what, why, {"failed": True})

    def tell(self, s, what, text, row):
        with self.lock:
            print(f"{s.name:14} {what:47} {text}", flush=True)
            self.results.write(json.dumps({"setting": s.name, "what": what, "text": text, **row}) + "\n")
            self.results.flush()

    def compare(self, s, pair):
        for mine in ("on", "off"):
            for kind in s.kinds:
                a, b = (s.rows.get(what, {}).get(pair) for what in (mine, kind))
                if a and b:
                    shares = [("rate", a["rate"] / b["rate"]), *memories(a, b)]
                    self.tell(s, f"pair {pair}: {mine} / {NAMES[kind]}",
                              ", ".join(f"{name} {share:.3f}" for name, share in shares), {"ratios": dict(shares)})


def memories(a, b):
    """Returns fsdp-run's memory divided by PyTorch's, as (name, ratio)."""
    pairs = (("peak / allocated", "peak", "allocated"), ("peak / reserved", "peak", "reserved"), ("card / card", "card", "card"))
    return [(name, a[x] / b[y]) for name, x, y in pairs if a.get(x) and b.get(y)]


def described(s, row):
    unit = "tokens/s" if s.sequence else "steps/s"
    text = f"{row['rate']:10.{0 if row['rate'] > 1000 else 1}f} {unit}, {row['median_ms']:.3f} ms a step"
    if s.flops:
        text += f", MFU {100 * s.flops * row['rate'] / PEAK:.1f} %"
    for name in ("peak", "allocated", "reserved", "card"):
        if row.get(name):
            text += f", {name} {row[name] / 2**30:.2f} GiB"
    if row.get("peak") and row["peak"] != row["planned"]:
        text += f" (planned {row['planned']})"
    return text + f"; {row['seconds']:.0f} s in all"


def table(made):
    """Prints the median ratios, next to the goal for each."""
    say("\n| setting | what | asked | deterministic on | off |\n| --- | --- | --- | --- | --- |")
    for s in made:
        for kind in s.kinds:
            both = {mine: [(s.rows[mine][p], row) for p, row in s.rows.get(kind, {}).items() if p in s.rows.get(mine, {})]
                    for mine in ("on", "off")}

            def line(what, asked, ratio):
                cells = []
                for mine in ("on", "off"):
                    found = [r for r in (ratio(a, b) for a, b in both[mine]) if r]
                    cells.append(f"{statistics.median(found):.3f}" if found else "-")
                say(f"| {s.name} | {what} {NAMES[kind]} | {asked} | {' | '.join(cells)} |")

            line("rate over", f"{ASKED[kind]:.2f} or more", lambda a, b: a["rate"] / b["rate"])
            if s.sequence:
                for name in ("peak / allocated", "peak / reserved", "card / card"):
                    asked = f"{ASKED['memory']} or less" if name == "peak / allocated" else ""
                    line(f"{name},", asked, lambda a, b, n=name: dict(memories(a, b)).get(n))


def say(text):
    print(text, flush=True)


def arguments():
    def batch(text):
        name, _, number = text.partition("=")
        return name, int(number)

    p = argparse.ArgumentParser(prog="gpu_vs_pytorch.sh")
    p.add_argument("--models", default=",".join(MODELS), help="which, comma-separated")
    p.add_argument("--pairs", type=int, default=1)
    p.add_argument("--steps", type=int, help="of a timed window (10; MNIST 300)")
    p.add_argument("--batch", type=batch, action="append", default=[], metavar="MODEL=N")
    p.add_argument("--minutes", type=float, default=8, help="no run begins, and none goes on, after that")
    p.add_argument("--tiny", action="store_true", help="small models, for a try without a GPU")
    p.add_argument("--peer-device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--results", default="build/peer_models/gpu.jsonl", help="a JSON line a run")
    p.add_argument("--log", default="build/peer_models/gpu.log", help="what all runs printed")
    a = p.parse_args()
    a.models, a.batch = a.models.split(","), dict(a.batch)
    unknown = {*a.models, *a.batch} - set(MODELS)
    if unknown:
        p.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    return a


def main():
    a = arguments()
    for path in (a.results, a.log):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the running process too
    made, bench = settings(a), Bench(a)
    say(f"MFU: tokens/s x (6 N + attention) / {PEAK / 1e12:.0f} TFLOP/s; N without position and type embeddings, attention 12 x "
        "layers x width x sequence, half of it where causal")
    threads = [threading.Thread(target=bench.export, args=(s,)) for s in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for s in [s for s in made if s.file]:
        for pair in range(1, a.pairs + 1):
            for what in dict.fromkeys(("on", s.kinds[0], "off", s.kinds[-1])):  # in turn
                bench.one(s, pair, what)
            bench.compare(s, pair)
    table(made)
    say(f"\nlog: {a.log}" + (f"; {bench.failed} did not run" if bench.failed else ""))
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
