// RandomNormal, RandomUniform, Bernoulli and Multinomial, with the CPU's draws
// (kernels/ops/random/random_draws.cpp): a pure function of seed, step, node, global sample index
// and element.
//
// y has `numel` elements: float32, float16, bfloat16, float64, int32, int64 or bool, computed in
// double and rounded once. Seed, step and sample indices are in device memory, so a captured graph
// reads new ones each step. log and cos may differ from the CPU's in the last bits.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct RandomInput {
  uint64_t seed = 0;
  int64_t step = 0;  // optimizer steps, from 0
};

enum class RandomKind { kNormal, kUniform, kBernoulli, kMultinomial };

struct RandomCall {
  RandomKind kind = RandomKind::kNormal;
  uint64_t node_seed = 0;         // includes the attribute seed
  double a = 0, b = 1;            // normal: mean, scale; uniform: low, high
  DType dtype = DType::kFloat32;  // y's dtype
  void* y = nullptr;
  int64_t numel = 0, sample_size = 1;     // elements per sample
  const RandomInput* random = nullptr;    // device memory
  const int64_t* sample_index = nullptr;  // device memory; nullptr: 0
  // float32, float16, bfloat16 or float64. Bernoulli: a probability per element; Multinomial:
  // [rows, classes], with `draws` results per row.
  DType from = DType::kFloat32;
  const void* x = nullptr;
  int64_t classes = 0, draws = 1;
};
uint64_t seeded(uint64_t node_seed, float seed);
bool has_random(DType dtype);  // y's dtype
cudaError_t draw_random(const RandomCall& c, cudaStream_t stream);

// Dropout, dropping the same elements as the CPU ([Note: what dropout draws] in
// kernels/core/philox.h).
//
// x and y are [samples, elements] of float32, float16 or bfloat16; mask has a bool per element
// (true: kept) and may be nullptr. y may alias x. Seed, step and sample indices are in device
// memory. The gradient is dropout_grad if the mask was stored; else it is `dropout` on dy with the
// same seeds, which repeats the draws and saves a byte per element.
struct DropoutCall {
  DType dtype = DType::kFloat32;
  // One sample if the batch does not divide the elements, as in the operator.
  int64_t samples = 1, elements = 0;
  double ratio = 0.5;
  uint64_t node_seed = 0;
  const RandomInput* random = nullptr;  // device memory
  const int64_t* sample_index =
      nullptr;  // device memory, the global index of each sample; nullptr: 0
  const void* x = nullptr;
  void* y = nullptr;
  bool* mask = nullptr;
};
cudaError_t dropout(const DropoutCall& c, cudaStream_t stream);

cudaError_t dropout_grad(DType dtype, const void* dy, const bool* mask, void* dx, int64_t numel,
                         double ratio, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
