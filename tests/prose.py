#!/usr/bin/env python3
"""Checks the English of comments and documents in the folders of FINISHED; add a folder when it is done.

    prose.py [ROOT]       one line for each finding
    prose.py --all        the number of findings in every folder, finished or not
    prose.py --list DIR   the findings of one folder
    prose.py --self-test  expects made-up lines to be found
"""
import collections
import pathlib
import re
import sys
import tempfile

import cpp_source

FINISHED = (
    "bench",
    "runtime/cli/config", "runtime/cli/config/foreign", "runtime/cli/options", "runtime/data", "runtime/report",
    "runtime/state", "runtime/train",
    "tests/fuzz", "tests/hosts", "tests/long", "tests/nodes", "tests/ops", "tests/oracle", "tests/preload",
    "tests/procs", "tests/ranks", "tests/support", "tests/unit",
)
FOLDERS = (*cpp_source.PRODUCT, "bench", "tests")
SUFFIXES = cpp_source.SOURCES | {".md"}
WIDTH = 100  # of comments

COMMENT = re.compile(r"^\s*(//|\*|/\*)|\s//\s")
# (what is wrong, pattern, in comments alone)
GATES = (
    ("a comment begins with a clause: say what it does, verb first",
     re.compile(r"^\s*(?://|\*|/\*)\s*(?:Of|What|Where|Those|That|Whose|Which)\b"), True),
    ('"behind": say "after" of time and order', re.compile(r"\bbehind\b", re.IGNORECASE), True),
    ('"beside": say "next to" or "besides"', re.compile(r"\bbeside\b", re.IGNORECASE), True),
    ('"likewise": repeat the words', re.compile(r"\blikewise\b", re.IGNORECASE), True),
    ("says nothing that the type does not", re.compile(r"Ownership: values\. Threads: any"), True),
    ("settle_: say resolve_", re.compile(r"\bsettle_"), False),
)


def findings(path, name):
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        comment = path.suffix == ".md" or COMMENT.search(line)
        for why, pattern, comments_only in GATES:
            match = pattern.search(line)
            if not match or comments_only and not comment:
                continue
            if comments_only and path.suffix != ".md" and match.end() <= line.find("//"):
                continue  # in the code before the comment
            found.append(f"{name}:{number}: {why}")
        if comment and path.suffix != ".md" and len(line) > WIDTH:
            found.append(f"{name}:{number}: a comment ends in column {len(line)}, expected {WIDTH} at most")
    return found


def by_folder(root):
    rooms = collections.defaultdict(list)
    for path in cpp_source.files(root, FOLDERS, SUFFIXES):
        name = path.relative_to(root).as_posix()
        rooms[name.rsplit("/", 1)[0]] += findings(path, name)
    return rooms


def check(root, finished):
    rooms = by_folder(root)
    gone = [f"FINISHED of tests/prose.py names {folder}, which is no folder"
            for folder in finished if folder not in rooms]
    return gone + [line for folder in finished for line in rooms.get(folder, ())]


def self_test():
    wrong = ["// Where it is, it is.", "  // Of all ranks alone.", "int i;  // comes behind it", "// stands beside it",
             "// Ownership: values. Threads: any.", "int settle_it();", "// " + "x" * 98, "/* What it is */",
             "// likewise"]
    right = ["// Returns what it is.", 'fail("behind the file");', "// " + "x" * 97, "int x;",
             'const char* w = "beside";']
    failures = 0
    for lines, want in ((wrong, 1), (right, 0)):
        for line in lines:
            with tempfile.TemporaryDirectory() as tmp:
                path = pathlib.Path(tmp, "kernels/base/a.h")
                path.parent.mkdir(parents=True)
                path.write_text(line + "\n", encoding="utf-8")
                found = check(pathlib.Path(tmp), ("kernels/base",))
                other = check(pathlib.Path(tmp), ())
            if len(found) != want or other:
                failures += 1
                print(f"self-test: {line}: {found}, expected {want}", file=sys.stderr)
    print(f"prose self-test: {len(wrong) + len(right)} lines, {failures} failures")
    return 1 if failures else 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    if args == ["--all"]:
        for folder, found in sorted(by_folder(cpp_source.ROOT).items()):
            print(f"{len(found):5} {folder}{'  finished' if folder in FINISHED else ''}")
        return 0
    if args[:1] == ["--list"]:
        found = by_folder(cpp_source.ROOT)[args[1].rstrip("/")]
    else:
        found = check(pathlib.Path(args[0]) if args else cpp_source.ROOT, FINISHED)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
