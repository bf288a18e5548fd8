#!/usr/bin/env python3
"""Runs the shell blocks of README.md and docs/ with the program of this build, each in a scratch folder with fixtures of
the tests under the names that the documents use. A command must succeed, unless the block shows its error, a line
"fsdp-run: ...": then it must fail with that line. exceptions.txt lists what is not run as it stands, and why.

    run_blocks.py FSDP_RUN [FILE...]   all documents, or some
    run_blocks.py --list               the blocks and what is done with each
    run_blocks.py --self-test          expects made-up documents to be found wrong
"""
import concurrent.futures
import gzip
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import blocks

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 60  # seconds for a block


class Exceptions:
    def __init__(self, text):
        self.rows = []
        for line in text.splitlines():
            if line and not line.startswith("#"):
                treatment, path, start, reason = [part.strip() for part in line.split(" | ")]
                assert treatment in ("skip", "plan") and reason, line
                self.rows.append((treatment, path, start))
        self.unused = set(self.rows)

    def treatment(self, path, command):
        for row in self.rows:
            if row[1] == path and command.startswith(row[2]):
                self.unused.discard(row)
                return row[0]
        return "run"


def example(path, first_line):
    """The block of a document that begins so: a file that its commands read."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return next("\n".join(b.lines) + "\n" for b in blocks.blocks_of(path, text) if b.lines[0].startswith(first_line))


def field(number, value):
    """A field of a protobuf message: a whole number below 128, or short bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(value)]) + value


def cube_model():
    """The model of docs/plugins.md: y = com.example.Cube(x w), its node named cube."""
    def declared(name):
        shape = field(2, field(1, field(2, "batch")) + field(1, field(1, 2)))
        return field(1, name) + field(2, field(1, field(1, 1) + shape))
    product = field(1, "x") + field(1, "w") + field(2, "xw") + field(4, "MatMul")
    cube = field(1, "xw") + field(2, "y") + field(3, "cube") + field(4, "Cube") + field(7, "com.example")
    weight = field(1, 2) + field(1, 2) + field(2, 1) + field(8, "w") + field(9, bytes(16))
    graph = field(1, product) + field(1, cube) + field(2, "g") + field(5, weight) + field(11, declared("x")) + field(
        12, declared("y"))
    body = bytes([7 << 3 | 2, 0x80 | len(graph) & 0x7f, len(graph) >> 7]) + graph  # 128 bytes or more
    return field(1, 8) + body + field(8, field(2, 17)) + field(8, field(1, "com.example") + field(2, 1))


def first_rows(source, target, rows):
    """The head of an IDX file of bytes, with its count of rows."""
    with gzip.open(source) as file:
        axes = file.read(4)[3]
        sizes = [int.from_bytes(file.read(4), "big") for _ in range(axes)]
        body = file.read(rows * math.prod(sizes[1:]))
    head = bytes([0, 0, 8, axes]) + b"".join(n.to_bytes(4, "big") for n in [rows, *sizes[1:]])
    with gzip.open(target, "wb", compresslevel=1) as file:
        file.write(head + body)


