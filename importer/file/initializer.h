// Initializer: a weight of an ONNX file and where its elements lie, so that a rank reads or writes
// the bytes of its own shard and no others. Weights are floating-point tensors, and integers with a
// Quantization.
//
//   kDense    element i at offset + i * dtype_size       raw_data, packed float_data, external data
//   kStrided  element i at offset + i * stride           unpacked float_data: a tag before each
//   kList     offset and bytes are those of the whole TensorProto, whose elements have no fixed
//             place (16-bit floats as varints in int32_data, data in several pieces): readable by
//             walking it; a trained file gets raw_data instead
//
// One with `own_type` is held as it is in the file: nodes read its raw data (weights of few bits,
// with their scales and zero points). It is dense.
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
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/scale_map.h"
#include "kernels/core/shape.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

// The way from integers of a quantized weight to its values: (q - zero_point) * scale. Names are
// those of initializers; `onnx_type` is TensorProto.DataType of the integers.
struct Quantization {
  std::string scale;
  std::string zero_point;  // empty: 0
  // A bias may have no scale of its own in the file, or one that is the product of these two.
  std::vector<std::string> factors = {};
  int64_t axis = 1;
  int64_t block_size = 0;
  int onnx_type = 0;
  bool rounds = true;  // forward uses the values rounded to integers; not of a bias in int32

  // From the names, once the file is open.
  ScaleMap map = {};
  std::vector<float> scales = {};
  std::vector<int64_t> zero_points = {};  // empty: 0

  int bits() const;
  int64_t lowest() const;
  int64_t greatest() const;
};

// Values that are not bytes of the model's file. Threads: any.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  virtual Status read(int64_t first_element, std::span<float> dst) const = 0;
  // Bytes of an initializer in its own type. REQUIRES: has_raw.
  virtual bool has_raw() const { return false; }
  virtual Status read_raw(int64_t first_byte, std::span<std::byte> dst) const;
};

struct Initializer {
  enum class Encoding : uint8_t { kDense, kStrided, kList };

  std::string name;
  DType dtype = DType::kUndefined;
  Shape shape;
  int file = 0;  // 0: the .onnx file itself; i: its data file i-1
  int64_t offset = 0;
  int64_t bytes = 0;
  Encoding encoding = Encoding::kDense;
  int64_t stride = 0;  // bytes from element to element; 0 of kList
  // 4 of int4 and uint4: two elements in a byte, the first in its lower half; dtype of 8 bits
  int bits = 0;
  bool own_type = false;
  std::shared_ptr<const Quantization> quantization = nullptr;  // of integers that are a weight
  std::shared_ptr<const ValueSource> values = {};              // instead of the file's bytes

  int64_t raw_bytes() const {  // as raw data
    const int64_t numel = shape.numel();
    return bits == 4 ? (numel + 1) / 2 : numel * static_cast<int64_t>(dtype_size(dtype));
  }
  // Its raw data as a tensor: two elements in a byte are bytes.
  TensorDesc raw_desc() const {
    return bits == 4 ? TensorDesc{DType::kUInt8, Shape{raw_bytes()}} : TensorDesc{dtype, shape};
  }
};

}  // namespace ofsdp::importer
