#!/usr/bin/env python3
"""Checks that the program still prints the error lines that the user documents explain. It reads the code in the first
column of tables headed "line" or "seen", in docs/troubleshooting.md and the how-to pages. Each part between "..." must
occur in one string of the sources or tests. A placeholder {} in a string counts as "...".

    error_lines.py [ROOT]       one line for each text that no source has
    error_lines.py --self-test  expects made-up pages to be found
"""
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import cpp_source  # noqa: E402  in the folder above

ROOT = HERE.parents[1]
PAGES = ("docs/troubleshooting.md", "docs/howto/*.md")
SUFFIXES = {".cpp", ".h", ".cu", ".inc"}
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
BETWEEN = re.compile(r"\s*")
# Lines from other programs: the loader, CMake, a shell.
OUTSIDE = {"GLIBC_2.34 not found", "fsdp-run: command not found", "libonnx_fsdp.so.0: cannot open shared object file",
           "Could not find OnnxFsdp"}



def strings(text):
    """Returns the string literals of a source: adjacent literals are joined, placeholders become "..."."""
    joined, end = [], -1
    for match in LITERAL.finditer(text):
        value = re.sub(r"\{[^{}]*\}", "...", match[1].replace('\\"', '"').replace("\\n", " "))
        if joined and end >= 0 and BETWEEN.fullmatch(text, end, match.start()):
            joined[-1] += value
        else:
            joined.append(value)
        end = match.end()
    return joined


def sources(root):
    paths = [path for folder in (*cpp_source.PRODUCT, "library", "tests") for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES]
    return "\n".join(line for path in paths for line in strings(path.read_text(encoding="utf-8", errors="replace")))


def explained(text):
    """Yields (line, text) for each error line that a page explains."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells[0] in ("line", "seen"):
            inside = True
        elif inside:
            yield from ((number, code) for code in re.findall(r"`([^`]+)`", cells[0]) if " " in code)


def missing(code, known):
    parts = [part.strip(" '\"") for part in re.split(r"\.\.\.|\b\d+(?:, \d+)*\b", code)]
    return [part for part in parts if len(part) > 3 and part not in known]


def check(root):
    known, found = sources(root), []
    for page in sorted(path for pattern in PAGES for path in root.glob(pattern)):
        for number, code in explained(page.read_text(encoding="utf-8")):
            lacks = [] if code in OUTSIDE else missing(code, known)
            if lacks:
                found.append(f"{page.relative_to(root)}:{number}: no source says '{lacks[0]}'")
    return found


def self_test():
    source = 'input_error("{}: expected a {} here, "\n    "found {}", a);\nconst char* b = "other text";\n'
    page = "| line | cause |\n| --- | --- |\n| {} | x |\n\nText.\n"
    trials = [("`expected a ... here, found`", 0), ("`other text`", 0), ("`expected a 12 here`", 0), ("`lost text here`", 1),
              ("`other text ... lost text`", 1), ("plain words", 0), ("`--flag`", 0), ("`GLIBC_2.34 not found`", 0)]
    failures = 0
    for cell, want in trials:
        with tempfile.TemporaryDirectory() as name:
            for path, text in (("runtime/a.cpp", source), ("docs/troubleshooting.md", page.replace("{}", cell))):
                pathlib.Path(name, path).parent.mkdir(parents=True)
                pathlib.Path(name, path).write_text(text, encoding="utf-8")
            found = check(pathlib.Path(name))
        if len(found) != want:
            failures += 1
            print(f"self-test: {cell}: {found}, expected {want}", file=sys.stderr)
    print(f"error_lines self-test: {len(trials)} lines, {failures} failures")
    return 1 if failures else 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    found = check(pathlib.Path(args[0]) if args else ROOT)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
