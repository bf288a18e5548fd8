// DFT by Stockham's passes (transform.h, kernels/ops/matmul/dft_extent.h). A thread an element of a
// pass's result, which is a sum of `radix` terms in order. Lines are the inner axis of both
// buffers, so neighbouring threads read neighbouring elements.
#include <algorithm>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/matmul/transform.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kDftElements = int64_t{1} << 20;
constexpr double kTwoPi = 6.283185307179586476925286766559;

struct alignas(16) Turn {
  double re, im;
};

// Some lines of all: `first` and how many.
struct DftGroup {
  int64_t first, lines;
};

OFSDP_CUDA_KERNEL dft_turns(int64_t n, bool inverse, Turn* table) {
  OFSDP_CUDA_ITEM(k, n);
  const double turn = static_cast<double>(k) / static_cast<double>(n);
  const double angle = (inverse ? kTwoPi : -kTwoPi) * turn;
  table[k] = {cos(angle), sin(angle)};
}

OFSDP_CUDA_KERNEL dft_load(DftParams e, DftGroup g, const float* x, Turn* to) {
  OFSDP_CUDA_ITEM(i, e.n * g.lines);
  const int64_t line = g.first + i % g.lines, place = i / g.lines;
  const bool mirrored = e.mirrors && place >= e.n / 2 + 1;
  const int64_t j = mirrored ? e.n - place : place;
  Turn value{0, 0};
  if (j < e.used) {
    const float* const from =
        x + ((line / e.inner * e.in + j) * e.inner + line % e.inner) * e.x_parts;
    value.re = from[0];
    if (e.x_parts == 2) value.im = mirrored ? -from[1] : from[1];
  }
  to[i] = value;
}

OFSDP_CUDA_KERNEL dft_pass(DftStage s, int64_t n, int64_t lines, const Turn* table,
                           const Turn* from, Turn* to) {
  OFSDP_CUDA_ITEM(i, n * lines);
  const int64_t place = i / lines, line = i % lines;
  const int64_t q = place % s.before, k = place / s.before % s.radix;
  const int64_t p = place / (s.before * s.radix);
  const int64_t step = k * (n / s.radix) % n;
  int64_t turn = k * p % n * s.before % n;
  Turn sum{0, 0};
  for (int64_t j = 0; j < s.radix; ++j) {
    const Turn w = table[turn], v = from[((p + s.after * j) * s.before + q) * lines + line];
    sum.re += w.re * v.re - w.im * v.im;
    sum.im += w.re * v.im + w.im * v.re;
    turn += step;
    if (turn >= n) turn -= n;
  }
  to[i] = sum;
}

OFSDP_CUDA_KERNEL dft_store(DftParams e, DftGroup g, const Turn* from, float* y) {
  OFSDP_CUDA_ITEM(i, e.out * g.lines);
  const int64_t line = g.first + i % g.lines, k = i / g.lines;
  const double scale = e.inverse ? 1 / static_cast<double>(e.n) : 1;
  float* const to = y + ((line / e.inner * e.out + k) * e.inner + line % e.inner) * e.y_parts;
  to[0] = static_cast<float>(scale * from[i].re);
  if (e.y_parts == 2) to[1] = static_cast<float>(scale * from[i].im);
}

int64_t lines_at_once(const DftParams& e) {
  return std::clamp<int64_t>(kDftElements / e.n, 1, std::max<int64_t>(e.lines(), 1));
}

}  // namespace

size_t dft_scratch(const DftParams& e) {
  return static_cast<size_t>((1 + 2 * lines_at_once(e)) * e.n) * sizeof(Turn);
}

cudaError_t dft(const DftParams& e, const std::vector<DftStage>& stages, const float* x, float* y,
                void* scratch, cudaStream_t stream) {
  auto* const table = static_cast<Turn*>(scratch);
  const int64_t width = lines_at_once(e);
  OFSDP_CUDA_TRY(over(e.n, stream, dft_turns, e.n, e.inverse, table));
  for (int64_t first = 0; first < e.lines(); first += width) {
    const DftGroup g{first, std::min(width, e.lines() - first)};
    Turn *from = table + e.n, *to = from + width * e.n;
    OFSDP_CUDA_TRY(over(e.n * g.lines, stream, dft_load, e, g, x, from));
    for (const DftStage& stage : stages) {
      OFSDP_CUDA_TRY(over(e.n * g.lines, stream, dft_pass, stage, e.n, g.lines, table, from, to));
      std::swap(from, to);
    }
    OFSDP_CUDA_TRY(over(e.out * g.lines, stream, dft_store, e, g, from, y));
  }
  return cudaSuccess;
}

}  // namespace ofsdp::kernels::cuda
