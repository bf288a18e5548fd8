// Watch: the norms of the units' gradients and weights in every update that is watched (--watch).
//
// Sums are taken where the gradient's norm is: of the blocks that a reduction passes on, while they
// are in the cache, and of the weights that the update changes next. A rank adds the elements that
// it alone represents; its numbers, four a unit, go into its part of a slot in shared memory, and
// the all-reduce of the schedule's step Watch gives all ranks the parts of all. Nothing that is
// trained depends on them.
//
// Ownership: borrows the memory of its history. Threads: the one that runs the schedule. No
// allocation after construction. Errors: none.
#pragma once

#include "fsdp/plan/plan.h"
#include "runtime/log/unit_norms.h"

namespace ofsdp::runtime {

// The units with trained parameters, by names of which none is twice.
std::vector<WatchedUnit> watched_units(const Plan& plan);

class Watch {
 public:
  static constexpr size_t kNumbers = 4;  // of a unit

  // `interval`: updates. `memory`: NormHistory::bytes of the watched units.
  Watch(const Plan& plan, int64_t interval, std::span<std::byte> memory);

  // Bytes of the slot: the numbers of all ranks.
  static size_t slot_bytes(const Plan& plan);

  void begin_update(int64_t step);
  bool due() const { return due_; }
  // Adds elements that this rank alone represents, whose squares sum up to `squares`, and the
  // weights of the same elements.
  void add(int unit, std::span<const float> gradient, double squares, const float* weights);
  // Writes this rank's numbers into its part of `slot`, and 0 elsewhere. Gradients are `scale`
  // times what they should be.
  void write(std::span<float> slot, int rank, double scale) const;
  // Takes those of all ranks for the present update.
  void take(std::span<const float> slot);

  // The norms are those of the last update that was watched.
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
  std::vector<size_t> place_;  // per unit of the plan: in the list
  std::vector<Sums> sums_;     // of this rank, per unit of the list
  NormHistory history_;
};

// Says where norms began to grow; empty without a watch.
std::string growth_text(const Watch* watch);

}  // namespace ofsdp::runtime
