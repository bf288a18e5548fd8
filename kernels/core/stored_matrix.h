// A weight matrix that stays as its file has it - 4-bit or 8-bit integers with scales, or 16-bit
// floats - and becomes float32 where it is read (kernels/cpu/stored_matrix.h,
// kernels/cuda/matmul/stored_product.h).
//
//   value(r, c) = (element(r, c) - zero) * scale        float32 arithmetic, each operation rounded
//
// Element (r, c) has index r * row_pitch + c; two 4-bit elements share a byte, the even one in the
// lower half. The scale and zero point for (r, c) have index
//
//   r / row_block * row_step + (g_idx ? g_idx[c] : c / column_block) * column_step
//
// in their arrays; 4-bit zero points are packed as elements are, with `zero_pitch` from one
// row_step to the next. Without scales a value is the element.
//
// The description is a value, made while planning; the bytes are operands. REQUIRES: the arrays are
// as long as the description says.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md (MatMulNBits)
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/formula.h"
#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

enum class StoredType : uint8_t { kUInt4, kInt4, kUInt8, kInt8, kFloat16, kBFloat16, kFloat32 };

// REQUIRES: float32, float16 or bfloat16.
OFSDP_HD constexpr StoredType stored_type(DType floating) {
  if (floating == DType::kFloat16) return StoredType::kFloat16;
  return floating == DType::kBFloat16 ? StoredType::kBFloat16 : StoredType::kFloat32;
}

constexpr int stored_bits(StoredType type) {  // per element
  if (type == StoredType::kUInt4 || type == StoredType::kInt4) return 4;
  if (type == StoredType::kUInt8 || type == StoredType::kInt8) return 8;
  return type == StoredType::kFloat32 ? 32 : 16;
}

struct StoredMatrix {
  StoredType type = StoredType::kUInt4;
  int64_t rows = 0, columns = 0;
  int64_t row_pitch = 0;  // elements

  DType scale_dtype = DType::kUndefined;  // kFloat32, kFloat16, kBFloat16; kUndefined: no scales
  int64_t row_block = 1, row_step = 0;
  int64_t column_block = 1, column_step = 0;

  bool has_zeros = false;
  StoredType zero_type = StoredType::kUInt4;
  int64_t zero_pitch = 0;    // if zero points are packed
  float zero_otherwise = 0;  // if there are none
};

struct StoredBytes {
  const std::byte* elements = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* zeros = nullptr;
  const int32_t* g_idx = nullptr;
};

}  // namespace ofsdp::kernels
