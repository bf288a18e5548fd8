#!/usr/bin/env python3
"""Writes tests/fixtures/training_info: small models that describe their own training (ModelProto.training_info), and
the results of four updates, by the standard's formulas in double.

    training_info_models.py FOLDER      needs onnx and numpy

The model: o = tanh(x W1 + b1) W2 + b2; the loss, in the algorithm graph, is mean((o - target)^2). NAME.onnx has the
optimizer NAME. NAME.json has the losses, and after the last update every value that update_binding names. Each
bad_*.onnx has one error.
"""
import json
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "ai.onnx.preview.training"
PARAMS = ["W1", "b1", "W2", "b2"]
SAMPLES, BATCH, STEPS = 12, 6, 4


def initial():
    random = np.random.default_rng(7)
    shapes = {"W1": (3, 7), "b1": (7,), "W2": (7, 2), "b2": (2,)}
    return {name: (random.standard_normal(shape) * 0.5).astype(np.float32) for name, shape in shapes.items()}


def data():
    random = np.random.default_rng(8)
    return {"x": random.standard_normal((SAMPLES, 3)).astype(np.float32),
            "target": random.standard_normal((SAMPLES, 2)).astype(np.float32)}


def loss_and_gradients(p, x, target):
    h = np.tanh(x @ p["W1"] + p["b1"])
    d = h @ p["W2"] + p["b2"] - target
    dout = 2 * d / d.size
    dh = dout @ p["W2"].T * (1 - h * h)
    return (d * d).mean(), {"W1": x.T @ dh, "b1": dh.sum(0), "W2": h.T @ dout, "b2": dout.sum(0)}


def tensor(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def node(op, inputs, outputs, domain="", **attributes):
    return helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", domain=domain, **attributes)


def info(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def inference_graph(params):
    nodes = [node("MatMul", ["x", "W1"], ["xw"]), node("Add", ["xw", "b1"], ["z"]), node("Tanh", ["z"], ["h"]),
             node("Gemm", ["h", "W2", "b2"], ["o"])]
    return helper.make_graph(nodes, "model", [info("x", ["batch", 3])], [info("o", ["batch", 2])],
                             [tensor(k, v) for k, v in params.items()])


def loss_nodes():
    return [node("Sub", ["o", "target"], ["d"]), node("Mul", ["d", "d"], ["dd"]),
            node("ReduceMean", ["dd"], ["loss"], keepdims=0)]


def gradient_node(xs=PARAMS, y="loss"):
    return node("Gradient", xs + ["x", "target"], [f"g_{x}" for x in xs], DOMAIN, xs=xs, zs=["x", "target"], y=y)


def zeros(prefix, params):
    return {prefix + k: np.zeros_like(params[k]) for k in PARAMS}


class Algorithm:
    """Nodes, initializers and bindings of one TrainingInfoProto."""

    def __init__(self, with_loss=True):
        self.nodes = loss_nodes() + [gradient_node()] if with_loss else []
        self.inputs = [info("target", ["batch", 2])] if with_loss else []
        self.initializers, self.bindings, self.outputs = [], {}, []
        if with_loss:
            self.outputs.append(info("loss", []))
        self.shapes = {k: v.shape for k, v in initial().items()}

    def state(self, name, value, packed=False):
        value = np.asarray(value)
        made = tensor(name, value)
        if packed:  # as helper.make_tensor does it: int64_data, with varints
            made = helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape,
                                      value.ravel().tolist())
        self.initializers.append(made)
        self.shapes[name] = value.shape
        self.types = getattr(self, "types", {})
        self.types[name] = helper.np_dtype_to_tensor_dtype(value.dtype)

    def bind(self, key, value):
        self.bindings[key] = value
        self.outputs.append(info(value, self.shapes[key], getattr(self, "types", {}).get(key, TensorProto.FLOAT)))

    def count(self):
        self.state("T", np.int64(0), packed=True)
        self.state("one", np.int64(1))
        self.nodes.append(node("Add", ["T", "one"], ["T_new"]))
        self.bind("T", "T_new")

    def optimizer(self, op, kinds, **attributes):
        params = initial()
        self.state("R", np.float32(attributes.pop("rate")))
        self.count()
        for kind in kinds:
            for name in PARAMS:
                self.state(kind + name, np.zeros_like(params[name]))
        groups = [PARAMS, [f"g_{n}" for n in PARAMS]] + [[kind + n for n in PARAMS] for kind in kinds]
        new = [n + "_new" for n in PARAMS] + [kind + n + "_new" for kind in kinds for n in PARAMS]
        self.nodes.append(node(op, ["R", "T"] + sum(groups, []), new, DOMAIN, **attributes))
        for name in PARAMS + [kind + n for kind in kinds for n in PARAMS]:
            self.bind(name, name + "_new")

    def proto(self):
        made = onnx.TrainingInfoProto()
        made.algorithm.CopyFrom(helper.make_graph(self.nodes, "algorithm", self.inputs, self.outputs, self.initializers))
        for key, value in self.bindings.items():
            made.update_binding.add(key=key, value=value)
        return made


def model(*algorithms):
    made = helper.make_model(inference_graph(initial()), ir_version=8, producer_name="training_info_models",
                             opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)])
    made.training_info.extend(a.proto() for a in algorithms)
    return made


