// RNN, GRU and LSTM steps: a thread per state element. cuBLASLt multiplies with W and R; these
// kernels compute a step between the products and find their results in the cache.
//
// Backward stores all gate gradients, so that dW and dR are one product each at the end.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/formulas.cuh"
#include "kernels/cuda/recurrent/recurrent.h"

namespace ofsdp::kernels::cuda {
namespace {

// M of kernels/formulas/gates.h.
struct GateMath : DeviceMath {
  __device__ static float log1p_exp(float x) { return std::log1p(std::exp(x)); }
};

__device__ inline float gate_of(const GateActivation& a, float x) {
  using M = GateMath;
  using T = float;
  const float alpha = a.alpha, beta = a.beta;
  if (a.clip > 0) x = clip_of(x, -a.clip, a.clip);
  switch (a.kind) {
#define OFSDP_GATE(name, value, slope) OFSDP_CASE(GateActivation::Kind::k##name, value);
    OFSDP_GATES(OFSDP_GATE)
#undef OFSDP_GATE
  }
  return x;
}

__device__ inline float result_slope(const GateActivation& a, float y) {
  using M = GateMath;
  using T = float;
  const float alpha = a.alpha, beta = a.beta;
  if (a.clip > 0) {
    const float low = gate_of(a, -a.clip), high = gate_of(a, a.clip);
    if (y <= fminf(low, high) || y >= fmaxf(low, high)) return 0.0f;
  }
  switch (a.kind) {
#define OFSDP_GATE(name, value, slope) OFSDP_CASE(GateActivation::Kind::k##name, slope);
    OFSDP_GATES(OFSDP_GATE)
#undef OFSDP_GATE
  }
  return y;
}

__device__ inline float argument_slope(const GateActivation& a, float x) {
  using M = GateMath;
  using T = float;
  const float alpha = a.alpha;
  if (a.clip > 0 && (x < -a.clip || x > a.clip)) return 0.0f;
  switch (a.kind) {
#define OFSDP_GATE(name, slope) OFSDP_CASE(GateActivation::Kind::k##name, slope);
    OFSDP_GATES_OF_ARGUMENT(OFSDP_GATE)
#undef OFSDP_GATE
    default:
      return 0.0f;
  }
}

// Returns f'(x) of y = f(x), without reading x if y suffices.
__device__ inline float gate_slope(const GateActivation& a, float x, float y) {
  return slope_needs_argument(a) ? argument_slope(a, x) : result_slope(a, y);
}

// Returns whether sample b takes part in step t, which may be outside of the sequence.
__device__ inline bool active(const RecurrentParams& e, int64_t t, int64_t b) {
  return t >= 0 && t < e.steps && (e.lens == nullptr || t < e.lens[b]);
}

// --- Forward ---

// Cell k of sample b.
struct Cell {
  int64_t b, k;
};

__device__ inline void put(const RecurrentForward& r, int64_t t, Cell i, float value) {
  if (r.y != nullptr) r.y[r.extent.y_row(t, i.b) * r.extent.hidden + i.k] = value;
}
// Saves value `which` for the gradient.
__device__ inline void save(const RecurrentForward& r, int64_t t, Cell i, int which, float value) {
  if (r.saved == nullptr) return;
  const RecurrentParams& e = r.extent;
  r.saved[(e.saved_row(t, i.b) * e.saved() + which) * e.hidden + i.k] = value;
}

// Returns gate `gate`'s activation at x; saves x if a gradient needs it.
__device__ inline float apply(const RecurrentForward& r, int64_t t, Cell i, const GateActivation& f,
                              int64_t gate, float x) {
  const RecurrentParams& e = r.extent;
  if (e.keeps_arguments) save(r, t, i, static_cast<int>(e.results() + gate), x);
  return gate_of(f, x);
}

__device__ inline float lstm(const RecurrentForward& r, int64_t t, Cell at) {
  const RecurrentParams& e = r.extent;
  const int64_t n = e.hidden, k = at.k, s = at.b * n + k;
  const float* const x = r.gates + e.row(t, at.b) * 4 * n;
  const float* const past = r.recurrent + at.b * 4 * n;
  const auto sum = [&](int64_t gate) { return x[gate * n + k] + past[gate * n + k]; };
  const auto peep = [&](int64_t gate, float c) {
    return r.peep == nullptr ? 0.0f : r.peep[gate * n + k] * c;
  };
  const float before = r.cell[s];
  const float i = apply(r, t, at, e.f, 0, sum(0) + peep(0, before));
  const float f = e.input_forget ? 1.0f - i : apply(r, t, at, e.f, 2, sum(2) + peep(2, before));
  const float c = apply(r, t, at, e.g, 3, sum(3)), cell = f * before + i * c;
  const float o = apply(r, t, at, e.f, 1, sum(1) + peep(1, cell));
  r.cell[s] = cell;
  save(r, t, at, 0, i);
  save(r, t, at, 1, o);
  save(r, t, at, 2, f);
  save(r, t, at, 3, c);
  save(r, t, at, 4, cell);
  return o * gate_of(e.h, cell);
}

__device__ inline float gru(const RecurrentForward& r, int64_t t, Cell at) {
  const RecurrentParams& e = r.extent;
  const int64_t n = e.hidden, k = at.k;
  const float* const x = r.gates + e.row(t, at.b) * 3 * n;
  const float* const past = r.recurrent + at.b * 3 * n;
  const float z = apply(r, t, at, e.f, 0, x[k] + past[k]);
  const float reset = apply(r, t, at, e.f, 1, x[n + k] + past[n + k]);
  const float q = past[2 * n + k] + (r.bias_n == nullptr ? 0.0f : r.bias_n[k]);
  const float c = apply(r, t, at, e.g, 2, x[2 * n + k] + reset * q);
  save(r, t, at, 0, z);
  save(r, t, at, 1, reset);
  save(r, t, at, 2, c);
  save(r, t, at, 3, q);
  return (1.0f - z) * c + z * r.state[at.b * n + k];
}

// Stores z in `gates` for gru_rest.
__device__ inline void gru_reset(const RecurrentForward& r, int64_t t, Cell at) {
  const RecurrentParams& e = r.extent;
  const int64_t n = e.hidden, k = at.k, s = at.b * n + k;
  float* const x = r.gates + e.row(t, at.b) * 3 * n;
  const float* const past = r.recurrent + at.b * 2 * n;
  const float z = apply(r, t, at, e.f, 0, x[k] + past[k]);
  const float reset = apply(r, t, at, e.f, 1, x[n + k] + past[n + k]);
  x[k] = z;
  r.reset[s] = reset * r.state[s];
  save(r, t, at, 0, z);
  save(r, t, at, 1, reset);
}

__device__ inline float gru_rest(const RecurrentForward& r, int64_t t, Cell at) {
  const RecurrentParams& e = r.extent;
  const int64_t n = e.hidden, k = at.k, s = at.b * n + k;
  const float* const x = r.gates + e.row(t, at.b) * 3 * n;
  const float c = apply(r, t, at, e.g, 2, x[2 * n + k] + r.recurrent[s]), z = x[k];
  save(r, t, at, 2, c);
  return (1.0f - z) * c + z * r.state[s];
}

__device__ inline float rnn(const RecurrentForward& r, int64_t t, Cell at) {
  const RecurrentParams& e = r.extent;
  const float h =
      apply(r, t, at, e.f, 0,
            r.gates[e.row(t, at.b) * e.hidden + at.k] + r.recurrent[at.b * e.hidden + at.k]);
  save(r, t, at, 0, h);
  return h;
}

// A sample that has ended keeps its state; y and saved become 0.
__device__ inline bool ended(const RecurrentForward& r, int64_t t, Cell i) {
  if (active(r.extent, t, i.b)) return false;
  put(r, t, i, 0.0f);
  for (int which = 0; which < r.extent.saved(); ++which) save(r, t, i, which, 0.0f);
  return true;
}

// A thread per state element [batch, H].
OFSDP_CUDA_KERNEL step_kernel(RecurrentForward r, int64_t t, bool rest) {
  const RecurrentParams& e = r.extent;
  OFSDP_CUDA_ITEM(at, e.batch * e.hidden);
  const Cell i{at / e.hidden, at % e.hidden};
  if (ended(r, t, i)) {
    if (e.kind == CellKind::kGruResetFirst && !rest)
      r.reset[at] = 0.0f;  // the next product reads it
    return;
  }
  float h = 0;
  switch (e.kind) {
    case CellKind::kLstm:
      h = lstm(r, t, i);
      break;
    case CellKind::kGru:
      h = gru(r, t, i);
      break;
    case CellKind::kGruResetFirst:
      if (!rest) return gru_reset(r, t, i);
      h = gru_rest(r, t, i);
      break;
    default:
      h = rnn(r, t, i);
  }
  r.state[at] = h;
  put(r, t, i, h);
}

// A thread per element.
OFSDP_CUDA_KERNEL bias_kernel(const float* b, int64_t width, int64_t both, float* bias) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < width) bias[i] = i < both ? b[i] + b[width + i] : b[i];
}

