// The rows of axis maps (axis_map.h): which positions of x row t reads, and with which weights. In
// double and in the order of operations of kernels/ops/shape/resize.cpp, without contraction,
// so that places on an edge fall on the same side.
#pragma once

#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/axis_map.h"
#include "kernels/formulas/cubic.h"

namespace ofsdp::kernels::cuda {

__host__ __device__ inline bool is_pad(AxisMapKind kind) { return kind >= AxisMapKind::kReflect; }

// The coordinate in x of output position o.
__device__ inline double coordinate(const AxisNumbers& m, int64_t o) {
  const double x = static_cast<double>(o), in = static_cast<double>(m.in), width = m.scale * in;
  switch (m.coordinates) {
    OFSDP_CASE(Coordinates::kAlignCorners, width == 1 ? 0 : x * (in - 1) / (width - 1));
    OFSDP_CASE(Coordinates::kAsymmetric, x / m.scale);
    case Coordinates::kCrop: {
      const double span = __dmul_rn(m.roi_end - m.roi_begin, in - 1);
      const double along = width == 1 ? span / 2 : __dmul_rn(x, span) / (width - 1);
      return along + __dmul_rn(m.roi_begin, in - 1);
    }
    default:
      break;
  }
  if (m.coordinates == Coordinates::kPytorchHalfPixel && width == 1) return -0.5;
  const double half = (x + 0.5) / m.scale - 0.5;
  if (m.coordinates != Coordinates::kHalfPixelSymmetric) return half;
  return __dmul_rn(in / 2, 1 - static_cast<double>(m.out) / width) + half;
}

// A row of Resize: taps from position `begin` on, before clamping, with weights / sum.
struct ResizeRow {
  int64_t begin = 0, taps = 0;
  double ratio = 0, stretch = 1, sum = 1;
  bool outside = false;
};

__device__ inline double raw_weight(const AxisNumbers& m, const ResizeRow& r, int64_t k) {
  if (m.kind == AxisMapKind::kNearest) {
    bool right = r.ratio == 1 || m.nearest == NearestMode::kCeil;
    if (m.nearest == NearestMode::kRoundFloor) right = r.ratio > 0.5;
    if (m.nearest == NearestMode::kRoundCeil) right = r.ratio >= 0.5;
    return (k == 1) == right ? 1 : 0;
  }
  const int64_t middle = r.taps / 2 - 1;  // the left one of the two around the place
  const double x = fabs((static_cast<double>(k - middle) - r.ratio) * r.stretch);
  if (m.kind == AxisMapKind::kLinear) return x < 1 ? 1 - x : 0;
  return cubic_weight(x, m.cubic_a);
}

__device__ inline bool counts(const AxisNumbers& m, const ResizeRow& r, int64_t k) {
  const int64_t at = r.begin + k;
  return !m.exclude_outside || (at >= 0 && at < m.in);
}

__device__ inline ResizeRow row_of(const AxisNumbers& m, int64_t o) {
  ResizeRow r;
  const double x = coordinate(m, o), floor = std::floor(x);
  r.outside = m.coordinates == Coordinates::kCrop && (x < 0 || x > static_cast<double>(m.in - 1));
  if (r.outside) return r;
  r.ratio = x == floor ? 1 : x - floor;
  const int64_t left = static_cast<int64_t>(floor) - (x == floor ? 1 : 0);
  if (m.antialias && m.kind != AxisMapKind::kNearest) r.stretch = m.scale < 1 ? m.scale : 1;
  const double reach = m.kind == AxisMapKind::kCubic ? 2 : 1;
  const int64_t first = static_cast<int64_t>(std::floor(-reach / r.stretch)) + 1;
  r.taps = m.kind == AxisMapKind::kNearest ? 2 : 2 - 2 * first;
  r.begin = left + 1 - r.taps / 2;
  if (r.stretch == 1 && !m.exclude_outside) return r;
  double sum = 0;
  for (int64_t k = 0; k < r.taps; ++k) sum += counts(m, r, k) ? raw_weight(m, r, k) : 0;
  r.sum = sum == 0 ? 1 : sum;
  return r;
}

// f(position of x, weight) for a row that is not outside.
template <typename F>
__device__ inline void for_taps(const AxisNumbers& m, const ResizeRow& r, const F& f) {
  for (int64_t k = 0; k < r.taps; ++k) {
    const double w = counts(m, r, k) ? raw_weight(m, r, k) / r.sum : 0;
    const int64_t at = r.begin + k;
    if (w != 0) f(at < 0 ? 0 : at >= m.in ? m.in - 1 : at, w);
  }
}

// The rows that may read position s, which lies in increasing order of them: [begin, end).
struct RowRange {
  int64_t begin, end;
};
__device__ inline RowRange readers(const AxisNumbers& m, int64_t s) {
  const double zero = coordinate(m, 0), step = coordinate(m, 1) - zero;
  if (!(step > 1e-9) || m.out < 8) return {0, m.out};
  const double stretch = m.antialias && m.scale < 1 ? m.scale : 1;
  const double reach = (m.kind == AxisMapKind::kCubic ? 2 : 1) / stretch + 2;
  const double at = static_cast<double>(s);
  const double begin = std::floor((at - reach - zero) / step),
               end = std::ceil((at + reach - zero) / step) + 1;
  // Taps beyond an edge are the edge's.
  return {s == 0 || begin < 0 ? 0 : static_cast<int64_t>(begin),
          s == m.in - 1 || end > static_cast<double>(m.out) ? m.out : static_cast<int64_t>(end)};
}

// The position of x that row o of a padding shows.
__device__ inline int64_t shown(const AxisNumbers& m, int64_t o) {
  const int64_t i = o - m.before, n = m.kept;
  if (i >= 0 && i < n) return m.first + i;
  if (m.kind == AxisMapKind::kEdge || n == 1) return m.first + (i < 0 ? 0 : n - 1);
  const int64_t period = m.kind == AxisMapKind::kWrap ? n : 2 * (n - 1);
  const int64_t at = (i % period + period) % period;
  return m.first + (at < n ? at : period - at);
}

// f(row) for the rows of a padding that show position s, in their order.
template <typename F>
__device__ inline void for_shown(const AxisNumbers& m, int64_t s, const F& f) {
  const int64_t n = m.kept, i = s - m.first;
  if (i < 0 || i >= n) return;
  const auto row = [&](int64_t at) {
    if (at + m.before >= 0 && at + m.before < m.out) f(at + m.before);
  };
  if (m.kind == AxisMapKind::kEdge || n == 1) {
    const int64_t begin = i == 0 ? -m.before : i, end = i == n - 1 ? m.out - m.before : i + 1;
    for (int64_t at = begin; at < end; ++at) row(at);
    return;
  }
  const bool reflects = m.kind == AxisMapKind::kReflect;
  const int64_t period = reflects ? 2 * (n - 1) : n;
  for (int64_t base = -(m.before / period + 1) * period; base < m.out - m.before; base += period) {
    row(base + i);
    if (reflects && i > 0 && i < n - 1) row(base + period - i);
  }
}

}  // namespace ofsdp::kernels::cuda
