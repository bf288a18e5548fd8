// Rows of attention scores: softcap, mask, softmax and its gradient, for kernels/cpu/attention.cpp.
// float is vectorised, bfloat16 is read as float and rounded. Views; any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels::attention {

void cap_row(float* s, int64_t n, float cap);  // s = cap tanh(s / cap)
void cap_row(double* s, int64_t n, double cap);

// s = -infinity where the mask is false; s += mask, and -infinity wherever the mask is.
template <typename T, typename M>
void mask_row(T* s, const M* mask, int64_t step, int64_t n);

// s = e^(s - max); gives their sum. All -infinity: zeros, and 0.
float exp_row(float* s, int64_t n);
double exp_row(double* s, int64_t n);

void scale_row(const float* s, float factor, float* dst, int64_t n);
void scale_row(const float* s, float factor, BFloat16* dst, int64_t n);
void scale_row(const double* s, double factor, double* dst, int64_t n);

template <typename T>
void put_row(const T* s, T* dst, int64_t n) {
  std::copy_n(s, n, dst);
}
inline void put_row(const float* s, BFloat16* dst, int64_t n) { scale_row(s, 1.0f, dst, n); }

// dp = p (dp - sum(p dp))
template <typename T>
void softmax_grad_row(const T* p, T* dp, int64_t n);

// ds *= 1 - (capped / cap)^2
template <typename T>
void cap_grad_row(T* ds, const T* capped, T cap, int64_t n);

}  // namespace ofsdp::kernels::attention
