#!/usr/bin/env python3
"""Writes tests/fixtures/artifacts: small folders of ONNX Runtime's training artifacts, with the losses of its trainer.

    make_artifacts.py [NAME...]     needs onnxruntime-training 1.19.2, torch, onnx, numpy

Run it by hand; the result is committed.

A folder has the output of generate_artifacts, data/NAME.npy, and losses.txt. Models are exported at opset 15, because
the gradient builder refuses the LayerNormalization of opset 17. losses.txt has the losses of 20 steps on rows
12 s .. 12 s + 11, again from row 0 after row 59, then the eval model's loss on rows 0 .. 11. mlp_adamw starts from a
checkpoint after 3 steps.
"""
import os
import shutil
import sys
import tempfile

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, Module, Optimizer
from torch import nn

torch.set_num_threads(1)
TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "artifacts")
STEPS, BATCH, SAMPLES = 20, 12, 60
CROSS_ENTROPY, MSE = artifacts.LossType.CrossEntropyLoss, artifacts.LossType.MSELoss
ADAMW, SGD = artifacts.OptimType.AdamW, artifacts.OptimType.SGD


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Cnn(nn.Module):
    """The network of the MNIST example, smaller and without dropout."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.fc1, self.fc2 = nn.Linear(16 * 25, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = torch.flatten(F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), 1)


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.heads = heads

    def forward(self, x, mask):
        batch, length, hidden = x.shape
        size = hidden // self.heads

        def split(y):
            return y.view(batch, length, self.heads, size).transpose(1, 2)

        scores = split(self.q(x)) @ split(self.k(x)).transpose(-1, -2) / size**0.5 + mask
        return self.o((scores.softmax(-1) @ split(self.v(x))).transpose(1, 2).reshape(batch, length, hidden))


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(hidden, heads), nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, hidden=16, heads=2, layers=2, words=64, length=8, classes=3):
        super().__init__()
        self.word, self.position, self.kind = nn.Embedding(words, hidden), nn.Embedding(length, hidden), nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layer = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(hidden, hidden), nn.Linear(hidden, classes)
        self.register_buffer("position_ids", torch.arange(length)[None])

    def forward(self, input_ids, attention_mask):
        x = self.norm(self.word(input_ids) + self.position(self.position_ids) + self.kind(torch.zeros_like(input_ids)))
        mask = (1.0 - attention_mask.to(torch.float32))[:, None, None, :] * -10000.0
        for layer in self.layer:
            x = layer(x, mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class Operators(nn.Module):
    """Operators that the other networks lack, in parallel."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(212, 4)
        self.scale, self.row, self.column = (nn.Parameter(torch.randn(*s) * 0.5) for s in ((16,), (1, 16), (3, 1)))
        self.conv = nn.Conv1d(2, 4, 3, padding=1, dilation=1, groups=2)

    def forward(self, x):
        y = self.a(x)
        rms = self.scale * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6))
        parts = y.split([4, 4, 8], 1)
        square = y.reshape(-1, 4, 4)
        order = torch.tensor([[3, 1, 2, 0]]).expand(x.shape[0], 4)
        return self.b(torch.cat([
            F.gelu(y), F.silu(y) + torch.sin(y), F.leaky_relu(y, 0.1) * torch.sigmoid(y), rms, F.normalize(y, dim=1),
            parts[0] * parts[1], parts[2], y[:, 4:12], y[:, ::4], torch.gather(y, 1, order), y[:, [3, 1, 2, 2]],
            F.softmax(square, 1).flatten(1), F.log_softmax(y, 1), torch.where(y > 0, y * 2, y * 0.3),
            torch.clamp(y, -0.5, 0.5) + torch.maximum(y, self.scale),
            (y[:, None, :] * self.column + self.row).mean(1), y[:, :4].repeat(1, 2),
            self.conv(y.reshape(-1, 2, 8)).flatten(1)[:, :12],
        ], 1))


def clipped_adamw():
    return onnxblock.optim.AdamW(weight_decay=0.01, clip_grad=onnxblock.optim.ClipGradNorm(1.0))


def normal(rng, *shape):
    return rng.standard_normal((SAMPLES, *shape)).astype(np.float32)


