// The weights of a model as a safetensors file: every floating-point initializer, under its name
// and in its type, in the order of the model.
//
//   u64 length of the header, little-endian; the header, JSON, padded with spaces to a multiple of
//   8; the tensors one after the other.
// Follows https://github.com/huggingface/safetensors (README, "Format").
//
// `values` gives the elements of an initializer as float32; they are rounded to its type. The file
// appears by rename, whole or not at all. Threads: one. Errors: kInput for a path that cannot be;
// kFault (disk); those of `values`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_file.h"

namespace ofsdp::importer {

TensorLayout lay_out_safetensors(const std::vector<Initializer>& tensors);

using ReadValues = std::function<Status(int initializer, int64_t first, std::span<float> dst)>;

Status write_safetensors(const OnnxFile& model, const std::string& path, const ReadValues& values);

}  // namespace ofsdp::importer
