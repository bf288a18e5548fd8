#!/usr/bin/env python3
"""Runs the shell blocks of README.md and docs/ with this build's program. Each runs in a scratch folder with test
fixtures under the names in the documents. A command must succeed, unless the block shows an error line "fsdp-run: ...".
Then it must fail with this line. exceptions.txt lists the commands that do not run as written, with reasons.

The blocks of docs/start.md, and of each page of docs/howto, run one after the other in one folder. In the user
documents, the output after a prompt must match the commands' output. A number matches any number, "..." any text, and a
line "..." any lines.

    run_blocks.py FSDP_RUN [FILE...]   all documents, or some
    run_blocks.py --list               the blocks and the treatment of each
    run_blocks.py --self-test          expects made-up documents to be found wrong
"""
import concurrent.futures
import gzip
import math
import os
import pathlib
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib

import blocks

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 60  # seconds per block
PROMPT = blocks.PROMPT


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
    """Returns the document's block that begins with `first_line`: a file for its commands."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return next("\n".join(b.lines) + "\n" for b in blocks.blocks_of(path, text) if b.lines[0].startswith(first_line))


def field(number, value):
    """Returns a field of a protobuf message: a whole number below 128, text or bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    size, count = b"", len(value)
    while count > 0x7f:
        size, count = size + bytes([0x80 | count & 0x7f]), count >> 7
    return bytes([number << 3 | 2]) + size + bytes([count]) + value


def cube_model():
    """Returns the model in docs/howto/plugin.md: y = com.example.Cube(x w), with a node named cube."""
    def declared(name):
        shape = field(2, field(1, field(2, "batch")) + field(1, field(1, 2)))
        return field(1, name) + field(2, field(1, field(1, 1) + shape))
    product = field(1, "x") + field(1, "w") + field(2, "xw") + field(4, "MatMul")
    cube = field(1, "xw") + field(2, "y") + field(3, "cube") + field(4, "Cube") + field(7, "com.example")
    weight = field(1, 2) + field(1, 2) + field(2, 1) + field(8, "w") + field(9, bytes(16))
    graph = field(1, product) + field(1, cube) + field(2, "g") + field(5, weight) + field(11, declared("x")) + field(
        12, declared("y"))
    return field(1, 8) + field(7, graph) + field(8, field(2, 17)) + field(8, field(1, "com.example") + field(2, 1))


def first_rows(source, target, rows):
    """Writes the first rows of an IDX file of bytes, with the new row count."""
    with gzip.open(source) as file:
        axes = file.read(4)[3]
        sizes = [int.from_bytes(file.read(4), "big") for _ in range(axes)]
        body = file.read(rows * math.prod(sizes[1:]))
    head = bytes([0, 0, 8, axes]) + b"".join(n.to_bytes(4, "big") for n in [rows, *sizes[1:]])
    with gzip.open(target, "wb", compresslevel=1) as file:
        file.write(head + body)


