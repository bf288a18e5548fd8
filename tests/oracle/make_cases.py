#!/usr/bin/env python3
"""Writes tests/oracle/cases: small models of the kinds that users bring, by both exporters, with PyTorch's losses.

    make_cases.py [NAME...]     needs torch, transformers, onnx, onnxscript, numpy; run by hand, the result is committed

A case has dynamo.onnx and legacy.onnx (the same weights; more in EXPORTS), data/NAME.npy, and losses.txt. The losses
are from ten AdamW steps (rate 1e-3) on rows 8 s .. 8 s + 7, in float32 with one thread. The script moves constant
initial weights a little, because the legacy exporter ties equal weights.
"""
import os
import sys

import expert_models
import numpy as np
import onnx
import torch
import torch.nn.functional as F
import transformers_models
from torch import nn

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, BATCH = 10, 8


class Residual(nn.Module):
    """Convolutions with BatchNormalization in training mode."""

    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.b2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(x + self.b2(self.c2(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class LstmTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l = nn.Embedding(30, 16), nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(24, 6)

    def forward(self, x):
        return self.fc(self.l(self.e(x))[0])


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l = nn.Embedding(30, 16), nn.GRU(16, 12, batch_first=True, num_layers=2)
        self.fc = nn.Linear(12, 6)

    def forward(self, x):
        return self.fc(self.l(self.e(x))[0][:, -1])


class UNet(nn.Module):
    """ConvTranspose, skip connection, bilinear Resize; one class per pixel."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.u, self.c, self.d = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        x = torch.cat([self.u(F.relu(self.b(a))), a], 1)
        x = F.avg_pool2d(F.relu(self.c(x)), 2)
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.d(x).permute(0, 2, 3, 1)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w


class Llama(nn.Module):
    """Rotary embedding, grouped heads, RMSNorm, SwiGLU, tied embedding."""

    def __init__(self, width=32, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.e, self.n1, self.n2 = nn.Embedding(50, width), RmsNorm(width), RmsNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, self.size * groups, bias=False)
        self.v = nn.Linear(width, self.size * groups, bias=False)
        self.gate, self.up = nn.Linear(width, 64, bias=False), nn.Linear(width, 64, bias=False)
        self.down = nn.Linear(64, width, bias=False)
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0, self.size, 2).float() / self.size)))

    @staticmethod
    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids):
        batch, length = ids.shape
        x = self.e(ids)
        y = self.n1(x)
        angle = torch.outer(torch.arange(length).float(), self.inv_freq)
        angle = torch.cat([angle, angle], -1)
        split = lambda t, n: t.view(batch, length, n, self.size).transpose(1, 2)
        q = self.rotate(split(self.q(y), self.heads), angle.cos(), angle.sin())
        k = self.rotate(split(self.k(y), self.groups), angle.cos(), angle.sin())
        v = split(self.v(y), self.groups)
        times = self.heads // self.groups
        a = F.scaled_dot_product_attention(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, -1))
        y = self.n2(x)
        return (x + self.down(F.silu(self.gate(y)) * self.up(y))) @ self.e.weight.T


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Conv2d(3, 32, 4, stride=4)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 32) * .02), nn.Parameter(torch.randn(1, 5, 32) * .02)
        self.l = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True, norm_first=True)
        self.n, self.h = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x):
        x = self.p(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.h(self.n(self.l(x))[:, 0])


class Experts(nn.Module):
    """Mixture of experts with static routing: TopK, Scatter, Einsum."""

    def __init__(self):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(30, 16), nn.Linear(16, 4), nn.Linear(16, 6)
        self.w1 = nn.Parameter(torch.randn(4, 16, 32) * .1)
        self.w2 = nn.Parameter(torch.randn(4, 32, 16) * .1)

    def forward(self, x):
        x = self.e(x)
        p = self.r(x).softmax(-1)
        top, index = p.topk(2, -1)
        gate = torch.zeros_like(p).scatter(-1, index, top / top.sum(-1, keepdim=True))
        h = F.silu(torch.einsum("btd,edf->btef", x, self.w1))
        return self.o((torch.einsum("btef,efd->bted", h, self.w2) * gate.unsqueeze(-1)).sum(2))


class RelativePositions(nn.Module):
    """Attention with T5's bucketed relative positions."""

    def __init__(self):
        super().__init__()
        self.e, self.b, self.o = nn.Embedding(30, 32), nn.Embedding(8, 4), nn.Linear(32, 6)
        self.q, self.k, self.v = (nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x):
        batch, length = x.shape
        x = self.e(x)
        distance = torch.arange(length)[None] - torch.arange(length)[:, None]
        far = distance.abs()
        large = 2 + torch.log(far.float().clamp(min=1) / 2).div(0.6931).long()
        bucket = torch.where(far < 2, far, large.clamp(max=3)) + (distance > 0).long() * 4
        split = lambda t: t.view(batch, length, 4, 8).transpose(1, 2)
        scores = split(self.q(x)) @ split(self.k(x)).transpose(-1, -2) + self.b(bucket).permute(2, 0, 1)[None]
        return self.o((scores.softmax(-1) @ split(self.v(x))).transpose(1, 2).reshape(batch, length, 32) + x)


class StateSpace(nn.Module):
    """A selective scan as in Mamba, unrolled."""

    def __init__(self):
        super().__init__()
        self.e, self.i, self.o = nn.Embedding(30, 16), nn.Linear(16, 32), nn.Linear(16, 6)
        self.c = nn.Conv1d(16, 16, 3, padding=2, groups=16)
        self.dt, self.bc = nn.Linear(16, 16), nn.Linear(16, 8)
        self.a, self.d = nn.Parameter(torch.randn(16, 4) * .1), nn.Parameter(torch.ones(16))

    def forward(self, x):
        batch, length = x.shape
        x, z = self.i(self.e(x)).chunk(2, -1)
        x = F.silu(self.c(x.transpose(1, 2))[:, :, :length].transpose(1, 2))
        dt = F.softplus(self.dt(x))
        b, c = self.bc(x).chunk(2, -1)
        h, out = torch.zeros(batch, 16, 4), []
        for t in range(length):
            h = torch.exp(-torch.exp(self.a) * dt[:, t, :, None]) * h + dt[:, t, :, None] * b[:, t, None] * x[:, t, :, None]
            out.append((h * c[:, t, None]).sum(-1))
        return self.o((torch.stack(out, 1) + x * self.d) * F.silu(z))


class Mobile(nn.Module):
    """Depthwise convolution, HardSwish, squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.a, self.d = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.s1, self.s2, self.f = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), nn.Linear(16, 5)

    def forward(self, x):
        x = F.hardswish(self.d(F.hardswish(self.a(x))))
        x = x * F.hardsigmoid(self.s2(F.relu(self.s1(F.adaptive_avg_pool2d(x, 1)))))
        return self.f(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj, self.ln_2 = nn.Linear(width, width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    """Three equal blocks and a head tied to the embedding."""

    def __init__(self, width=16):
        super().__init__()
        self.e, self.h = nn.Embedding(30, width), nn.ModuleList(Block(width) for _ in range(3))
        self.n, self.head = nn.LayerNorm(width), nn.Linear(width, 30, bias=False)
        self.head.weight = self.e.weight

    def forward(self, x):
        x = self.e(x)
        for block in self.h:
            x = block(x)
        return self.head(self.n(x))


def images(): return torch.randn(STEPS * BATCH, 3, 8, 8)
def tokens(length, below): return torch.randint(0, below, (STEPS * BATCH, length))
def classes(below, *axes): return torch.randint(0, below, (STEPS * BATCH, *axes))


# name: model, inputs, labels. The residual network is exported in training mode; only the legacy exporter keeps it.
CASES = {
    "residual": (Residual, images, lambda: classes(5)),
    "lstm_tagger": (LstmTagger, lambda: tokens(7, 30), lambda: classes(6, 7)),
    "gru": (Gru, lambda: tokens(7, 30), lambda: classes(6)),
    "unet": (UNet, images, lambda: classes(4, 8, 8)),
    "llama": (Llama, lambda: tokens(12, 50), lambda: classes(50, 12)),
    "vit": (ViT, images, lambda: classes(5)),
    "experts": (Experts, lambda: tokens(7, 30), lambda: classes(6, 7)),
    "relative_positions": (RelativePositions, lambda: tokens(9, 30), lambda: classes(6, 9)),
    "state_space": (StateSpace, lambda: tokens(6, 30), lambda: classes(6, 6)),
    "decoder": (Decoder, lambda: tokens(8, 30), lambda: classes(30, 8)),
    "mobile": (Mobile, images, lambda: classes(5)),
    "picked_experts": (expert_models.PickedExperts, lambda: tokens(7, 30), lambda: classes(20, 7)),
    "masked_experts": (expert_models.MaskedExperts, lambda: tokens(7, 30), lambda: classes(20, 7)),
    "two_experts": (expert_models.TwoExperts, lambda: tokens(7, 30), lambda: classes(20, 7)),
    "switch": (expert_models.Switch, lambda: tokens(7, 30), lambda: classes(30, 7)),
    **{name: (getattr(transformers_models, name), make_columns, lambda axis=axis: classes(64, axis))
       for (name, make_columns), axis in zip(transformers_models.columns(STEPS * BATCH).items(), (7, 7, 10, 6))},
}

LEGACY = {"dynamo": False, "opset_version": 17, "do_constant_folding": False}
DYNAMO = {"dynamo": True, "optimize": False}
# Files with more than these two exports. Only models without tied weights keep their meaning when constants are folded.
EXPORTS = {
    "residual": {"legacy": LEGACY, "legacy_13": {**LEGACY, "opset_version": 13}},
    "switch": {"legacy": LEGACY},  # torch.export refuses the loop over the chosen experts
    "mixtral": {"legacy": LEGACY, "legacy_14": {"dynamo": False, "opset_version": 14},
                "dynamo_25": {"dynamo": True, "opset_version": 25}},
}


def make(name):
    """Returns a new model, always with the same weights."""
    torch.manual_seed(1)
    model = CASES[name][0]()
    for p in model.parameters():
        if p.numel() > 1 and p.detach().std() == 0:
            p.data += 0.02 * torch.randn_like(p)
    return model.train(name == "residual")


def export(name, columns, folder):
    training = torch.onnx.TrainingMode.TRAINING if name == "residual" else torch.onnx.TrainingMode.EVAL
    arguments, names = tuple(columns.values()), list(columns)
    for graph, options in EXPORTS.get(name, {"legacy": LEGACY, "dynamo": DYNAMO}).items():
        if options["dynamo"]:
            batch = tuple({0: torch.export.Dim("batch", min=1)} for _ in names)
            wrapped = isinstance(make(name), transformers_models.Wrapped)
            options = {**options, "dynamic_shapes": (batch,) if wrapped else batch, "external_data": False}
        else:
            options = {**options, "dynamic_axes": {n: {0: "batch"} for n in names}, "training": training}
        model = make(name).requires_grad_(not options["dynamo"])  # with gradients torch.export fails for T5
        torch.onnx.export(model, arguments, os.path.join(folder, graph + ".onnx"), input_names=names,
                          output_names=["logits"], **options)
        without_traces(os.path.join(folder, graph + ".onnx"))


UNWANTED = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node", "namespace")


def without_traces(path):
    """Removes traces: exporters write each node's place in the source, with paths of the machine, and its scope
    twice."""
    model = onnx.load(path)
    for part in [*model.graph.node, model.graph, *model.functions, *(n for f in model.functions for n in f.node)]:
        part.doc_string = ""
        kept = [m for m in getattr(part, "metadata_props", []) if m.key not in UNWANTED]
        if hasattr(part, "metadata_props"):
            del part.metadata_props[:]
            part.metadata_props.extend(kept)
    onnx.save(model, path)


def losses(name, columns, y):
    model = make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        logits = model(*(column[rows] for column in columns.values()))
        loss = F.cross_entropy(logits.flatten(0, -2), y[rows].flatten())
        loss.backward()
        optimizer.step()
        yield loss.item()


for case in sys.argv[1:] or CASES:
    torch.manual_seed(2)
    data, labels = CASES[case][1](), CASES[case][2]()
    where = os.path.join(HERE, "cases", case)
    os.makedirs(os.path.join(where, "data"), exist_ok=True)
    data = data if isinstance(data, dict) else {"x": data}
    for name, column in data.items():
        np.save(os.path.join(where, "data", name + ".npy"), column.numpy())
    np.save(os.path.join(where, "data", "labels.npy"), labels.numpy().astype(np.int32))
    export(case, {name: column[:2] for name, column in data.items()}, where)
    with open(os.path.join(where, "losses.txt"), "w", encoding="utf-8") as file:
        file.writelines("%.9g\n" % loss for loss in losses(case, data, labels))
