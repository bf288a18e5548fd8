#!/usr/bin/env python3
"""Measures the worth of a clean run of random graphs: plants faults, one at a time, and lets the graphs find each.

    planted.py --apply DIR       writes all faults into DIR, a copy of this tree; OFSDP_PLANTED=N switches number N on
    planted.py --run DIR [N..] [--count GRAPHS]   draws graphs until each is found; a row for each on stdout
    planted.py --check           each snippet is found once (the CTest entry unit.planted_faults)
    planted.py --self-test       expects made-up tables to be refused

A fault is a snippet of the sources and its replacement: an expression for an expression, or statements. Snippets ignore
white space and name no file, so code may move. No fault is ever compiled into the product.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("importer", "kernels", "runtime")
MOST = 2000  # graphs per fault
WAYS = ("plain,eager,recompute,accumulate,bfloat16", "two_ranks,three_ranks")  # one after the other
HEADER = """#pragma once
#include <cstdlib>
inline bool ofsdp_planted(int number) {
  const char* active = std::getenv("OFSDP_PLANTED");  // anew: one process asks about all
  return active != nullptr && std::atoi(active) == number;
}
"""

FAULTS = (
    # --- passes ---
    ("attention: a divisor of the scores is taken for a factor",
     "scale /= *r.scalar(div->inputs[1]);",
     "scale *= *r.scalar(div->inputs[1]);"),
    ("attention: fused whatever the axis of the Softmax",
     "axis != -1 && axis != 3", "false"),
    ("causal mask: the numbers added to visible keys are lost",
     "key <= query ? !seen : !hidden", "key > query && !hidden"),
    ("GELU: fused whatever the constant factor",
     "f.values.size() != 2 || !near(f.constant, 0.5)", "f.values.size() != 2"),
    ("normalization: a mean over any axis counts as that over the last",
     "axis == -1 || axis == rank - 1 ? mean->inputs[0] : 0", "mean->inputs[0]"),
    ("rotary embedding: the halves of the tables may differ",
     "width(r, cos) != width(r, x) || !halves_equal(r, cos) || !halves_equal(r, sin)",
     "width(r, cos) != width(r, x)"),
    ("LogSoftmax and its loss: joined whatever the axis",
     "if (axis != -1 && axis != rank - 1) return false; if (r.shape(node.inputs[0]).rank() != 2 || "
     "r.shape(node.outputs[0]).rank() != 0) return false;",
     "if (r.shape(node.inputs[0]).rank() != 2 || r.shape(node.outputs[0]).rank() != 0) return false;"),
    ("attention: each part of a Split begins at 0",
     "view.part(static_cast<size_t>(along), begin, size)",
     "view.part(static_cast<size_t>(along), 0, size)"),
    ("chain: operands swapped",
     "members_.add({op, a, b})", "members_.add({op, b, a})"),
    ("layouts: a gradient is left channels last",
     "for (Parameter& p : graph_.parameters) OFSDP_RETURN_IF_ERROR(want(p.gradient, Layout::kPlain));", ""),
    ("gradient of a tied table: the other part is lost",
     "adding.inputs.push_back(a);", ""),
    ("two parameters share one value as their gradient",
     "fresh && owners.try_emplace(gradient, 1).second", "fresh"),
    ("sum joined with a normalization's gradient that others read",
     "kept_.contains(dx) || uses_.readers(dx).size() != 1", "kept_.contains(dx) || uses_.readers(dx).empty()"),
    # --- gradients ---
    ("Div: a factor of the divisor's gradient is x, not y",
     "b.mul(scaled, b.output(0))", "b.mul(scaled, b.input(0))"),
    ("Where: the branches of the second gradient are swapped",
     "b.where(condition, zero, d)", "b.where(condition, d, zero)"),
    ("Max, Min: equal inputs do not share",
     "b.div(dy, count)", "dy"),
    ("ReduceLogSumExp: the reduced axes are not kept",
     "b.sub(b.input(0), keep_reduced(b, b.output(0)))", "b.sub(b.input(0), b.output(0))"),
    ("CumSum: `exclusive` is lost",
     'b.emit1("CumSum", {b.grad_output(0), b.input(1)}, {{"exclusive", b.attributes().i("exclusive", 0)}, '
     '{"reverse", reverse}})',
     'b.emit1("CumSum", {b.grad_output(0), b.input(1)}, {{"reverse", reverse}})'),
    ("Gemm: beta is lost",
     'beta == 1.0f ? dc : b.emit1("Mul", {dc, b.scalar(b.desc(dc).dtype, beta)})', "dc"),
    ("GroupNormalization: the scale of one sum is lost",
     "total_dot += made.dot * static_cast<double>(scale[k]);", "total_dot += made.dot;"),
    ("BatchNormalization: a factor 1 / deviation is lost",
     "factor[c] * inv[c] * dscale[c] * share", "factor[c] * dscale[c] * share"),
    ("LayerNormalization: a broadcast scale's gradient forgets the mean",
     'if (g.mean) h = b.emit1("Sub", {h, g.mean});', ""),
    ("MatMul: the axis of a vector is put on the other side",
     "shape_b.rank() > 1 ? 1 : 0", "0"),
    ("MaxPool: dilations along the last axis are lost",
     "tap % w.kernel[2] * w.dilations[2]", "tap % w.kernel[2]"),
    # --- kernels, memory, accumulation ---
    ("AveragePool: channels last are read with the plain layout's step",
     "last_ ? 1 : window_.strides[2]", "window_.strides[2]"),
    ("sums: the rest after whole vectors is left out",
     "lanes[lane] = rule.join(lanes[lane], rule.load(src[i]));",
     "if (i < kLanes) lanes[lane] = rule.join(lanes[lane], rule.load(src[i]));"),
    ("attention: the gradient of V is added to what was there",
     "std::fill_n(dv, s.keys * s.v_width, Real{0});", ""),
    ("memory: an output overwrites an input that its node reads twice",
     "reads_of(node, storage_, root) == 1", "true"),
    ("loss: 1 / N of accumulation is lost",
     "kept / kept_[term]", "1.0"),
    ("accumulation: the sum of earlier micro-batches is overwritten",
     "!options_.first_micro && unit(u).plan.shards_gradients", "false"),
)


def pattern(snippet):
    return re.compile(r"\s+".join(re.escape(word) for word in snippet.split()))


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cpp", ".h"):
                yield path


def places(root, faults=FAULTS):
    """Returns for each fault the files with its snippet, once per occurrence."""
    texts = [(path, path.read_text(encoding="utf-8")) for path in sources(root)]
    return [[path for path, text in texts for _ in pattern(right).findall(text)] for _, right, _ in faults]


def check(root, faults=FAULTS):
    found = []
    for number, ((name, right, wrong), paths) in enumerate(zip(faults, places(root, faults)), 1):
        if len(paths) != 1:
            where = ", ".join(path.relative_to(root).as_posix() for path in paths) or "nowhere"
            found.append(f"tests/graphs/planted.py: fault {number} ({name}): expected its snippet once, found it "
                         f"{len(paths)} times ({where}); write it as the code has it now: {right}")
        if right == wrong:
            found.append(f"tests/graphs/planted.py: fault {number} ({name}) changes nothing")
    return found


def guarded(number, right, wrong):
    if right.endswith(";"):
        return f"if (ofsdp_planted({number})) {{ {wrong} }} else {{ {right} }}"
    return f"(ofsdp_planted({number}) ? ({wrong}) : ({right}))"


def apply(to):
    if to == ROOT:
        sys.exit("planted.py: --apply is for a copy of the tree, not for the tree itself")
    for number, ((_, right, wrong), paths) in enumerate(zip(FAULTS, places(ROOT)), 1):
        path = to / paths[0].relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        include = '#include "kernels/base/planted.h"\n'
        made, count = pattern(right).subn(lambda _: guarded(number, right, wrong), text)
        if count != 1:
            sys.exit(f"planted.py: {path}: expected fault {number} to be new there, found {count} places")
        if include not in made:  # after a header's `#pragma once`
            made = made.replace("#pragma once\n", "#pragma once\n" + include) if path.suffix == ".h" else include + made
        path.write_text(made, encoding="utf-8")
    (to / "kernels/base/planted.h").write_text(HEADER, encoding="utf-8")


def search(tree, numbers, ways, count, report):
    """Calls report(number, graphs, way, line) for each fault that one of `count` graphs finds. One process runs all
    faults, so the reference of a graph is computed once. If the process ends early, the fault that ended it counts
    as found."""
    left, seed = list(numbers), 1
    while left and seed <= count:
        command = [tree / "build/release/tests/random_graphs", "--seed", str(seed), "--count", str(count + 1 - seed),
                   "--ways", ways, "--verbose", "--planted", ",".join(map(str, left))]
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        made = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                errors="replace")
        tried, last = None, seed
        for line in made.stdout:
            if found := re.match(r"planted (\d+): (\d+) graphs, seed (\d+), (\w+): (.*)", line):
                left.remove(int(found[1]))
                report(int(found[1]), int(found[3]), found[4], found[5])
            if begun := re.match(r"trying (\d+): seed (\d+), (\w+)", line):
                tried, last = (int(begun[1]), begun[3]), int(begun[2])
        if made.wait() >= 0 and made.returncode <= 1:
            return left
        if tried is None or tried[0] not in left:
            sys.exit(f"planted.py: random_graphs ended with {made.returncode} without a fault, after seed {last}")
        left.remove(tried[0])
        report(tried[0], last, tried[1], f"the program ended with {made.returncode}")
        seed = last  # the same graph again, for the other faults
    return left


def run(tree, numbers, count):
    """Prints a row for each fault as soon as its result is known. Ways that fork come last."""
    def report(number, graphs, way, line):
        print(f"| {number} | {FAULTS[number - 1][0]} | {graphs} | {way} | {line} |", flush=True)

    print("| | fault | graphs | way | line |\n| --- | --- | --- | --- | --- |", flush=True)
    left = list(numbers) or list(range(1, len(FAULTS) + 1))
    for ways in WAYS:
        left = search(tree, left, ways, count, report)
    for number in left:
        report(number, "not found", "", "")
    return len(left)


def self_test():
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        (root / "kernels").mkdir()
        (root / "kernels/a.cpp").write_text("int f() { return a +\n    b; }\nint g() { return c; }\nint h() { return c; }\n")
        wanted = ((("once", "a + b", "a - b"), 0), (("twice", "c;", "d;"), 1), (("gone", "e", "f()"), 1),
                  (("same", "a + b", "a + b"), 1))
        wrong = [fault for fault, count in wanted if len(check(root, (fault,))) != count]
    for fault in wrong:
        print(f"self-test: {fault} was judged wrongly", file=sys.stderr)
    return len(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apply", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--run", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--count", type=int, default=MOST)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("numbers", type=int, nargs="*")
    given = parser.parse_args()
    if given.self_test:
        return 1 if self_test() else 0
    found = check(ROOT)
    for line in found:
        print(line)
    if found or given.check:
        return 1 if found else 0
    if given.apply:
        apply(given.apply.resolve())
    if given.run:
        return 1 if run(given.run.resolve(), given.numbers, given.count) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
