#!/usr/bin/env python3
"""Tests every operator at every version of its schema, against ONNX Runtime or the standard's text.

    opsets.py [--runner build/release/tests/node_runner] [--table docs/internals/opsets.md] [--only Resize,Upsample]
              [--keep FOLDER]

A case (opset_cases.py) has models of one node, at the first and the last opset of each version of the operator's
schema. From opset 7 on, expected values come from ONNX Runtime. Before, and if ONNX Runtime has no kernel, they come
from `like`. This is numpy code for the standard's text, or a node of a newer opset with the same meaning. Needs
numpy, onnx, onnxruntime; run by hand. Exit status 1 if a result differs.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import opset_cases  # noqa: F401  fills CASES
from opset_node import CASES, NEWEST, VERSIONS, array_of, feeds_of, floats, model_of, run_ort


def expected(c, model, opset):
    """Returns (arrays, source) for a case; the source is "ONNX Runtime", "text" or "reference"."""
    arrays = [None if e is None else array_of(e) for e in c.inputs]

    def by_text():
        made = c.like(c, arrays)
        return [np.asarray(a) for a in (made if isinstance(made, (list, tuple)) else [made])]

    if opset < 7 or c.wrong:
        if c.like is None:
            raise ValueError("%s %s: no text for opset %d" % (c.op, c.name, opset))
        return by_text(), "text"
    try:
        theirs = run_ort(model, feeds_of(c))
        if c.exact and all(close(a, b) for a, b in zip(by_text(), theirs)):
            return by_text(), "ONNX Runtime"
        return theirs, "ONNX Runtime"
    except Exception as error:  # pylint: disable=broad-except
        if c.like is not None:
            return by_text(), "text"
        try:
            return ReferenceEvaluator(model).run(None, feeds_of(c)), "reference"
        except Exception as other:  # pylint: disable=broad-except
            raise ValueError("ONNX Runtime: %s; reference: %s" % (str(error).splitlines()[0][:160], str(other)[:160])) from other


def close(a, b):
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    if a.dtype.kind == "f":
        return np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    return np.array_equal(a, b)


def opsets_of(c):
    """Yields (version, opset): the first and last opset of each version that the case covers."""
    versions = VERSIONS[c.op]
    for k, version in enumerate(versions):
        after = versions[k + 1] - 1 if k + 1 < len(versions) else NEWEST
        first, last = max(version, c.since), min(after, c.until)
        if first > last:
            continue
        yield version, first
        if last != first:
            yield version, last


def write(c, opset, folder, values):
    model = model_of(c, opset)
    for out, value in zip(model.graph.output, values):
        out.CopyFrom(helper.make_tensor_value_info(out.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    for k in sorted(c.skip_outputs, reverse=True):
        del model.graph.output[k]
    values = [v for k, v in enumerate(values) if k not in c.skip_outputs]
    data = os.path.join(folder, "test_data_set_0")
    os.makedirs(data)
    onnx.save(model, os.path.join(folder, "model.onnx"))
    for k, (name, value) in enumerate(feeds_of(c).items()):
        with open(os.path.join(data, "input_%d.pb" % k), "wb") as file:
            file.write(numpy_helper.from_array(np.asarray(value), name).SerializeToString())
    for k, value in enumerate(values):
        with open(os.path.join(data, "output_%d.pb" % k), "wb") as file:
            file.write(numpy_helper.from_array(np.asarray(value), "out%d" % k).SerializeToString())


HEAD = """# Operators by opset

Made by `tests/oracle/opsets.py --table docs/internals/opsets.md`: each operator at each version of its schema (the first and the last
opset of each), the attributes of that version, elementwise. Before opset 7 the standard's text is the measure, written down as
numpy or as a node of a newer opset that means the same; from 7 on ONNX Runtime %s, and onnx's reference where that has no
kernel. %d models: %d give the same, %d are refused with a line that names node and opset.

`same` means that every element agrees. Rules of our own (`importer/normalize/opset_rules.cpp`) go before ONNX's version
converter, which has no adapter or one that loses the meaning. Not here: what draws random numbers, control flow and sequences
(resolved by the importer), quantized arithmetic (docs/internals/quantized.md).

