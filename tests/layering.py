#!/usr/bin/env python3
"""Checks which room (folder) may include which other, and how many files a folder has.

    layering.py [ROOT]       exit 1 and one line for each include that points the wrong way
    layering.py --table      prints the table with every arrow spelled out
    layering.py --self-test  makes small trees, one with each kind of violation, and expects them to be found

ROOMS is the only table. A room sees itself. A folder outside of the table belongs to no room and fails. CMake chooses
between the folders in ALTERNATIVES. Such a folder is part of the room around it, and only folders with the same name
see its headers. Only the rooms in ONNX_ROOMS see headers of ONNX and protobuf. Our own headers are named from the root
of the repository ("kernels/base/status.h").
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Room -> the rooms that it may include. "fsdp/*" is every room in that top folder, "<" every room above it in the same
# top folder, "@base" and similar words are these lists.
BASICS = {
    "@base": "kernels/base kernels/core kernels/formulas",
    "@cpu": "@base kernels/cpu kernels/ops",
    "@cuda": "@base kernels/cuda/device kernels/cuda/pointwise",
    "@graph": "importer/file importer/proto importer/graph importer/passes importer/passes/fusion importer/normalize "
              "importer importer/edit importer/write importer/export",
    "@dialects": "importer/dialects importer/dialects/onnxruntime importer/dialects/training_info",
}
ROOMS = {
    "kernels/base": "",
    "kernels/core": "<",
    "kernels/formulas": "<",
    "kernels/cpu": "<",
    "kernels/optimizers": "@base kernels/cpu",
    "kernels/ops": "@base kernels/cpu",
    "kernels/ops/pointwise": "@cpu",
    "kernels/ops/reduce": "@cpu",
    "kernels/ops/matmul": "@cpu kernels/ops/pointwise",
    "kernels/ops/indexing": "@cpu kernels/ops/pointwise kernels/ops/matmul",
    "kernels/ops/conv": "@cpu kernels/ops/pointwise",
    "kernels/ops/pool": "@cpu kernels/ops/pointwise kernels/ops/conv",
    "kernels/ops/norm": "@cpu",
    "kernels/ops/attention": "@cpu",
    "kernels/ops/recurrent": "@cpu kernels/ops/matmul",
    "kernels/ops/loss": "@cpu kernels/ops/matmul",
    "kernels/ops/shape": "@cpu kernels/ops/pointwise kernels/ops/indexing",
    "kernels/ops/random": "@cpu kernels/ops/pointwise",
    "kernels/ops/training": "@cpu",
    # Headers in operators' families give the CUDA rooms with the same name their formulas, shapes and extents.
    "kernels/cuda/device": "@base kernels/cpu",
    "kernels/cuda/pointwise": "@cuda kernels/ops/pointwise",
    "kernels/cuda/norm": "@cuda kernels/ops/norm",
    "kernels/cuda/attention": "@cuda kernels/cuda/attention/ptx kernels/ops/attention",
    "kernels/cuda/attention/ptx": "@cuda",
    "kernels/cuda/random": "@cuda kernels/ops/random",
    "kernels/cuda/shape": "@cuda kernels/ops/shape",
    "kernels/cuda/training": "@cuda kernels/optimizers kernels/ops/training",
    "kernels/cuda/reduce": "@cuda kernels/cuda/norm kernels/cuda/training kernels/ops/reduce",
    "kernels/cuda/indexing": "@cuda kernels/cuda/shape kernels/ops/indexing kernels/ops/shape",
    "kernels/cuda/matmul": "@cuda kernels/cuda/shape kernels/ops/matmul",
    "kernels/cuda/loss": "@cuda kernels/cuda/norm kernels/cuda/reduce kernels/cuda/matmul kernels/ops/loss",
    "kernels/cuda/conv": "@cuda kernels/cuda/shape kernels/cuda/reduce kernels/cuda/matmul kernels/ops/conv",
    "kernels/cuda/pool": "@cuda kernels/cuda/indexing kernels/cuda/conv kernels/ops/pool",
    "kernels/cuda/sample": "@cuda kernels/ops/pool kernels/ops/shape",
    "kernels/cuda/recurrent": "@cuda kernels/cuda/shape kernels/cuda/reduce kernels/cuda/matmul kernels/cuda/conv "
                              "kernels/ops/recurrent",
    "kernels/cuda/cudnn": "@cuda kernels/ops/attention kernels/cuda/attention kernels/cuda/reduce kernels/cuda/conv",
    "kernels/cuda": "@cuda kernels/cuda/training kernels/cuda/cudnn",
    "plugins": "@base kernels/cpu",
    "plugins/loading": "@base kernels/cpu plugins",
    "plugins/check": "@base kernels/cpu plugins plugins/loading",
    "plugins/examples": "plugins",
    "importer/file": "@base",
    "importer/proto": "@base <",
    "importer/graph": "@base <",
    "importer/passes/fusion": "@base <",
    "importer/passes": "@base kernels/cpu <",
    "importer/normalize": "@base <",
    "importer/write": "@base <",
    "importer": "@base <",
    "importer/edit": "@base kernels/cpu <",
    "importer/export": "@base <",
    "importer/dialects": "@base <",
    "importer/dialects/onnxruntime": "@base <",
    "importer/dialects/training_info": "@base @graph importer/dialects",
    "fsdp/plan": "@base importer/graph",
    "fsdp/checkpoint": "@base importer/file",
    "fsdp/comm/store": "@base",
    "fsdp/comm": "@base kernels/cpu fsdp/plan fsdp/comm/store",
    "fsdp/comm/local": "@base fsdp/plan fsdp/comm/store fsdp/comm",
    "fsdp/comm/hosts/mpi": "@base fsdp/plan fsdp/comm",
    "fsdp/comm/hosts": "@base fsdp/plan fsdp/comm/store fsdp/comm fsdp/comm/local",
    "fsdp": "@base fsdp/plan fsdp/comm/store fsdp/comm fsdp/comm/local fsdp/comm/hosts",
    "runtime/compile/program": "@base kernels/cpu @graph fsdp/* plugins/* <",
    "runtime/log": "@base @graph fsdp/* <",
    "runtime/engine": "@base kernels/optimizers kernels/cpu @graph fsdp/* <",
    "runtime/engine/device": "@base kernels/cpu @graph fsdp/* <",
    "runtime/data/tokenizer": "@base @graph",
    "runtime/data/images": "@base",
    "runtime/remote": "@base",
    "runtime/data/parquet": "@base",
    "runtime/data": "@base @graph fsdp/* runtime/remote runtime/data/tokenizer runtime/data/images runtime/data/parquet",
    "runtime": "@base kernels/optimizers @graph fsdp/* <",  # options embed the structs of these rooms
    "runtime/train/setup": "@base @graph @dialects fsdp/* plugins/* <",
    "runtime/compile": "@base kernels/optimizers kernels/cpu kernels/ops/attention @graph fsdp/* plugins/* <",
    "runtime/report": "@base kernels/cpu @graph fsdp/* plugins/* <",
    "runtime/train": "@base kernels/cpu @graph fsdp/* <",
    "runtime/commands": "@base @graph @dialects fsdp/* plugins/* <",
    "runtime/cli/options": "@base kernels/optimizers @graph fsdp/* runtime runtime/data runtime/remote",
    "runtime/cli/config/foreign": "@base @graph fsdp/* runtime runtime/cli/options",
    "runtime/cli/config": "@base @graph @dialects fsdp/* runtime runtime/remote runtime/cli/options runtime/cli/config/foreign",
    "runtime/cli/launch": "@base @graph fsdp/* runtime runtime/log runtime/cli/options",
    "runtime/cli": "@base kernels/cpu @graph @dialects fsdp/* plugins/* <",
    "library": "@base kernels/cpu @graph fsdp/* plugins/* runtime/*",
}
ONNX_ROOMS = ("importer/proto", "importer/edit", "importer/normalize", "importer/passes", "importer/export",
              "importer/dialects", "importer/dialects/onnxruntime", "importer/dialects/training_info")

# Present arrows that must go. An entry that no longer occurs fails too: this list only shrinks.
PENDING = {
}

MOST_FILES = 60  # in a folder
MOST_ENTRIES = {"runtime": 14}
PENDING_SIZES = set()  # folders that must shrink, as in PENDING

SUFFIXES = {".h", ".hpp", ".inc", ".cpp", ".cu", ".cuh", ".c"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.MULTILINE)
OTHERS = ("tests", "bench", "samples")  # no product includes them
ALTERNATIVES = ("x86", "aarch64", "onednn", "without_onednn", "codecs", "without_codecs", "curl", "without_curl")  # cmake/processor.cmake


def top_of(room):
    return room.split("/", 1)[0]


def expand(room, words, rooms):
    """Returns the rooms that `words` mean, in the row for `room`."""
    found = set()
    for word in words.split():
        if word == "<":
            for other in rooms:
                if other == room:
                    break
                if top_of(other) == top_of(room):
                    found.add(other)
        elif word.startswith("@"):
            found |= expand(room, BASICS[word], rooms)
        elif word.endswith("/*"):
            found |= {other for other in rooms if top_of(other) == word[:-2]}
        else:
            found.add(word)
    return found


def table(rooms):
    return {room: expand(room, words, rooms) - {room} for room, words in rooms.items()}


def cycle(sees):
    """Returns one cycle of the table as a list of rooms, or None."""
    done, path = set(), []

    def visit(room):
        if room in path:
            return path[path.index(room):] + [room]
        if room in done:
            return None
        path.append(room)
        for other in sorted(sees.get(room, ())):
            found = visit(other)
            if found:
                return found
        done.add(path.pop())
        return None

    for room in sees:
        found = visit(room)
        if found:
            return found
    return None


def alternative_of(path):
    """Returns the file's folder if it is in ALTERNATIVES, or ""."""
    folder = path.split("/")[-2] if "/" in path else ""
    return folder if folder in ALTERNATIVES else ""


