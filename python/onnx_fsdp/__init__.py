"""onnx-fsdp: trains ONNX models with Fully Sharded Data Parallel.

    result = onnx_fsdp.train("model.onnx", data={"image": x, "labels": y}, loss="cross_entropy", output="out.onnx")

`train`, `evaluate`, `plan` and `check` run the program fsdp-run in separate processes; the caller's process is not a
rank. `start` returns a run; the run is an iterator over rows. A `Trainer` is one rank in the caller's process, and the
caller passes each batch. With `nproc_per_node` a `Trainer` starts separate rank processes. Under torchrun each process
is a rank. All of them give the same bits as the command line. `export` writes a PyTorch module as an ONNX file.

Options have the names in `fsdp-run --help`, with _ for -. True and False mean on and off; None omits an option. A
sequence of numbers is a list. For a repeatable option, a sequence of words gives the option once per word. Arrays are
numpy arrays, or values that numpy.asarray accepts.
"""

from ._export import Exported, ExportError, export
from ._library import InputError, RunError, __version__
from ._plan import Plan, check, plan
from ._run import Result, Run, evaluate, start, train
from ._trainer import Evaluation, Step, Trainer

__all__ = ["Evaluation", "ExportError", "Exported", "InputError", "Plan", "Result", "Run", "RunError", "Step", "Trainer",
           "__version__", "check", "evaluate", "export", "plan", "start", "train"]