| operator | versions by text | versions by ONNX Runtime | by the reference | result |
| --- | --- | --- | --- | --- |
"""


def write_table(path, made, failures):
    rows = {}
    refused = 0
    for name, (c, version, _, source) in made.items():
        row = rows.setdefault(c.op, {"text": set(), "ONNX Runtime": set(), "reference": set(), "notes": [], "differs": set()})
        if source == "refused":
            refused += 1
        else:
            row[source].add(version)
        for note in (c.note, "ONNX Runtime " + c.wrong + " (" + c.name + ")" if c.wrong else None):
            if note and note not in row["notes"]:
                row["notes"].append(note)
        if name in failures and not c.refused:
            row["differs"].add(version)
    with open(path, "w", encoding="utf-8") as file:
        file.write(HEAD % (onnxruntime.__version__, len(made), len(made) - refused - len([n for n in failures if not made[n][0].refused]), refused))
        for op, row in sorted(rows.items()):
            columns = [", ".join(map(str, sorted(row[k]))) for k in ("text", "ONNX Runtime", "reference")]
            result = "differs: " + ", ".join(map(str, sorted(row["differs"]))) if row["differs"] else "same"
            file.write("| %s | %s | %s |\n" % (op, " | ".join(columns), "; ".join([result] + row["notes"])))
        file.write(FOOT)


FOOT = """
What ONNX Runtime gets wrong, or leaves open, and what is done here:

| operator | ONNX Runtime | here |
| --- | --- | --- |
| Resize 11 to 28, align_corners, scales that give a broken length | divides by the output's length, which is whole | the standard's own tests: by the broken length |
| Dropout 7 to 11 in inference | the mask is 0 | 1, as since opset 12; the text leaves it open |
| OneHot 9, 10, negative indices | count from the end, as since opset 11 | the same; the text asks for indices from 0 on |
| Resize 10, nearest | rounds up on axes that shrink | the same; the text says nothing |

Refused: Scan of opset 8 (its batch axis), Pad of opset 1 where text and example disagree, Split of opset 1 without an axis,
BatchNormalization before opset 7 with is_test=0 and one output, before opset 9 with spatial=0 in training,
tf_half_pixel_for_nn that rounds up.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", default="build/release/tests/node_runner")
    parser.add_argument("--table")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    root = arguments.keep or tempfile.mkdtemp()
    made, broken, seen = {}, [], set()
    for c in CASES:
        if wanted and c.op not in wanted:
            continue
        for version, opset in opsets_of(c):
            name = "%s-%d-%s" % (c.op, opset, re.sub(r"\W+", "_", c.name))
            if name in seen:
                raise ValueError("two cases are called " + name)
            seen.add(name)
            try:
                if c.refused:
                    values, source = [floats(0)], "refused"
                else:
                    values, source = expected(c, model_of(c, opset), opset)
                if c.wrong and opset >= 7:
                    theirs = run_ort(model_of(c, opset), feeds_of(c))
                    if all(close(a, b) for a, b in zip(values, theirs)):
                        broken.append("%s: ONNX Runtime is right: remove `wrong`" % name)
            except Exception as error:  # pylint: disable=broad-except
                broken.append("%s: %s" % (name, str(error)[:300]))
                continue
            write(c, opset, os.path.join(root, name), values)
            made[name] = (c, version, opset, source)
    run = subprocess.run([arguments.runner, root], capture_output=True, text=True, check=False)
    failures = {}
    for line in run.stdout.splitlines():
        match = re.match(r"FAILED (\S+): (.*)", line)
        if match:
            failures[match[1]] = match[2]
    bad = 0
    for name, (c, version, opset, source) in made.items():
        message = failures.get(name, "")
        fine = c.refused in message if c.refused and message else not c.refused and not message
        if not fine:
            bad += 1
            print("DIFFERS %s (%s): %s" % (name, source, message[:300] or "expected a refusal"))
    for line in broken:
        print("BROKEN", line)
    print("%d cases, %d differ, %d without expected values" % (len(made), bad, len(broken)))
    if arguments.table:
        write_table(arguments.table, made, failures)
    sys.exit(1 if bad or broken else 0)


if __name__ == "__main__":
    main()
