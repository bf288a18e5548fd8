#!/usr/bin/env python3
"""Tests the library for leaks with LeakSanitizer, which needs no separate build. Three rounds of trainers, plans, runs
and errors may leak only as much as one round: this is Python's own share.

    leaks_test.py SOURCE_FOLDER BUILD_FOLDER

Needs numpy and GCC's liblsan.so; skips without.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
CASE = SOURCE / "tests/fixtures/mlp"
OPTIONS = {"loss": "cross_entropy", "optimizer": "adamw", "lr": 0.01, "clip_grad_norm": 1.0, "threads": 1}

ROUNDS = """
import ctypes, json, sys, numpy, onnx_fsdp
folder, out, rounds, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[5])
data = {name: numpy.load(f"{folder}/data/{name}.npy") for name in ("x", "labels")}
for _ in range(rounds):
    with onnx_fsdp.Trainer(f"{folder}/model.onnx", **options) as trainer:
        for rows in (50, 42):
            trainer.step({name: values[:rows] for name, values in data.items()})
        trainer.evaluate(data)
        trainer.parameters()
        trainer.save(out)
    plan = onnx_fsdp.plan(f"{folder}/model.onnx", **options)
    plan.html()
    onnx_fsdp.train(f"{folder}/model.onnx", data=data, **options)
    try:
        onnx_fsdp.Trainer(f"{folder}/model.onnx", lr=-1)
    except onnx_fsdp.InputError:
        pass
    if sys.argv[4] == "keep the text":
        onnx_fsdp._library.CALLS["plan"](plan._request.settings, ctypes.byref(ctypes.c_void_p()))
"""


class Leaks(unittest.TestCase):
    def leaked(self, rounds, fault="none"):
        sanitizer = subprocess.run(["gcc", "-print-file-name=liblsan.so"], capture_output=True, text=True).stdout.strip()
        if not os.path.isabs(sanitizer):
            self.skipTest("GCC has no liblsan.so here")
        environment = {**os.environ, "LD_PRELOAD": sanitizer, "LSAN_OPTIONS": "exitcode=0", "PYTHONMALLOC": "malloc",
                       "PYTHONPATH": str(SOURCE / "python"), "OFSDP_LIBRARY": str(BUILD / "libonnx_fsdp.so")}
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "a.onnx"
            done = subprocess.run([sys.executable, "-c", ROUNDS, CASE, out, str(rounds), fault, json.dumps(OPTIONS)],
                                  env=environment, capture_output=True, text=True)
            if "LeakSanitizer has encountered a fatal error" in done.stderr:
                self.skipTest("LeakSanitizer may not look at a process here")
            self.assertTrue(out.exists(), done.stderr)
        return sum(map(int, re.findall(r"SUMMARY: LeakSanitizer: (\d+) byte", done.stderr)))

    def test_rounds_leave_nothing_behind(self):
        self.assertEqual(self.leaked(1), self.leaked(3))

    def test_that_it_would_show(self):
        self.assertGreater(self.leaked(3, "keep the text"), self.leaked(1, "keep the text"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
