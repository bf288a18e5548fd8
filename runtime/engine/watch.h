// Watch (--watch): the norms of each unit's gradient and weights, in every watched update. Training
// does not depend on them.
//
// Each rank sums over the elements that only it counts: the engine calls `add` for each block that
// a reduction has summed, while gradient and weights are in the cache and before the update. Then
// `write` puts the rank's sums, four floats per unit, into the rank's part of a slot in shared
// memory; an all-reduce (the schedule's Watch step) gives all parts to all ranks; and `take`
// computes the norms from them.
//
// The memory of the history is borrowed. Nothing allocates after construction or returns an error.
#pragma once

#include "fsdp/plan/plan.h"
#include "runtime/log/unit_norms.h"

namespace ofsdp::runtime {

// Returns the units with trained parameters, under unique names.
std::vector<WatchedUnit> watched_units(const Plan& plan);

class Watch {
 public:
  static constexpr size_t kNumbers = 4;  // floats per unit and rank

  // Watches every `interval` updates. `memory`: NormHistory::bytes for the watched units.
  Watch(const Plan& plan, int64_t interval, std::span<std::byte> memory);

  // Returns the bytes of the slot, which holds the numbers of all ranks.
  static size_t slot_bytes(const Plan& plan);

  void begin_update(int64_t step);
  bool due() const { return due_; }  // the present update is watched
  // Adds elements that only this rank counts. `squares`: the sum of the gradient's squares.
  void add(int unit, std::span<const float> gradient, double squares, const float* weights);
  // Writes this rank's numbers into the rank's part of `slot`, and 0 elsewhere. `scale`: the loss
  // scale, by which gradients are divided.
  void write(std::span<float> slot, int rank, double scale) const;
  // Adds the present update to the history. `slot`: after the all-reduce.
  void take(std::span<const float> slot);

  // The norms in units() are those of the last watched update.
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
  std::vector<size_t> place_;  // per unit of the plan: the index in units_
  std::vector<Sums> sums_;     // this rank's, in the order of units_
  NormHistory history_;
};

// Returns a text about the units whose norms began to grow, for a NaN's error; empty if `watch` is
// null.
std::string growth_text(const Watch* watch);

}  // namespace ofsdp::runtime
