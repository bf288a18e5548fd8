// Sampler decides which samples a rank puts into each micro-batch. Pure arithmetic.
//
// Each epoch permutes all samples by (seed, epoch), or has the order of a LengthOrder
// (row_lengths.h). Each update takes the next global_batch samples; sample i goes to rank i mod
// ranks; a rank cuts its share into micro-batches with at most batch_size samples. Every rank runs
// grad_accum micro-batches in every update, since all must take part in all collectives; if the
// last batch is short, some have fewer samples or none. Endless data (kEndless samples) are one
// epoch in order.
//
// With `parts`, ranks have micro-batches of different sizes. A micro-batch of all ranks then has
// parts[0] + parts[1] + ... slots, dealt so that its first n are in proportion too, for each n. An
// update takes one such micro-batch after the other; only the last can be short.
//
// With `slices`, a global batch is cut into slices that are the same on any number of ranks: slice
// j has the samples j, j + slices, ..., and is micro-batch j / ranks on rank j % ranks.
//
// Updates count from 0 over the whole run. A resumed run begins at `start`: the rest of that epoch
// is cut into this run's global batches, so each sample is still used once in the epoch if the
// batch size changed. Evaluation uses the same arithmetic without shuffling and with grad_accum 1.
// Errors are kInput if there are no samples, or fewer than one global batch while short batches are
// dropped.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/philox.h"
#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

// Counter-based random bits: a value depends only on key and counter, so any rank may make any
// value at any time. Uses SplitMix64 (Steele, Lea, Flood 2014), which passes BigCrush as a counter
// generator.

constexpr uint64_t mix_bits(uint64_t x) { return split_mix64(x); }

constexpr uint64_t mix_bits(uint64_t key, uint64_t counter) {
  return mix_bits(mix_bits(key) ^ counter);
}

constexpr uint64_t mix_bits(uint64_t key, std::string_view name) {
  for (char c : name) key = mix_bits(key, static_cast<unsigned char>(c));
  return key;
}

// The point at which the next update begins: after `update` updates, `sample` samples into `epoch`.
// All 0 without a checkpoint.
struct ResumePoint {
  int64_t update = 0;
  int64_t epoch = 0;
  int64_t sample = 0;
};

// Permutation: shuffles 0 .. size-1 and is computed, not stored: at(i) takes nanoseconds and no
// memory, also if a run resumes within an epoch.
//
// A balanced Feistel network over the next power of four, with keys from (seed, stream), applied
// until the value is below `size` (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite
// Domains", 2002).
//
// REQUIRES: 1 <= size < 2^62.
class Permutation {
 public:
  Permutation() = default;
  Permutation(int64_t size, uint64_t seed, uint64_t stream);
  int64_t at(int64_t index) const;

 private:
  static constexpr int kRounds = 12;

  uint64_t encrypt(uint64_t value) const;

  uint64_t size_ = 1;
  int half_bits_ = 2;
  std::array<uint64_t, kRounds> keys_{};
};

// The command line's options about the sample order.
struct OrderOptions {
  bool shuffle = true;
  uint64_t seed = 0;  // also of dropout and synthetic data
  bool drop_last = false;
  std::optional<int64_t> pack = {};  // entries of a row that documents share; none: a row each
  std::string bucket_by = {};        // a column: rows of like length follow each other; empty: none
};

class LengthOrder;

struct SamplerOptions : OrderOptions {
  int64_t samples = 0;
  int64_t batch_size = 1;  // in a rank's micro-batch, at most
  int64_t grad_accum = 1;
  int ranks = 1;
  int rank = 0;
  ResumePoint start = {};
  std::vector<int64_t> parts = {};                     // each rank's; empty: batch_size
  int64_t slices = 0;                                  // 0: no slices
  int64_t sliced_samples = 0;                          // in a global batch with slices
  std::shared_ptr<const LengthOrder> order = nullptr;  // --bucket-by

  int64_t global_batch() const {
    if (slices > 0) return sliced_samples;
    const int64_t of_ranks = parts.empty()
                                 ? batch_size * ranks
                                 : std::accumulate(parts.begin(), parts.end(), int64_t{0});
    return of_ranks * grad_accum;
  }
};

class Sampler {
 public:
  static Result<Sampler> make(const SamplerOptions& options);
  // All samples once, in order, dealt to the ranks in the same way; `alone`: rank 0 takes all.
  static Result<Sampler> make_evaluation(int64_t samples, int64_t batch_size, int ranks, int rank,
                                         bool alone = false, std::vector<int64_t> parts = {});

  const SamplerOptions& options() const { return options_; }
  int64_t updates_per_epoch() const { return updates_; }
  int64_t epoch_of(int64_t update) const { return position(update).epoch; }
  // the epoch's first update, at least `start`
  int64_t updates_until(int64_t epoch) const;
  // Returns true if an epoch ends after `update` updates and `count` divides its number, from 1.
  bool ends_epochs(int64_t update, int64_t count) const;
  // Returns the epoch in which `update` begins, and how many samples were used in it.
  ResumePoint position(int64_t update) const;
  int64_t global_size(int64_t update) const;  // in the update, on all ranks
  int64_t micro_size(int64_t update, int64_t micro) const;
  // Returns true if all ranks have equally many samples.
  bool alike(int64_t update, int64_t micro) const;
  int64_t most_in_epoch() const;  // at least a rank's samples in an epoch; the same on all ranks

  // Writes the micro-batch's sample numbers into `samples` (at least batch_size long) and returns
  // how many.
  int64_t micro_batch(int64_t update, int64_t micro, std::span<int64_t> samples) const;

  // Returns every size that micro-batches can have on this rank (or on any rank), largest first.
  std::vector<int64_t> micro_batch_sizes() const;
  std::vector<int64_t> micro_batch_sizes_of_all_ranks() const;

 private:
  explicit Sampler(const SamplerOptions& options);
  int64_t dealt(int64_t update, int64_t part, int64_t parts) const;
  int64_t slots_filled(int64_t update, int64_t micro) const;
  int64_t micro_size(int64_t update, int64_t micro, int rank) const;
  void add_sizes(int rank, std::vector<int64_t>& sizes) const;

  SamplerOptions options_;
  std::vector<int> dealt_to_;   // with `parts`: the rank of each slot
  std::vector<int64_t> slots_;  // this rank's
  int64_t updates_ = 1;         // in a full epoch
  int64_t first_ = 1;           // in the rest of the epoch in which the run starts
};

}  // namespace ofsdp::runtime
