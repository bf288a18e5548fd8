#include "kernels/cpu/tile_product.h"

#include "kernels/base/status.h"

namespace ofsdp::kernels {

void TileProduct<double>::run(int, const double* a, const double* b, double* dst,
                              std::byte*) const {
  const TileSize& s = size_;
  OFSDP_CHECK(s.count == 1, "{} products in double", s.count);
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t j = 0; j < s.columns; ++j) {
      double sum = s.accumulate ? dst[i * s.columns + j] : 0;
      for (int64_t k = 0; k < s.inner; ++k) {
        sum += a[s.transpose_a ? k * s.rows + i : i * s.inner + k] *
               b[s.transpose_b ? j * s.inner + k : k * s.columns + j];
      }
      dst[i * s.columns + j] = sum;
    }
  }
}

}  // namespace ofsdp::kernels
