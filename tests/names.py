#!/usr/bin/env python3
"""Fails if two headers define one qualified name: a class, an enum, a constant, an alias, or a function with the same
parameters. Two such definitions in one program are undefined behaviour, and no compiler or linker reports them.

    names.py [ROOT]       one line for each name that is defined twice
    names.py --self-test  expects made-up headers to be found
"""
import collections
import pathlib
import sys
import tempfile

import cpp_source

# Present names that must go. An entry that is no longer defined twice fails too: this list only shrinks.
PENDING = frozenset()


def check(root, pending=frozenset()):
    where = collections.defaultdict(set)
    for path in cpp_source.files(root, cpp_source.PRODUCT, cpp_source.HEADERS):
        for _, name in cpp_source.definitions(path.read_text(encoding="utf-8")):
            where[name].add(path.relative_to(root).as_posix())
    twice = {name: " and ".join(sorted(paths)) for name, paths in sorted(where.items()) if len(paths) > 1}
    found = [f"{name}: defined in {paths}" for name, paths in twice.items() if name not in pending]
    return found + [f"PENDING of tests/names.py names {name}, which is not defined twice: remove it"
                    for name in sorted(set(pending) - set(twice))]


def self_test():
    twice = [
        ("namespace a { struct X { int i; }; }", "namespace a { class X final { }; }"),
        ("namespace a::b { enum class E { kA }; }", "namespace a { namespace b { enum E : int { kB }; } }"),
        ("namespace a { constexpr int kN = 1; }", "namespace a { inline constexpr float kN{2}; }"),
        ("namespace a { using T = int; }", "namespace a { struct T { }; }"),
        ("namespace a { inline int f(int x, const B& b = {}) { return x; } }",
         "namespace a { template <typename T> int f(int y, const B& c) { return y; } }"),
        ("namespace { struct X {}; }", "namespace { struct X {}; }"),
        ('constexpr const char* kWord = "namespace a {";', 'constexpr char kWord[] = "}";'),
    ]
    once = [
        ("namespace a { struct X { }; }", "namespace b { struct X { }; }"),
        ("namespace a { struct X { }; }", "namespace a { struct X; void f(X x); }"),
        ("namespace a { inline int f(int x) { return x; } }", "namespace a { inline int f(float x) { return 1; } }"),
        ("namespace a { struct X { int f() { return 1; } }; }", "namespace a { struct Y { int f() { return 1; } }; }"),
        ("namespace a { template <> struct X<int> { }; }", "namespace a { template <> struct X<float> { }; }"),
        ("namespace a { struct X { }; }", "// namespace a { struct X { }; }"),
    ]
    failures = 0
    for pairs, want in ((twice, 1), (once, 0)):
        for texts in pairs:
            with tempfile.TemporaryDirectory() as tmp:
                for i, text in enumerate(texts):
                    path = pathlib.Path(tmp, "kernels", f"{i}.h")
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(text + "\n", encoding="utf-8")
                found = check(pathlib.Path(tmp))
            if len(found) != want:
                failures += 1
                print(f"self-test: {texts}: {found}, expected {want}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as tmp:
        if len(check(pathlib.Path(tmp), {"a::gone"})) != 1:
            failures += 1
            print("self-test: a pending name that is gone: not found", file=sys.stderr)
    print(f"names self-test: {len(twice) + len(once)} pairs, {failures} failures")
    return 1 if failures else 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    found = check(pathlib.Path(args[0]), PENDING) if args else check(cpp_source.ROOT, PENDING)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
