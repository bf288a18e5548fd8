"""Trains MNIST with onnx-fsdp from Python, one update per call, as train.c does:  train.py MODEL.onnx OUT.onnx"""
import sys
import numpy
import onnx_fsdp

with onnx_fsdp.Trainer(sys.argv[1], loss="nll", prediction="logits", lr=0.001) as trainer:
    for step in range(20):
        image = ((numpy.arange(64 * 784) * 7 + step) % 256).astype("float32").reshape(64, 1, 28, 28) / numpy.float32(255)
        loss = trainer.step({"image": image, "labels": (numpy.arange(64) + step) % 10})
        print(f"step {loss.step}  loss {loss:.9g}")
    trainer.save(sys.argv[2])
