// ONNX Runtime's adapter files (NAME.onnx_adapter), whose tensors a run puts in the place of the
// inputs of their names. A FlatBuffer with the identifier TORT:
//
//   Adapter    0 format version i32 | 1 adapter version i32 | 2 model version i32 | 3 [Parameter]
//   Parameter  0 name | 1 dims [i64] | 2 ONNX type i32 | 3 data [u8]
//
// Follows onnxruntime/lora/adapter_format (adapter_schema.fbs, format version 1) of
// https://github.com/microsoft/onnxruntime.
//
// No byte of a file is trusted. Threads: one, as FileMapping says. Errors: kInput naming the file.
#pragma once

#include "importer/file/tensor_file.h"

namespace ofsdp::importer {

Result<bool> is_ort_adapter(const std::string& path);  // by its identifier
Result<TensorFile> open_ort_adapter(const std::string& path);

// A file with these tensors. kInput, without a file's name, for more bytes than a FlatBuffer holds.
Result<TensorLayout> lay_out_ort_adapter(std::vector<Initializer> tensors);

}  // namespace ofsdp::importer
