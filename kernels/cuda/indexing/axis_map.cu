// One pass per axis, one thread per output element. A separable map reads each element `taps` times
// instead of taps^axes times. Axes that shrink come first, so later passes move less.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/indexing/axis_map.h"
#include "kernels/formulas/cubic.h"

namespace ofsdp::kernels::cuda {
namespace {

// --- Rows: the positions of x that output row t reads, with weights. Computed in double with the
// operation order of kernels/ops/shape/resize.cpp and without FMA, so that positions on an edge
// round the same way. ---

__host__ __device__ inline bool is_pad(AxisMapKind kind) { return kind >= AxisMapKind::kReflect; }

// Maps output position o to a coordinate in x.
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

// A Resize row: `taps` taps from position `begin` on (not yet clamped), weights divided by `sum`.
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
  const int64_t middle = r.taps / 2 - 1;  // left of the two taps around the coordinate
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

// Calls f(position, weight) for each tap. REQUIRES: the row is inside x.
template <typename F>
__device__ inline void for_taps(const AxisNumbers& m, const ResizeRow& r, const F& f) {
  for (int64_t k = 0; k < r.taps; ++k) {
    const double w = counts(m, r, k) ? raw_weight(m, r, k) / r.sum : 0;
    const int64_t at = r.begin + k;
    if (w != 0) f(at < 0 ? 0 : at >= m.in ? m.in - 1 : at, w);
  }
}

// Output rows [begin, end) that may read position s.
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
  // Taps beyond an edge are clamped to it, so edge positions have more readers.
  return {s == 0 || begin < 0 ? 0 : static_cast<int64_t>(begin),
          s == m.in - 1 || end > static_cast<double>(m.out) ? m.out : static_cast<int64_t>(end)};
}

// Padding: returns the position of x that row o copies.
__device__ inline int64_t padding_source(const AxisNumbers& m, int64_t o) {
  const int64_t i = o - m.before, n = m.kept;
  if (i >= 0 && i < n) return m.first + i;
  if (m.kind == AxisMapKind::kEdge || n == 1) return m.first + (i < 0 ? 0 : n - 1);
  const int64_t period = m.kind == AxisMapKind::kWrap ? n : 2 * (n - 1);
  const int64_t at = (i % period + period) % period;
  return m.first + (at < n ? at : period - at);
}

// Padding: calls f(row) in ascending order for rows that copy position s.
template <typename F>
__device__ inline void for_padding_rows(const AxisNumbers& m, int64_t s, const F& f) {
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

// --- Passes ---

// One thread per element of y.
template <typename In, typename Out>
OFSDP_CUDA_KERNEL forward_kernel(AxisPass p, const In* x, Out* y) {
  const AxisNumbers& m = p.map;
  OFSDP_CUDA_ITEM(i, p.outer * m.out * p.inner);
  const int64_t row = i / p.inner, o = row / m.out, t = row - o * m.out;
  const In* const from = x + o * m.in * p.inner + (i - row * p.inner);
  if (is_pad(m.kind)) {
    y[i] = Stored<Out>::from(to_float(from[padding_source(m, t) * p.inner]));
    return;
  }
  const ResizeRow r = row_of(m, t);
  float sum = r.outside ? static_cast<float>(m.fill) : 0.0f;
  for_taps(m, r, [&](int64_t s, double w) {
    sum += static_cast<float>(w) * to_float(from[s * p.inner]);
  });
  y[i] = Stored<Out>::from(sum);
}

// dx of one pass: each thread sums over the rows that read its element.
template <typename In, typename Out>
OFSDP_CUDA_KERNEL backward_kernel(AxisPass p, const In* dy, Out* dx) {
  const AxisNumbers& m = p.map;
  OFSDP_CUDA_ITEM(i, p.outer * m.in * p.inner);
  const int64_t row = i / p.inner, o = row / m.in, s = row - o * m.in;
  const In* const from = dy + o * m.out * p.inner + (i - row * p.inner);
  float sum = 0;
  if (is_pad(m.kind)) {
    for_padding_rows(m, s, [&](int64_t t) { sum += to_float(from[t * p.inner]); });
  } else {
    const RowRange range = readers(m, s);
    for (int64_t t = range.begin; t < range.end; ++t) {
      for_taps(m, row_of(m, t), [&](int64_t at, double w) {
        if (at == s) sum += static_cast<float>(w) * to_float(from[t * p.inner]);
      });
    }
  }
  dx[i] = Stored<Out>::from(sum);
}

// Maps with one tap of weight 1 per row: moves elements of any type.
template <typename T>
OFSDP_CUDA_KERNEL move_kernel(AxisPass p, const T* x, T* y) {
  const AxisNumbers& m = p.map;
  OFSDP_CUDA_ITEM(i, p.outer * m.out * p.inner);
  const int64_t row = i / p.inner, o = row / m.out, t = row - o * m.out;
  int64_t s = 0;
  if (is_pad(m.kind)) {
    s = padding_source(m, t);
  } else {
    for_taps(m, row_of(m, t), [&](int64_t at, double) { s = at; });
  }
  y[i] = x[(o * m.in + s) * p.inner + (i - row * p.inner)];
}

int64_t result(const AxisPass& p, bool back) {
  return p.outer * (back ? p.map.in : p.map.out) * p.inner;
}

// Bytes of the largest intermediate; two of them alternate.
size_t intermediate_bytes(const std::vector<AxisPass>& passes, bool back, size_t size) {
  int64_t most = 0;
  for (size_t i = 0; i + 1 < passes.size(); ++i) most = std::max(most, result(passes[i], back));
  return round_up(static_cast<size_t>(most) * size);
}

template <typename In, typename Out>
cudaError_t run_pass(const AxisPass& p, bool back, const void* x, void* y, cudaStream_t stream) {
  return over(result(p, back), stream, back ? backward_kernel<In, Out> : forward_kernel<In, Out>, p,
              x, y);
}

template <typename T>
cudaError_t run_as(const AxisPass& p, bool back, bool first, bool last, const void* x, void* y,
                   cudaStream_t stream) {
  if (first && last) return run_pass<T, T>(p, back, x, y, stream);
  if (first) return run_pass<T, float>(p, back, x, y, stream);
  return last ? run_pass<float, T>(p, back, x, y, stream)
              : run_pass<float, float>(p, back, x, y, stream);
}

// Calls run(pass, first, last, from, to) for each pass, alternating between the halves of scratch.
template <typename F>
cudaError_t for_each_pass(const std::vector<AxisPass>& passes, size_t half, const void* x, void* y,
                          void* scratch, const F& run) {
  const void* from = x;
  for (size_t i = 0; i < passes.size(); ++i) {
    const bool last = i + 1 == passes.size();
    void* const to = last ? y : static_cast<char*>(scratch) + i % 2 * half;
    OFSDP_CUDA_TRY(run(passes[i], i == 0, last, from, to));
    from = to;
  }
  return cudaSuccess;
}

}  // namespace

std::vector<AxisPass> plan_axes(const std::vector<int64_t>& shape,
                                const std::vector<AxisNumbers>& maps) {
  std::vector<int64_t> now = shape;
  std::vector<AxisPass> passes;
  for (const bool shrinks : {true, false}) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const AxisNumbers& map = maps[axis];
      const bool same = map.in == map.out && map.scale == 1 && map.roi_begin == 0 &&
                        map.roi_end == 1 && map.before == 0 && map.first == 0;
      if (same || (map.out < map.in) != shrinks) continue;
      AxisPass pass{1, 1, map};
      for (size_t a = 0; a < axis; ++a) pass.outer *= now[a];
      for (size_t a = axis + 1; a < shape.size(); ++a) pass.inner *= now[a];
      now[axis] = map.out;
      passes.push_back(pass);
    }
  }
  return passes;
}

