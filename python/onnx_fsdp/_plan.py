"""`plan`: what a run would do, without doing it. `check`: whether its numbers are right."""

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
    """The plan of a run. `json` is all that `fsdp-run plan --json` says (docs/internals/plan.md)."""

    def __init__(self, request):
        self._request = request
        self.json = json.loads(_text_of("plan", request))

    @property
    def peak_bytes(self):
        """The most memory of a rank, to the byte."""
        return self.json["memory"]["peak_bytes"]

    @property
    def units(self):
        return self.json["units"]

    @property
    def steps(self):
        """The schedule of a training micro-batch: unshards, nodes, reductions, the optimizer, in order."""
        return next(program["schedule"] for program in self.json["programs"] if program["training"])

    def html(self):
        """A page to look at in a browser."""
        return _text_of("plan_page", self._request)

    def __repr__(self):
        return f"<onnx_fsdp.Plan: {len(self.units)} units, {self.peak_bytes:,} bytes a rank>"


def plan(model, data=None, **options):
    """The plan of `train` with the same arguments."""
    return Plan(Request(model, data, options=options))


def check(model, data=None, **options):
    """Loss and gradient of the first batch of `train` with the same arguments, as training computes them and as the
    operators' references in double do: what `fsdp-run check --json` says (docs/internals/correctness.md). Where the two part,
    `worst` names the parameter that is farthest away and `node` the first node that is another."""
    return json.loads(_text_of("check", Request(model, data, options=options)))
