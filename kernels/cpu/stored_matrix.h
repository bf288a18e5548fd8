// Products with a stored matrix (kernels/core/stored_matrix.h) on the CPU: it becomes float32 one
// tile at a time.
#pragma once

#include "kernels/core/stored_matrix.h"

namespace ofsdp::kernels {

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
