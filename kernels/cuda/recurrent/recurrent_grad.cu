// The steps backwards, one thread per element of a state. Gradients of gates are written for all
// steps, so that the gradients of W and R are one product each at the end.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/recurrent_math.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// Value `which` that a step left at element k of a sample.
__device__ inline float saved(const RecurrentBackward& r, int64_t t, int64_t b, int64_t k,
                              int which) {
  const RecurrentExtent& e = r.extent;
  return r.saved[(e.saved_row(t, b) * e.saved() + which) * e.hidden + k];
}

__device__ inline float cell_before(const RecurrentBackward& r, int64_t t, int64_t b, int64_t k) {
  const RecurrentExtent& e = r.extent;
  const int64_t before = e.time_before(t);
  if (active(e, before, b)) return saved(r, before, b, k, 4);
  return r.initial_c == nullptr ? 0.0f : r.initial_c[e.state_row(b) * e.hidden + k];
}

OFSDP_CUDA_KERNEL before_kernel(RecurrentBackward r) {
  const RecurrentExtent& e = r.extent;
  OFSDP_CUDA_ITEM(i, e.steps * e.batch * e.hidden);
  const int64_t item = i / e.hidden, k = i % e.hidden, t = item / e.batch, b = item % e.batch;
  const int64_t before = e.time_before(t);
  float h = 0;
  if (active(e, t, b)) {
    if (active(e, before, b)) {
      h = r.y[e.y_row(before, b) * e.hidden + k];
    } else if (r.initial_h != nullptr) {
      h = r.initial_h[e.state_row(b) * e.hidden + k];
    }
  }
  r.before[e.row(t, b) * e.hidden + k] = h;
}

// For element k of sample b at step t, with dh the gradient of its state.
struct Place {
  int64_t t, b, k, s, row;  // s: in [batch, H]
};

// The slope of gate `gate`, whose result is y.
__device__ inline float slope(const RecurrentBackward& r, Place p, const GateFunction& f,
                              int64_t gate, float y) {
  const auto which = static_cast<int>(r.extent.results() + gate);
  return gate_slope(f, f.needs_argument ? saved(r, p.t, p.b, p.k, which) : 0.0f, y);
}

__device__ inline void lstm(const RecurrentBackward& r, Place p, float dh) {
  const RecurrentExtent& e = r.extent;
  const int64_t n = e.hidden;
  const float i = saved(r, p.t, p.b, p.k, 0), o = saved(r, p.t, p.b, p.k, 1),
              f = saved(r, p.t, p.b, p.k, 2), c = saved(r, p.t, p.b, p.k, 3),
              cell = saved(r, p.t, p.b, p.k, 4), before = cell_before(r, p.t, p.b, p.k);
  const auto peep = [&](int64_t gate) { return r.peep == nullptr ? 0.0f : r.peep[gate * n + p.k]; };
  const float h = gate_of(e.h, cell), d_o = dh * h * slope(r, p, e.f, 1, o);
  float d_cell = r.cell[p.s] + dh * o * gate_slope(e.h, cell, h) + d_o * peep(1);
  const float di = d_cell * (e.input_forget ? c - before : c) * slope(r, p, e.f, 0, i);
  const float df = e.input_forget ? 0.0f : d_cell * before * slope(r, p, e.f, 2, f);
  float* const d = r.diff_gates + p.row * 4 * n + p.k;
  d[0] = di;
  d[n] = d_o;
  d[2 * n] = df;
  d[3 * n] = d_cell * i * slope(r, p, e.g, 3, c);
  r.cell[p.s] = d_cell * f + di * peep(0) + df * peep(2);
  r.past[p.s] = 0.0f;
}

// z and n, which both GRUs share; gives the gradient of n's argument.
__device__ inline float gru_first(const RecurrentBackward& r, Place p, float dh) {
  const RecurrentExtent& e = r.extent;
  const int64_t n = e.hidden;
  const float z = saved(r, p.t, p.b, p.k, 0), c = saved(r, p.t, p.b, p.k, 2);
  float* const d = r.diff_gates + p.row * 3 * n + p.k;
  d[0] = dh * (r.before[p.row * n + p.k] - c) * slope(r, p, e.f, 0, z);
  d[2 * n] = dh * (1.0f - z) * slope(r, p, e.g, 2, c);
  r.past[p.s] = dh * z;
  return d[2 * n];
}

__device__ inline void gru(const RecurrentBackward& r, Place p, float dh) {
  const RecurrentExtent& e = r.extent;
  const int64_t n = e.hidden;
  const float dc = gru_first(r, p, dh);
  const float reset = saved(r, p.t, p.b, p.k, 1), q = saved(r, p.t, p.b, p.k, 3);
  float* const d = r.diff_gates + p.row * 3 * n + p.k;
  float* const back = r.diff_recurrent + p.row * 3 * n + p.k;
  d[n] = dc * q * slope(r, p, e.f, 1, reset);
  back[0] = d[0];
  back[n] = d[n];
  back[2 * n] = dc * reset;
}

__device__ inline void gru_reset_first(const RecurrentBackward& r, Place p, float dh) {
  const int64_t n = r.extent.hidden;
  r.diff_last[p.row * n + p.k] = gru_first(r, p, dh);
  r.reset[p.row * n + p.k] = saved(r, p.t, p.b, p.k, 1) * r.before[p.row * n + p.k];
}

