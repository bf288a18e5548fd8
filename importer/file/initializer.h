// Initializer: a floating-point weight of an ONNX file and where its elements lie, so that a rank
// reads or writes the bytes of its own shard and no others.
//
//   kDense    element i at offset + i * dtype_size       raw_data, packed float_data, external data
//   kStrided  element i at offset + i * stride           unpacked float_data: a tag before each
//   kList     offset and bytes are those of the whole TensorProto, whose elements have no fixed
//             place (16-bit floats as varints in int32_data, data in several pieces): readable by
//             walking it; a trained file gets raw_data instead
//
// An initializer of an edited model (importer/edit/model_editor.h) may have `values`, which are
// then read in place of bytes; a file written from it gets raw_data.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/shape.h"

namespace ofsdp::importer {

// Values that are not bytes of the model's file. Threads: any.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  virtual Status read(int64_t first_element, std::span<float> dst) const = 0;
};

struct Initializer {
  enum class Encoding : uint8_t { kDense, kStrided, kList };

  std::string name;
  DType dtype = DType::kUndefined;  // float32, float64, float16 or bfloat16
  Shape shape;
  int file = 0;  // 0: the .onnx file itself; i: its data file i-1
  int64_t offset = 0;
  int64_t bytes = 0;
  Encoding encoding = Encoding::kDense;
  int64_t stride = 0;  // bytes from element to element; 0 of kList
  std::shared_ptr<const ValueSource> values = {};
};

}  // namespace ofsdp::importer