def png(width, height, pixels):
    """Returns a PNG file of grey bytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + pixels[y * width:(y + 1) * width] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def pictures(images, labels, folder, count):
    """Writes the first images of IDX files into a folder for each class."""
    with gzip.open(images) as file:
        pixels = file.read()[16:]
    with gzip.open(labels) as file:
        classes = file.read()[8:]
    for i in range(count):
        target = folder / str(classes[i]) / f"{i:05}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(png(28, 28, pixels[784 * i:784 * (i + 1)]))


def floats(count, seed):
    """Returns `count` float32 values between -0.5 and 0.5, the same on every machine."""
    drawn = random.Random(seed)
    return struct.pack(f"<{count}f", *(drawn.random() - 0.5 for _ in range(count)))


def classifier(inputs, hidden, classes):
    """Returns a perceptron in the form that scikit-learn's converter writes: logits = relu(x w1 + b1) w2 + b2."""
    def declared(name, width):
        shape = field(2, field(1, field(2, "batch")) + field(1, field(1, width)))
        return field(1, name) + field(2, field(1, field(1, 1) + shape))

    def weight(name, *shape):
        return field(5, b"".join(field(1, size) for size in shape) + field(2, 1) + field(8, name) +
                     field(9, floats(math.prod(shape), name)))

    def node(operator, names, output):
        return field(1, b"".join(field(1, name) for name in names) + field(2, output) + field(4, operator))

    graph = (node("MatMul", ["x", "fc1.weight"], "xw") + node("Add", ["xw", "fc1.bias"], "h") + node("Relu", ["h"], "r") +
             node("MatMul", ["r", "fc2.weight"], "rw") + node("Add", ["rw", "fc2.bias"], "logits") + field(2, "g") +
             weight("fc1.weight", inputs, hidden) + weight("fc1.bias", hidden) + weight("fc2.weight", hidden, classes) +
             weight("fc2.bias", classes) + field(11, declared("x", inputs)) + field(12, declared("logits", classes)))
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def flowers():
    """Returns a table in the form of Fisher's irises: four measures that depend on the class, and the class."""
    drawn = random.Random(1)
    rows = [[*(f"{drawn.gauss(base + step * kind, 0.3):.2f}" for base, step in ((5.0, 0.8), (3.4, -0.3), (1.5, 2.0), (0.2, 0.9))),
             str(kind)] for kind in (0, 1, 2) for _ in range(50)]
    drawn.shuffle(rows)
    return "\n".join(["sepal_length,sepal_width,petal_length,petal_width,species", *(",".join(row) for row in rows)]) + "\n"


def furnish_page(folder, path):
    """Copies a how-to page's starting files into the folder, as a reader would have them."""
    fixtures, samples = ROOT / "tests/fixtures", ROOT / "samples"

    def take(source, name):
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)

    page = pathlib.PurePosixPath(path).stem
    if page in ("README", "huggingface-bert"):
        take(fixtures / "bert_tiny/model.onnx", "bert.onnx")
        take(fixtures / "bert_tiny/data", "reviews")
    elif page == "gpt-on-text":
        take(samples / "gpt/gpt.onnx", "gpt.onnx")
        with open(samples / "gpt/data/train.bin", "rb") as file:
            (folder / "train.bin").write_bytes(file.read(8192))
        with open(samples / "gpt/data/val.bin", "rb") as file:
            (folder / "val.bin").write_bytes(file.read(2048))
        (folder / "text.yaml").write_text(example(path, "# text.yaml"))
    elif page == "resnet-on-images":
        take(samples / "mnist/mnist.onnx", "resnet.onnx")
        for part, name in (("train", "train"), ("eval", "t10k")):
            pictures(samples / f"mnist/data/{name}-images-idx3-ubyte.gz", samples / f"mnist/data/{name}-labels-idx1-ubyte.gz",
                     folder / "pictures" / part, 512)
        (folder / "images.yaml").write_text(example(path, "# images.yaml"))
    elif page == "csv-and-sklearn":
        (folder / "flowers.onnx").write_bytes(classifier(4, 16, 3))
        (folder / "flowers.csv").write_text(flowers())
        (folder / "flowers_test.csv").write_text(flowers())
        (folder / "columns.yaml").write_text(example(path, "# columns.yaml"))
    elif page == "lora":
        take(fixtures / "bert_tiny/model.onnx", "bert.onnx")
        take(fixtures / "bert_tiny/data", "reviews")
        take(fixtures / "few_bits/nbits/model.onnx", "model_int4.onnx")
        take(fixtures / "few_bits/nbits/data", "tokens")
    elif page == "several-hosts":
        (folder / "shared").mkdir()
        (folder / "hosts").write_text("worker-1 slots=4\nworker-2 slots=4\n")


