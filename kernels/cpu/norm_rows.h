// Normalisation of rows, for LayerNormalization (centred) and RMSNormalization (not), in float,
// double, bfloat16 or float16; 16-bit floats are computed in float. The statistics are stored in
// float32.
//
//   forward   y = (x - mean) inv scale + bias; inv = 1 / sqrt(mean of (x - mean)^2 + epsilon);
//             without centring mean is 0
//   backward  g = dy scale, h = (x - mean) inv:
//             dx = inv (g - mean(g) - h mean(g h)), without mean(g) if not centred,
//             plus the gradient through the statistics: dmean / n - dinv inv^2 h / n;
//             dx, rounded to the type of x, plus addend: the bits of a node that adds it afterwards
//             dscale = sum over rows of dy h, dbias of dy
//
// One pass over memory each way: a row stays in cache between sums and results. dscale and
// dbias are summed in blocks of rows that depend on the shape only, so threads change no bits. The
// functions fan out over the pool. y may be x; dx may be dy, x or addend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

struct NormRows {
  int64_t rows = 0, width = 0;
  double epsilon = 1e-5;
  bool centred = true;
  int64_t scale_step = 0, bias_step = 0;  // from row to row: 0, or the width if they differ
};

template <typename T>
struct NormForward {
  const T* x;
  const T* scale;  // null: 1
  const T* bias;   // null: 0
  T* y;
  float* mean;  // null: not wanted
  float* inv;   // null: not wanted
};

template <typename T>
struct NormBackward {
  const T *dy, *x, *scale;
  const float *mean, *inv;    // mean null: not centred
  const float *dmean, *dinv;  // null: none
  const T* addend;            // null: none
  T *dx, *dscale, *dbias;     // dscale, dbias null: not wanted
  RealOf<T>* partial;         // norm_partial_count(rows) * 2 * width
};

int64_t norm_partial_count(const NormRows& n);  // blocks of rows

template <typename T>
void norm_rows(const NormRows& n, const NormForward<T>& f);
template <typename T>
void norm_rows_grad(const NormRows& n, const NormBackward<T>& b);

}  // namespace ofsdp::kernels