# --- the optimizers: a model, and one update of a parameter in double


def f32(x):
    return float(np.float32(x))


def adam():
    a = Algorithm()
    a.optimizer("Adam", ["v_", "h_"], rate=0.05, alpha=0.8, beta=0.95, epsilon=1e-3, norm_coefficient=0.01,
                norm_coefficient_post=0.002)

    def update(s, g, t, name):
        g = f32(0.01) * s[name] + g
        v = s["v_" + name] = f32(0.8) * s["v_" + name] + (1 - f32(0.8)) * g
        h = s["h_" + name] = f32(0.95) * s["h_" + name] + (1 - f32(0.95)) * g * g
        rate = f32(0.05) if t == 0 else f32(0.05) * np.sqrt(1 - f32(0.95)**t) / (1 - f32(0.8)**t)
        s[name] = (1 - f32(0.002)) * (s[name] - rate * v / (np.sqrt(h) + f32(1e-3)))

    return model(a), update, ["v_", "h_"]


def adagrad():
    a = Algorithm()
    a.optimizer("Adagrad", ["h_"], rate=0.1, epsilon=1e-5, decay_factor=0.1, norm_coefficient=0.01)

    def update(s, g, t, name):
        g = f32(0.01) * s[name] + g
        h = s["h_" + name] = s["h_" + name] + g * g
        s[name] = s[name] - f32(0.1) / (1 + t * f32(0.1)) * g / (np.sqrt(h) + f32(1e-5))

    return model(a), update, ["h_"]


def momentum(mode):
    a = Algorithm()
    a.optimizer("Momentum", ["v_"], rate=0.1, alpha=0.9, beta=0.7, mode=mode, norm_coefficient=0.01)

    def update(s, g, t, name):
        g = f32(0.01) * s[name] + g
        v = s["v_" + name] = f32(0.9) * s["v_" + name] + (f32(0.7) if t > 0 else 1) * g
        s[name] = s[name] - f32(0.1) * (g + f32(0.9) * v if mode == "nesterov" else v)

    return model(a), update, ["v_"]


def sgd():
    """Plain nodes, and a rate that decays in the graph."""
    a = Algorithm()
    a.state("R", np.float32(0.2))
    a.state("decay", np.float32(0.9))
    a.nodes.append(node("Mul", ["R", "decay"], ["R_new"]))
    a.bind("R", "R_new")
    for name in PARAMS:
        a.nodes += [node("Mul", ["R", "g_" + name], ["s_" + name]), node("Sub", [name, "s_" + name], [name + "_new"])]
        a.bind(name, name + "_new")

    def update(s, g, t, name):
        s[name] = s[name] - f32(0.2) * f32(0.9)**t * g

    return model(a), update, []


def program():
    """A nonstandard optimizer: a step along the sign of a running mean, half as long if the mean is small. It clips the
    weights."""
    a = Algorithm()
    for name, value in [("rate", 0.02), ("keep", 0.7), ("take", 0.3), ("low", -0.4), ("high", 0.4), ("half", 0.5)]:
        a.state(name, np.float32(value))
    for n in PARAMS:
        a.state("m_" + n, np.zeros_like(initial()[n]))
        a.nodes += [node("Mul", ["keep", "m_" + n], ["a_" + n]), node("Mul", ["g_" + n, "take"], ["b_" + n]),
                    node("Add", ["a_" + n, "b_" + n], ["m_" + n + "_new"]),
                    node("Sign", ["m_" + n + "_new"], ["sign_" + n]),
                    node("Abs", ["m_" + n + "_new"], ["abs_" + n]), node("Greater", ["abs_" + n, "rate"], ["big_" + n]),
                    node("Mul", ["sign_" + n, "half"], ["small_" + n]),
                    node("Where", ["big_" + n, "sign_" + n, "small_" + n], ["way_" + n]),
                    node("Mul", ["way_" + n, "rate"], ["step_" + n]), node("Sub", [n, "step_" + n], ["x_" + n]),
                    node("Clip", ["x_" + n, "low", "high"], [n + "_new"])]
        a.bind(n, n + "_new")
        a.bind("m_" + n, "m_" + n + "_new")

    def update(s, g, t, name):
        m = s["m_" + name] = f32(0.7) * s["m_" + name] + f32(0.3) * g
        way = np.where(np.abs(m) > f32(0.02), np.sign(m), np.sign(m) * 0.5)
        s[name] = np.clip(s[name] - f32(0.02) * way, f32(-0.4), f32(0.4))

    return model(a), update, ["m_"]


