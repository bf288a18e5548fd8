#!/usr/bin/env python3
"""Checks that all names in documents and comments exist: paths, flags, tests, classes and functions.

    references.py [ROOT]       one line for each name that is found nowhere
    references.py --self-test  expects made-up trees to be found

It reads whole documents, and the comments of sources. OUTSIDE and OUTSIDE_FLAGS list names of other projects; an unused
entry fails too.
"""
import os
import pathlib
import re
import sys
import tempfile

import cpp_source

CPP = cpp_source.SOURCES | {".c"}
SCRIPTS = {".py", ".sh", ".cmake", ".txt"}
NOT_OURS = {".git", "build", "third_party", "out", "__pycache__", "node_modules"}
MADE = re.compile(r"^(?:build|generated|third_party)/|/out/|^samples/s$")  # made by a build or a run; a rate
PLACEHOLDER = re.compile(r"(?:^|[/._])(?:[A-Z]{4,}|name)(?=[/._]|$)")  # kernels/ops/FAMILY/NAME.cpp
# Other projects, formats and people; examples; files that a build, an installation or a command makes.
OUTSIDE = frozenset("""
    BigCrush DistributedSampler ExportModelForInferencing FlashAttention FlatBuffer FlatBuffers FlatParameter LeVeque McNeil
    ModuleState MurmurHash3 NumPy RandomResizedCrop OptimizerGroup PaddlePaddle ParameterState PropertyBag ShardedGradScaler SplitMix64
    StringStringEntryProto TensorFlow ToTensor WebDataset ZeroRedundancyOptimizer no_sync
    nvrtc.h stddef.h stdint.h zero_to_fp32.py
    GradScaler PeftModel
    FooGrad PascalCase clips.py commands.sh lines.py mel.py cube/my_operators.cpp include/onnx_fsdp.h kernels/cpu/multiarch.h
    """.split())
# Flags from other programs, and a misspelt one.
OUTSIDE_FLAGS = frozenset("""
    --autotuning --isolation --launcher --output-on-failure --redirects --rm --role --shm-size
    --user-base
   
   
    """.split())

SUFFIX = r"(?:h|cuh|cpp|cu|inc|py|sh|md|cmake)"
PATH = re.compile(r"(?<![\w./~$<>*{}-])((?:\.\./)*(?:[\w+-]+/)+[\w+.-]*\w|[\w+-]+\." + SUFFIX + r")/?(?![\w/*<>{}$]|\.\w)")
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w*])")
ENTRY = re.compile(r"(?<![\w./-])((?:unit|ops|ranks|procs|gpu|long)\.[a-z]\w+)(?![\w/]|\.\w|\()")
CASE = re.compile(r"(?<![\w./])([A-Z]\w+)\.([A-Z]\w+)(?![\w.])")
CAMEL = re.compile(r"(?<![\w./:-])((?:[A-Z][a-z0-9]+){2,}[A-Z]?)(?![\w/-])")
QUOTED = re.compile("`" + CAMEL.pattern + r"(?:::\w+)?`")
CALL = re.compile(r"(?<![\w./:>-])([a-z]\w*_\w+)\(\)")


def prose_of(text, suffix):
    """Returns a document, or a source's comments, each on its own line; empty for other files."""
    if suffix == ".md":
        return text
    if suffix in CPP:
        return cpp_source.comments(text)
    if suffix in SCRIPTS:
        comments = (re.search(r"(?:^|\s)#(?!!).*", line) for line in text.split("\n"))
        return "\n".join(comment[0] if comment else "" for comment in comments)
    return ""


def without_braces(line):
    """a{b,c}d becomes abd acd."""
    return re.sub(r"([\w./+-]*)\{(\w+(?:,\w*)+)\}([\w./+-]*)",
                  lambda m: " ".join(m[1] + part + m[3] for part in m[2].split(",")), line)


