"""Reasons for files that are not right, and whether each is justified: (pattern of the file's line, justified or
not, reason)."""
import re

REASONS = [
    (r"ai\.onnx\.ml\.TreeEnsemble", "justified", "decision trees have no gradient"),
    (r"If \(1 node: If_32;", "justified", "the condition is a value of the batch: the score of one network decides if a second one runs"),
    (r"^all: \S+ is \S+$", "justified", "chaotic: in onnxruntime, too, one rounding of 8 bits changes states by 1.9 within 80 steps, so differences say nothing; "
     "the first loss and the written file agree"),
]


def reason_of(line):
    return next(((judged, why) for pattern, judged, why in REASONS if re.search(pattern, line)), ("not judged", "no reason is known yet"))