def furnish(folder, program, block):
    """Everything that commands of a document name."""
    path = block.path
    fixtures, samples = ROOT / "tests/fixtures", folder / "samples"
    (folder / "build/release").mkdir(parents=True)
    (folder / "build/release/fsdp-run").symlink_to(program)
    (folder / "fsdp-run").symlink_to(program)
    (folder / "docs").mkdir()
    if path in ("docs/configuration.md", "docs/from-accelerate.md"):  # whose files name BertLayer
        shutil.copy(ROOT / "samples/bert/bert.onnx", folder / "model.onnx")
        (folder / "model.yaml").write_text("loss: cross_entropy\ndata: synthetic\nsteps: 1\nbatch_size: 1\n")
    elif path == "docs/plugins.md" and "cube" in "".join(block.lines).lower():
        (folder / "model.onnx").write_bytes(cube_model())
    elif path == "docs/quantized.md":
        shutil.copy(fixtures / "quantized/pairs/model.onnx", folder / "quantized.onnx")
        shutil.copy(fixtures / "few_bits/nbits/model.onnx", folder / "model_int4.onnx")
        (folder / "tokens").symlink_to(fixtures / "few_bits/nbits/data")
        (folder / "data").symlink_to(fixtures / "quantized/pairs/data")
    else:
        shutil.copy(fixtures / "mlp/model.onnx", folder / "model.onnx")
        (folder / "model.yaml").write_text("loss: cross_entropy\n")
        (folder / "data").symlink_to(fixtures / "mlp/data")
    if path == "docs/losses.md":
        for name in ("student.onnx", "teacher.onnx"):
            shutil.copy(fixtures / "mlp/model.onnx", folder / name)
    shutil.copytree(fixtures / "artifacts/mlp_adamw", folder / "ARTIFACT_FOLDER")
    for name in ("mnist", "gpt", "bert"):
        (samples / name).mkdir(parents=True)
        for entry in (ROOT / "samples" / name).iterdir():
            if entry.name != "out" and (name, entry.name) != ("mnist", "data"):
                (samples / name / entry.name).symlink_to(entry)
    if "samples/mnist" in "".join(block.lines):  # some of its images
        (samples / "mnist/data").mkdir()
        for file in sorted((ROOT / "samples/mnist/data").glob("*.gz")):
            first_rows(file, samples / "mnist/data" / file.name, 512)
    (samples / "mnist/out").mkdir()
    shutil.copy(ROOT / "samples/mnist/mnist.onnx", samples / "mnist/out/mnist.onnx")
    plugin = pathlib.Path(program).parent / "plugins/examples/librms_norm.so"
    if plugin.exists():
        shutil.copy(plugin, folder / "libmyops.so")
    (folder / "default_config.yaml").write_text((fixtures / "accelerate/guide_2024_09.yaml").read_text())
    (folder / "fsdp.yaml").write_text(example("docs/from-accelerate.md", "# fsdp.yaml"))
    (folder / "ds.json").write_text(example("docs/from-deepspeed.md", "{"))
    (folder / "gpus.yaml").write_text(example("docs/plan.md", "hosts: 4"))
    (folder / "two_hosts.yaml").write_text("hosts: 2\nranks_per_host: 1\ninside: {alpha_us: 3, beta_gbs: 100}\n"
                                           "between: {alpha_us: 14, beta_gbs: 5}\n")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def planned(command):
    return re.sub(r"\bfsdp-run ", "fsdp-run plan ", command)


def any_rank(line):  # several may fail in the same way, and one of them says so
    return re.sub(r"\brank \d+:", "rank N:", line)


def shown_error(block):
    return next((line for line in block.lines if line.startswith("fsdp-run: ")), None)


