"""Removes the weights from models and fills in random ones elsewhere: for a host that cannot receive 1.5 GB.

    weightless.py drop FOLDER gpu_*.onnx     writes the models into FOLDER without the data file of their large
                                             initializers, and copies the .onnx.json next to each (needs onnx)
    weightless.py fill FOLDER                writes these data files: normal values of deviation 0.02 (needs only the
                                             standard library)

Rates do not depend on trained weights. Losses do: to compare losses, use the exported models.
"""
import array
import json
import pathlib
import random
import shutil
import sys

LARGE = 16384  # from so many elements on, an initializer loses its values
BLOCK = 1 << 20  # drawn values, which are repeated


def drop(folder, files):
    import onnx
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        model, length = onnx.load(file), 0
        for tensor in model.graph.initializer:
            size = 1
            for d in tensor.dims:
                size *= d
            if tensor.data_type != onnx.TensorProto.FLOAT or size < LARGE:
                continue
            for field in ("raw_data", "float_data", "external_data"):
                tensor.ClearField(field)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", file.stem + ".weights"), ("offset", length), ("length", 4 * size)):
                tensor.external_data.add(key=key, value=str(value))
            length += -(-4 * size // 4096) * 4096
        onnx.save(model, folder / file.name)
        shutil.copy(f"{file}.json", folder / f"{file.name}.json")
        (folder / f"{file.stem}.length.json").write_text(json.dumps(length), encoding="utf-8")


def fill(folder):
    drawn = random.Random(0)
    block = array.array("f", (drawn.gauss(0, 0.02) for _ in range(BLOCK))).tobytes()
    for described in folder.glob("*.length.json"):
        left = json.loads(described.read_text(encoding="utf-8"))
        with open(folder / described.name.replace(".length.json", ".weights"), "wb") as file:
            while left > 0:
                left -= file.write(block[:left])


if __name__ == "__main__":
    if sys.argv[1:2] == ["drop"] and len(sys.argv) > 3:
        drop(pathlib.Path(sys.argv[2]), [pathlib.Path(f) for f in sys.argv[3:]])
    elif sys.argv[1:2] == ["fill"] and len(sys.argv) == 3:
        fill(pathlib.Path(sys.argv[2]))
    else:
        sys.exit(f"weightless.py: expected drop FOLDER FILE... or fill FOLDER, found '{' '.join(sys.argv[1:])}'")
