// The CTC loss, its gradient and greedy decoding. kernels/ops/loss/ctc_loss.cpp has the formulas.
//
// scores, diff: float32 [rows, classes]; labels: int64 [samples, places]; losses are means over
// samples. A block a sample: threads share classes and states, steps follow each other. Sums are
// double, in a fixed order. A label that is no class, and labels that the steps cannot spell, are
// reported; such a sample counts as one without labels.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct CtcParams {
  int64_t samples = 0, places = 0, classes = 0, steps = 0, blank = 0, ignore = 0, space = -1;
  bool time_first = false;
  Fault fault = {};
};

size_t ctc_scratch(const CtcParams& s);
cudaError_t ctc_loss(const CtcParams& s, const float* scores, const int64_t* labels, float* loss,
                     void* scratch, cudaStream_t stream);
cudaError_t ctc_grad(const CtcParams& s, const float* diff_loss, const float* scores,
                     const int64_t* labels, float* diff, void* scratch, cudaStream_t stream);

// facts: float64 [samples, 4]. A thread a step finds its class, a thread a sample the distances.
size_t ctc_measure_scratch(const CtcParams& s);
cudaError_t ctc_measure(const CtcParams& s, const float* scores, const int64_t* labels,
                        double* facts, void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
