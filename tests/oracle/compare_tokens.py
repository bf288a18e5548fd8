#!/usr/bin/env python3
"""Compares fsdp-run's token ids for texts with the ids from the `tokenizers` package.

    compare_tokens.py FSDP_RUN TEXT           every kind of tests/fixtures/tokenizers/make.py, trained on a file's lines
    compare_tokens.py FSDP_RUN --draw COUNT   tokenizers of random parts, on random texts

Needs tokenizers, sentencepiece, onnx and numpy.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper

import draw_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
LARGER = 10  # than the fixtures' vocabularies


def identity():
    """Returns a model that outputs its tokens as floats."""
    axes = ["batch", "length"]
    graph = helper.make_graph(
        [helper.make_node("Cast", ["tokens"], ["ids"], to=TensorProto.FLOAT)], "identity",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, axes)],
        [helper.make_tensor_value_info("ids", TensorProto.FLOAT, axes)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def found_ids(program, folder, tokenizer, texts):
    tokenizer.save(str(folder / "t.json"))
    (folder / "f.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    subprocess.run([program, "predict", folder / "model.onnx", "--data", folder / "d.yaml", "--batch-size", "256", "-o",
                    folder / "ids.npy"], check=True, stdout=subprocess.DEVNULL)
    return [row[row >= 0].astype(int).tolist() for row in np.load(folder / "ids.npy")]


def cases(what, count):
    if what == "--draw":
        yield from draw_tokenizers.drawn(int(count))
        return
    sys.path.insert(0, str(ROOT / "tests/fixtures/tokenizers"))
    import make
    lines = [line for line in pathlib.Path(what).read_bytes().decode().split("\n") if line.strip()]
    for name, tokenizer in make.made(lines, LARGER):
        yield name, tokenizer, lines


def main(program, what, count=None):
    different = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        onnx.save(identity(), folder / "model.onnx")
        (folder / "d.yaml").write_text("train: {tokens: {text: f.jsonl, tokenizer: t.json, pad_to: longest, pad_value: -1}}\n")
        for kind, tokenizer, texts in cases(what, count):
            expected = [tokenizer.encode(text).ids for text in texts]
            if not any(expected):
                continue  # fsdp-run refuses rows without a token
            found = found_ids(program, folder, tokenizer, texts)
            wrong = [i for i in range(len(texts)) if found[i] != expected[i]]
            different += len(wrong)
            print(f"{kind}: {len(texts)} texts, {sum(map(len, found))} tokens of {tokenizer.get_vocab_size()}, "
                  f"{len(wrong)} differ", *(repr(texts[i]) for i in wrong[:2]), flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
