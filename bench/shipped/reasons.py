"""Why a file is refused, and whether that is justified: (pattern of its line, justified or not, why)."""
import re

REASONS = [
    (r"ai\.onnx\.ml\.TreeEnsemble", "justified", "decision trees have no gradient"),
    (r"If \(1 node: If_32;", "justified", "the condition is a value of the batch: the score of one network decides if a second one runs"),
    (r"DynamicQuantizeLSTM", "not justified", "onnxruntime's quantize_dynamic writes this operator for every LSTM"),
    (r"\(ConvInteger\)", "not justified", "a bias in int32, added before the Cast, as older quantizers wrote it; DynamicQuantizeLSTM comes after it"),
    (r"If \(1 node: (If_0|If_25|node_cond__1);", "not justified",
     "the condition is the sampling rate, one number for all batches: a constant input decides it"),
    (r"If \(5 nodes:", "not justified", "the conditions compare sizes that the data fix"),
    (r"Loop \(", "not justified", "a while loop over the steps of a sequence, whose length the batch's shape says"),
    (r"input '(fmin|fmax|sr)' has 0 axes", "not justified", "a number for all batches cannot be given"),
    (r"input '(element|input)' has \d axes", "not justified", "the inputs have no batch axis: one sample is a batch"),
]


def reason_of(line):
    return next(((judged, why) for pattern, judged, why in REASONS if re.search(pattern, line)), ("not judged", "no reason is known yet"))