class Tree:
    """All names in the tree: files, folders, tests, flags, and the words of the code."""

    def __init__(self, root):
        self.text = {}
        self.paths = set()  # files and folders, from the root and from every folder on the way
        self.top = set()  # folders in the root
        self.programs = set()  # a source without its suffix
        self.stems = set()  # NAME in a file NAME_test
        self.words, self.flags, self.entries, self.cases, self.suites = set(), set(), set(), set(), set()
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in NOT_OURS]
            where = pathlib.Path(folder).relative_to(root)
            self.top.update(folders if where == pathlib.Path() else ())
            for name in (*files, *folders):
                parts = (where / name).parts
                self.paths.update("/".join(parts[i:]) for i in range(len(parts)))
            for name in files:
                self._read(pathlib.Path(folder, name), (where / name).as_posix())

    def _read(self, path, name):
        if path.suffix in {".cpp", ".cu"}:
            self.programs.add(name.removesuffix(path.suffix))
        if "_test." in name:
            self.stems.add(path.name.split("_test.")[0])
        if path.suffix not in CPP | SCRIPTS | {".md", ".in", ".toml", ".yaml"}:
            return
        text = self.text[name] = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".md" or name == "tests/references.py":
            return
        code = cpp_source.without_comments(text) if path.suffix in CPP else text
        self.words.update(re.findall(r"[A-Za-z_]\w*", code))
        self.flags.update(FLAG.findall(code))
        if name.startswith("runtime/cli/"):  # there an option has no dashes
            self.flags.update("--" + word for word in re.findall(r'"([a-z][a-z0-9-]*)"', code))
        if path.suffix in {".txt", ".cmake"}:
            self.entries.update(ENTRY.findall(code))
        for case in re.findall(r"\bTEST(?:_[PF])?\(\s*(\w+)\s*,\s*(\w+)\s*\)", code):
            self.cases.add(case)
            self.suites.add(case[0])

    def has_path(self, path, where):
        near = os.path.normpath(pathlib.PurePosixPath(where).parent / path)
        return path in self.paths or near in self.paths or path in self.programs or PLACEHOLDER.search(path) or \
            MADE.search(path)

    def has_entry(self, entry):
        """Returns whether `entry` begins a CTest entry, a file NAME_test, or a CMake test named after one in
        tests/gpu/kernels."""
        stem = entry.split(".")[1].removeprefix("cuda_")
        return any(known.startswith(entry) for known in self.entries) or \
            any(known.startswith(stem) for known in self.stems)

    def missing(self, name, text):
        """Yields (line, kind, word) for each name in the text that does not exist."""
        document = name.endswith(".md")
        for number, line in enumerate(text.split("\n"), 1):
            if not line or line.isspace():
                continue
            line = without_braces(line)
            for path in PATH.findall(line):
                ours = re.search(r"\." + SUFFIX + "$", path) or path.split("/")[0] in self.top
                if ours and not self.has_path(path, name):
                    yield number, "path", path
            for flag in set(FLAG.findall(line)) - self.flags:
                yield number, "flag", flag
            for entry in ENTRY.findall(line):
                if not self.has_entry(entry) and not self.has_path(entry, name):
                    yield number, "test", entry
            for suite, case in CASE.findall(line):
                if suite in self.suites and (suite, case) not in self.cases:
                    yield number, "test", f"{suite}.{case}"
            for word in (QUOTED if document else CAMEL).findall(line):
                if not {word, word.removesuffix("s")} & self.words:
                    yield number, "class", word
            for word in set(CALL.findall(line)) - self.words:
                yield number, "function", word


def check(root, outside=frozenset()):
    tree = Tree(root)
    found, used = [], set()
    for name, text in sorted(tree.text.items()):
        for number, kind, word in tree.missing(name, prose_of(text, pathlib.PurePosixPath(name).suffix)):
            if word in outside:
                used.add(word)
            else:
                found.append(f"{name}:{number}: there is no {kind} {word}")
    return found + [f"tests/references.py: nothing names {word}: remove it" for word in sorted(outside - used)]


def self_test():
    files = {"kernels/base/a.h": "struct CompiledRun {}; void make_plan(); // 1\nconst char* k = \"--lr\";",
             "tests/unit/shape_test.cpp": "TEST(Shape, IsKept) {}", "bench/floor.cpp": ""}
    right = ("// base/a.h, kernels/base/{a,a}.h, kernels/base/, `CompiledRun`, CompiledRuns, make_plan(), --lr, unit.shape",
             "// Shape.IsKept; bench/floor; kernels/FAMILY/NAME.h; build/x.h; https://a.org/b/c.h; and/or; Other.Word")
    wrong = ("// base/b.h", "// kernels/base/{a,b}.h", "// kernels/cpu/", "// RunState", "// make_state()", "// --rate",
             "// unit.form", "// Shape.IsLost")
    documents = (("See `RunState`.", 1), ("RunState, as others call it.", 0), ("[a](../kernels/base/a.h)", 0),
                 ("[a](../kernels/base/b.h)", 1))
    trials = [("kernels/base/b.cpp", line, 0) for line in right] + [("kernels/base/c.cpp", line, 1) for line in wrong] + \
        [("docs/page.md", *trial) for trial in documents]
    failures = 0
    for name, line, want in trials:
        with tempfile.TemporaryDirectory() as tmp:
            for path, text in (*files.items(), (name, line)):
                pathlib.Path(tmp, path).parent.mkdir(parents=True, exist_ok=True)
                pathlib.Path(tmp, path).write_text(text + "\n", encoding="utf-8")
            found = check(pathlib.Path(tmp))
            unused = check(pathlib.Path(tmp), frozenset({"NobodyNames"}))
        if len(found) != want or len(unused) != want + 1:
            failures += 1
            print(f"self-test: {line}: {found}, expected {want}", file=sys.stderr)
    print(f"references self-test: {len(trials)} lines, {failures} failures")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else cpp_source.ROOT, OUTSIDE | OUTSIDE_FLAGS)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
