// Launchers of the contrastive loss and its gradient, but for their products of matrices;
// kernels/ops/loss/contrastive_loss.cpp has the formulas. All values are float32. Views; nothing is
// owned. Threads: any, one a stream. Errors: those of the launch (kernels/cuda/device/types.h).
//
// Scores [rows, ranks * block] are this rank's rows times those of all ranks, over the temperature:
// the columns of a rank are a block, of which as many are used as the rank has rows. A warp or a
// block takes a row, and sums in an order of its own; the mean of the losses is in double. Memory:
// the sums read the scores twice, the second time from the cache; the weights read and write once.
#pragma once

#include "kernels/cuda/device/rows_of_ranks.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// u [rows, width]: rows of x divided by their norms. du and dx have the same shape.
cudaError_t unit_rows(int64_t rows, int64_t width, const float* x, float* u, cudaStream_t stream);
cudaError_t unit_rows_grad(int64_t rows, int64_t width, const float* du, const float* x, float* dx,
                           cudaStream_t stream);

struct Scores {
  int64_t rows = 0;
  int64_t block = 0;  // columns of a rank
  RowsOfRanks of;     // whose rows are the columns: the numbers alone are read
  int64_t row() const { return of.ranks * block; }
};

// sums[2 i + k] = ln sum_j e^scores[i, j].
cudaError_t contrastive_sums(const Scores& s, const float* scores, int k, float* sums,
                             cudaStream_t stream);

// The mean over rows of (sums[2 i] + sums[2 i + 1]) / 2 - a_i . b_i / T; `losses`: scratch of
// `rows`.
struct ContrastiveMean {
  int64_t rows = 0, width = 0;
  float inverse_temperature = 1;
  const float *a = nullptr, *b = nullptr, *sums = nullptr;
  float *losses = nullptr, *loss = nullptr;
};
cudaError_t contrastive_mean(const ContrastiveMean& m, cudaStream_t stream);

// terms [rows, 3]: sums, and diff_loss / rows.
cudaError_t contrastive_terms(int64_t rows, const float* diff_loss, const float* sums, float* terms,
                              cudaStream_t stream);

// In place of the scores what the other side's rows are weighed with, 0 in columns without a row.
// `own`: terms of this rank's rows, which are those of `rank`; s.of has those of all ranks.
// `own_sum`: which of them is the sum over this row.
cudaError_t contrastive_weights(const Scores& s, const float* own, int own_sum, int64_t rank,
                                float* scores, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
