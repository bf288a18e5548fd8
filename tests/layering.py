#!/usr/bin/env python3
"""Checks the direction of the arrows: which folder may include which (DESIGN, "Stages, folders, arrows").

    layering.py [ROOT]       exit 1 and one line for each include that points the wrong way
    layering.py --self-test  makes small trees, one with each kind of violation, and expects them to be found

Rules: kernels < importer < fsdp < runtime < runtime/cli, and a folder includes only itself and folders to its left.
plugins/ sees kernels/ alone, and runtime may load plugins. Headers of ONNX and protobuf are seen by importer/ alone.
Our own headers are named from the root of the repository ("kernels/base/status.h").
"""
import pathlib
import re
import subprocess
import sys
import tempfile

SEES = {
    "kernels": {"kernels"},
    "plugins": {"kernels", "plugins"},
    "importer": {"kernels", "importer"},
    "fsdp": {"kernels", "importer", "fsdp"},
    "runtime": {"kernels", "importer", "fsdp", "plugins", "runtime"},
    "runtime/cli": {"kernels", "importer", "fsdp", "plugins", "runtime", "runtime/cli"},
}
SUFFIXES = {".h", ".hpp", ".inc", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.MULTILINE)
ONNX_ONLY = "importer"


def folder_of(path):
    """The layer (or other top folder) that a path relative to the root belongs to; "" for a bare name."""
    if path.startswith("runtime/cli/"):
        return "runtime/cli"
    return path.split("/", 1)[0] if "/" in path else ""


def complaint(folder, quote, target):
    """Why a file of `folder` may not include `target`, or None."""
    if target.startswith(("onnx/", "google/protobuf/")):
        return None if folder == ONNX_ONLY else f"headers of ONNX and protobuf belong to {ONNX_ONLY}/ alone"
    there = folder_of(target)
    if there in SEES:
        return None if there in SEES[folder] else f"{folder}/ may not see {there}/"
    if there in ("tests", "bench", "samples"):
        return f"{folder}/ may not see {there}/"
    if quote == '"':
        return "our headers are named from the root of the repository; others stand in <>"
    return None


def check(root):
    found = []
    for top in sorted({name.split("/")[0] for name in SEES}):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8", errors="replace")
            for match in INCLUDE.finditer(text):
                why = complaint(folder_of(name), match[1], match[2])
                if why:
                    line = text.count("\n", 0, match.start()) + 1
                    found.append(f"{name}:{line}: includes {match[2]}: {why}")
    return found


def self_test():
    allowed = [
        ("runtime/cli/main.cpp", '"runtime/train/session.h"'),
        ("runtime/train/session.cpp", '"fsdp/plan/plan.h"'),
        ("runtime/train/session.cpp", '"plugins/loading/loader.h"'),
        ("importer/reader.cpp", "<onnx/checker.h>"),
        ("importer/reader.cpp", '"kernels/base/status.h"'),
        ("kernels/ops/pointwise/add.cpp", "<vector>"),
    ]
    forbidden = [
        ("kernels/core/a.h", '"importer/graph/graph.h"'),
        ("importer/a.cpp", '"fsdp/plan/plan.h"'),
        ("fsdp/a.cpp", '"runtime/program/schedule.h"'),
        ("runtime/a.cpp", '"runtime/cli/options.h"'),
        ("plugins/a.cpp", '"importer/graph/graph.h"'),
        ("kernels/a.cpp", '"plugins/abi.h"'),
        ("fsdp/a.cpp", "<onnx/onnx_pb.h>"),
        ("runtime/a.cpp", "<google/protobuf/message.h>"),
        ("kernels/a.cpp", '<importer/graph/graph.h>'),
        ("kernels/a.cpp", '"../importer/graph.h"'),
        ("kernels/a.cpp", '"tests/support/x.h"'),
    ]
    cases = [([case], 1) for case in forbidden] + [(allowed, 0)]
    failures = 0
    for files, want in cases:
        with tempfile.TemporaryDirectory() as tmp:
            for name, include in files:
                path = pathlib.Path(tmp, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as out:
                    out.write(f"// a comment\n  #  include {include}\n")
            got = subprocess.run([sys.executable, __file__, tmp], capture_output=True, check=False).returncode
        if got != want:
            failures += 1
            print(f"self-test: {files}: exit {got}, expected {want}", file=sys.stderr)
    print(f"layering self-test: {len(cases)} trees, {failures} failures")
    return 1 if failures else 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    root = pathlib.Path(args[0]) if args else pathlib.Path(__file__).resolve().parent.parent
    found = check(root)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