def furnish(folder, program, block):
    """Creates all files that a document's commands name."""
    path = block.path
    fixtures, samples = ROOT / "tests/fixtures", folder / "samples"
    (folder / "build/release").mkdir(parents=True)
    (folder / "build/release/fsdp-run").symlink_to(program)
    (folder / "fsdp-run").symlink_to(program)
    (folder / "docs").mkdir()
    if path in ("docs/reference/configuration.md", "docs/coming-from.md"):  # with files that name BertLayer
        shutil.copy(ROOT / "samples/bert/bert.onnx", folder / "model.onnx")
        (folder / "model.yaml").write_text("loss: cross_entropy\ndata: synthetic\nsteps: 1\nbatch_size: 1\n")
    elif path == "docs/howto/plugin.md":
        (folder / "model.onnx").write_bytes(cube_model())
        (folder / "model.yaml").write_text("loss: mse\n")
        (folder / "data").symlink_to(fixtures / "mlp/data")
    elif path in ("docs/howto/quantized.md", "docs/internals/quantized.md"):
        shutil.copy(fixtures / "quantized/pairs/model.onnx", folder / "quantized.onnx")
        shutil.copy(fixtures / "few_bits/nbits/model.onnx", folder / "model_int4.onnx")
        (folder / "tokens").symlink_to(fixtures / "few_bits/nbits/data")
        (folder / "data").symlink_to(fixtures / "quantized/pairs/data")
    else:
        shutil.copy(fixtures / "mlp/model.onnx", folder / "model.onnx")
        (folder / "data").symlink_to(fixtures / "mlp/data")
        if path.startswith("docs/internals/") or path.startswith("docs/reference/"):
            (folder / "model.yaml").write_text("loss: cross_entropy\n")
    if path == "README.md" or path.startswith("docs/howto/"):
        furnish_page(folder, path)
    if path == "docs/reference/losses-and-metrics.md":
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
    (folder / "fsdp.yaml").write_text(example("docs/coming-from.md", "# fsdp.yaml"))
    (folder / "ds.json").write_text(example("docs/coming-from.md", "{"))
    (folder / "gpus.yaml").write_text(example("docs/internals/plan.md", "hosts: 4"))
    (folder / "two_hosts.yaml").write_text("hosts: 2\nranks_per_host: 1\ninside: {alpha_us: 3, beta_gbs: 100}\n"
                                           "between: {alpha_us: 14, beta_gbs: 5}\n")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def planned(command):
    return re.sub(r"\bfsdp-run ", "fsdp-run plan ", command)


def any_rank(line):  # several may fail in the same way, and one reports it
    return re.sub(r"\brank \d+:", "rank N:", line)


def shown_error(block):
    return next((line for line in block.lines if line.startswith("fsdp-run: ")), None)


NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
ANY_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"


def line_pattern(line):
    """Turns a shown line into a pattern: a number matches any number, "..." any text, a gap any gap."""
    parts = [r"\s+".join(re.escape(word) for word in re.split(r"\s+", text)) for text in
             NUMBER.sub("\0", line).split("...")]
    return ".*".join(parts).replace("\\\0", "\0").replace("\0", ANY_NUMBER)


def unlike(shown, output):
    """Returns a message for the first shown line that the output lacks at its place, or nothing."""
    lines, place, anywhere = [line.rstrip() for line in output.splitlines()], 0, False
    for line in shown:
        if line.strip() in ("", "..."):
            anywhere = anywhere or line.strip() == "..."
            continue
        pattern = re.compile(r"\s*" + line_pattern(line.strip()) + r"\s*")
        while place < len(lines) and not lines[place].strip():
            place += 1
        here = place
        while anywhere and here < len(lines) and not pattern.fullmatch(lines[here]):
            here += 1
        if here >= len(lines) or not pattern.fullmatch(lines[here]):
            found = lines[place] if place < len(lines) else "the end"
            return f"expected the output '{line.strip()}', found {'nowhere' if anywhere else repr(found)}"
        place, anywhere = here + 1, False
    rest = [line for line in lines[place:] if line.strip()]
    return f"after the shown output came '{rest[0]}'" if rest and not anywhere else ""


def shown_output(block):
    """Returns the lines after the prompts, without an error message. None if the page shows no output or is for
    developers."""
    if "/internals/" in block.path or not any(line.startswith(PROMPT) for line in block.lines):
        return None
    continued, shown = False, []
    for line in block.lines:
        if line.startswith(PROMPT) or continued:
            continued = line.endswith("\\")
        elif not line.startswith("fsdp-run: "):
            shown.append(line)
    return shown if any(line.strip() for line in shown) else None


