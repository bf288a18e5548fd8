// How many rows of predictions have their first largest element at the label, and how many rows count: the numbers behind
// an accuracy (ofsdp.ArgmaxMatches).
//
// prediction: float32 [rows, classes]; labels: int64 [rows]; result: int64[2]. A row whose label is the ignore_index does
// not count; one with a NaN matches nothing. A warp a row, then one block adds. Memory: prediction once.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct MatchCount {
  int64_t rows = 0, classes = 0;
  bool ignores = false;
  int64_t ignore_index = 0;
};

size_t match_scratch(const MatchCount& m);
cudaError_t count_matches(const MatchCount& m, const float* prediction, const int64_t* labels,
                          int64_t* result, void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