def room_of(path, sees):
    """Returns a file's room, "" for a bare name, or None for a folder outside of the table."""
    if "/" not in path:
        return ""
    folder = path.rsplit("/", 1)[0]
    if alternative_of(path):
        folder = folder.rsplit("/", 1)[0]
    if folder.startswith("plugins/examples/"):
        folder = "plugins/examples"
    return folder if folder in sees else None


def complaint(room, quote, target, sees):
    """Returns (reason why a file of `room` may not include `target`, arrow or None), or None if it may."""
    if target.startswith(("onnx/", "google/protobuf/")):
        if room in ONNX_ROOMS:
            return None
        return f"headers of ONNX and protobuf belong to {', '.join(ONNX_ROOMS)}", None
    if top_of(target) in {top_of(name) for name in sees} and "/" in target:
        there = room_of(target, sees)
        if there is None:
            return f"{target.rsplit('/', 1)[0]}/ is no room of the table in tests/layering.py", None
        if there == room or there in sees[room]:
            return None
        return f"{room}/ may not see {there}/", f"{room} -> {there}"
    if top_of(target) in OTHERS:
        return f"{room}/ may not see {top_of(target)}/", None
    if quote == '"' and room != "plugins/examples":
        return "our headers are named from the root of the repository; others stand in <>", None
    return None


