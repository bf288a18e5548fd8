"""`export`: a PyTorch module as an ONNX file to train, with the names of its state_dict.

The file has an entry `onnx_fsdp.state_dict` in its metadata, as JSON. A trained file keeps the entry, and
`fsdp-run export --format safetensors` uses it to write the module's state_dict:

    {"version": 1, "training": true, "dropout": 8, "tensors": {KEY: SOURCE, ...}, "others": [NAME, ...]}

There is a KEY for each key of the state_dict, in the same order. A SOURCE is one of

    "NAME"                                    the initializer NAME; tied keys have the same one
    {"initializer": NAME, "transposed": true} the transpose of a matrix
    {"dtype": "I64", "shape": [], "data": B}  bytes in base64, little-endian: a boolean or integer buffer

`others`: floating-point initializers without a key. `training`: the mode of the export. `dropout`: the number of
dropouts above 0 in the module.
Only the call imports PyTorch and onnx.
"""

import base64
import collections.abc
import contextlib
import functools
import inspect
import json
import logging
import os
import sys
import tempfile
import typing
import warnings

METADATA_KEY = "onnx_fsdp.state_dict"
FROZEN_KEY = "onnx_fsdp.frozen"
_EXTERNAL_BYTES = 1_800_000_000  # a protobuf message ends at 2 GiB
_SAFETENSORS = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"}
_ONNX_FLOATS = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}
_SEQUENCES = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")  # also after decoder_
_IGNORED = ("labels", "return_loss", "num_items_in_batch")  # in a Hugging Face batch: fsdp-run adds the loss


class ExportError(RuntimeError):
    """The module cannot be exported, or the file would lose weights."""


class Exported(typing.NamedTuple):
    """A written file."""

    path: str
    exporter: str  # "dynamo" or "torchscript"
    inputs: typing.Dict[str, typing.List[typing.Union[int, str]]]  # by name; a symbolic axis is a word
    outputs: typing.List[str]
    unused: typing.List[str]  # keys of the state_dict that the forward pass does not read
    frozen: typing.List[str]  # parameters without requires_grad: fsdp-run keeps them unless --train names them


def export(module: typing.Any, path: typing.Union[str, "os.PathLike[str]"], example_inputs: typing.Any, *,
           training: bool = True, outputs: typing.Optional[typing.Sequence[str]] = None,
           dynamic_axes: typing.Optional[typing.Mapping[str, typing.Mapping[int, str]]] = None,
           exporter: str = "auto", opset_version: int = 20) -> Exported:
    """Writes a PyTorch module as an ONNX file to train. The trained weights load back into the module.

        batch = tokenizer(["a fine film", "a dull film"], padding=True, return_tensors="pt")
        onnx_fsdp.export(model, "bert.onnx", batch)
        # fsdp-run bert.onnx --data ... --checkpoint-dir ck
        # fsdp-run export ck --format safetensors -o bert.safetensors
        model.load_state_dict(safetensors.torch.load_file("bert.safetensors"))

    `example_inputs`: a dict or BatchEncoding with the forward pass's argument names, a tuple in argument order, or a
    tensor. A Hugging Face batch may have `labels`: the export omits them, because fsdp-run adds the loss. For an
    encoder-decoder they become the input `decoder_input_ids`.

    Initializers have the names of the state_dict. The first axis of each input is the symbol `batch`. The second axis
    of token inputs is `sequence` if the module allows that. `dynamic_axes`, by input and axis, replaces these symbols
    for the inputs that it names. The output is `logits` if the module returns a tensor with this name. Otherwise the
    outputs are all tensors that the module returns. `outputs` selects other tensors by the module's names.

    `training`: True keeps dropout, and batch normalization computes statistics. A module in training mode keeps the
    modes of its parts. False exports evaluation mode. Afterwards the module has its earlier mode and config.

    `exporter`: "dynamo" or "torchscript", PyTorch's two exporters. "auto" tries the second if the first fails. For a
    file of nearly 2 GB or more, the weights are in separate files next to it.

    Raises ExportError if no exporter succeeds, or if weights would be lost; the message names them. Warns about an axis
    with a fixed size, and about weights that the forward pass does not read; the file has them too. Also warns about
    parameters without requires_grad: fsdp-run trains them unless --freeze names them.
    """
    try:
        import onnx  # noqa: F401
        import torch
    except ImportError as error:
        raise ExportError(f"export: expected the packages torch, onnx and onnxscript, found no {error.name}") from error
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"export: expected a torch.nn.Module, found {type(module).__name__}")
    if exporter not in ("auto", "dynamo", "torchscript"):
        raise ValueError(f"exporter: expected auto, dynamo or torchscript, found {exporter!r}")
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{path}: expected its folder, found none")
    with contextlib.ExitStack() as undo:
        call = _Call(torch, module, example_inputs, outputs, undo)
        call.set_mode(training, undo)
        axes = call.axes(dynamic_axes or {})
        batch_only = {name: {axis: symbol for axis, symbol in one.items() if axis == 0} for name, one in axes.items()}
        ways = [axes] if dynamic_axes or batch_only == axes else [axes, batch_only]
        tried = []
        for kind in ("dynamo", "torchscript") if exporter == "auto" else (exporter,):
            for way in ways:
                try:
                    with tempfile.TemporaryDirectory(dir=folder) as place:
                        _EXPORTERS[kind](call, os.path.join(place, name), way, opset_version)
                        found = _finish(call, os.path.join(place, name), axes, training)
                        for file in sorted(os.listdir(place), key=lambda one: one == name):  # the model last
                            os.replace(os.path.join(place, file), os.path.join(folder, file))
                    return Exported(path, kind, *found)
                except Exception as error:  # whatever the exporters raise
                    tried.append((kind, error))
        raise ExportError(f"{path}: " + "; ".join(dict.fromkeys(f"{kind}: {_first_line(e)}" for kind, e in tried))
                          ) from tried[0][1]


