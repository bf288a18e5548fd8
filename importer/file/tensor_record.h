// TensorRecord: what a serialized TensorProto says of its tensor, without a copy of its data.
//
// `numel` elements of `dims` are there: raw bytes, or one list of values (float_data, int32_data,
// ...), or a reference to external data; how many was compared with `dims` while parsing, where the
// type is one whose size is known (4-bit and 8-bit floats and the like are not checked).
//
// Ownership: offsets into the file, no views. Threads: immutable once made.
// Errors: kInput, starting with "initializer 'w': ", without the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "importer/file/external_data.h"
#include "importer/file/initializer.h"

namespace ofsdp::importer {

// ONNX's TensorProto.DataType; kUndefined for what we have no type for.
DType dtype_from_onnx(uint64_t onnx_type);
int onnx_from_dtype(DType dtype);

struct TensorRecord {
  std::string name;
  uint64_t onnx_type = 0;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  int64_t numel = 0;
  std::optional<ExternalRef> external;

  // Of data inside of the message; see Initializer.
  Initializer::Encoding encoding = Initializer::Encoding::kDense;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t stride = 0;

  std::optional<int64_t> expected_bytes() const;  // numel elements as raw data, if dtype tells
  std::string label() const;                      // "initializer 'w'"
};

// `body` is the TensorProto at `origin` in the file.
Result<TensorRecord> parse_tensor(std::span<const std::byte> body, int64_t origin);

}  // namespace ofsdp::importer
