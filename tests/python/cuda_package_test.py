#!/usr/bin/env python3
"""Tests the package onnx_fsdp_cuda in pip's layout: fsdp-run and onnx_fsdp find its library and the libraries in
NVIDIA's packages. The counting device replaces the package's library, and empty files replace NVIDIA's.

    cuda_package_test.py SOURCE_FOLDER BUILD_FOLDER COUNTING_DEVICE [TEST...]

Needs numpy.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, DEVICE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
MODEL = SOURCE / "tests/fixtures/mlp/model.onnx"
NVIDIA = {"CUBLASLT": "cu13/lib/libcublasLt.so.13", "CUDNN": "cudnn/lib/libcudnn.so.9", "NCCL": "nccl/lib/libnccl.so.2",
          "NVRTC": "cu13/lib/libnvrtc.so.13"}
IN_PYTHON = "import onnx_fsdp; print(onnx_fsdp.train({!r}, device='cuda', steps=2, loss='cross_entropy').end['steps'])"
SHOW = "#!/bin/sh\nenv | grep ^OFSDP_\n"


class Folders(unittest.TestCase):
    """`own` is the site-packages folder of a virtual environment with its `bin`; `system` belongs to the Python
    below it."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.own, self.system, programs = (pathlib.Path(scratch.name).resolve() / name for name in ("own", "system", "bin"))
        programs.mkdir()
        self.script = shutil.copy(SOURCE / "python/fsdp-run", programs)
        shutil.copytree(SOURCE / "python/onnx_fsdp", self.own / "onnx_fsdp")
        self.link("onnx_fsdp/bin/fsdp-run", BUILD / "fsdp-run")
        self.link("onnx_fsdp/lib/libonnx_fsdp.so.0", BUILD / "libonnx_fsdp.so.0")
        self.link("onnx_fsdp/lib/onnx-fsdp", BUILD / "onnx-fsdp")  # oneDNN
        for file in NVIDIA.values():
            path = self.system / "nvidia" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def link(self, name, target):
        (self.own / name).parent.mkdir(parents=True, exist_ok=True)
        (self.own / name).symlink_to(target)

    def add_package(self):
        shutil.copytree(SOURCE / "python/cuda_wheel/onnx_fsdp_cuda", self.own / "onnx_fsdp_cuda")
        self.link("onnx_fsdp_cuda/lib/libofsdp_cuda.so", DEVICE)

    def python(self, *words, **variables):
        """Returns the finished interpreter process, with these variables and no other OFSDP_ variables."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OFSDP_")}
        environment["PYTHONPATH"] = f"{self.own}:{self.system}"
        return subprocess.run([sys.executable, *map(str, words)], env={**environment, **variables}, capture_output=True,
                              text=True)

    def program(self, *words, **variables):
        return self.python(self.script, *words, **variables)

    def test_training(self):
        command = (MODEL, "--device", "cuda", "--steps", "2", "--run-dir", "none", "--loss", "cross_entropy")
        without = self.program(*command)
        self.assertEqual((without.returncode, without.stderr.count("\n")), (2, 1), without.stderr)
        self.assertIn("--device cuda: this build has no CUDA", without.stderr)
        self.assertIn("InputError: --device cuda: this build has no CUDA", self.python("-c", IN_PYTHON.format(str(MODEL))).stderr)
        self.add_package()
        self.assertEqual(self.program(*command).returncode, 0)
        inside = self.python("-c", IN_PYTHON.format(str(MODEL)))
        self.assertEqual(inside.stdout.splitlines()[-1:], ["2"], inside.stderr)

    def test_variables(self):
        self.add_package()
        shown = self.own / "onnx_fsdp/bin/fsdp-run"
        shown.unlink()
        shown.write_text(SHOW)
        shown.chmod(0o755)

        def variables(**set_before):
            return dict(line.split("=", 1) for line in self.program(**set_before).stdout.splitlines())
        library = {"OFSDP_CUDA_LIBRARY": str(self.own / "onnx_fsdp_cuda/lib/libofsdp_cuda.so")}
        theirs = {f"OFSDP_{name}_LIBRARY": str(self.system / "nvidia" / file) for name, file in NVIDIA.items()}
        self.assertEqual(variables(), {**library, **theirs})
        before = {"OFSDP_CUDA_LIBRARY": "mine.so", "OFSDP_CUDNN_LIBRARY": "none"}
        self.assertEqual(variables(**before), {**theirs, **before})
        nearer = self.own / "nvidia" / NVIDIA["NCCL"]
        nearer.parent.mkdir(parents=True)
        nearer.touch()
        (self.system / "nvidia" / NVIDIA["CUDNN"]).unlink()
        del theirs["OFSDP_CUDNN_LIBRARY"]
        self.assertEqual(variables(), {**library, **theirs, "OFSDP_NCCL_LIBRARY": str(nearer)})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
