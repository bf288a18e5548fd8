#!/usr/bin/env python3
"""Measures the accuracy that quantization costs three networks on MNIST, and how much an epoch of training regains.

    quantization_aware.py --fsdp-run build/release/fsdp-run [--nets mnist mobile resnet] [--seeds 1 2 3]
                          [--settings w4 w8] [--steps 900] [--ranks 1] [--threads 1] [--folder DIR]

For each network and seed, fsdp-run first trains in float. ONNX Runtime folds batch normalization into convolutions in
the inference file, and quantizes it with `quantize_static`. fsdp-run then trains the quantized file with fixed and with
learned scales. For comparison it trains the folded float file for the same steps. ONNX Runtime counts the right answers
of every file on all 10,000 test images.

Networks: `mnist` is samples/mnist/mnist.onnx. This script writes the other two with random weights and batch
normalization, for the same images. `mobile` has a stem and three depthwise separable convolutions, `resnet` a stem and
residual blocks of 8, 16, 16 and 32 channels. Settings: `w4` has int4 weights with one scale per tensor, `w8` int8
weights. Both have uint8 activations, calibrated (MinMax) on the first 64 training images.

Prints every command. The last lines are the tables of docs/internals/quantized.md. Exit 1 if, summed over seeds,
quantization lost at least 0.3 % per file and training regained less than three quarters of it. Needs numpy, onnx,
onnxruntime and, for all networks but `mnist`, torch.
"""
import argparse
import gzip
import json
import os
import pathlib
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "samples" / "mnist"
CALIBRATION, BATCH = 64, 64
FLOAT = {"mnist": ["--loss", "nll", "--optimizer", "adadelta", "--lr", "1", "--epochs", "1"],
         "resnet": ["--loss", "cross_entropy", "--optimizer", "adamw", "--lr", "4e-3", "--lr-schedule", "onecycle", "--epochs", "2"]}
FLOAT["mobile"] = FLOAT["resnet"]
TUNE = ["--optimizer", "adamw", "--lr", "3e-4", "--lr-schedule", "cosine"]
LEARNED = ["--qat-scales", "learned", "--group", "*_scale:lr=0.05x,weight_decay=0"]
LEAST_LOSS, LEAST_REGAINED = 0.003, 0.75


def read_idx(name):
    """Reads an IDX file of unsigned bytes: 0, 0, type 8, number of axes; big-endian axes; the bytes."""
    data = gzip.decompress((SAMPLE / "data" / name).read_bytes())
    shape = struct.unpack_from(">%dI" % data[3], data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def normalized(images):
    values = images.astype(np.float32) / np.float32(255)
    return ((values - np.float32(0.1307)) / np.float32(0.3081))[:, None]


def write_data(path):
    """Writes the sample's description of its data, with paths that are valid in any folder."""
    path.write_text((SAMPLE / "data.yaml").read_text().replace("file: data/", "file: %s/data/" % SAMPLE))


def residual():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inner, outer, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
            self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
            self.short = nn.Identity() if stride == 1 else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

        def forward(self, x):
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + self.short(x))

    return [nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 2),
            Block(16, 32, 2)]


def depthwise():
    from torch import nn

    def normalized_conv(inner, outer, size, stride=1, groups=1):
        return [nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]

    layers = normalized_conv(1, 16, 3, 2)
    for inner, outer, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += normalized_conv(inner, inner, 3, stride, inner) + normalized_conv(inner, outer, 1)
    return layers


def write_network(path, net, seed):
    import torch
    from torch import nn
    torch.manual_seed(seed)
    layers = {"resnet": residual, "mobile": depthwise}[net]()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32 if net == "resnet" else 64, 10)).train()
    torch.onnx.export(model, (torch.zeros(2, 1, 28, 28),), str(path), input_names=["image"], output_names=["logits"], opset_version=17,
                      dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}})


def quantize(source, target, setting, images):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.rows = iter([{"image": normalized(images[:CALIBRATION])}])

        def get_next(self):
            return next(self.rows, None)

    quantize_static(str(source), str(target), Reader(), quant_format=QuantFormat.QDQ, per_channel=False, activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt4 if setting == "w4" else QuantType.QInt8)


