#!/usr/bin/env python3
"""Checks the English of comments and documents (CONTRIBUTING.md, "English").

    prose.py [ROOT]       one line for each finding
    prose.py --list DIR   the findings of one folder
    prose.py --self-test  expects made-up lines to be found
"""
import pathlib
import re
import sys
import tempfile

import cpp_source

FOLDERS = (*cpp_source.PRODUCT, "bench", "tests", "docs", "samples", "scripts", "cmake")
SUFFIXES = cpp_source.SOURCES | {".md"}
WIDTH = 100  # for comments, except a line that is a link

COMMENT = re.compile(r"^\s*(//|\*|/\*)|\s//\s")
LINK = re.compile(r"^\s*(//|\*)\s+https?://\S+$")
# (reason, pattern, only in comments)
GATES = (
    ("a comment begins with a clause: say what it does, verb first",
     re.compile(r"^\s*(?://|\*|/\*)\s*(?:Of|What|Where|Those|That|Whose|Which)\b"), True),
    ('"behind": say "after" of time and order', re.compile(r'(?<!")\bbehind\b', re.IGNORECASE), True),
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
        if comment and path.suffix != ".md" and len(line) > WIDTH and not LINK.match(line):
            found.append(f"{name}:{number}: a comment ends in column {len(line)}, expected {WIDTH} at most")
    return found


def check(root):
    paths = [*cpp_source.files(root, FOLDERS, SUFFIXES), *sorted(root.glob("*.md"))]
    return [line for path in paths for line in findings(path, path.relative_to(root).as_posix())]


def self_test():
    wrong = ["// Where it is, it is.", "  // Of all ranks alone.", "int i;  // comes behind it", "// stands beside it",
             "// Ownership: values. Threads: any.", "int settle_it();", "// " + "x" * 98, "/* What it is */",
             "// likewise", "// see https://" + "x" * 90]
    right = ["// Returns what it is.", 'fail("behind the file");', "// " + "x" * 97, "int x;",
             'const char* w = "beside";', "// https://" + "x" * 90]
    failures = 0
    for lines, want in ((wrong, 1), (right, 0)):
        for line in lines:
            with tempfile.TemporaryDirectory() as tmp:
                path = pathlib.Path(tmp, "kernels/base/a.h")
                path.parent.mkdir(parents=True)
                path.write_text(line + "\n", encoding="utf-8")
                found = check(pathlib.Path(tmp))
            if len(found) != want:
                failures += 1
                print(f"self-test: {line}: {found}, expected {want}", file=sys.stderr)
    print(f"prose self-test: {len(wrong) + len(right)} lines, {failures} failures")
    return 1 if failures else 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    if args[:1] == ["--list"]:
        folder = args[1].rstrip("/")
        found = [line for line in check(cpp_source.ROOT) if line.rsplit(":", 2)[0].rsplit("/", 1)[0] == folder]
    else:
        found = check(pathlib.Path(args[0]) if args else cpp_source.ROOT)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
