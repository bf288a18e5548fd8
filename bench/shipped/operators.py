"""Operators for onnx's reference evaluator, by PyTorch in their inputs' type. The evaluator's own versions are too
slow."""
import numpy as np
import torch
import torch.nn.functional as F
from onnx.reference.op_run import OpRun


def padded(x, kernel, strides, dilations, auto_pad, pads, value=0.0):
    spatial = x.dim() - 2
    if auto_pad in (b"SAME_UPPER", b"SAME_LOWER", "SAME_UPPER", "SAME_LOWER"):
        pads = [0] * 2 * spatial
        for k in range(spatial):
            n = x.shape[2 + k]
            total = max(0, (-(-n // strides[k]) - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - n)
            low = total // 2 if "UPPER" in str(auto_pad) else total - total // 2
            pads[k], pads[k + spatial] = low, total - low
    if not any(pads or []):
        return x
    return F.pad(x, [p for k in reversed(range(spatial)) for p in (pads[k], pads[k + spatial])], value=value)


class Conv(OpRun):
    def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None):  # noqa: ARG002
        spatial = x.ndim - 2
        strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
        x, w, b = (None if t is None else torch.from_numpy(np.array(t)) for t in (x, w, b))
        x = padded(x, w.shape[2:], strides, dilations, auto_pad, pads)
        return ((F.conv1d, F.conv2d, F.conv3d)[spatial - 1](x, w, b, strides, 0, dilations, group or 1).numpy(),)


OPERATORS = [Conv]


# Operators that census/autograd.py lacks; `a`: the attributes, inputs are PyTorch's tensors.

def window(a, x, kernel):
    """Returns strides, dilations and a function that adds the border to x. NOTSET takes `pads`."""
    spatial = x.dim() - 2
    strides, dilations = a.get("strides", [1] * spatial), a.get("dilations", [1] * spatial)
    return strides, dilations, lambda value: padded(x, kernel, strides, dilations, a.get("auto_pad", b"NOTSET"), a.get("pads"), value)


def conv(a, x, w, b=None):
    strides, dilations, bordered = window(a, x, w.shape[2:])
    return (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3](bordered(0.0), w, b, strides, 0, dilations, a.get("group", 1))


def max_pool(a, x):
    strides, dilations, bordered = window(a, x, a["kernel_shape"])
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.dim() - 3](
        bordered(-torch.inf), a["kernel_shape"], strides, 0, dilations, bool(a.get("ceil_mode", 0)))


def pad(a, x, pads=None, value=None, axes=None):
    mode, rank = a.get("mode", b"constant").decode(), x.dim()
    sizes = a["pads"] if pads is None else [int(p) for p in pads]
    picked, by = [int(k) % rank for k in axes] if axes is not None else list(range(rank)), [(0, 0)] * rank
    for k, axis in enumerate(picked):
        by[axis] = (sizes[k], sizes[k + len(picked)])
    for axis, (low, high) in enumerate(by):
        n = x.shape[axis]
        place = np.arange(-low, n + high)
        if mode == "reflect":
            place = np.abs((place + n - 1) % max(1, 2 * n - 2) - (n - 1))
        outside = torch.from_numpy((place < 0) | (place >= n))
        x = x.index_select(axis, torch.from_numpy(np.clip(place, 0, n - 1)))
        if mode == "constant" and bool(outside.any()):
            x = x.masked_fill(outside.reshape([-1 if k == axis else 1 for k in range(rank)]), 0.0 if value is None else float(value))
    return x


def extreme(fold):
    def rule(a, x, axes=None):
        axes = [int(k) for k in axes] if axes is not None else a.get("axes", list(range(x.dim())))
        return fold(x, axes, keepdim=bool(a.get("keepdims", 1)))
    return rule


def product(a, x, axes=None):
    axes = [int(k) for k in axes] if axes is not None else a.get("axes", list(range(x.dim())))
    for axis in sorted((k % x.dim() for k in axes), reverse=True):
        x = x.prod(axis, keepdim=bool(a.get("keepdims", 1)))
    return x


def recurrent(cell, gates, states):
    """LSTM or GRU with default activations; rows of a batch may end earlier (sequence_lens)."""
    def rule(a, x, w, r, b=None, lengths=None, *first):
        if "activations" in a or a.get("layout", 0) or a.get("input_forget", 0) or "clip" in a or len(first) > states:
            raise NotImplementedError("a recurrence with other activations, layout or clip")
        steps, batch, _ = x.shape
        hidden = a["hidden_size"]
        ends = lengths.long() if lengths is not None else torch.full((batch,), steps)
        ways = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}[a.get("direction", b"forward")]
        outputs, lasts = [], []
        for k, backward in enumerate(ways):
            state = [f[k] if f is not None else x.new_zeros(batch, hidden) for f in [*first, *[None] * (states - len(first))]]
            wb, rb = (b[k].split(gates * hidden) if b is not None else (x.new_zeros(gates * hidden),) * 2)
            ys = [None] * steps
            for t in (range(steps - 1, -1, -1) if backward else range(steps)):
                after = cell(a, x[t] @ w[k].T, state, r[k], wb, rb, hidden)
                runs = (t < ends)[:, None]
                state = [torch.where(runs, new, old) for new, old in zip(after, state)]
                ys[t] = torch.where(runs, state[0], torch.zeros_like(state[0]))
            outputs.append(torch.stack(ys))
            lasts.append(state)
        return (torch.stack(outputs, 1), *(torch.stack([s[k] for s in lasts]) for k in range(states)))
    return rule


def lstm_cell(a, xw, state, r, wb, rb, hidden):  # noqa: ARG001
    i, o, f, c = (xw + state[0] @ r.T + wb + rb).split(hidden, 1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(c)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(a, xw, state, r, wb, rb, hidden):
    h = state[0]
    xz, xr, xh = (xw + wb).split(hidden, 1)
    rz, rr, rh = r.split(hidden)
    bz, br, bh = rb.split(hidden)
    z, gate = torch.sigmoid(xz + h @ rz.T + bz), torch.sigmoid(xr + h @ rr.T + br)
    inner = gate * (h @ rh.T + bh) if a.get("linear_before_reset", 0) else (gate * h) @ rh.T + bh
    return ((1 - z) * torch.tanh(xh + inner) + z * h,)


def top_k(a, x, k):
    return tuple(x.topk(int(k), a.get("axis", -1), bool(a.get("largest", 1))))


RULES = {
    "Conv": conv, "MaxPool": max_pool, "Pad": pad, "ReduceMax": extreme(torch.amax), "ReduceMin": extreme(torch.amin),
    "ReduceProd": product, "TopK": top_k, "LSTM": recurrent(lstm_cell, 4, 2), "GRU": recurrent(gru_cell, 3, 1),
    "HardSigmoid": lambda a, x: (a.get("alpha", 0.2) * x + a.get("beta", 0.5)).clamp(0, 1),
    "HardSwish": lambda a, x: x * (x / 6 + 0.5).clamp(0, 1),
    "GlobalMaxPool": lambda a, x: x.amax(tuple(range(2, x.dim())), keepdim=True),
    "Dropout": lambda a, x, *rest: x,  # noqa: ARG005
    "Einsum": lambda a, *x: torch.einsum(a["equation"].decode(), *x),
    "ArgMax": lambda a, x: x.argmax(a.get("axis", 0), bool(a.get("keepdims", 1))),
    "GatherElements": lambda a, x, i: x.gather(a.get("axis", 0), i % x.shape[a.get("axis", 0)]),
}
