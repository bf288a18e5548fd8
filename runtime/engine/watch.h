// Watch: norms of each unit's gradient and weights, in every watched update (--watch).
//
// It sums where the gradient norm is summed: over blocks that a reduction passes on while they are
// in the cache, and over the weights that the update changes next. A rank adds its unique elements.
// It writes four numbers a unit into its part of a slot in shared memory; the all-reduce in the
// step Watch gives all parts to all ranks. Training does not depend on them.
//
// Borrows the memory of the history. Allocates nothing after construction.
#pragma once

#include "fsdp/plan/plan.h"
#include "runtime/log/unit_norms.h"

namespace ofsdp::runtime {

// Returns the units with trained parameters, under unique names.
std::vector<WatchedUnit> watched_units(const Plan& plan);

class Watch {
 public:
  static constexpr size_t kNumbers = 4;  // per unit

  // Watches every `interval` updates. `memory`: NormHistory::bytes for the watched units.
  Watch(const Plan& plan, int64_t interval, std::span<std::byte> memory);

  // Returns the bytes of the slot, which has the numbers of all ranks.
  static size_t slot_bytes(const Plan& plan);

  void begin_update(int64_t step);
  bool due() const { return due_; }
  // Adds unique elements of this rank: gradients, the sum of their squares, and weights.
  void add(int unit, std::span<const float> gradient, double squares, const float* weights);
  // Writes this rank's numbers into its part of `slot`, and 0 elsewhere. Divides gradients by
  // `scale`.
  void write(std::span<float> slot, int rank, double scale) const;
  // Takes the numbers of all ranks for the present update.
  void take(std::span<const float> slot);

  // Norms are from the last watched update.
  std::span<const WatchedUnit> units() const { return units_; }
  const NormHistory& history() const { return history_; }

 private:
  struct Sums {
    double grad_squares = 0, weight_squares = 0;
    float grad_max = 0, weight_max = 0;
  };

  int64_t interval_;
  int64_t step_ = 0;
  bool due_ = false;
  std::vector<WatchedUnit> units_;
  std::vector<size_t> place_;  // per unit of the plan: its index in units_
  std::vector<Sums> sums_;     // this rank's, in the order of units_
  NormHistory history_;
};

// Says where norms began to grow. Returns an empty text without a watch.
std::string growth_text(const Watch* watch);

}  // namespace ofsdp::runtime
