// The last part of the gradient of RNN, GRU and LSTM: those of X, W, R, B and P in one direction,
// from the gradients of the gates of all its steps; see [Note: recurrent kernels].
//
// Owns: its products. Threads: as Kernel. Errors: none. `scratch` has workspace_bytes().
#pragma once

#include "kernels/ops/recurrent/recurrent_kernel.h"
#include "kernels/ops/recurrent/recurrent_product.h"

namespace ofsdp::kernels::ops {

template <typename T>
struct RecurrentSteps {  // rows of all steps and samples, [T B, ...]
  const T* x;
  const T* gates;      // gradients of X W^T + b
  const T* recurrent;  // gradients of h R^T; of a GRU with the reset first only of z and r
  const T* last;       // there: that of n
  const T* reset;      // there: r h
  const T* before;     // h of the step before
  const T* zeros;      // [H]
};

template <typename T>
class RecurrentParameterGrad {
 public:
  RecurrentParameterGrad(const RecurrentShape& s, const Problem& p);

  size_t workspace_bytes() const;
  // The second direction adds to `diff_x`, which may be null; the rest goes to outputs of `a`.
  Status run(const KernelArgs& a, int64_t d, const RecurrentSteps<T>& steps, T* diff_x,
             std::byte* scratch);

 private:
  Status weights(const KernelArgs& a, int64_t d, const RecurrentSteps<T>& steps,
                 std::byte* scratch);
  void bias(const RecurrentSteps<T>& steps, T* db) const;
  void peepholes(const KernelArgs& a, int64_t d, const RecurrentSteps<T>& steps, T* dp) const;

  RecurrentShape s_;
  bool diff_w_, diff_r_, diff_b_, diff_p_;  // are wanted
  RecurrentProduct<T> to_x_, add_to_x_, to_w_, to_r_, to_r_n_;
};

}  // namespace ofsdp::kernels::ops
