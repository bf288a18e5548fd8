// UnitNorms: how large the gradient and the weights of each unit are, and NormHistory, those of the
// latest watched updates: what --watch keeps.
//
// [Note: norms that grow] A norm has grown in an update if it is more than kGrowth times the median
// of the (at most kNormsBefore) watched updates before that one, or infinite or NaN. It grows from
// the first of the last unbroken row of such updates, which ends with the last one watched. A slow
// rise is found late, a jump to a new level only for as long as the median takes to follow.
//
// Ownership: NormHistory borrows its memory. Threads: one. No allocation in `add`. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ofsdp::runtime {

struct UnitNorms {
  float grad_norm = 0, grad_max = 0;      // before clipping, unscaled; the largest absolute value
  float weight_norm = 0, weight_max = 0;  // before the update
};

struct NormKind {
  const char* key;  // in rows of the metrics
  float UnitNorms::*norm;
};
inline constexpr NormKind kNormKinds[] = {{"grad_norm", &UnitNorms::grad_norm},
                                          {"grad_max", &UnitNorms::grad_max},
                                          {"weight_norm", &UnitNorms::weight_norm},
                                          {"weight_max", &UnitNorms::weight_max}};

struct WatchedUnit {
  int unit = 0;
  std::string name;  // no other of the list has it
  UnitNorms norms = {};
};

// "watch/KIND/NAME", for logs that list their columns.
std::vector<std::string> watched_columns(std::span<const WatchedUnit> units);

class NormHistory {
 public:
  static constexpr size_t kKept = 64;  // updates
  static size_t bytes(size_t units) {
    return kKept * (sizeof(int64_t) + units * sizeof(UnitNorms));
  }

  // `memory`: bytes(units) of it, aligned for int64_t.
  NormHistory(size_t units, std::span<std::byte> memory);

  void add(int64_t step, std::span<const WatchedUnit> units);
  size_t size() const { return added_ < kKept ? added_ : kKept; }
  // The i-th that is kept, the oldest first.
  int64_t step(size_t i) const { return steps_[place(i)]; }
  const UnitNorms& norms(size_t i, size_t unit) const { return norms_[place(i) * units_ + unit]; }

 private:
  size_t place(size_t i) const { return (added_ - size() + i) % kKept; }

  size_t units_;
  size_t added_ = 0;
  std::span<int64_t> steps_;
  std::span<UnitNorms> norms_;
};

// A norm that grows: of the gradient or of the weights of a unit.
struct Growth {
  size_t unit = 0;  // in the list
  bool weights = false;
  int64_t step = 0;                       // from which on
  double before = 0, then = 0, last = 0;  // the median before that step; at it; of the last update
};

inline constexpr double kGrowth = 4;
inline constexpr size_t kNormsBefore = 16;

// The earliest first; equally early ones by how far they grew.
std::vector<Growth> growths(const NormHistory& history, size_t units);

// Says where norms began to grow, a line each, without the last newline; empty without a history.
std::string growth_text(const NormHistory& history, std::span<const WatchedUnit> units);

}  // namespace ofsdp::runtime
