// RandomNormal, RandomUniform, Bernoulli and Multinomial: the draws of the CPU (kernels/ops/random/random_draw.h), a pure function of
// seed, step, node, global sample index and element.
//
// y of numel elements, of float32, float16, bfloat16, float64, int32, int64 or bool; in double, rounded once. The numbers of the
// step and the samples' indices lie in device memory. The last bits of logarithms and cosines are the device's.
#pragma once

#include "kernels/cuda/random/dropout.h"

namespace ofsdp::kernels::cuda {

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
  // Bernoulli: a probability each; Multinomial: [.., classes], `draws` of each row; float32, float16, bfloat16, float64.
  DType from = DType::kFloat32;
  const void* x = nullptr;
  int64_t classes = 0, draws = 1;
};
uint64_t seeded(uint64_t node_seed, float seed);
bool has_random(DType dtype);  // of y
cudaError_t draw_random(const RandomCall& c, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
