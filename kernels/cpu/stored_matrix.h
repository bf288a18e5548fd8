// StoredMatrix: a matrix of weights that stays as its file has it - integers of 4 or 8 bits with
// scales, or 16-bit floats - and becomes float32 a tile at a time.
//
//   value(r, c) = (element(r, c) - zero) * scale        float32 arithmetic, each operation rounded
//
// Element (r, c) is number r * row_pitch + c; two of 4 bits share a byte, the even one in its lower
// half. Scale and zero point of (r, c) are number
//
//   r / row_block * row_step + (g_idx ? g_idx[c] : c / column_block) * column_step
//
// of their arrays; zero points of 4 bits are packed as elements are, `zero_pitch` of them from one
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

StoredType stored_type(DType floating);  // of float32, float16 and bfloat16
int stored_bits(StoredType type);        // of an element

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

// Writes the values of a tile, row-major, rows `pitch` floats apart.
void widen_tile(const StoredMatrix& matrix, const StoredBytes& bytes, const StoredTile& tile,
                float* dst, int64_t pitch);

// The product of a [rows, inner] with a stored matrix W:
//
//   kByRows     dst [rows, W.rows] = a W^T       inner = W.columns
//   kByColumns  dst [rows, W.columns] = a W      inner = W.rows
//
// plus bias if it is given. Tiles of W are widened into a buffer of each thread and multiplied
// there by OpenBLAS: no more of W than a tile a thread is ever float32. Sums over the inner axis
// run tile by tile in the same order with any number of threads.
//
// `run` fans out. Memory: workspace_bytes, and OpenBLAS's own (kernels/cpu/blas.h).
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
  int64_t rows_, inner_, width_;    // of a, of dst
  int64_t threads_, part_, depth_;  // columns of dst in a tile, of a in a tile
};

}  // namespace ofsdp::kernels