def _first_line(error):
    """Returns the first line of the error's cause, or of the error if it has none. An exporter's own message begins
    with advice."""
    text = str(error.__cause__ or error) or type(error).__name__
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:400]


class _Call:
    """The module's forward pass, installed as `module.forward`. It takes and returns tensors by position."""

    def __init__(self, torch, module, example_inputs, outputs, undo):
        self.torch, self.module = torch, module
        self._forward = module.forward
        self._signature = inspect.signature(module.forward)
        self._hugging_face = hasattr(module, "config") and hasattr(module.config, "to_dict")
        tensors, self._fixed = self._inputs(example_inputs)
        if not tensors:
            raise ValueError("example_inputs: expected a tensor, found none")
        self.names = list(tensors)
        self.example = self._on_device(tensors)
        self._configure(undo)
        self._choose_outputs(outputs)
        self._replace_forward(undo)

    def _inputs(self, given):
        if isinstance(given, collections.abc.Mapping) or hasattr(given, "keys"):
            named = dict(given)
        else:
            values = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            named = dict(self._signature.bind(*values).arguments)
            for parameter in self._signature.parameters.values():
                if parameter.kind is parameter.VAR_POSITIONAL and parameter.name in named:
                    rest = named.pop(parameter.name)
                    self._positional = parameter.name
                    named.update({f"{parameter.name}_{i}": value for i, value in enumerate(rest)})
        if self._hugging_face:
            if getattr(self.module.config, "is_encoder_decoder", False) and named.get("labels") is not None:
                named.setdefault("decoder_input_ids", self.torch.as_tensor(named["labels"]).clamp(min=0))
            named = {name: value for name, value in named.items() if name not in _IGNORED}
        tensors, fixed = {}, {}
        for name, value in named.items():
            if isinstance(value, self.torch.Tensor) or type(value).__module__ == "numpy":
                tensors[name] = self.torch.as_tensor(value)
            elif value is not None:
                fixed[name] = value
        order = {name: place for place, name in enumerate(self._signature.parameters)}
        return dict(sorted(tensors.items(), key=lambda item: order.get(item[0], len(order)))), fixed

    def _on_device(self, tensors):
        """Moves the example to the module's device. An axis of size 1 cannot become symbolic, so a single sample is
        repeated."""
        device = next((tensor.device for tensor in self.module.parameters()), self.torch.device("cpu"))
        tensors = {name: tensor.detach().to(device) for name, tensor in tensors.items()}
        self.batch = next((t.shape[0] for t in tensors.values() if t.dim() > 0), 1)
        if self.batch == 1:
            tensors = {name: t.repeat(2, *[1] * (t.dim() - 1)) if t.dim() > 0 and t.shape[0] == 1 else t
                       for name, t in tensors.items()}
            self.batch = 2
        return list(tensors.values())

    def _set(self, owner, name, value, undo):
        undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _configure(self, undo):
        """Turns off caches, gradient checkpointing (it only saves memory) and LayerDrop (it skips layers at random).
        Replaces flash attention by SDPA."""
        parts = list(self.module.modules())
        for config in {id(part.config): part.config for part in parts if hasattr(part, "config")}.values():
            if getattr(config, "use_cache", False):
                self._set(config, "use_cache", False, undo)
        for part in parts:
            if getattr(part, "gradient_checkpointing", False) is True:
                self._set(part, "gradient_checkpointing", False, undo)
            if isinstance(getattr(part, "layerdrop", None), float) and part.layerdrop > 0:
                warnings.warn(f"export: LayerDrop {part.layerdrop:g} of {type(part).__name__} is left out", stacklevel=4)
                self._set(part, "layerdrop", 0.0, undo)
        kind = getattr(getattr(self.module, "config", None), "_attn_implementation", None) or ""
        if "flash" in kind and hasattr(self.module, "set_attn_implementation"):
            undo.callback(self.module.set_attn_implementation, kind)
            self.module.set_attn_implementation("sdpa")
        if self._hugging_face:
            wanted = {"use_cache": False, "return_dict": True}
            self._fixed = {**{name: value for name, value in wanted.items() if name in self._signature.parameters},
                           **self._fixed}

    def set_mode(self, training, undo):
        for part in self.module.modules():
            undo.callback(setattr, part, "training", part.training)
        if training and not self.module.training:
            self.module.train()
        elif not training:
            self.module.eval()

    @contextlib.contextmanager
    def _evaluating(self):
        """A context in evaluation mode. It keeps modes and random numbers unchanged, and evaluation changes no
        buffer."""
        modes = [(part, part.training) for part in self.module.modules()]
        try:
            with self.torch.random.fork_rng(devices=[]):
                self.module.eval()
                yield
        finally:
            for part, mode in modes:
                part.training = mode

    def _returned(self, tensors):
        """Runs the forward pass and returns the module's outputs by name."""
        named = dict(zip(self.names, tensors))
        rest = getattr(self, "_positional", None)
        if rest is None:
            returned = self._forward(**named, **self._fixed)
        else:
            returned = self._forward(*named.values(), **self._fixed)
        if isinstance(returned, self.torch.Tensor):
            return {"logits" if self._hugging_face else "output": returned}
        if hasattr(returned, "items"):
            return dict(returned.items())
        return {f"output_{i}": value for i, value in enumerate(returned)}

    def _choose_outputs(self, wanted):
        with self._evaluating(), self.torch.no_grad():
            returned = self._returned(self.example)
        there = [name for name, value in returned.items() if isinstance(value, self.torch.Tensor)]
        unknown = [name for name in wanted or [] if name not in there]
        if unknown or not there:
            raise ValueError(f"outputs: expected of {', '.join(there) or 'a tensor'}, found {', '.join(unknown) or 'none'}")
        self.outputs = list(wanted) if wanted else ["logits"] if "logits" in there else there

    def _replace_forward(self, undo):
        @functools.wraps(self._forward)
        def forward(*tensors):
            returned = self._returned(tensors)
            chosen = tuple(returned[name] for name in self.outputs)
            return chosen if len(chosen) > 1 else chosen[0]

        forward.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self.names])
        own = "forward" in vars(self.module)
        undo.callback(lambda: setattr(self.module, "forward", self._forward) if own else delattr(self.module, "forward"))
        self.module.forward = forward

    def axes(self, given):
        """The symbolic axes of each input."""
        unknown = [name for name in given if name not in self.names]
        if unknown:
            raise ValueError(f"dynamic_axes: expected of {', '.join(self.names)}, found {', '.join(unknown)}")
        found = {}
        for name, tensor in zip(self.names, self.example):
            axes = {0: "batch"} if tensor.dim() > 0 and tensor.shape[0] == self.batch else {}
            side, _, plain = name.rpartition("decoder_")
            if plain in _SEQUENCES and tensor.dim() > 1 and tensor.shape[1] > 1:
                axes[1] = ("decoder_" if side or name != plain else "") + "sequence"
            found[name] = dict(given.get(name, axes))
        return found

    def unread(self, tensors):
        """Returns the keys of the tensors without a gradient."""
        flags = {key: tensor.requires_grad for key, tensor in tensors.items()}
        with self._evaluating(), self.torch.enable_grad():
            try:
                for tensor in tensors.values():
                    tensor.requires_grad_(True)
                results = self.module.forward(*self.example)
                results = results if isinstance(results, tuple) else (results,)
                total = sum(one.float().sum() for one in results if one.is_floating_point())
                gradients = self.torch.autograd.grad(total, list(tensors.values()), allow_unused=True)
            finally:
                for key, tensor in tensors.items():
                    tensor.requires_grad_(flags[key])
        return [key for key, gradient in zip(tensors, gradients) if gradient is None]


