// One thread per output element, one pass per axis: a separable map reads each element taps times
// instead of taps^axes times, and the intermediate results stay in float32. Axes that shrink go
// first, so passes move less.
#include "kernels/cuda/indexing/axis_map.h"
#include "kernels/cuda/indexing/axis_rows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

template <typename In, typename Out>
OFSDP_CUDA_KERNEL forward_kernel(AxisPass p, const In* x, Out* y) {
  const AxisNumbers& m = p.map;
  OFSDP_CUDA_ITEM(i, p.outer * m.out * p.inner);
  const int64_t row = i / p.inner, o = row / m.out, t = row - o * m.out;
  const In* const from = x + o * m.in * p.inner + (i - row * p.inner);
  if (is_pad(m.kind)) {
    y[i] = Stored<Out>::from(to_float(from[shown(m, t) * p.inner]));
    return;
  }
  const ResizeRow r = row_of(m, t);
  float sum = r.outside ? static_cast<float>(m.fill) : 0.0f;
  for_taps(m, r, [&](int64_t s, double w) {
    sum += static_cast<float>(w) * to_float(from[s * p.inner]);
  });
  y[i] = Stored<Out>::from(sum);
}

// dx of the pass, from dy.
template <typename In, typename Out>
OFSDP_CUDA_KERNEL backward_kernel(AxisPass p, const In* dy, Out* dx) {
  const AxisNumbers& m = p.map;
  OFSDP_CUDA_ITEM(i, p.outer * m.in * p.inner);
  const int64_t row = i / p.inner, o = row / m.in, s = row - o * m.in;
  const In* const from = dy + o * m.out * p.inner + (i - row * p.inner);
  float sum = 0;
  if (is_pad(m.kind)) {
    for_shown(m, s, [&](int64_t t) { sum += to_float(from[t * p.inner]); });
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

template <typename T>
OFSDP_CUDA_KERNEL move_kernel(AxisPass p, const T* x, T* y) {
  const AxisNumbers& m = p.map;
  OFSDP_CUDA_ITEM(i, p.outer * m.out * p.inner);
  const int64_t row = i / p.inner, o = row / m.out, t = row - o * m.out;
  int64_t s = 0;
  if (is_pad(m.kind)) {
    s = shown(m, t);
  } else {
    for_taps(m, row_of(m, t), [&](int64_t at, double) { s = at; });
  }
  y[i] = x[(o * m.in + s) * p.inner + (i - row * p.inner)];
}

int64_t result(const AxisPass& p, bool back) {
  return p.outer * (back ? p.map.in : p.map.out) * p.inner;
}

// Two results in turn, of elements of `size` bytes; the last is the output's.
size_t between(const std::vector<AxisPass>& passes, bool back, size_t size) {
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

// run(pass, first, last, from, to), results in turn on the two halves of scratch.
template <typename F>
cudaError_t in_turn(const std::vector<AxisPass>& passes, size_t half, const void* x, void* y,
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
  return 2 * between(passes, back, sizeof(float));
}
size_t move_scratch(const std::vector<AxisPass>& passes, size_t size) {
  return 2 * between(passes, false, size);
}

cudaError_t apply_axes(const std::vector<AxisPass>& passes, bool back, DType dtype, const void* x,
                       void* y, void* scratch, cudaStream_t stream) {
  return with_float(dtype, [&]<typename T>(T) {
    return in_turn(passes, between(passes, back, sizeof(float)), x, y, scratch,
                   [&](const AxisPass& p, bool first, bool last, const void* from, void* to) {
                     return run_as<T>(p, back, first, last, from, to, stream);
                   });
  });
}

cudaError_t move_axes(const std::vector<AxisPass>& passes, size_t size, const void* x, void* y,
                      void* scratch, cudaStream_t stream) {
  return with_bits(size, [&]<typename T>(T) {
    return in_turn(passes, between(passes, false, size), x, y, scratch,
                   [&](const AxisPass& p, bool, bool, const void* from, void* to) {
                     return over(result(p, false), stream, move_kernel<T>, p, from, to);
                   });
  });
}

}  // namespace ofsdp::kernels::cuda