def check(root, pending):
    sees = table(ROOMS)
    found, met = [], set()
    around = cycle(sees)
    if around:
        found.append(f"the table has a cycle: {' -> '.join(around)}")
    for top in sorted({top_of(room) for room in sees}):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            room = room_of(name, sees)
            if room is None:
                found.append(f"{name}: its folder is no room of the table in tests/layering.py")
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            for match in INCLUDE.finditer(text):
                wrong = complaint(room, match[1], match[2], sees)
                only = alternative_of(match[2])
                if only and only != alternative_of(name) and top_of(match[2]) in {top_of(other) for other in sees}:
                    wrong = f"only folders named {only}/ may see it", None
                if wrong and wrong[1] in pending:
                    met.add(wrong[1])
                elif wrong:
                    line = text.count("\n", 0, match.start()) + 1
                    found.append(f"{name}:{line}: includes {match[2]}: {wrong[0]}")
    found += [f"PENDING of tests/layering.py names {arrow}, which no longer occurs: remove it"
              for arrow in sorted(pending - met)]
    return found


def sizes(root, pending):
    """Finds folders with too many files for a reader."""
    found, met = [], set()
    folders = [root / room for room in ROOMS if (root / room).is_dir()]
    folders += sorted({path.parent for other in OTHERS for path in (root / other).rglob("*") if path.suffix in SUFFIXES})
    for folder in folders:
        name = folder.relative_to(root).as_posix()
        entries = list(folder.iterdir())
        files = sum(entry.is_file() for entry in entries)
        for what, count, most in (("files", files, MOST_FILES), ("entries", len(entries), MOST_ENTRIES.get(name))):
            if most is None or count <= most:
                continue
            if name in pending:
                met.add(name)
            else:
                found.append(f"{name}/ has {count} {what}, expected {most} at most")
    return found + [f"PENDING_SIZES of tests/layering.py names {name}, which is small enough: remove it"
                    for name in sorted(pending - met)]