def run(block, commands, folder):
    """One line that says what is wrong, or nothing."""
    port, error = free_port(), shown_error(block)
    ports = {p: port for p in re.findall(r"127\.0\.0\.1 MASTER_PORT=(\d+)", " ".join(commands))}
    for old, new in ports.items():
        commands = [command.replace(old, new) for command in commands]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "OFSDP_RUN_DIR")}
    environment |= {"PATH": f"{folder}:{environment['PATH']}", "OMP_WAIT_POLICY": "passive"}
    try:
        done = subprocess.run(["/bin/bash", "-e", "-c", "\n".join(commands)], cwd=folder, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"has not ended within {PATIENCE} s"
    said = done.stderr.strip().splitlines()
    if error is None:
        return f"exit status {done.returncode}: {said[-1] if said else 'nothing said'}" if done.returncode else ""
    for old, new in ports.items():
        error = error.replace(old, new)
    if done.returncode == 0:
        return f"expected '{error}', found exit status 0"
    same = any_rank(error) in [any_rank(line) for line in said]
    return "" if same else f"expected '{error}', found '{said[0] if said else ''}'"


def jobs_of(root, paths, exceptions):
    """Blocks, each with the commands that are run of it."""
    jobs = []
    for path in paths:
        for block in blocks.blocks_of(path, (root / path).read_text(encoding="utf-8")):
            if not block.is_shell():
                continue
            commands = []
            for command in block.commands():
                treatment = exceptions.treatment(path, command)
                if treatment != "skip":
                    commands.append(planned(command) if treatment == "plan" else command)
                if treatment == "plan":
                    block.lines = [line for line in block.lines if not line.startswith("fsdp-run: ")]
            if commands:
                jobs.append((block, commands))
    return jobs


def wrong_of(jobs, runner):
    """The lines of what is wrong; `runner` runs the commands of a block. Two at a time: most wait a while."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda job: runner(*job), jobs))
    return [f"{block.path}:{block.line}: {'; '.join(commands)}: {line}"
            for (block, commands), line in zip(jobs, found, strict=True) if line]


def documents():
    return ["README.md", *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob("*.md"))]


def run_all(program, paths):
    exceptions = Exceptions((HERE / "exceptions.txt").read_text(encoding="utf-8"))

    def runner(block, commands):
        with tempfile.TemporaryDirectory(prefix="ofsdp_docs_") as name:
            folder = pathlib.Path(name)
            furnish(folder, program, block)
            return run(block, commands, folder)

    began = time.monotonic()
    jobs = jobs_of(ROOT, paths or documents(), exceptions)
    wrong = wrong_of(jobs, runner)
    if not paths:
        wrong += [f"exceptions.txt: no command of {path} begins with '{start}'" for _, path, start in
                  sorted(exceptions.unused)]
    count = sum(len(commands) for _, commands in jobs)
    print(f"{count} commands of {len(jobs)} blocks ran in {time.monotonic() - began:.0f} s, {len(wrong)} are wrong")
    return wrong


def self_test():
    rows = Exceptions("skip | a.md | cmake | no compiler\nplan | a.md | fsdp-run far | two hosts\n")
    text = ("Text.\n\n    $ fsdp-run good\n    output\n\n    # a comment\n    fsdp-run one \\\n        --two   # why\n\n"
            "Text.\n\n    cmake --preset x\n\n    fsdp-run far --away\n\n    fsdp-run: a message\n\n    key: value\n")
    ran = []

    def runner(block, commands):
        ran.extend(commands)
        return ""

    with tempfile.TemporaryDirectory() as name:
        pathlib.Path(name, "a.md").write_text(text, encoding="utf-8")
        jobs = jobs_of(pathlib.Path(name), ["a.md"], rows)
        wrong, bad = wrong_of(jobs, runner), wrong_of(jobs, lambda block, commands: "is wrong")
        block = blocks.Block("a.md", 1, ["$ fsdp-run x", "fsdp-run: an error"])
        results = [run(block, ["echo 'fsdp-run: an error' >&2; exit 2"], pathlib.Path(name)),
                   run(block, ["echo 'fsdp-run: another' >&2; exit 2"], pathlib.Path(name)),
                   run(block, ["true"], pathlib.Path(name)),
                   run(blocks.Block("a.md", 1, ["x"]), ["exit 3"], pathlib.Path(name))]
    expected = ["fsdp-run good", "fsdp-run one --two", "fsdp-run plan far --away"]
    checks = {"commands": sorted(ran) == sorted(expected), "right": wrong == [], "wrong": len(bad) == 3, "unused": not rows.unused,
              "same error": results[0] == "", "another error": "another" in results[1],
              "no error": "status 0" in results[2], "failure": "status 3" in results[3]}
    failed = [name for name, good in checks.items() if not good]
    print(f"run_blocks self-test: {len(checks)} checks, failed: {', '.join(failed) or 'none'}")
    return failed


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return 1 if self_test() else 0
    if args == ["--list"]:
        exceptions = Exceptions((HERE / "exceptions.txt").read_text(encoding="utf-8"))
        for block, commands in jobs_of(ROOT, documents(), Exceptions("")):
            for command in commands:
                print(f"{exceptions.treatment(block.path, command):5}{block.path}:{block.line}: {command}")
        return 0
    wrong = run_all(pathlib.Path(args[0]).resolve(), args[1:])
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