@contextlib.contextmanager
def _quiet():
    """Hides the exporters' output: both warn about internals, and the older one prints a whole graph from C++ if it
    fails."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        logger.setLevel(logging.ERROR)
        with open(os.devnull, "wb") as nothing:
            for number, _ in kept:
                os.dup2(nothing.fileno(), number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


def _by_dynamo(call, target, axes, opset):
    parameters = inspect.signature(call.torch.onnx.export).parameters
    if "dynamic_shapes" not in parameters:
        raise ExportError(f"torch {call.torch.__version__} has no such exporter, 2.6 has")
    size = sum(t.numel() * t.element_size() for t in [*call.module.parameters(), *call.module.buffers()])
    shapes = tuple(axes[name] or None for name in call.names)
    more = {"optimize": False} if "optimize" in parameters else {}  # optimization renames and merges weights
    with _quiet():
        call.torch.onnx.export(call.module, tuple(call.example), target, dynamo=True, dynamic_shapes=shapes,
                               input_names=call.names, output_names=call.outputs, opset_version=opset, verbose=False,
                               external_data=size > _EXTERNAL_BYTES, **more)


def _by_torchscript(call, target, axes, opset):
    """Traces the module. Tracing runs the module and changes buffers, so the old values are restored."""
    torch = call.torch
    more = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    modes = torch.onnx.TrainingMode
    kept = {name: buffer.clone() for name, buffer in call.module.named_buffers()}
    axes = {**axes, **{name: {0: "batch"} for name in call.outputs}}
    try:
        with _quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.onnx.export(call.module, tuple(call.example), target, input_names=call.names,
                              output_names=call.outputs, dynamic_axes={name: one for name, one in axes.items() if one},
                              opset_version=min(opset, 18), training=modes.PRESERVE, do_constant_folding=False, **more)
    finally:
        with torch.no_grad():
            for name, buffer in call.module.named_buffers():
                buffer.copy_(kept[name])


_EXPORTERS = {"dynamo": _by_dynamo, "torchscript": _by_torchscript}


def _axes_of(value):
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def _finish(call, target, wanted, training):
    """Checks the written file, and adds missing weights and the metadata. Returns the other fields of Exported."""
    import onnx
    model = onnx.load(target, load_external_data=False)
    inputs = {value.name: _axes_of(value) for value in model.graph.input if value.name in call.names}
    for name, axes in inputs.items():
        for axis, symbol in wanted[name].items():
            if isinstance(axes[axis], int) and axis == 0:
                raise ExportError(f"the first axis of {name} is fixed to {axes[axis]}")
            if isinstance(axes[axis], int):
                warnings.warn(f"export: axis {axis} ({symbol}) of {name} is fixed to {axes[axis]}", stacklevel=3)
    _keep_batch_norms(call, model)
    tensors, unused = _sources(call, model, os.path.dirname(target))
    for key in unused:
        model.graph.initializer.append(_tensor_proto(onnx, key, tensors[key]))
        tensors[key] = key
    if unused:
        warnings.warn(f"export: the forward pass does not read {_some(unused)}; training leaves them as they are",
                      stacklevel=3)
    known = {one if isinstance(one, str) else one.get("initializer") for one in tensors.values()}
    entry = {"version": 1, "training": training, "dropout": _dropouts(call.module), "tensors": tensors,
             "others": [one.name for one in model.graph.initializer
                        if one.data_type in _ONNX_FLOATS.values() and one.name not in known]}
    onnx.helper.set_model_props(model, {**{one.key: one.value for one in model.metadata_props},
                                        METADATA_KEY: json.dumps(entry, separators=(",", ":")),
                                        **_frozen(call.module, model.graph, tensors)})
    onnx.save(model, target)
    frozen = [name for name, one in call.module.named_parameters() if not one.requires_grad and name not in unused]
    return inputs, [value.name for value in model.graph.output], unused, frozen


def _frozen(module, graph, tensors):
    """The entry of the initializers that the module does not train: parameters without requires_grad, and buffers but for
    running statistics."""
    import torch
    statistics = {name for node in graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    floats = {one.name for one in graph.initializer if one.data_type in _ONNX_FLOATS.values()} - statistics
    trained, kept = set(), set()
    for key, tensor in [*module.state_dict(keep_vars=True).items(), *module.named_buffers()]:
        source = tensors.get(key, key)  # a buffer outside the state_dict keeps its name
        name = source if isinstance(source, str) else source.get("initializer")
        trains = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
        (trained if trains else kept).add(name)
    names = sorted(kept & floats - trained)
    return {FROZEN_KEY: json.dumps(names, separators=(",", ":"))} if names else {}


def _some(names):
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _dropouts(module):
    """Counts the parts with a dropout above 0: a dropout module, or a module with a dropout number in its
    attributes."""
    kinds = [part for part in module.modules() if "Dropout" in type(part).__name__ and getattr(part, "p", 0) > 0]
    numbers = [part for part in module.modules()
               if any("dropout" in name and isinstance(value, float) and value > 0 for name, value in vars(part).items())]
    return len(kinds) + len(numbers)


def _bytes(tensor):
    import torch
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _dtype(tensor):
    return str(tensor.dtype).rpartition(".")[2]


def _tensor_proto(onnx, name, tensor):
    return onnx.TensorProto(name=name, dims=list(tensor.shape), data_type=_ONNX_FLOATS[_dtype(tensor)],
                            raw_data=_bytes(tensor))


def _keep_batch_norms(call, model):
    """Restores training mode for batch normalization: PyTorch's dynamo exporter always writes the evaluation form."""
    for node in model.graph.node:
        if node.op_type != "BatchNormalization" or len(node.input) < 5 or len(node.output) > 1:
            continue
        owner, _, buffer = node.input[3].rpartition(".")
        if buffer != "running_mean" or not call.module.get_submodule(owner).training:
            continue
        kept = [one for one in node.attribute if one.name != "training_mode"]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.add(name="training_mode", i=1, type=2)  # INT
        node.output.extend([f"{node.output[0]}_running_mean", f"{node.output[0]}_running_var"])