def self_test():
    allowed = [
        ("runtime/cli/main.cpp", '"runtime/train/session.h"'),
        ("runtime/train/session.cpp", '"fsdp/plan/plan.h"'),
        ("runtime/train/setup/model_setup.cpp", '"plugins/loading/loader.h"'),
        ("importer/normalize/reader.cpp", "<onnx/checker.h>"),
        ("importer/file/reader.cpp", '"kernels/base/status.h"'),
        ("kernels/ops/pointwise/add.cpp", "<vector>"),
        ("kernels/ops/conv/onednn/a.cpp", '"kernels/cpu/onednn/bridge.h"'),
        ("kernels/ops/pool/max_pool.cpp", '"kernels/ops/conv/window.h"'),
    ]
    forbidden = [
        ("kernels/core/a.h", '"importer/graph/graph.h"'),
        ("kernels/base/a.h", '"kernels/core/tensor.h"'),
        ("kernels/ops/conv/a.h", '"kernels/ops/pool/pool_shape.h"'),
        ("kernels/cuda/matmul/a.h", '"kernels/cuda/conv/window.h"'),
        ("importer/a.cpp", '"fsdp/plan/plan.h"'),
        ("importer/normalize/a.cpp", '"importer/dialects/onnxruntime/ort_artifacts.h"'),
        ("fsdp/plan/a.cpp", '"runtime/compile/program/schedule.h"'),
        ("fsdp/comm/local/a.cpp", '"fsdp/comm/hosts/host_map.h"'),
        ("runtime/compile/program/a.cpp", '"runtime/engine/executor.h"'),
        ("runtime/a.cpp", '"runtime/cli/options/option_table.h"'),
        ("plugins/a.cpp", '"importer/graph/graph.h"'),
        ("kernels/cpu/a.cpp", '"plugins/abi.h"'),
        ("fsdp/plan/a.cpp", "<onnx/onnx_pb.h>"),
        ("runtime/compile/a.cpp", "<google/protobuf/message.h>"),
        ("kernels/cpu/a.cpp", '<importer/graph/graph.h>'),
        ("kernels/cpu/a.cpp", '"../importer/graph.h"'),
        ("kernels/cpu/a.cpp", '"tests/support/x.h"'),
        ("kernels/novel/a.cpp", "<vector>"),
        ("kernels/cpu/a.cpp", '"kernels/novel/a.h"'),
        ("kernels/cpu/a.cpp", '"kernels/cpu/onednn/bridge.h"'),
        ("kernels/ops/x86/a.cpp", '"kernels/cpu/onednn/bridge.h"'),
    ]
    failures = 0

    def expect(what, got, want):
        nonlocal failures
        if got != want:
            failures += 1
            print(f"self-test: {what}: {got}, expected {want}", file=sys.stderr)

    def lines_for(files, pending=frozenset()):
        with tempfile.TemporaryDirectory() as tmp:
            for name, include in files:
                path = pathlib.Path(tmp, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as out:
                    out.write(f"// a comment\n  #  include {include}\n")
            return len(check(pathlib.Path(tmp), pending))

    for case in forbidden:
        expect(case, lines_for([case]), 1)
    expect("what is allowed", lines_for(allowed), 0)
    arrow = "importer/normalize -> importer/dialects/onnxruntime"
    known = ("importer/normalize/a.cpp", '"importer/dialects/onnxruntime/ort_artifacts.h"')
    expect("a pending arrow", lines_for([known], {arrow}), 0)
    expect("a pending arrow that is gone", lines_for(allowed, {arrow}), 1)
    expect("a cycle", cycle(table({"a/x": "a/y", "a/y": "a/z", "a/z": "a/x"})), ["a/x", "a/y", "a/z", "a/x"])
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        for room, number in (("kernels/cpu", MOST_FILES + 1), ("kernels/core", MOST_FILES), ("runtime", 15)):
            (root / room).mkdir(parents=True)
            for i in range(number):
                (root / room / f"f{i}.h").touch()
        expect("large folders", len(sizes(root, set())), 2)
        expect("pending large folders", len(sizes(root, {"kernels/cpu", "runtime"})), 0)
        expect("a pending folder that is small", len(sizes(root, {"kernels/cpu", "runtime", "kernels/core"})), 1)
    print(f"layering self-test: {len(forbidden) + 7} cases, {failures} failures")
    return 1 if failures else 0


def print_table():
    for room, others in table(ROOMS).items():
        print(f"{room}: {' '.join(sorted(others)) or '-'}")
    return 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    if args == ["--table"]:
        return print_table()
    root = pathlib.Path(args[0]) if args else pathlib.Path(__file__).resolve().parent.parent
    found = check(root, set(PENDING)) + sizes(root, PENDING_SIZES)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
