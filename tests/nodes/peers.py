"""Runs ONNX's node tests in ONNX Runtime or in onnx's own reference. Reports how many pass, and why the others fail.

    tests/nodes/peers.py onnxruntime|reference FOLDER [--list]

FOLDER has the tests that tests/nodes/run.sh generates (build/node_tests/cases/node). Needs onnx, and onnxruntime for
the first. A test runs in a process that may crash or hang, for at most 30 s. It passes if every output has the
expected shape, and values within 1e-3 of each and 1e-7 (bfloat16: 1 / 64 of each). tests/nodes/compare.cpp has the
same limits. Outputs of random draws need only the shape. If ONNX Runtime does not take a type from numpy, the value
becomes an initializer, and an output goes through a Cast to float32.
"""
import collections
import multiprocessing
import os
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIMIT = 30
RANDOM = {"Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Dropout"}
NATIVE = {
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.STRING,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
}


def read(path, kind):
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def files(folder, prefix):
    found = folder.glob(prefix + "_*.pb")
    return sorted(found, key=lambda p: int(p.stem.rsplit("_", 1)[1]))


def narrow(info):
    return info.type.HasField("tensor_type") and info.type.tensor_type.elem_type not in NATIVE


def different(found, expected, random):
    """Returns the kind of difference, or None."""
    if expected is None or found is None:
        return None if expected is found else "none"
    if isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return "length"
        return next((d for d in map(different, found, expected, [random] * len(found)) if d), None)
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return "shape"
    if random:
        return None
    if expected.dtype.kind in "OUS":
        return None if (found.astype(str) == expected.astype(str)).all() else "value"
    wide = 2.0**-6 if expected.dtype.name == "bfloat16" else 1e-3
    if found.dtype.name != expected.dtype.name and expected.dtype.name in ("float16", "float32", "float64", "int64", "bool"):
        return "type"
    if found.dtype.kind != "c":
        found, expected = found.astype(np.float64), expected.astype(np.float64)
    return None if np.allclose(found, expected, rtol=wide, atol=1e-7, equal_nan=True) else "value"


def run_onnxruntime(model, inputs, paths):
    import onnxruntime

    graph = model.graph
    feeds = {}
    for info, value, path in zip(list(graph.input), inputs, paths):
        if narrow(info):
            tensor = graph.initializer.add()
            tensor.ParseFromString(path.read_bytes())
            tensor.name = info.name
            graph.input.remove(info)
        elif value is not None:
            feeds[info.name] = value
    for info in graph.output:
        if narrow(info):
            graph.node.append(helper.make_node("Cast", [info.name], [info.name + "_wide"], to=TensorProto.FLOAT))
            info.name += "_wide"
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_reference(model, inputs, paths):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, {i.name: v for i, v in zip(model.graph.input, inputs)})


def result_of(folder, run):
    model = onnx.load(folder / "model.onnx")
    random = any(node.op_type in RANDOM for node in model.graph.node)
    for data in sorted(folder.glob("test_data_set_*")):
        in_paths, out_paths = files(data, "input"), files(data, "output")
        inputs = [read(path, info.type) for path, info in zip(in_paths, model.graph.input)]
        outputs = [read(path, info.type) for path, info in zip(out_paths, model.graph.output)]
        try:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            found = run(copy, inputs, in_paths)
        except Exception as error:  # a refusal, whatever the error's class
            text = " ".join(str(error).split())
            return ("no implementation: " if "mplement" in text else "refused: ") + text[:120]
        for got, expected in zip(found, outputs):
            reason = different(got, expected, random)
            if reason:
                return "wrong " + reason
    return "pass"


def work(folders, name, pipe):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    run = run_onnxruntime if name == "onnxruntime" else run_reference
    for folder in folders:
        try:
            pipe.send(result_of(folder, run))
        except Exception as error:  # the test's own files cannot be read
            pipe.send("unreadable: " + str(error)[:100])


def all_results(folders, name):
    results = {}
    while len(results) < len(folders):
        left = folders[len(results):]
        mine, theirs = multiprocessing.Pipe()
        worker = multiprocessing.Process(target=work, args=(left, name, theirs))
        worker.start()
        theirs.close()
        for folder in left:
            try:
                results[folder.name] = mine.recv() if mine.poll(LIMIT) else "hangs"
            except EOFError:
                results[folder.name] = "crash"
            if results[folder.name] in ("hangs", "crash"):
                break
        worker.kill()
        worker.join()
    return results


def main():
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folders = sorted(p for p in folder.iterdir() if (p / "model.onnx").exists())
    results = all_results(folders, name)
    if "--list" in sys.argv:
        for test, result in results.items():
            if result != "pass":
                print(f"{test}: {result}")
    kinds = collections.Counter(result.split(":")[0] for result in results.values())
    print(f"{name}: {kinds.pop('pass')} of {len(results)} pass; " + ", ".join(f"{n} {k}" for k, n in kinds.most_common()))


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
