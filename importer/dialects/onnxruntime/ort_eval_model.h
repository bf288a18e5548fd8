// An eval model of ONNX Runtime's artifacts, whose weights are inputs, as a file with the weights
// inside: its text up to the first of them, then weight by weight a head and its bytes.
//
// Ownership: values. Threads: any. Errors: kInput naming the file: no ONNX model, or more bytes than
// protobuf parses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "importer/dialects/onnxruntime/ort_checkpoint.h"

namespace ofsdp::importer {

struct OrtEvalModel {
  std::string head;                                        // what is before the weights
  std::vector<std::pair<std::string, OrtTensor>> tensors;  // a weight's head, and its place
};

// `path`: of the model whose weights `checkpoint` has.
Result<OrtEvalModel> lay_out_eval_model(const std::string& path, const OrtCheckpoint& checkpoint);

}  // namespace ofsdp::importer
