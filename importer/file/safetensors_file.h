// Files of named tensors, as Hugging Face writes them; only the header is read when one is opened.
//
//   u64 length of the header, little-endian; the header, JSON {name: {dtype, shape, data_offsets}};
//   the tensors one after the other. Follows https://github.com/huggingface/safetensors ("Format").
//
// Nothing in the header is trusted: lengths, shapes and places are checked against the file.
// Threads: any. Errors: kInput naming file and tensor.
#pragma once

#include "importer/file/tensor_file.h"

namespace ofsdp::importer {

const char* safetensors_type(DType dtype);  // "F32"; REQUIRES: one of the format's

Result<TensorFile> open_safetensors(const std::string& path);  // its tensors by name

}  // namespace ofsdp::importer
