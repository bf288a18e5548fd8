#!/usr/bin/env python3
"""Writes tests/fixtures/control: small models with an If or Loop that depends on the data's length.

    make_control.py FOLDER

if.onnx        the mean over time, or the sum if there is one time step: the condition reads a free axis
loop.onnx      the sum over time by a Loop over a free axis
slice.onnx     the same, with the count by Slice of a partly known shape, as tf2onnx writes Keras' LSTM
less.onnx      the same, with a condition that compares floats
while.onnx     the same, without a count: a counter is compared with a length in int32, from a Shape with a start
"""
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = pathlib.Path(sys.argv[1])
W = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


def constant(name, value, dtype=np.int64):
    return numpy_helper.from_array(np.array(value, dtype), name)


def value(name, dims, element=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, element, dims)


def save(name, nodes, axes, constants, opset=17):
    graph = helper.make_graph(nodes, name, [value("x", axes)], [value("y", [axes[0], 4])],
                              [numpy_helper.from_array(W, "w"), *constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, FOLDER / f"{name}.onnx")


def loop_body():
    nodes = [helper.make_node("Gather", ["x", "i"], ["step"], axis=1), helper.make_node("Add", ["sum", "step"], ["more"]),
             helper.make_node("Identity", ["go"], ["go_on"])]
    return helper.make_graph(nodes, "body",
                             [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("sum", None)],
                             [value("go_on", [], TensorProto.BOOL), value("more", None)])


FREE = ["batch", "time", 5]
LENGTH = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "one"], ["length"])]
PRODUCT = helper.make_node("MatMul", ["r", "w"], ["y"])
ZERO = constant("zero", np.zeros((1, 5)), np.float32)

then = helper.make_graph([helper.make_node("ReduceSum", ["x", "axis"], ["t"], keepdims=0)], "then", [], [value("t", None)])
other = helper.make_graph([helper.make_node("ReduceMean", ["x"], ["e"], axes=[1], keepdims=0)], "else", [], [value("e", None)])
save("if", [*LENGTH, helper.make_node("Equal", ["length", "one"], ["single"]),
            helper.make_node("If", ["single"], ["r"], then_branch=then, else_branch=other), PRODUCT],
     FREE, [constant("one", 1), constant("axis", [1])])
save("loop", [*LENGTH, helper.make_node("Loop", ["length", "", "zero"], ["r"], body=loop_body()), PRODUCT], FREE,
     [constant("one", 1), ZERO])

SLICED = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Slice", ["shape", "from", "to", "axis"], ["part"]),
          helper.make_node("Squeeze", ["part", "axis"], ["length"])]
NUMBERS = [ZERO, constant("from", [1]), constant("to", [2]), constant("axis", [0])]
save("slice", [*SLICED, helper.make_node("Loop", ["length", "", "zero"], ["r"], body=loop_body()), PRODUCT],
     ["batch", 7, 5], NUMBERS)
save("less", [*SLICED, helper.make_node("Cast", ["length"], ["number"], to=TensorProto.FLOAT),
              helper.make_node("Less", ["least", "number"], ["any"]),
              helper.make_node("Loop", ["length", "any", "zero"], ["r"], body=loop_body()), PRODUCT],
     ["batch", 7, 5], [*NUMBERS, constant("least", [0], np.float32)])

COUNTED = [helper.make_node("Shape", ["x"], ["shape"], start=0), helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.INT32),
           helper.make_node("Slice", ["sizes", "from", "to", "axis"], ["part"]), helper.make_node("Squeeze", ["part", "axis"], ["length"]),
           helper.make_node("Cast", ["length"], ["number"], to=TensorProto.FLOAT), helper.make_node("Less", ["least", "number"], ["any"])]
while_body = helper.make_graph(
    [helper.make_node("Gather", ["x", "at"], ["step"], axis=1), helper.make_node("Add", ["sum", "step"], ["more"]),
     helper.make_node("Add", ["at", "one"], ["next"]), helper.make_node("Cast", ["next"], ["next_number"], to=TensorProto.FLOAT),
     helper.make_node("Less", ["next_number", "number"], ["go_on"])], "body",
    [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("at", [], TensorProto.INT32), value("sum", None)],
    [value("go_on", [], TensorProto.BOOL), value("next", [], TensorProto.INT32), value("more", None)])
save("while", [*COUNTED, helper.make_node("Loop", ["", "any", "first", "zero"], ["end", "r"], body=while_body), PRODUCT],
     ["batch", 7, 5], [*NUMBERS, constant("least", 0, np.float32), constant("first", 0, np.int32), constant("one", 1, np.int32)])
