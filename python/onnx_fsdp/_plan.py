"""`plan`: the plan of a run, without the run. `check`: a comparison of the run's numbers with reference numbers."""

import ctypes
import json

from ._library import CALLS
from ._library import check as raise_for
from ._settings import Request


def _text_of(call, request):
    text = ctypes.c_void_p()
    raise_for(CALLS[call](request.settings, ctypes.byref(text)))
    try:
        return ctypes.string_at(text).decode()
    finally:
        CALLS["free"](text)


class Plan:
    """The plan of a run. `json` has the output of `fsdp-run plan --json` (docs/internals/plan.md)."""

    def __init__(self, request):
        self._request = request
        self.json = json.loads(_text_of("plan", request))

    @property
    def peak_bytes(self):
        """The exact peak memory in bytes of the rank with the most."""
        return self.json["memory"]["peak_bytes"]

    @property
    def units(self):
        return self.json["units"]

    @property
    def steps(self):
        """The schedule of a training micro-batch: unshards, nodes, reductions, the optimizer, in order."""
        return next(program["schedule"] for program in self.json["programs"] if program["training"])

    def html(self):
        """Returns the plan as a page for a browser."""
        return _text_of("plan_page", self._request)

    def __repr__(self):
        return f"<onnx_fsdp.Plan: {len(self.units)} units, {self.peak_bytes:,} bytes a rank>"


def plan(model, data=None, **options):
    """The plan of `train` with the same arguments."""
    return Plan(Request(model, data, options=options))


def check(model, data=None, **options):
    """Compares training with the operators' references, for `train` with the same arguments. Returns the content of
    `fsdp-run check --json` (docs/internals/correctness.md): loss and gradient of the first batch, as training computes
    them and as the references compute them in double. If they differ, `worst` names the parameter with the largest
    difference and `node` the first node that differs."""
    return json.loads(_text_of("check", Request(model, data, options=options)))