def _sources(call, model, folder):
    """Returns each state_dict key's SOURCE, and the keys that the forward pass does not read; for these the SOURCE
    is the tensor. Raises ExportError with the names of lost weights."""
    state = call.module.state_dict(keep_vars=True)
    stored = {one.name: one for one in model.graph.initializer}
    named = {key for key, tensor in state.items() if key in stored and list(stored[key].dims) == list(tensor.shape)}
    places = {}  # of tied keys: the same memory
    for key in named:
        places[_place(state[key])] = key
    sources, missing = {}, {}
    for key, tensor in state.items():
        if _dtype(tensor) in _SAFETENSORS:
            sources[key] = {"dtype": _SAFETENSORS[_dtype(tensor)], "shape": list(tensor.shape),
                            "data": base64.b64encode(_bytes(tensor)).decode()}
        elif key in named:
            sources[key] = key
        elif tensor.numel() > 0 and _place(tensor) in places:
            sources[key] = places[_place(tensor)]
        else:
            sources[key] = missing[key] = tensor
    if missing:
        _find_by_value(missing, sources, [one for name, one in stored.items() if name not in named], folder)
    unused = call.unread(missing) if missing else []
    lost = [key for key in missing if key not in unused]
    if lost:
        raise ExportError(f"{len(lost)} weights are lost in the file: {_some(lost)}")
    return sources, unused


def _place(tensor):
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _find_by_value(missing, sources, stored, folder):
    """Finds initializers that an exporter renamed or transposed, by their values. Takes only unambiguous matches. The
    exporter may have merged two weights with equal values, and a merged initializer would train them together."""
    import onnx
    arrays = {one.name: onnx.numpy_helper.to_array(one, folder) for one in stored if len(one.dims) > 0}
    matches = {}
    for key, tensor in missing.items():
        if _dtype(tensor) == "bfloat16":
            continue
        values = tensor.detach().cpu().numpy()
        for name, array in arrays.items():
            if array.dtype != values.dtype:
                continue
            if array.shape == values.shape and (array == values).all():
                matches.setdefault(name, []).append((key, name))
            elif array.ndim == 2 and array.T.shape == values.shape and (array.T == values).all():
                matches.setdefault(name, []).append((key, {"initializer": name, "transposed": True}))
    for found in matches.values():
        if len({_place(missing[key]) for key, _ in found}) == 1:
            for key, source in found:
                sources[key] = source
                missing.pop(key, None)