def run(block, commands, folder):
    """Returns one line with the error, or nothing."""
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
        if done.returncode:
            return f"exit status {done.returncode}: {said[-1] if said else 'nothing said'}"
        shown = shown_output(block)
        return unlike(shown, done.stdout) if shown else ""
    for old, new in ports.items():
        error = error.replace(old, new)
    if done.returncode == 0:
        return f"expected '{error}', found exit status 0"
    same = any_rank(error) in [any_rank(line) for line in said]
    return "" if same else f"expected '{error}', found '{said[0] if said else ''}'"


def jobs_of(root, paths, exceptions):
    """Returns blocks, each with its commands to run."""
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


def is_story(path):
    """Returns whether a page's blocks run in one folder, one after the other."""
    return path == "docs/start.md" or path.startswith("docs/howto/")


def stories_of(jobs):
    """Groups the jobs that share a folder: all blocks of a story page, or one block."""
    stories = []
    for job in jobs:
        path = job[0].path
        if stories and is_story(path) and stories[-1][0][0].path == path:
            stories[-1].append(job)
        else:
            stories.append([job])
    return stories


def wrong_of(jobs, runner):
    """Returns the error lines; `runner` returns a line for each block of a story. Two run at a time, because most
    wait a while."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [line for lines in pool.map(runner, stories_of(jobs)) for line in lines]
    return [f"{block.path}:{block.line}: {'; '.join(commands)}: {line}"
            for (block, commands), line in zip(jobs, found, strict=True) if line]


def documents():
    return ["README.md", *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]


def run_all(program, paths):
    exceptions = Exceptions((HERE / "exceptions.txt").read_text(encoding="utf-8"))

    def runner(story):
        with tempfile.TemporaryDirectory(prefix="ofsdp_docs_") as name:
            folder = pathlib.Path(name)
            furnish(folder, program, story[0][0])
            return [run(block, commands, folder) for block, commands in story]

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

    def runner(story):
        ran.extend(command for _, commands in story for command in commands)
        return [""] * len(story)

    with tempfile.TemporaryDirectory() as name:
        pathlib.Path(name, "a.md").write_text(text, encoding="utf-8")
        jobs = jobs_of(pathlib.Path(name), ["a.md"], rows)
        wrong, bad = wrong_of(jobs, runner), wrong_of(jobs, lambda story: ["is wrong"] * len(story))
        block = blocks.Block("a.md", 1, ["$ fsdp-run x", "fsdp-run: an error"])
        results = [run(block, ["echo 'fsdp-run: an error' >&2; exit 2"], pathlib.Path(name)),
                   run(block, ["echo 'fsdp-run: another' >&2; exit 2"], pathlib.Path(name)),
                   run(block, ["true"], pathlib.Path(name)),
                   run(blocks.Block("a.md", 1, ["x"]), ["exit 3"], pathlib.Path(name))]
    story = [blocks.Block(path, 1, ["x"]) for path in ("docs/howto/a.md", "docs/howto/a.md", "docs/howto/b.md", "README.md",
                                                       "README.md")]
    output = "loss 2.3156  lr 1e-05\n\nwrote  out.onnx\n12.5 MiB\n"
    shown = [(["loss 1  lr 2"], False), (["loss 1  lr 2", "wrote out.onnx", "7 MiB"], True), (["loss 1 ...", "...", "7 MiB"], True),
             (["...", "wrote ...", "..."], True), (["...", "wrote y.onnx", "..."], False), (["loss 1 lr 2", "7 MiB"], False),
             (["loss 1 lr 2", "wrote out.onnx", "7 KiB"], False), (["..."], True)]
    expected = ["fsdp-run good", "fsdp-run one --two", "fsdp-run plan far --away"]
    checks = {"commands": sorted(ran) == sorted(expected), "right": wrong == [], "wrong": len(bad) == 3, "unused": not rows.unused,
              "same error": results[0] == "", "another error": "another" in results[1],
              "stories": [len(part) for part in stories_of([(block, []) for block in story])] == [2, 1, 1, 1],
              "outputs": [not unlike(lines, output) for lines, _ in shown] == [good for _, good in shown],
              "shown": shown_output(blocks.Block("docs/a.md", 1, ["$ a \\", "  b", "c", "fsdp-run: d"])) == ["c"],
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