def two_steps():
    """Two TrainingInfoProto: Momentum, then a running mean of the new weights, from the values that the first one
    bound."""
    first = Algorithm()
    first.optimizer("Momentum", ["v_"], rate=0.1, alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.0)
    second = Algorithm(with_loss=False)
    second.state("keep", np.float32(0.75))
    second.state("take", np.float32(0.25))
    for n in PARAMS:
        second.state("mean_" + n, initial()[n])
        second.nodes += [node("Mul", ["keep", "mean_" + n], ["a_" + n]), node("Mul", ["take", n], ["b_" + n]),
                         node("Add", ["a_" + n, "b_" + n], ["mean_" + n + "_new"])]
        second.bind("mean_" + n, "mean_" + n + "_new")

    def update(s, g, t, name):
        v = s["v_" + name] = f32(0.9) * s["v_" + name] + g
        s[name] = s[name] - f32(0.1) * v
        s["mean_" + name] = 0.75 * s["mean_" + name] + 0.25 * s[name]

    return model(first, second), update, ["v_", "mean_"]


def initialized(random=False):
    """Momentum in a file with wrong values; its initialization graph makes the right ones."""
    made = momentum("standard")[0]
    nodes, outputs = [], []
    values = {**initial(), **zeros("v_", initial()), "T": np.int64(0)}
    infos = made.training_info[0]
    for graph in (made.graph, infos.algorithm):
        for t in graph.initializer:
            if t.name in values:
                t.CopyFrom(tensor(t.name, np.full_like(values[t.name], 5)))
    for name, value in values.items():
        if random and name in PARAMS:
            nodes.append(node("RandomNormal", [], ["init_" + name], shape=list(value.shape), scale=0.5))
        elif name.startswith("v_"):
            nodes.append(node("Constant", [], ["shape_" + name], value=tensor("", np.array(value.shape, np.int64))))
            nodes.append(node("ConstantOfShape", ["shape_" + name], ["init_" + name]))
        else:
            nodes.append(node("Constant", [], ["init_" + name], value=tensor("", value)))
        outputs.append(info("init_" + name, value.shape, helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)))
        infos.initialization_binding.add(key=name, value="init_" + name)
    infos.initialization.CopyFrom(helper.make_graph(nodes, "initialization", [], outputs))
    return made


def documented():
    """The example on Gradient's own page: Y = Gemm(Conv(X, W), Z) with dY/dW and dY/dZ; here y is the mean of Y."""
    random = np.random.default_rng(9)
    w = random.standard_normal((2, 1, 2, 2)).astype(np.float32)
    z = random.standard_normal((18, 1)).astype(np.float32)
    x = random.standard_normal((4, 1, 4, 4)).astype(np.float32)
    nodes = [node("Conv", ["X", "W"], ["C"]), node("Flatten", ["C"], ["H"]), node("Gemm", ["H", "Z"], ["Y"])]
    graph = helper.make_graph(nodes, "model", [info("X", ["batch", 1, 4, 4])], [info("Y", ["batch", 1])],
                              [tensor("W", w), tensor("Z", z)])
    algorithm = [node("ReduceMean", ["Y"], ["y"], keepdims=0),
                 node("Gradient", ["W", "Z", "X"], ["dW", "dZ"], DOMAIN, xs=["W", "Z"], zs=["X"], y="y"),
                 node("Sub", ["W", "dW"], ["W_new"]), node("Sub", ["Z", "dZ"], ["Z_new"])]
    made = helper.make_model(graph, ir_version=8, producer_name="training_info_models",
                             opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)])
    training = made.training_info.add()
    training.algorithm.CopyFrom(helper.make_graph(algorithm, "algorithm", [],
                                                  [info("W_new", w.shape), info("Z_new", z.shape)]))
    training.update_binding.add(key="W", value="W_new")
    training.update_binding.add(key="Z", value="Z_new")
    windows = np.lib.stride_tricks.sliding_window_view(x[:, 0].astype(np.float64), (2, 2), axis=(1, 2))
    conv = np.einsum("nijab,cab->ncij", windows, w[:, 0].astype(np.float64))
    flat = conv.reshape(4, 18)
    dz = flat.mean(0)[:, None]
    dw = np.einsum("nijab,cij->cab", windows, z.astype(np.float64).reshape(2, 3, 3)) / 4
    values = {"W": (w - dw[:, None]).ravel().tolist(), "Z": (z - dz).ravel().tolist()}
    return made, {"losses": [float((flat @ z).mean())], "values": values, "count": 1}, x


