"""libofsdp_cuda.so: onnx_fsdp trains on NVIDIA GPUs with it. `pip install` of this package is enough. The library,
and the libraries in NVIDIA's packages, are found in the folders that Python imports from."""

import os
import pathlib
import sys

# The variables of libofsdp_cuda.so (docs/internals/cuda.md), and the files in NVIDIA's packages for CUDA 13.
_NVIDIA = {
    "OFSDP_CUBLASLT_LIBRARY": "nvidia/cu13/lib/libcublasLt.so.13",
    "OFSDP_CUDNN_LIBRARY": "nvidia/cudnn/lib/libcudnn.so.9",
    "OFSDP_NCCL_LIBRARY": "nvidia/nccl/lib/libnccl.so.2",
    "OFSDP_NVRTC_LIBRARY": "nvidia/cu13/lib/libnvrtc.so.13",
}


def set_environment():
    """Sets the variables that name the libraries, for this process and its child processes. A variable that is already
    set stays. If no folder of sys.path has a library, its variable stays unset; then the system's loader searches for
    it.

    Variables replace a RUNPATH: a virtual environment may have this package while the system's Python has NVIDIA's.
    """
    library = pathlib.Path(__file__).resolve().parent / "lib/libofsdp_cuda.so"
    os.environ.setdefault("OFSDP_CUDA_LIBRARY", str(library))
    for variable, file in _NVIDIA.items():
        found = next((path for folder in sys.path if (path := pathlib.Path(folder).resolve() / file).exists()), None)
        if found:
            os.environ.setdefault(variable, str(found))
