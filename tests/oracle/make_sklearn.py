#!/usr/bin/env python3
"""Writes tests/fixtures/sklearn: classifiers from skl2onnx, with operators of ai.onnx.ml after the scores, and
flowers.csv.

    make_sklearn.py [FOLDER]      needs numpy, scikit-learn and skl2onnx

mlp.onnx       MLPClassifier with three class names: MatMul and Add, then Softmax, ArgMax, ZipMap, ArrayFeatureExtractor
pipeline.onnx  StandardScaler before it: ai.onnx.ml.Scaler
logistic.onnx  LogisticRegression: ai.onnx.ml.LinearClassifier with its weights as attributes
"""
import pathlib
import sys
import warnings

import numpy as np
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

NAMES, COLUMNS, ROWS = ["aster", "daisy", "poppy"], ["height", "width", "weight", "age"], 60


def flowers():
    random = np.random.default_rng(5)
    labels = random.integers(0, len(NAMES), ROWS)
    centers = random.normal(3, 1.5, (len(NAMES), len(COLUMNS)))
    return (centers[labels] + random.normal(0, 0.5, (ROWS, len(COLUMNS)))).round(2).astype(np.float32), np.array(NAMES)[labels]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "fixtures/sklearn")
    root.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")  # a few iterations do not converge, on purpose
    x, names = flowers()
    lines = [",".join(COLUMNS + ["kind"])] + [",".join([f"{v:g}" for v in row] + [name]) for row, name in zip(x, names)]
    (root / "flowers.csv").write_text("\n".join(lines) + "\n")
    (root / "data.yaml").write_text(f"train:\n  X: {{file: flowers.csv, column: [{', '.join(COLUMNS)}]}}\n"
                                    "  kind: {file: flowers.csv, column: kind}\n")
    network = lambda: MLPClassifier((8,), max_iter=3, random_state=0)
    made = {"mlp": network(), "pipeline": make_pipeline(StandardScaler(), network()), "logistic": LogisticRegression()}
    for name, model in made.items():
        (root / f"{name}.onnx").write_bytes(to_onnx(model.fit(x, names), x[:1]).SerializeToString())


if __name__ == "__main__":
    main()
