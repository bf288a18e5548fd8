// Sampler: which samples a rank puts into which micro-batch of which update. Pure arithmetic.
//
// Each epoch is a permutation of all samples from (seed, epoch); update s of the epoch takes the
// next global_batch of them; position i of those goes to rank i mod ranks; the rank's share is cut
// into micro-batches of at most batch_size, one after the other. Every rank runs grad_accum
// micro-batches in every update, so that all take part in all collectives; in a short last batch
// some have fewer samples or none. Endless data (kEndless samples) are one epoch in order.
//
// With `slices`, a global batch is cut into that many parts whose samples do not depend on the
// number of ranks: slice j has positions j, j + slices, ..., and is micro-batch j / ranks of rank j
// % ranks.
//
// Updates count from 0 over the whole run. A resumed run starts at its `start`: the rest of that
// epoch is cut into this run's global batches, so that with another one each sample of the epoch is
// still used once. Evaluation is the same with the identity and grad_accum 1. Errors: kInput for no
// samples, or fewer than one global batch where short ones are dropped.
#pragma once

#include <span>
#include <vector>

#include "runtime/data/permutation.h"
#include "runtime/data/resume_point.h"
#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

struct SamplerOptions {
  int64_t samples = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;
  int64_t batch_size = 1;  // samples of a rank's micro-batch
  int64_t grad_accum = 1;
  int ranks = 1;
  int rank = 0;
  ResumePoint start = {};
  int64_t slices = 0;          // 0: the ranks' shares are cut
  int64_t sliced_samples = 0;  // of a global batch in slices

  int64_t global_batch() const {
    return slices > 0 ? sliced_samples : batch_size * grad_accum * ranks;
  }
};

class Sampler {
 public:
  static Result<Sampler> make(const SamplerOptions& options);
  // All samples once, in order, dealt the same way; `alone`: rank 0 takes all.
  static Result<Sampler> make_evaluation(int64_t samples, int64_t batch_size, int ranks, int rank,
                                         bool alone = false);

  const SamplerOptions& options() const { return options_; }
  int64_t updates_per_epoch() const { return updates_; }
  int64_t epoch_of(int64_t update) const { return position(update).epoch; }
  int64_t updates_until(int64_t epoch) const;  // the first update of it, not before the start
  // Whether `update` updates end an epoch whose number, from 1, is a multiple of `count`.
  bool ends_epochs(int64_t update, int64_t count) const;
  // The point where an update begins: its epoch and how many samples of that have been used.
  ResumePoint position(int64_t update) const;
  int64_t global_size(int64_t update) const;  // samples of the update, all ranks together
  int64_t micro_size(int64_t update, int64_t micro) const;
  bool alike(int64_t update, int64_t micro) const;  // every rank's has as many samples

  // Writes the sample numbers of the micro-batch into `samples` (at least batch_size of them) and
  // gives how many there are.
  int64_t micro_batch(int64_t update, int64_t micro, std::span<int64_t> samples) const;

  // Every size that this rank's (or any rank's) micro-batches can have, largest first.
  std::vector<int64_t> micro_batch_sizes() const;
  std::vector<int64_t> micro_batch_sizes_of_all_ranks() const;

 private:
  explicit Sampler(const SamplerOptions& options);
  int64_t dealt(int64_t update, int64_t part, int64_t parts) const;
  int64_t micro_size(int64_t update, int64_t micro, int rank) const;
  void add_sizes(int rank, std::vector<int64_t>& sizes) const;

  SamplerOptions options_;
  int64_t updates_ = 1;  // an epoch
  int64_t first_ = 1;    // what is left of the one the run starts in
};

}  // namespace ofsdp::runtime
