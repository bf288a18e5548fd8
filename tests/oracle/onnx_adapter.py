#!/usr/bin/env python3
"""Checks the file of --adapter FILE.onnx_adapter with ONNX Runtime. Its reader finds the tensors of the safetensors
file. A session with inputs of these names computes the adapted model's outputs from them.

    onnx_adapter.py FSDP_RUN

Exit status 77, which CTest shows as skipped, without onnx or onnxruntime with AdapterFormat (1.20). OFSDP_ORT_PYTHON
names a Python that has them.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

CASE = pathlib.Path(__file__).resolve().parents[1] / "fixtures/adapted/tied"
A, B = (f"base_model.model.table.lora_{x}.weight" for x in "AB")

python = os.environ.get("OFSDP_ORT_PYTHON")
if python and "OFSDP_ORT_ASKED" not in os.environ:
    os.execve(python, [python, *sys.argv], {**os.environ, "OFSDP_ORT_ASKED": "1"})
try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper
    onnxruntime.AdapterFormat
except (ImportError, AttributeError) as error:
    print("procs.onnx_adapter is skipped:", error)
    sys.exit(77)


def safetensors(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return {k: np.frombuffer(raw[8 + size:][slice(*v["data_offsets"])], np.float32).reshape(v["shape"])
            for k, v in json.loads(raw[8:8 + size]).items() if k != "__metadata__"}


def train(program, adapter):
    subprocess.run([program, CASE / "model.onnx", "--data", CASE / "data", "--loss", "cross_entropy", "--lr", "0.05", "--lora",
                    "table.weight", "--lora-rank", "2", "--lora-alpha", "6", "--lora-from", CASE / "adapter.safetensors", "--steps", "5",
                    "--nproc-per-node", "2", "--adapter", adapter], check=True, stdout=subprocess.DEVNULL)


def with_inputs(model):
    """Returns the model with the adapter's product; A and B are inputs, empty if no adapter is active."""
    made = [("Transpose", [A], ["at"]), ("MatMul", ["t", "at"], ["down"]), ("Mul", ["down", "three"], ["scaled"]),
            ("Transpose", [B], ["bt"]), ("MatMul", ["scaled", "bt"], ["up"]), ("Add", ["base", "up"], ["logits"])]
    next(n for n in model.graph.node if n.output[0] == "logits").output[0] = "base"
    model.graph.node.extend(helper.make_node(op, i, o) for op, i, o in made)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(3), "three"))
    for name, axes, shape in ((A, ("rank", 8), (0, 8)), (B, (9, "rank"), (9, 0))):
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, axes))
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        train(sys.argv[1], folder / "a.safetensors")
        train(sys.argv[1], folder / "a.onnx_adapter")
        expected = safetensors(folder / "a.safetensors")
        read = onnxruntime.AdapterFormat.read_adapter(str(folder / "a.onnx_adapter"))
        found = {n: v.numpy() for n, v in read.get_parameters().items()}
        assert set(found) == set(expected) == {A, B}, sorted(found)
        for tensor in expected:
            assert found[tensor].dtype == np.float32 and np.array_equal(found[tensor], expected[tensor]), tensor
        before = safetensors(CASE / "adapter.safetensors")
        assert not np.array_equal(expected[B], before[B]), "nothing was trained"

        session = with_inputs(onnx.load(CASE / "model.onnx"))
        ids = np.load(CASE / "data/ids.npy")
        plain = onnxruntime.InferenceSession(str(CASE / "model.onnx"), providers=["CPUExecutionProvider"]).run(["logits"], {"ids": ids})[0]
        assert np.allclose(session.run(["logits"], {"ids": ids})[0], plain, atol=1e-6)
        adapter = onnxruntime.LoraAdapter()
        adapter.Load(str(folder / "a.onnx_adapter"))
        options = onnxruntime.RunOptions()
        options.add_active_adapter(adapter)
        active = session.run(["logits"], {"ids": ids}, options)[0]
        inputs = session.run(["logits"], {"ids": ids, A: expected[A], B: expected[B]})[0]
        assert np.array_equal(active, inputs)
        assert np.abs(active - plain).max() > 0.1
    print("onnxruntime", onnxruntime.__version__, "reads the adapter and runs with it")


main()
