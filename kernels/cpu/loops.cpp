#include "kernels/cpu/loops.h"

#include <cstring>

#include "kernels/core/element_types.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {
namespace {

constexpr int64_t kCopyTile = 16;  // 16 floats are a cache line
constexpr int64_t kTileBand = 64;  // transpose rows that a thread takes at a time

// A tile: dst[r * dst_step + i] = src[i * src_step + r] for `across` r and `along` i.
template <typename T>
void copy_tile(const T* src, int64_t src_step, T* dst, int64_t dst_step, int64_t across,
               int64_t along) {
  if (across == kCopyTile && along == kCopyTile) {  // known sizes: gcc unrolls both loops
    for (int64_t r = 0; r < kCopyTile; ++r) {
      for (int64_t i = 0; i < kCopyTile; ++i) dst[r * dst_step + i] = src[i * src_step + r];
    }
    return;
  }
  for (int64_t r = 0; r < across; ++r) {
    for (int64_t i = 0; i < along; ++i) dst[r * dst_step + i] = src[i * src_step + r];
  }
}

template <typename T>
void copy_band(const T* src, int64_t src_step, T* dst, int64_t dst_step, int64_t across,
               int64_t along) {
  for (int64_t i = 0; i < along; i += kCopyTile) {
    for (int64_t r = 0; r < across; r += kCopyTile) {
      copy_tile(src + i * src_step + r, src_step, dst + r * dst_step + i, dst_step,
                std::min(kCopyTile, across - r), std::min(kCopyTile, along - i));
    }
  }
}

}  // namespace

StridedCopy::StridedCopy(const Shape& shape, const std::vector<int64_t>& src_strides,
                         const std::vector<int64_t>& dst_strides, size_t element_bytes)
    : loop_(shape, {src_strides, dst_strides}), element_bytes_(element_bytes) {
  const int64_t from = loop_.inner_stride(0);
  if (from == 0 || from == 1 || loop_.inner_stride(1) != 1) return;
  for (size_t axis = 0; axis < loop_.outer_axes().size(); ++axis) {
    if (loop_.outer_axes()[axis].strides[0] != 1) continue;
    across_ = loop_.outer_axes()[axis];
    loop_ = loop_.without(axis);
    tiled_ = true;
    return;
  }
}

void StridedCopy::run(const std::byte* src, std::byte* dst) const {
  if (loop_.rows() == 0) return;
  with_bits(element_bytes_, [&]<typename T>(T) {
    run_as(reinterpret_cast<const T*>(src), reinterpret_cast<T*>(dst));
  });
}

std::unique_ptr<Kernel> make_copy_kernel(StridedCopy copy, int64_t src_offset, int64_t dst_offset) {
  return make_kernel([copy = std::move(copy), src_offset, dst_offset](const KernelArgs& a) {
    copy.run(a.inputs[0].data + src_offset, a.outputs[0].data + dst_offset);
  });
}

template <typename T>
void StridedCopy::run_as(const T* src, T* dst) const {
  if (tiled_) {
    run_tiles(src, dst);
  } else {
    run_rows(src, dst);
  }
}

template <typename T>
void StridedCopy::run_rows(const T* src, T* dst) const {
  const int64_t n = loop_.inner();
  const int64_t from = loop_.inner_stride(0);
  const int64_t to = loop_.inner_stride(1);
  const bool whole = n == 1 || (from == 1 && to == 1);
  if (whole && loop_.rows() == 1) {
    parallel_for(n, kElementGrain * 4, [&](int64_t begin, int64_t end) {
      std::memcpy(dst + begin, src + begin, static_cast<size_t>(end - begin) * sizeof(T));
    });
    return;
  }
  parallel_for(loop_.rows(), kElementGrain / n + 1, [&](int64_t begin, int64_t end) {
    loop_.for_rows(begin, end, [&](const StridedLoop::Offsets& at) {
      const T* s = src + at[0];
      T* d = dst + at[1];
      if (whole) {
        std::memcpy(d, s, static_cast<size_t>(n) * sizeof(T));
      } else if (from == 0 && to == 1) {
        std::fill_n(d, n, *s);
      } else {
        for (int64_t i = 0; i < n; ++i) d[i * to] = s[i * from];
      }
    });
  });
}

template <typename T>
void StridedCopy::run_tiles(const T* src, T* dst) const {
  const int64_t bands = (across_.size + kTileBand - 1) / kTileBand;
  const int64_t grain = kElementGrain / (loop_.inner() * std::min(kTileBand, across_.size)) + 1;
  // Work items are (outer row, band along the transposed axis); bands run fastest.
  parallel_for(loop_.rows() * bands, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end;) {
      const int64_t row = item / bands;
      const int64_t last = std::min(end, (row + 1) * bands);
      loop_.for_rows(row, row + 1, [&](const StridedLoop::Offsets& at) {
        const int64_t r = (item - row * bands) * kTileBand;
        const int64_t stop = std::min((last - row * bands) * kTileBand, across_.size);
        copy_band(src + at[0] + r, loop_.inner_stride(0), dst + at[1] + r * across_.strides[1],
                  across_.strides[1], stop - r, loop_.inner());
      });
      item = last;
    }
  });
}

}  // namespace ofsdp::kernels