// Nothing flows through a sample that has ended.
__device__ inline void clear(const RecurrentBackward& r, Place p) {
  const RecurrentExtent& e = r.extent;
  const int64_t n = e.hidden;
  for (int64_t g = 0; g < e.gates(); ++g) {
    r.diff_gates[(p.row * e.gates() + g) * n + p.k] = 0.0f;
    if (e.kind == CellKind::kGru) r.diff_recurrent[(p.row * 3 + g) * n + p.k] = 0.0f;
  }
  if (e.kind != CellKind::kGruResetFirst) return;
  for (int64_t g = 0; g < 2; ++g) r.diff_recurrent[(p.row * 2 + g) * n + p.k] = 0.0f;
  r.diff_last[p.row * n + p.k] = 0.0f;
  r.reset[p.row * n + p.k] = 0.0f;
}

__device__ inline Place place_of(const RecurrentExtent& e, int64_t t, int64_t at) {
  const int64_t b = at / e.hidden;
  return {t, b, at - b * e.hidden, at, e.row(t, b)};
}

OFSDP_CUDA_KERNEL back_kernel(RecurrentBackward r, int64_t t) {
  const RecurrentExtent& e = r.extent;
  OFSDP_CUDA_ITEM(at, e.batch * e.hidden);
  const Place p = place_of(e, t, at);
  if (!active(e, t, p.b)) return clear(r, p);
  const float dy = r.diff_y == nullptr ? 0.0f : r.diff_y[e.y_row(t, p.b) * e.hidden + p.k];
  const float dh = r.state[at] + dy;
  switch (e.kind) {
    OFSDP_CASE(CellKind::kLstm, lstm(r, p, dh));
    OFSDP_CASE(CellKind::kGru, gru(r, p, dh));
    OFSDP_CASE(CellKind::kGruResetFirst, gru_reset_first(r, p, dh));
    default:
      r.diff_gates[p.row * e.hidden + p.k] = dh * slope(r, p, e.f, 0, saved(r, t, p.b, p.k, 0));
      r.past[at] = 0.0f;
  }
}

// `product` is the gradient of r h.
OFSDP_CUDA_KERNEL rest_kernel(RecurrentBackward r, int64_t t) {
  const RecurrentExtent& e = r.extent;
  OFSDP_CUDA_ITEM(at, e.batch * e.hidden);
  const Place p = place_of(e, t, at);
  if (!active(e, t, p.b)) return;
  const int64_t n = e.hidden;
  const float reset = saved(r, t, p.b, p.k, 1), d = r.product[at];
  float* const gates = r.diff_gates + p.row * 3 * n + p.k;
  float* const back = r.diff_recurrent + p.row * 2 * n + p.k;
  gates[n] = d * r.before[p.row * n + p.k] * slope(r, p, e.f, 1, reset);
  r.past[at] += d * reset;
  back[0] = gates[0];
  back[n] = gates[n];
}

OFSDP_CUDA_KERNEL add_kernel(RecurrentBackward r, int64_t t) {
  const RecurrentExtent& e = r.extent;
  OFSDP_CUDA_ITEM(at, e.batch * e.hidden);
  if (!active(e, t, at / e.hidden)) return;
  r.state[at] = r.past[at] + r.product[at];
}

OFSDP_CUDA_KERNEL peep_kernel(RecurrentBackward r, float* diff_peep) {
  const RecurrentExtent& e = r.extent;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, n = e.hidden;
  if (i >= 3 * n) return;
  const int64_t gate = i / n, k = i - gate * n;
  float sum = 0;
  for (int64_t t = 0; t < e.steps; ++t) {
    for (int64_t b = 0; b < e.batch; ++b) {
      if (!active(e, t, b)) continue;
      const float cell = gate == 1 ? saved(r, t, b, k, 4) : cell_before(r, t, b, k);
      sum += r.diff_gates[(e.row(t, b) * 4 + gate) * n + k] * cell;
    }
  }
  diff_peep[i] = sum;
}

cudaError_t over_states(void (*kernel)(RecurrentBackward, int64_t), const RecurrentBackward& r,
                        int64_t t, cudaStream_t stream) {
  return over(r.extent.batch * r.extent.hidden, stream, kernel, r, t);
}

}  // namespace

cudaError_t states_before(const RecurrentBackward& r, cudaStream_t stream) {
  const RecurrentExtent& e = r.extent;
  return over(e.steps * e.batch * e.hidden, stream, before_kernel, r);
}

cudaError_t recurrent_back(const RecurrentBackward& r, int64_t t, cudaStream_t stream) {
  return over_states(back_kernel, r, t, stream);
}

cudaError_t recurrent_back_rest(const RecurrentBackward& r, int64_t t, cudaStream_t stream) {
  return over_states(rest_kernel, r, t, stream);
}

cudaError_t recurrent_add(const RecurrentBackward& r, int64_t t, cudaStream_t stream) {
  return over_states(add_kernel, r, t, stream);
}

cudaError_t peephole_gradient(const RecurrentBackward& r, float* diff_peep, cudaStream_t stream) {
  return over(3 * r.extent.hidden, stream, peep_kernel, r, diff_peep);
}

}  // namespace ofsdp::kernels::cuda
