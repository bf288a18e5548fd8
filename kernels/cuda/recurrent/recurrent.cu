// One thread per element of a state. Products with W and R are cuBLASLt's; these kernels only do
// the arithmetic of a step between them, whose operands are still in the cache.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/recurrent/recurrent.h"
#include "kernels/cuda/recurrent/recurrent_math.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// Element k of sample b.
struct Item {
  int64_t b, k;
};

__device__ inline void put(const RecurrentForward& r, int64_t t, Item i, float value) {
  if (r.y != nullptr) r.y[r.extent.y_row(t, i.b) * r.extent.hidden + i.k] = value;
}
// Value `which` of what the step leaves.
__device__ inline void save(const RecurrentForward& r, int64_t t, Item i, int which, float value) {
  if (r.saved == nullptr) return;
  const RecurrentExtent& e = r.extent;
  r.saved[(e.saved_row(t, i.b) * e.saved() + which) * e.hidden + i.k] = value;
}

// f(x) for gate `gate`, and saves x if slopes need it.
__device__ inline float apply(const RecurrentForward& r, int64_t t, Item i, const GateFunction& f,
                              int64_t gate, float x) {
  const RecurrentExtent& e = r.extent;
  if (e.keeps_arguments) save(r, t, i, static_cast<int>(e.results() + gate), x);
  return gate_of(f, x);
}

__device__ inline float lstm(const RecurrentForward& r, int64_t t, Item at) {
  const RecurrentExtent& e = r.extent;
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

__device__ inline float gru(const RecurrentForward& r, int64_t t, Item at) {
  const RecurrentExtent& e = r.extent;
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

// z stays in gates for the rest.
__device__ inline void gru_reset(const RecurrentForward& r, int64_t t, Item at) {
  const RecurrentExtent& e = r.extent;
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

__device__ inline float gru_rest(const RecurrentForward& r, int64_t t, Item at) {
  const RecurrentExtent& e = r.extent;
  const int64_t n = e.hidden, k = at.k, s = at.b * n + k;
  const float* const x = r.gates + e.row(t, at.b) * 3 * n;
  const float c = apply(r, t, at, e.g, 2, x[2 * n + k] + r.recurrent[s]), z = x[k];
  save(r, t, at, 2, c);
  return (1.0f - z) * c + z * r.state[s];
}

__device__ inline float rnn(const RecurrentForward& r, int64_t t, Item at) {
  const RecurrentExtent& e = r.extent;
  const float h =
      apply(r, t, at, e.f, 0,
            r.gates[e.row(t, at.b) * e.hidden + at.k] + r.recurrent[at.b * e.hidden + at.k]);
  save(r, t, at, 0, h);
  return h;
}

// Samples that have ended keep their state and leave zeros.
__device__ inline bool ended(const RecurrentForward& r, int64_t t, Item i) {
  if (active(r.extent, t, i.b)) return false;
  put(r, t, i, 0.0f);
  for (int which = 0; which < r.extent.saved(); ++which) save(r, t, i, which, 0.0f);
  return true;
}

OFSDP_CUDA_KERNEL step_kernel(RecurrentForward r, int64_t t, bool rest) {
  const RecurrentExtent& e = r.extent;
  OFSDP_CUDA_ITEM(at, e.batch * e.hidden);
  const Item i{at / e.hidden, at % e.hidden};
  if (ended(r, t, i)) {
    if (e.kind == CellKind::kGruResetFirst && !rest) r.reset[at] = 0.0f;  // a product reads it
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

OFSDP_CUDA_KERNEL bias_kernel(const float* b, int64_t width, int64_t both, float* bias) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < width) bias[i] = i < both ? b[i] + b[width + i] : b[i];
}

}  // namespace

cudaError_t recurrent_step(const RecurrentForward& r, int64_t t, bool rest, cudaStream_t stream) {
  return over(r.extent.batch * r.extent.hidden, stream, step_kernel, r, t, rest);
}

cudaError_t recurrent_bias(const float* b, int64_t width, int64_t both, float* bias,
                           cudaStream_t stream) {
  return over(width, stream, bias_kernel, b, width, both, bias);
}

}  // namespace ofsdp::kernels::cuda