std::vector<AxisPass> plan_axes_back(const std::vector<int64_t>& shape,
                                     const std::vector<AxisNumbers>& maps) {
  std::vector<int64_t> x = shape;
  for (size_t axis = 0; axis < x.size(); ++axis) x[axis] = maps[axis].in;
  std::vector<AxisPass> passes = plan_axes(x, maps);
  std::reverse(passes.begin(), passes.end());
  return passes;
}

size_t axes_scratch(const std::vector<AxisPass>& passes, bool back) {
  return 2 * intermediate_bytes(passes, back, sizeof(float));
}
size_t move_scratch(const std::vector<AxisPass>& passes, size_t size) {
  return 2 * intermediate_bytes(passes, false, size);
}

cudaError_t apply_axes(const std::vector<AxisPass>& passes, bool back, DType dtype, const void* x,
                       void* y, void* scratch, cudaStream_t stream) {
  return with_float(dtype, [&]<typename T>(T) {
    return for_each_pass(passes, intermediate_bytes(passes, back, sizeof(float)), x, y, scratch,
                         [&](const AxisPass& p, bool first, bool last, const void* from, void* to) {
                           return run_as<T>(p, back, first, last, from, to, stream);
                         });
  });
}

cudaError_t move_axes(const std::vector<AxisPass>& passes, size_t size, const void* x, void* y,
                      void* scratch, cudaStream_t stream) {
  return with_bits(size, [&]<typename T>(T) {
    return for_each_pass(passes, intermediate_bytes(passes, false, size), x, y, scratch,
                         [&](const AxisPass& p, bool, bool, const void* from, void* to) {
                           return over(result(p, false), stream, move_kernel<T>, p, from, to);
                         });
  });
}

}  // namespace ofsdp::kernels::cuda
