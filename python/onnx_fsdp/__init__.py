"""onnx-fsdp: trains ONNX models with Fully Sharded Data Parallel.

    result = onnx_fsdp.train("model.onnx", data={"image": x, "labels": y}, loss="cross_entropy", output="out.onnx")

`train`, `evaluate`, `plan` and `check` run the program fsdp-run in processes of its own; the caller's process is none of the
ranks. `start` gives a run whose rows are an iterator. A `Trainer` is one rank in the caller's process, who brings each
batch; with `nproc_per_node` it has ranks of its own, and under torchrun each process is a rank. All give the bits of the
command line. `export` makes the ONNX file of a PyTorch module.

Options are those of `fsdp-run --help` with _ for -: True and False are on and off, None leaves an option out, a
sequence of numbers is a list, and a sequence of words says an option that may be repeated once for each. Arrays are
numpy's, or what numpy.asarray takes.
"""

from ._export import Exported, ExportError, export
from ._library import InputError, RunError, __version__
from ._plan import Plan, check, plan
from ._run import Result, Run, evaluate, start, train
from ._trainer import Evaluation, Step, Trainer

__all__ = ["Evaluation", "ExportError", "Exported", "InputError", "Plan", "Result", "Run", "RunError", "Step", "Trainer",
           "__version__", "check", "evaluate", "export", "plan", "start", "train"]
