"""libofsdp_cuda.so, which lets onnx_fsdp train on NVIDIA GPUs. `pip install` of this package is all: fsdp-run and
onnx_fsdp find it, and the libraries of NVIDIA's own packages, wherever Python would import from."""

import os
import pathlib
import sys

# What libofsdp_cuda.so reads (docs/internals/cuda.md), and where NVIDIA's packages for CUDA 13 put the file.
_NVIDIA = {
    "OFSDP_CUBLASLT_LIBRARY": "nvidia/cu13/lib/libcublasLt.so.13",
    "OFSDP_CUDNN_LIBRARY": "nvidia/cudnn/lib/libcudnn.so.9",
    "OFSDP_NCCL_LIBRARY": "nvidia/nccl/lib/libnccl.so.2",
    "OFSDP_NVRTC_LIBRARY": "nvidia/cu13/lib/libnvrtc.so.13",
}


def set_environment():
    """Names the libraries to this process and those it starts. A variable that is set stays; one whose file no folder of
    sys.path has stays unset, and the library looks where the system's loader does.

    Variables and no RUNPATH: a virtual environment may have this package and leave NVIDIA's to the system's Python.
    """
    library = pathlib.Path(__file__).resolve().parent / "lib/libofsdp_cuda.so"
    os.environ.setdefault("OFSDP_CUDA_LIBRARY", str(library))
    for variable, file in _NVIDIA.items():
        found = next((path for folder in sys.path if (path := pathlib.Path(folder).resolve() / file).exists()), None)
        if found:
            os.environ.setdefault(variable, str(found))
