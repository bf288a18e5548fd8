// Tile products by OpenBLAS, in builds without oneDNN.
#include <algorithm>

#include "kernels/base/status.h"
#include "kernels/cpu/products.h"

namespace ofsdp::kernels {

template <typename T>
struct TileProduct<T>::State {
  TileSize size;
};

template <typename T>
TileProduct<T>::TileProduct(const TileSize& s, int) : state_(std::make_shared<State>(s)) {
  OFSDP_CHECK(is_available() && blas_is_present() && blas_fits({s.rows, s.inner, s.columns}),
              "no product of {} x {} x {}", s.rows, s.inner, s.columns);
}

template <typename T>
bool TileProduct<T>::is_available() {
  return std::is_same_v<T, float>;
}

template <typename T>
size_t TileProduct<T>::scratch_bytes() const {
  return 0;
}

template <typename T>
void TileProduct<T>::run(int, const T* a, const T* b, float* dst, std::byte*) const {
  if constexpr (std::is_same_v<T, float>) {
    const TileSize& s = state_->size;
    if (s.inner == 0 && !s.accumulate) std::fill_n(dst, s.count * s.rows * s.columns, 0.0f);
    if (s.rows * s.inner * s.columns == 0) return;
    for (int64_t i = 0; i < s.count; ++i) {
      blas_product(
          {s.rows, s.inner, s.columns}, static_cast<float>(s.alpha),
          {a + i * s.rows * s.inner, s.transpose_a ? s.rows : s.inner, s.transpose_a},
          {b + i * s.inner * s.columns, s.transpose_b ? s.inner : s.columns, s.transpose_b},
          s.accumulate, dst + i * s.rows * s.columns, s.columns);
    }
  }
}

template class TileProduct<float>;
template class TileProduct<BFloat16>;

namespace onednn {

bool is_present() { return false; }
std::string version() { return ""; }
bool has_avx512() { return false; }

}  // namespace onednn

}  // namespace ofsdp::kernels