MODELS = {"adam": adam, "adagrad": adagrad, "momentum": lambda: momentum("standard"),
          "nesterov": lambda: momentum("nesterov"), "sgd": sgd, "program": program, "two_steps": two_steps}


def expected(update, kinds):
    columns = {k: v.astype(np.float64) for k, v in data().items()}
    params = {k: v.astype(np.float64) for k, v in initial().items()}
    state = dict(params)
    for kind in kinds:
        for n in PARAMS:
            state[kind + n] = params[n].copy() if kind == "mean_" else np.zeros_like(params[n])
    losses = []
    for step in range(STEPS):
        at = step * BATCH % SAMPLES
        loss, grads = loss_and_gradients({n: state[n] for n in PARAMS}, columns["x"][at:at + BATCH],
                                         columns["target"][at:at + BATCH])
        losses.append(float(loss))
        for n in PARAMS:
            update(state, grads[n], step, n)
    return losses, {k: v.ravel().tolist() for k, v in state.items()}


# --- faults


def bad(change):
    a = Algorithm()
    a.state("R", np.float32(0.1))
    for n in PARAMS:
        a.nodes += [node("Mul", ["R", "g_" + n], ["s_" + n]), node("Sub", [n, "s_" + n], [n + "_new"])]
        a.bind(n, n + "_new")
    change(a)
    return model(a)


def missing_key(a):
    a.bindings["W9"] = "W1_new"


def missing_value(a):
    a.bindings["W1"] = "W1_newer"


def off_path(a):
    a.nodes[2] = node("ReduceMean", ["x"], ["loss"], keepdims=0)


def no_initializer(a):
    a.nodes[3] = gradient_node(["h"] + PARAMS[1:])


def mixes(a):
    a.nodes[-2] = node("Mul", ["W2_new", "g_b2"], ["s_b2"])


def norm(a):
    a.nodes[-2:] = [node("ReduceSum", ["g_b2"], ["norm"], keepdims=1), node("Sub", ["b2", "norm"], ["b2_new"])]


def shape(a):
    a.state("m", np.zeros((1, 2), np.float32))
    a.nodes[-2] = node("Mul", ["m", "g_b2"], ["s_b2"])


def second_loss(a):
    a.nodes.insert(4, node("Gradient", ["W1", "x"], ["g2_W1"], DOMAIN, xs=["W1"], zs=["x"], y="dd"))


def other_values(a):
    a.nodes.insert(4, node("Gradient", ["W2", "x", "target"], ["g2_W1"], DOMAIN, xs=["W1"], zs=["x", "target"],
                           y="loss"))


def data_dependent(a):
    a.nodes[4] = node("Mul", ["loss", "g_W1"], ["s_W1"])


def bound_twice(a):
    pass


BAD = {f.__name__: f for f in [missing_key, missing_value, off_path, no_initializer, mixes, norm, shape, second_loss,
                               other_values, data_dependent]}


def main():
    folder = sys.argv[1]
    os.makedirs(folder + "/data", exist_ok=True)
    for name, array in data().items():
        np.save(f"{folder}/data/{name}.npy", array)
    for name, make in MODELS.items():
        made, update, kinds = make()
        onnx.save(made, f"{folder}/{name}.onnx")
        losses, values = expected(update, kinds)
        with open(f"{folder}/{name}.json", "w") as file:
            json.dump({"losses": losses, "values": values, "count": STEPS}, file)
            file.write("\n")
    onnx.save(initialized(), folder + "/initialized.onnx")
    onnx.save(initialized(random=True), folder + "/random.onnx")
    made, result, x = documented()
    onnx.save(made, folder + "/documented.onnx")
    with open(folder + "/documented.json", "w") as file:
        json.dump(result, file)
        file.write("\n")
    os.makedirs(folder + "/documented_data", exist_ok=True)
    np.save(folder + "/documented_data/X.npy", x)
    for name, change in BAD.items():
        onnx.save(bad(change), f"{folder}/bad_{name}.onnx")


if __name__ == "__main__":
    main()