class Bench:
    def __init__(self, a, folder):
        self.a, self.folder = a, folder
        self.train_images = read_idx("train-images-idx3-ubyte.gz")
        self.images, self.labels = read_idx("t10k-images-idx3-ubyte.gz"), read_idx("t10k-labels-idx1-ubyte.gz")
        self.rows = []
        write_data(folder / "data.yaml")

    def command(self, *words):
        words = [str(word) for word in (self.a.fsdp_run, *words)]
        print("$ " + shlex.join(words), flush=True)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OFSDP_RUN_DIR": "none"})

    def train(self, model, seed, *more):
        """Trains `model` and returns fsdp-run's own accuracy at the end."""
        metrics = self.folder / "metrics.jsonl"
        self.command(model, "--data", self.folder / "data.yaml", "--prediction", "logits", "--labels", "labels", "--global-batch-size", BATCH,
                     "--nproc-per-node", self.a.ranks, "--threads", self.a.threads, "--seed", seed, "--metrics", metrics, *more)
        return [row["accuracy"] for row in map(json.loads, metrics.read_text().splitlines()) if row["kind"] == "eval"][-1]

    def right(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.a.threads, 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return sum(int((session.run(["logits"], {"image": normalized(self.images[i:i + 500])})[0].argmax(1) == self.labels[i:i + 500]).sum())
                   for i in range(0, len(self.images), 500))

    def float_file(self, net, seed):
        """Returns the trained network as an inference file with folded batch normalizations."""
        from onnxruntime.quantization.shape_inference import quant_pre_process
        name = self.folder / ("%s.%d" % (net, seed))
        model, checkpoints, plain, folded = (pathlib.Path(str(name) + end) for end in (".onnx", ".checkpoints", ".float.onnx", ".folded.onnx"))
        if not folded.exists():
            if net == "mnist":
                shutil.copy(SAMPLE / "mnist.onnx", model)
            else:
                write_network(model, net, seed)
            self.train(model, seed, *FLOAT[net], "--checkpoint-dir", checkpoints, "--overwrite-checkpoints", "on")
            self.command("export", checkpoints, "-o", plain, "--inference")
            quant_pre_process(str(plain), str(folded), skip_symbolic_shape=True)
        return folded

    def tuned(self, source, target, net, seed, *more):
        loss = FLOAT[net][:2]
        ours = self.train(source, seed + 100, *loss, *TUNE, "--steps", self.a.steps, *more, "--output", target)
        return {"right": self.right(target), "ours": round(ours * len(self.labels))}

    def run(self, net, seed):
        folded = self.float_file(net, seed)
        at = str(folded).removesuffix(".folded.onnx")
        float_right = self.right(folded)
        again = self.tuned(folded, at + ".again.onnx", net, seed)
        for setting in self.a.settings:
            quantized = at + "." + setting + ".onnx"
            quantize(folded, quantized, setting, self.train_images)
            row = {"net": net, "setting": setting, "seed": seed, "float": float_right, "float_again": again["right"], "quantized": self.right(quantized)}
            for way, more in (("fixed", []), ("learned", LEARNED)):
                row[way] = self.tuned(quantized, at + "." + setting + "." + way + ".onnx", net, seed, *more)
            self.rows.append(row)
            print(json.dumps(row), flush=True)

    def table(self):
        print("\n| network | weights | seed | float | float, as many steps more | quantized | trained, fixed scales | learned scales |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for r in self.rows:
            print("| %s | %s | %d | %d | %d | %d | %d | %d |" % (r["net"], {"w4": "int4", "w8": "int8"}[r["setting"]], r["seed"], r["float"], r["float_again"],
                                                             r["quantized"], r["fixed"]["right"], r["learned"]["right"]))
        print("\nfsdp-run's own counts of the trained files differ from ONNX Runtime's by at most %d of %d\n" % (
            max(abs(r[way]["right"] - r[way]["ours"]) for r in self.rows for way in ("fixed", "learned")), len(self.labels)))

    def verdict(self):
        """Returns whether training regained enough, for each network and setting that lost enough to judge."""
        good = True
        for net, setting in sorted({(r["net"], r["setting"]) for r in self.rows}):
            rows = [r for r in self.rows if (r["net"], r["setting"]) == (net, setting)]
            lost = sum(r["float"] - r["quantized"] for r in rows)
            back = {way: sum(r[way]["right"] - r["quantized"] for r in rows) for way in ("fixed", "learned")}
            text = "%s %s: quantization lost %.2f %% of the answers" % (net, setting, lost / len(rows) / len(self.labels) * 100)
            if lost > 0:
                text += "".join("; %s scales regain %.0f %% of it" % (way, 100 * n / lost) for way, n in back.items())
            if lost >= LEAST_LOSS * len(rows) * len(self.labels):
                good = good and all(n >= LEAST_REGAINED * lost for n in back.values())
            else:
                text += " (too little to judge by)"
            print(text)
        return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fsdp-run", default="build/release/fsdp-run")
    p.add_argument("--nets", nargs="+", default=["mnist", "mobile", "resnet"], choices=FLOAT)
    p.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    p.add_argument("--settings", nargs="+", default=["w4", "w8"], choices=["w4", "w8"])
    p.add_argument("--steps", type=int, default=900, help="of training the quantized file, of 64 images each")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--folder", help="keeps the files, and takes float files that are there; default: a temporary one")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(a.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(a, folder)
        for net in a.nets:
            for seed in a.seeds:
                bench.run(net, seed)
        bench.table()
        return 0 if bench.verdict() else 1


if __name__ == "__main__":
    sys.exit(main())
