#!/usr/bin/env python3
"""Checks that each header of the product can be included first. It must include, itself or through our other headers,
the definitions of the names it uses. Builds cannot tell: precompiled headers bring the standard library to every file.

    headers.py [ROOT]          one line for each name whose header is missing
    headers.py --self-test     expects made-up headers to be found
    headers.py --compile [DIR] compiles each header (of a folder) by itself: exact, and half a second a header

Reading takes a second. It knows the standard library's names in STANDARD, and the types, constants and aliases that
exactly one of our headers defines.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import cpp_source

# Header -> the names in namespace std (and C macros and types) that it defines. Several headers may define one name.
STANDARD = {
    "algorithm": "sort stable_sort min max clamp find find_if any_of all_of none_of count_if copy copy_n fill fill_n "
                 "transform min_element max_element lower_bound upper_bound reverse remove_if erase_if max_element "
                 "equal nth_element partial_sort unique rotate minmax count",
    "array": "array",
    "atomic": "atomic atomic_flag memory_order_acquire memory_order_release memory_order_relaxed atomic_thread_fence",
    "chrono": "chrono",
    "cmath": "sqrt exp log pow abs floor ceil tanh isnan isfinite isinf fma erf sin cos log2 lround fabs signbit "
             "nearbyint trunc fmod expm1 log1p hypot",
    "condition_variable": "condition_variable",
    "cstddef": "byte ptrdiff_t nullptr_t max_align_t",
    "cstdlib": "abort getenv abs",
    "cstring": "memcpy memset memcmp memmove strlen strcmp",
    "deque": "deque",
    "exception": "exception",
    "filesystem": "filesystem",
    "fstream": "ifstream ofstream fstream",
    "functional": "function hash plus multiplies less greater reference_wrapper ref cref",
    "initializer_list": "initializer_list",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared enable_shared_from_this addressof",
    "mutex": "mutex lock_guard unique_lock once_flag call_once scoped_lock",
    "new": "bad_alloc hardware_destructive_interference_size launder",
    "numeric": "accumulate iota inner_product partial_sum gcd lcm reduce",
    "optional": "optional nullopt nullopt_t",
    "random": "mt19937 mt19937_64 uniform_int_distribution uniform_real_distribution",
    "set": "set multiset",
    "span": "span dynamic_extent as_bytes as_writable_bytes",
    "sstream": "stringstream ostringstream istringstream",
    "string": "string to_string stoi stoll stod",
    "string_view": "string_view",
    "thread": "thread jthread this_thread",
    "tuple": "tuple tie make_tuple",
    "type_traits": "is_same_v enable_if_t decay_t is_floating_point_v is_integral_v conditional_t remove_const_t "
                   "is_trivially_copyable_v invoke_result_t is_convertible_v is_signed_v is_unsigned_v make_unsigned_t "
                   "make_signed_t remove_cvref_t is_void_v is_base_of_v false_type true_type is_invocable_v "
                   "is_constant_evaluated remove_reference_t",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "pair move forward swap exchange make_pair index_sequence make_index_sequence declval in_place",
    "variant": "variant visit get_if holds_alternative monostate",
    "vector": "vector",
}
C_TYPES = {"int64_t", "int32_t", "int16_t", "int8_t", "uint64_t", "uint32_t", "uint16_t", "uint8_t", "uintptr_t",
           "intptr_t"}
C_TYPES_FROM = {"cstdint", "stdint.h"}
# Headers that include others by the standard or in every library.
BRINGS = collections.defaultdict(set, {
    "algorithm": {"utility"}, "array": {"utility", "initializer_list", "cstddef"},
    "map": {"utility", "initializer_list"}, "functional": {"utility", "type_traits"}, "memory": {"utility", "type_traits", "new"},
    "mutex": {"utility"}, "optional": {"utility", "type_traits"}, "set": {"utility", "initializer_list"},
    "span": {"array", "cstddef", "type_traits"}, "string": {"utility", "initializer_list", "string_view"},
    "tuple": {"utility", "type_traits"}, "variant": {"utility", "type_traits"}, "unordered_map": {"utility"},
    "vector": {"utility", "initializer_list"}, "fstream": {"string"}, "sstream": {"string"}, "thread": {"chrono"},
    "string_view": {"cstddef"}, "cstdint": {"stdint.h"}, "atomic": {"cstdint"}, "chrono": {"cstdint"},
    "filesystem": {"string", "chrono"}, "utility": {"type_traits", "initializer_list"}, "cstring": {"cstddef"},
    "random": {"limits", "cstdint"}, "condition_variable": {"mutex", "chrono"},
})
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.MULTILINE)


class Header:
    def __init__(self, path, name):
        text = path.read_text(encoding="utf-8")
        self.name = name
        self.words = cpp_source.tokens(text)
        self.ours = [m[2] for m in INCLUDE.finditer(text) if m[1] == '"']
        self.system = {m[2] for m in INCLUDE.finditer(text) if m[1] == "<"}
        self.defines = {name.split("(")[0].split("::")[-1] for kind, name in cpp_source.definitions(text)
                        if kind in ("type", "alias", "constant")}

        pairs = zip(self.words, self.words[1:], self.words[2:])
        self.forward = {name for kind, name, end in pairs if kind in ("class", "struct") and end == ";"}

    def declared(self):
        """Returns the names that the header itself declares: forward declarations, members, nested types,
        parameters."""
        names = set(self.defines)
        for i, word in enumerate(self.words[:-1]):
            if self.words[i + 1] == "=":
                names.add(word)
            if word in ("class", "struct", "enum", "typename", "using", "union"):
                after = self.words[i + 1]
                names.add(self.words[i + 2] if after in ("class", "struct") and i + 2 < len(self.words) else after)
        return names


def read(root):
    return {name: Header(path, name)
            for path in cpp_source.files(root, cpp_source.PRODUCT, {".h"})
            for name in [path.relative_to(root).as_posix()]}


def reach(header, headers):
    """Returns our headers and the other headers that `header` brings in."""
    ours, system, waiting = set(), set(), [header.name]
    while waiting:
        name = waiting.pop()
        if name in ours or name not in headers:
            continue
        ours.add(name)
        system |= headers[name].system
        waiting += headers[name].ours
    todo = list(system)
    while todo:
        for more in BRINGS[todo.pop()] - system:
            system.add(more)
            todo.append(more)
    return ours, system


def missing(header, headers, home, standard):
    ours, system = reach(header, headers)
    known, found = header.declared().union(*(headers[name].forward for name in ours)), {}
    words = header.words
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        if before == "::" and i > 1 and words[i - 2] == "std":
            if word in standard and not standard[word] & system:
                found[f"std::{word}"] = " or ".join(f"<{h}>" for h in sorted(standard[word]))
        elif word in C_TYPES and before != "::" and not C_TYPES_FROM & system:
            found["fixed-width integers"] = "<cstdint>"
        elif word in home and before not in ("::", ".", "->") and word not in known and home[word] not in ours:
            if not re.match(r"[A-Za-z_]", before) or before in ("const", "return", "public", "new", "constexpr"):
                found[word] = home[word]
    return [f"{header.name}: uses {name} without {where}" for name, where in sorted(found.items())]


def check(root):
    headers = read(root)
    homes = collections.defaultdict(set)
    for header in headers.values():
        for name in header.defines:
            homes[name].add(header.name)
    home = {name: min(where) for name, where in homes.items() if len(where) == 1 and re.match(r"[A-Z]|k[A-Z]", name)}
    standard = collections.defaultdict(set)
    for header, names in STANDARD.items():
        for name in names.split():
            standard[name].add(header)
    return [line for header in headers.values() for line in missing(header, headers, home, standard)]


def compile_alone(folder):
    """Returns the headers that do not compile without an include before them."""
    root, found = cpp_source.ROOT, []
    includes = [f"-I{root}", f"-I{root}/third_party/prefix/include", f"-isystem{root}/third_party/prefix/local/include"]
    for path in cpp_source.files(root, [folder] if folder else cpp_source.PRODUCT, {".h"}):
        name = path.relative_to(root).as_posix()
        done = subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-fopenmp", *includes,
                               "-xc++", "-"], input=f'#include "{name}"\n', text=True, capture_output=True, check=False)
        if done.returncode:
            found.append(f"{name}: {done.stderr.strip().splitlines()[0]}")
    return found


def self_test():
    wrong = [
        {"kernels/a.h": "std::vector<int> f();"},
        {"kernels/a.h": "int64_t f();"},
        {"kernels/a.h": "X f();", "kernels/b.h": "struct X { };"},
        {"kernels/a.h": "int f(const X& x);", "kernels/b.h": "struct X { };"},
        {"kernels/a.h": "constexpr int kA = kB;", "kernels/b.h": "constexpr int kB = 1;"},
        {"kernels/a.h": "#include <string>\nstd::optional<std::string> f();"},
    ]
    right = [
        {"kernels/a.h": "#include <vector>\nstd::vector<int> f();"},
        {"kernels/a.h": '#include "kernels/b.h"\nstd::vector<int> f();', "kernels/b.h": "#include <vector>\n"},
        {"kernels/a.h": "class X;\nint f(const X& x);", "kernels/b.h": "class X { };"},
        {"kernels/a.h": '#include "kernels/c.h"\nX f();', "kernels/b.h": "struct X { };",
         "kernels/c.h": '#include "kernels/b.h"\n'},
        {"kernels/a.h": "// std::vector of X\nint f();", "kernels/b.h": "struct X { };"},
        {"kernels/a.h": "int f(other::X x);", "kernels/b.h": "struct X { };"},
    ]
    failures = 0
    for cases, want in ((wrong, 1), (right, 0)):
        for case in cases:
            with tempfile.TemporaryDirectory() as tmp:
                for name, text in case.items():
                    path = pathlib.Path(tmp, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text + "\n", encoding="utf-8")
                found = check(pathlib.Path(tmp))
            if len(found) != want:
                failures += 1
                print(f"self-test: {case}: {found}, expected {want}", file=sys.stderr)
    print(f"headers self-test: {len(wrong) + len(right)} trees, {failures} failures")
    return 1 if failures else 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    if args[:1] == ["--compile"]:
        found = compile_alone(args[1] if len(args) > 1 else None)
    else:
        found = check(pathlib.Path(args[0]) if args else cpp_source.ROOT)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
