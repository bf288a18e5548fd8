"""`plan`: what a run would do, without doing it."""

import ctypes
import json

from ._library import CALLS, check
from ._settings import Request


class Plan:
    """The plan of a run. `json` is all that `fsdp-run plan --json` says (docs/plan.md)."""

    def __init__(self, request):
        self._request = request
        self.json = json.loads(self._text("plan"))

    def _text(self, call):
        text = ctypes.c_void_p()
        check(CALLS[call](self._request.settings, ctypes.byref(text)))
        try:
            return ctypes.string_at(text).decode()
        finally:
            CALLS["free"](text)

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
        return self._text("plan_page")

    def __repr__(self):
        return f"<onnx_fsdp.Plan: {len(self.units)} units, {self.peak_bytes:,} bytes a rank>"


def plan(model, data=None, **options):
    """The plan of `train` with the same arguments."""
    return Plan(Request(model, data, options=options))