def mask(rng, length):
    return (np.arange(length)[None] < rng.integers(3, length + 1, (SAMPLES, 1))).astype(np.int64)


# name: model, loss, optimizer, columns
CASES = {
    "mlp_adamw": (Mlp, CROSS_ENTROPY, clipped_adamw, lambda r: {"x": normal(r, 8), "labels": r.integers(0, 4, SAMPLES)}),
    "mlp_sgd": (Mlp, MSE, lambda: SGD, lambda r: {"x": normal(r, 8), "target": normal(r, 4)}),
    "operators": (Operators, CROSS_ENTROPY, lambda: ADAMW,
                  lambda r: {"x": normal(r, 8), "labels": r.integers(0, 4, SAMPLES)}),
    "mnist_cnn": (Cnn, CROSS_ENTROPY, lambda: ADAMW,
                  lambda r: {"x": normal(r, 1, 14, 14), "labels": r.integers(0, 10, SAMPLES)}),
    "bert_cls": (Bert, CROSS_ENTROPY, lambda: ADAMW,
                 lambda r: {"input_ids": r.integers(0, 64, (SAMPLES, 8)), "attention_mask": mask(r, 8),
                            "labels": r.integers(0, 3, SAMPLES)}),
}


def generate(folder, model, loss, optimizer, columns):
    inputs = [name for name in columns if name not in ("labels", "target")]
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "model.onnx")
        torch.onnx.export(model, tuple(torch.tensor(columns[name][:4]) for name in inputs), path, input_names=inputs,
                          output_names=["output"], opset_version=15, dynamo=False, do_constant_folding=False,
                          dynamic_axes={name: {0: "batch"} for name in [*inputs, "output"]},
                          training=torch.onnx.TrainingMode.TRAINING)
        exported = onnx.load(path)
    trained = {name for name, _ in model.named_parameters()}
    weights = [tensor.name for tensor in exported.graph.initializer]
    artifacts.generate_artifacts(exported, requires_grad=[w for w in weights if w in trained],
                                 frozen_params=[w for w in weights if w not in trained], loss=loss,
                                 optimizer=optimizer(), artifact_directory=folder)


class Trainer:
    """ONNX Runtime's own trainer, from a folder's checkpoint."""

    def __init__(self, folder, eval_model="eval_model.onnx"):
        self.state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        self.module = Module(f"{folder}/training_model.onnx", self.state, f"{folder}/{eval_model}")
        self.optimizer = Optimizer(f"{folder}/optimizer_model.onnx", self.module)

    def batch(self, columns, step):
        first = step * BATCH % SAMPLES
        return [columns[name][first:first + BATCH] for name in self.module.input_names()]

    @staticmethod
    def number(loss):
        return float(np.asarray(loss[0] if isinstance(loss, (tuple, list)) else loss))

    def train(self, columns, steps):
        self.module.train()
        losses = []
        for step in range(steps):
            losses.append(self.number(self.module(*self.batch(columns, step))))
            self.optimizer.step()
            self.module.lazy_reset_grad()
        return losses

    def evaluate(self, columns):
        self.module.eval()
        return self.number(self.module(*self.batch(columns, 0)))


def load_columns(folder):
    return {name[:-4]: np.load(f"{folder}/data/{name}") for name in sorted(os.listdir(f"{folder}/data"))}


def make(name):
    torch.manual_seed(0)
    model, loss, optimizer, make_columns = CASES[name]
    folder = os.path.join(TARGET, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "data"))
    columns = make_columns(np.random.default_rng(0))
    for column, values in columns.items():
        np.save(os.path.join(folder, "data", column + ".npy"), values)
    generate(folder, model().train(), loss, optimizer, columns)
    if name == "mlp_adamw":
        before = Trainer(folder)
        before.train(columns, 3)
        CheckpointState.save_checkpoint(before.state, f"{folder}/checkpoint", include_optimizer_state=True)
    trainer = Trainer(folder)
    losses = trainer.train(columns, STEPS)
    with open(os.path.join(folder, "losses.txt"), "w") as file:
        file.writelines(f"{loss:.9g}\n" for loss in [*losses, trainer.evaluate(columns)])


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
