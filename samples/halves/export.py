#!/usr/bin/env python3
"""Writes halves.onnx of this sample; the result is committed, so the sample needs neither Python nor PyTorch.

    export.py       needs torch, onnx, onnxscript

Two towers have the same form and separate weights: one sees the upper half of a digit, the other the lower half.
Each makes a vector of 64 numbers. The two vectors of one digit should be alike, and vectors of different digits not.
"""
import os

import onnx
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def tower():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, stride=2, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(32 * 4 * 7, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))


class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.upper_tower = tower()
        self.lower_tower = tower()

    def forward(self, image):
        return self.upper_tower(image[:, :, :14]), self.lower_tower(image[:, :, 14:])


def export():
    torch.manual_seed(1)
    path = os.path.join(HERE, "halves.onnx")
    torch.onnx.export(Halves().eval(), (torch.zeros(2, 1, 28, 28),), path, input_names=["image"],
                      output_names=["upper", "lower"], opset_version=20, dynamo=True, optimize=False,
                      external_data=False, dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    del model.graph.value_info[:]
    onnx.save(model, path)


export()
