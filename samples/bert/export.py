#!/usr/bin/env python3
"""Writes bert.onnx and data/ of this sample; the results are committed, so the sample needs neither Python nor PyTorch.

    export.py INPUT.TXT       needs torch, transformers, tokenizers, onnx, onnxscript, numpy

The model is transformers' BertForMaskedLM with random weights: 4 layers, 4 heads, width 128. The text becomes word
pieces from a vocabulary of 512 (data/vocab.txt), built from the text. A row has 16: [CLS], 14 pieces, [SEP].
The model predicts 15 % of the pieces: of these, 80 % become [MASK], 10 % another piece, and 10 % stay. All other labels
are -100. This script draws the masks, four times over the first nine tenths of the text (data/train.*) and once over
the rest (data/eval.*).
"""
import gzip
import io
import os
import sys

import numpy as np
import onnx
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY, LENGTH, MASKINGS = 512, 16, 4


class MaskedLM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = BertForMaskedLM(BertConfig(
            vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
            max_position_embeddings=LENGTH, type_vocab_size=1, hidden_dropout_prob=0, attention_probs_dropout_prob=0))

    def forward(self, input_ids):
        return self.model(input_ids).logits


def export():
    torch.manual_seed(1)
    path = os.path.join(HERE, "bert.onnx")
    torch.onnx.export(MaskedLM().eval(), (torch.zeros(2, LENGTH, dtype=torch.int64),), path, input_names=["input_ids"],
                      output_names=["logits"], opset_version=20, dynamo=True, optimize=False, external_data=False,
                      dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:  # keeps only the modules from the metadata, where weights are read
        kept = [entry for entry in node.metadata_props if entry.key.endswith(("name_scopes", "class_hierarchy"))]
        del node.metadata_props[:]
        node.metadata_props.extend(kept if weights.intersection(node.input) else [])
    del model.graph.value_info[:]
    onnx.save(model, path)


def rows(pieces, tokenizer):
    """Returns the pieces in rows between [CLS] and [SEP], without the last, incomplete row."""
    body = np.array(pieces)[:len(pieces) // (LENGTH - 2) * (LENGTH - 2)].reshape(-1, LENGTH - 2)
    cls, sep = (np.full((len(body), 1), tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]"))
    return np.concatenate([cls, body, sep], 1)


def masked(ids, tokenizer, random):
    labels = np.full(ids.shape, -100)
    told = random.random(ids.shape) < 0.15
    told[:, [0, -1]] = False
    labels[told] = ids[told]
    way = random.random(ids.shape)
    ids = np.where(told & (way < 0.8), tokenizer.token_to_id("[MASK]"), ids)
    return np.where(told & (way >= 0.9), random.integers(5, VOCABULARY, ids.shape), ids), labels


def save(name, array):
    """Writes .npy.gz, with the same bytes every time."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    with open(os.path.join(HERE, "data", name), "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(buffer.getvalue())


def main():
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train([sys.argv[1]], vocab_size=VOCABULARY, min_frequency=2, show_progress=False)
    with open(os.path.join(HERE, "data", "vocab.txt"), "w", encoding="utf-8") as file:
        file.writelines(tokenizer.id_to_token(i) + "\n" for i in range(VOCABULARY))
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    train = len(text) * 9 // 10
    random = np.random.default_rng(1)
    for part, piece, times in (("train", text[:train], MASKINGS), ("eval", text[train:], 1)):
        ids = rows(tokenizer.encode(piece, add_special_tokens=False).ids, tokenizer)
        drawn = [masked(ids, tokenizer, random) for _ in range(times)]
        save(part + ".input_ids.npy.gz", np.concatenate([d[0] for d in drawn]).astype(np.uint16))
        save(part + ".labels.npy.gz", np.concatenate([d[1] for d in drawn]).astype(np.int16))
    export()


main()
