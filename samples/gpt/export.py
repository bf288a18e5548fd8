#!/usr/bin/env python3
"""Writes gpt.onnx and data/ of this sample; the results are committed, so the sample needs neither Python nor PyTorch.

    export.py INPUT.TXT       needs torch, onnx, onnxscript, numpy

The model is nanoGPT's (https://github.com/karpathy/nanoGPT, model.py) in the CPU setting of its README. It has random
weights, 4 layers, 4 heads, width 128, context 64, no dropout, no biases, and a head tied to the embedding. The data
are the characters of the text as uint16: data/train.bin has the first nine tenths, data/val.bin the rest.
data/characters.txt maps each number to its character (JSON).
"""
import json
import math
import os
import sys

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS, HEADS, WIDTH, CONTEXT = 4, 4, 128, 64


class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.layer_norm(x, (WIDTH,), self.weight, None, 1e-5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.c_attn(x).split(WIDTH, -1))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = LayerNorm(), Attention(), LayerNorm(), MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), LayerNorm()
        self.lm_head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02 / (math.sqrt(2 * LAYERS) if name.endswith("c_proj.weight") else 1))

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(CONTEXT))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def export(vocabulary):
    torch.manual_seed(1337)
    path = os.path.join(HERE, "gpt.onnx")
    torch.onnx.export(GPT(vocabulary).eval(), (torch.zeros(2, CONTEXT, dtype=torch.int64),), path,
                      input_names=["tokens"], output_names=["logits"], opset_version=20, dynamo=True, optimize=False,
                      external_data=False, dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    model = onnx.load(path)
    for node in model.graph.node:  # keeps only the modules from the metadata
        kept = [entry for entry in node.metadata_props if entry.key.endswith(("name_scopes", "class_hierarchy"))]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    characters = sorted(set(text))
    tokens = np.array([characters.index(c) for c in text], dtype="<u2")
    train = len(tokens) * 9 // 10
    tokens[:train].tofile(os.path.join(HERE, "data", "train.bin"))
    tokens[train:].tofile(os.path.join(HERE, "data", "val.bin"))
    with open(os.path.join(HERE, "data", "characters.txt"), "w", encoding="utf-8") as file:
        json.dump(characters, file)
    export(len(characters))


main()
