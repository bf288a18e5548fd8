// For fsdp-run doctor: finds the parts of a module that PyTorch's exporters have lost on the way to
// the file.
//
//   renamed    weights without the module's names: val_67, onnx::MatMul_123
//   folded     convolutions that hold a batch normalization, which can no longer train
//   undropped  the module had dropout and the graph has none. Certain if the file's metadata by
//              onnx_fsdp.export say so. Else likely for a transformer on token ids, in two cases:
//              it has layer normalization and renamed weights; or its class is one of Hugging Face
//              that has dropout, and its vocabulary is large
//   untied     a matrix with the values of an embedding table, also transposed: tied in the module,
//              apart in training
//   batch      graph inputs whose first axis is a number
//   sequences  token inputs whose second axis is a number, though the module takes other lengths:
//              its position table has more rows, or the exporter has folded it to that length
//
// Looks only at files with PyTorch as producer. Each finding has evidence in the file: a file that
// lost nothing has none. Reads a few rows of large matrices. Errors: kInput; kFault (disk).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

struct FixedAxis {
  std::string input;
  int64_t size = 0;
};

struct ExportLosses {
  std::vector<std::string> renamed;
  std::vector<std::string> folded;  // node names
  bool undropped = false;
  std::vector<std::pair<std::string, std::string>> untied;  // table and copy
  std::vector<FixedAxis> batch;
  std::vector<FixedAxis> sequences;
};

Result<ExportLosses> export_losses(const OnnxFile& file);

}  // namespace ofsdp::importer
