// RandomNormal, RandomUniform, Bernoulli and Multinomial: the draws of the CPU
// (kernels/ops/random/random_draws.cpp), a pure function of seed, step, node, global sample index
// and element.
//
// y of numel elements, of float32, float16, bfloat16, float64, int32, int64 or bool; in double,
// rounded once. The numbers of the step and the samples' indices lie in device memory. The last
// bits of logarithms and cosines are the device's.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct RandomInput {
  uint64_t seed = 0;
  int64_t step = 0;  // updates, from 0
};

enum class RandomKind { kNormal, kUniform, kBernoulli, kMultinomial };

struct RandomCall {
  RandomKind kind = RandomKind::kNormal;
  uint64_t node_seed = 0;         // with the attribute seed in it
  double a = 0, b = 1;            // mean and scale; low and high
  DType dtype = DType::kFloat32;  // of y
  void* y = nullptr;
  int64_t numel = 0, sample_size = 1;     // elements of a sample
  const RandomInput* random = nullptr;    // device memory
  const int64_t* sample_index = nullptr;  // device memory; null: 0
  // Bernoulli: a probability each; Multinomial: [.., classes], `draws` of each row; float32,
  // float16, bfloat16, float64.
  DType from = DType::kFloat32;
  const void* x = nullptr;
  int64_t classes = 0, draws = 1;
};
uint64_t seeded(uint64_t node_seed, float seed);
bool has_random(DType dtype);  // of y
cudaError_t draw_random(const RandomCall& c, cudaStream_t stream);

// Dropout: drops the very elements that the CPU drops ([Note: what dropout draws] in
// kernels/core/philox.h).
//
// x, y: [samples, elements] of `dtype` (float32, float16, bfloat16); mask: a bool each (true:
// kept), null where not wanted. The numbers of the step lie in device memory, so that a captured
// graph sees those of its step. y may be x. The gradient is dropout_grad of the mask, or, without a
// mask, `dropout` of dy with the same numbers, which draws the same again and saves a byte an
// element both ways. Memory: x, y and mask once.
struct DropoutCall {
  DType dtype = DType::kFloat32;
  // As the operator cuts them: one sample where samples do not divide the elements.
  int64_t samples = 1, elements = 0;
  double ratio = 0.5;
  uint64_t node_seed = 0;
  const RandomInput* random = nullptr;    // device memory
  const int64_t* sample_index = nullptr;  // device memory, global index of each sample; null: 0
  const void* x = nullptr;
  void* y = nullptr;
  bool* mask = nullptr;
};
cudaError_t dropout(const DropoutCall& c, cudaStream_t stream);

cudaError_t dropout_grad(DType dtype, const void* dy, const bool* mask, void* dx, int64_t numel,
                         double ratio, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
