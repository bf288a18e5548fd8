// What the recurrent kernels ask of their operands; see recurrent_kernel.h for their places.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include "kernels/ops/recurrent/recurrent_kernel.h"

namespace ofsdp::kernels::ops {

inline bool given(const KernelArgs& a, size_t i) {
  return i < a.inputs.size() && a.inputs[i].data != nullptr && a.inputs[i].desc.present();
}

// Whether sample b has a step at time t, which may be outside of all times.
inline bool is_active(const RecurrentShape& s, const KernelArgs& a, int64_t t, int64_t b) {
  return t >= 0 && t < s.steps && (!given(a, kLens) || t < a.in<int32_t>(kLens)[b]);
}

// Of the gradient: LSTM's C of the step before.
template <typename T>
const T* cell_before(const RecurrentShape& s, const KernelArgs& a, int64_t d, int64_t t, int64_t b,
                     const T* zeros) {
  const int64_t before = s.time_before(d, t);
  if (is_active(s, a, before, b)) {
    return a.in<T>(kSaved) + s.saved_at(before, d, b) + 4 * s.hidden;
  }
  return given(a, kInitialC) ? a.in<T>(kInitialC) + s.state_at(d, b) : zeros;
}

inline bool is_wanted(const Problem& p, RecurrentGradient output) {
  return p.has_out(output) && p.out(output).numel() > 0;
}

}  // namespace ofsdp::kernels::ops
