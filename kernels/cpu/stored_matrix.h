// A weight matrix that stays as its file has it - 4-bit or 8-bit integers with scales, or 16-bit
// floats - and becomes float32 a tile at a time.
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

#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

enum class StoredType : uint8_t { kUInt4, kInt4, kUInt8, kInt8, kFloat16, kBFloat16, kFloat32 };

StoredType stored_type(DType floating);  // for float32, float16 and bfloat16
int stored_bits(StoredType type);        // bits per element

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

struct StoredTile {
  int64_t row = 0, rows = 0;
  int64_t column = 0, columns = 0;
};

// Writes a tile's values, row-major, rows `pitch` floats apart.
void widen_tile(const StoredMatrix& matrix, const StoredBytes& bytes, const StoredTile& tile,
                float* dst, int64_t pitch);

// Multiplies a [rows, inner] by a stored matrix W and adds bias if given:
//
//   kByRows     dst [rows, W.rows] = a W^T       inner = W.columns
//   kByColumns  dst [rows, W.columns] = a W      inner = W.rows
//
// Each thread widens a tile of W into a buffer and multiplies it there by OpenBLAS, so at most a
// tile a thread is float32. Sums over the inner axis run tile by tile, in the same order with any
// thread count. `run` fans out. Memory: workspace_bytes, and OpenBLAS's own
// (kernels/cpu/products.h).
class StoredProduct {
 public:
  enum class Along : uint8_t { kByRows, kByColumns };

  StoredProduct(const StoredMatrix& matrix, Along along, int64_t rows, int threads);
  size_t workspace_bytes() const;
  void run(const StoredBytes& bytes, const float* a, const float* bias, float* dst,
           std::byte* workspace) const;

 private:
  struct Columns {
    int64_t first, count;
  };
  // `adds`: add to dst.
  void add_tiles(const StoredBytes& bytes, const float* a, bool adds, const Columns& columns,
                 float* tile, float* dst) const;

  StoredMatrix matrix_;
  Along along_;
  int64_t rows_, inner_, width_;    // a's columns; dst's columns
  int64_t threads_, part_, depth_;  // tile size: dst columns, a columns
};

}  // namespace ofsdp::kernels
