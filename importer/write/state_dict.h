// A model's weights as a safetensors file, and a PyTorch module's state_dict in an ONNX file.
//
// onnx_fsdp.export (Python) writes the metadata entry `onnx_fsdp.state_dict` into a file, as JSON,
// and a trained file keeps it:
//
//   {"version": 1, "training": true, "dropout": 8, "tensors": {KEY: SOURCE, ...}, "others": [..]}
//
//   KEY        a key of the module's state_dict; all of them, in its order
//   SOURCE     "NAME": that initializer. Tied keys have the same one
//              {"initializer": NAME, "transposed": true}: the transpose of a matrix
//              {"dtype": "I64", "shape": [], "data": TEXT}: bytes in base64, little-endian; a
//              buffer that the graph does not read, such as num_batches_tracked
//   others     floating-point initializers that the module has under no key
//   training   whether the module was exported in training mode; dropout: how many parts of it drop
//
// Another entry, `onnx_fsdp.frozen`, is a JSON list of initializers that the module does not train:
// buffers, and parameters without requires_grad. A run keeps them unless --train names them.
//
// With the first entry, a safetensors file has the keys of the state_dict, then initializers that
// came later (untied copies, a new head). A key without its initializer is left out. Without the
// entry, the file has every floating-point initializer in model order.
//
// Errors: kInput naming the file and the key for an entry that cannot be read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

struct StateTensor {
  Initializer place;               // name (the key), dtype and shape
  int initializer = -1;            // index in the model; -1: `bytes`
  bool transposed = false;         // of the initializer
  std::vector<std::byte> bytes{};  // in dtype
};

struct StateDict {
  bool training = false;
  int64_t dropout = 0;
  std::vector<StateTensor> tensors;
};

inline constexpr const char* kFrozenEntry = "onnx_fsdp.frozen";

// Returns the names in the entry; none without it.
Result<std::set<std::string>> frozen_by_module(const OnnxFile& model);

// Returns nothing if the file has no such entry.
Result<std::optional<StateDict>> state_dict_of(const OnnxFile& model);

// Writes every weight under its name: floating-point initializers, or the state_dict's keys.
// `values` returns an initializer's elements as float32; they are rounded to the type. The file
// appears by rename, whole or not at all. Errors: also kInput for an impossible path; kFault
// (disk); `values`'s errors.
using ReadValues = std::function<Status(int initializer, int64_t first, std::span<float> dst)>;

Status write_safetensors(const OnnxFile& model, const std::string& path, const ReadValues& values);

}  // namespace ofsdp::importer