// --- Backward ---

// Returns value `which` that step t saved for element k of sample b.
__device__ inline float saved(const RecurrentBackward& r, int64_t t, int64_t b, int64_t k,
                              int which) {
  const RecurrentParams& e = r.extent;
  return r.saved[(e.saved_row(t, b) * e.saved() + which) * e.hidden + k];
}

__device__ inline float cell_before(const RecurrentBackward& r, int64_t t, int64_t b, int64_t k) {
  const RecurrentParams& e = r.extent;
  const int64_t before = e.time_before(t);
  if (active(e, before, b)) return saved(r, before, b, k, 4);
  return r.initial_c == nullptr ? 0.0f : r.initial_c[e.state_row(b) * e.hidden + k];
}

// A thread per element of `before`: the previous step's y, the initial state, or 0 if the sample
// has ended.
OFSDP_CUDA_KERNEL before_kernel(RecurrentBackward r) {
  const RecurrentParams& e = r.extent;
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

// Cell k of sample b at step t.
struct Place {
  int64_t t, b, k, s, row;  // s: offset in [batch, H]; row: e.row(t, b)
};

// Returns gate `gate`'s derivative, given the result y.
__device__ inline float slope(const RecurrentBackward& r, Place p, const GateActivation& f,
                              int64_t gate, float y) {
  const auto which = static_cast<int>(r.extent.results() + gate);
  return gate_slope(f, slope_needs_argument(f) ? saved(r, p.t, p.b, p.k, which) : 0.0f, y);
}

__device__ inline void lstm(const RecurrentBackward& r, Place p, float dh) {
  const RecurrentParams& e = r.extent;
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

// Gradients of z and n, common to both GRUs; returns the gradient of n's argument.
__device__ inline float gru_first(const RecurrentBackward& r, Place p, float dh) {
  const RecurrentParams& e = r.extent;
  const int64_t n = e.hidden;
  const float z = saved(r, p.t, p.b, p.k, 0), c = saved(r, p.t, p.b, p.k, 2);
  float* const d = r.diff_gates + p.row * 3 * n + p.k;
  d[0] = dh * (r.before[p.row * n + p.k] - c) * slope(r, p, e.f, 0, z);
  d[2 * n] = dh * (1.0f - z) * slope(r, p, e.g, 2, c);
  r.past[p.s] = dh * z;
  return d[2 * n];
}

__device__ inline void gru(const RecurrentBackward& r, Place p, float dh) {
  const RecurrentParams& e = r.extent;
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

// Zeros for a sample that has ended: no gradient flows.
__device__ inline void clear(const RecurrentBackward& r, Place p) {
  const RecurrentParams& e = r.extent;
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

__device__ inline Place place_of(const RecurrentParams& e, int64_t t, int64_t at) {
  const int64_t b = at / e.hidden;
  return {t, b, at - b * e.hidden, at, e.row(t, b)};
}

// A thread per state element: gate gradients of step t.
OFSDP_CUDA_KERNEL back_kernel(RecurrentBackward r, int64_t t) {
  const RecurrentParams& e = r.extent;
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

// On entry `product` is the gradient of r h.
OFSDP_CUDA_KERNEL rest_kernel(RecurrentBackward r, int64_t t) {
  const RecurrentParams& e = r.extent;
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

// A thread per state element; samples that have ended keep theirs.
OFSDP_CUDA_KERNEL add_kernel(RecurrentBackward r, int64_t t) {
  const RecurrentParams& e = r.extent;
  OFSDP_CUDA_ITEM(at, e.batch * e.hidden);
  if (!active(e, t, at / e.hidden)) return;
  r.state[at] = r.past[at] + r.product[at];
}

// kernels/ops/recurrent/recurrent_parts.h has the same arithmetic, so the bits are the CPU's.
OFSDP_CUDA_KERNEL round_kernel(RecurrentParams e, int64_t t, const float* states, float* rounded) {
  __shared__ float spare[kThreads / kWarp];
  const int64_t numel = e.batch * e.hidden;
  float negated = 0, most = 0;  // of the least value
  for (int64_t i = threadIdx.x; i < numel; i += kThreads) {
    if (!active(e, t, i / e.hidden)) continue;
    const float value = states[i];
    if (-value > negated) negated = -value;
    if (value > most) most = value;
  }
  negated = group_reduce<kThreads>(negated, Largest{}, spare);
  most = group_reduce<kThreads>(most, Largest{}, spare);
  const float scale = most == -negated ? 1.0f : (most + negated) / 255.0f;
  const float zero = rintf(negated / scale);
  for (int64_t i = threadIdx.x; i < numel; i += kThreads) {
    const float whole = rintf(states[i] / scale) + zero;
    const float kept = whole < 0.0f ? 0.0f : whole > 255.0f ? 255.0f : whole;
    rounded[i] = (kept - zero) * scale;
  }
}

// A thread per element of dP sums over all steps and samples in order.
OFSDP_CUDA_KERNEL peep_kernel(RecurrentBackward r, float* diff_peep) {
  const RecurrentParams& e = r.extent;
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

cudaError_t recurrent_step(const RecurrentForward& r, int64_t t, bool rest, cudaStream_t stream) {
  return over(r.extent.batch * r.extent.hidden, stream, step_kernel, r, t, rest);
}

cudaError_t recurrent_bias(const float* b, int64_t width, int64_t both, float* bias,
                           cudaStream_t stream) {
  return over(width, stream, bias_kernel, b, width, both, bias);
}

cudaError_t round_states(const RecurrentParams& e, int64_t t, const float* states, float* rounded,
                         cudaStream_t stream) {
  return launch_blocks(stream, 1, kThreads, round_kernel, e, t, states, rounded);
}

cudaError_t states_before(const RecurrentBackward& r, cudaStream_t stream) {
  const RecurrentParams& e = r.extent;
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
