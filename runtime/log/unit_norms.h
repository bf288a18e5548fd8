// Each unit's gradient and weight norms, for --watch; NormHistory keeps them for the latest watched
// updates.
//
// [Note: norms that grow] A norm has grown in an update if it is infinite, NaN, or more than
// kGrowth times the median over the (at most kNormsBefore) watched updates before. It grows from
// the first update of the last unbroken row of such updates, if that row ends with the last watched
// one. A slow rise is found late; a jump to a new level is reported only until the median follows.
//
// NormHistory borrows its memory; `add` does not allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ofsdp::runtime {

struct UnitNorms {
  float grad_norm = 0, grad_max = 0;  // before clipping, unscaled; max: the largest absolute value
  float weight_norm = 0, weight_max = 0;  // before the update
};

struct NormKind {
  const char* key;  // in metrics rows
  float UnitNorms::*norm;
};
inline constexpr NormKind kNormKinds[] = {{"grad_norm", &UnitNorms::grad_norm},
                                          {"grad_max", &UnitNorms::grad_max},
                                          {"weight_norm", &UnitNorms::weight_norm},
                                          {"weight_max", &UnitNorms::weight_max}};

struct WatchedUnit {
  int unit = 0;
  std::string name;  // unique in the list
  UnitNorms norms = {};
};

// Returns "watch/KIND/NAME" for each column, for logs with a header.
std::vector<std::string> watched_columns(std::span<const WatchedUnit> units);

class NormHistory {
 public:
  static constexpr size_t kKept = 64;  // updates
  static size_t bytes(size_t units) {
    return kKept * (sizeof(int64_t) + units * sizeof(UnitNorms));
  }

  // `memory` must have bytes(units) bytes, aligned for int64_t.
  NormHistory(size_t units, std::span<std::byte> memory);

  void add(int64_t step, std::span<const WatchedUnit> units);
  size_t size() const { return added_ < kKept ? added_ : kKept; }
  // Returns the i-th kept step, the oldest first.
  int64_t step(size_t i) const { return steps_[place(i)]; }
  const UnitNorms& norms(size_t i, size_t unit) const { return norms_[place(i) * units_ + unit]; }

 private:
  size_t place(size_t i) const { return (added_ - size() + i) % kKept; }

  size_t units_;
  size_t added_ = 0;
  std::span<int64_t> steps_;
  std::span<UnitNorms> norms_;
};

// A unit's growing gradient norm or weight norm.
struct Growth {
  size_t unit = 0;  // index in the list
  bool weights = false;
  int64_t step = 0;  // the first step that has grown
  // the median before that step; the norm at it; the last update's norm
  double before = 0, then = 0, last = 0;
};

inline constexpr double kGrowth = 4;
inline constexpr size_t kNormsBefore = 16;

// Sorted by step, then by growth.
std::vector<Growth> growths(const NormHistory& history, size_t units);

// Returns a line for each norm that grows, without the last newline; empty if there is no history.
std::string growth_text(const NormHistory& history, std::span<const WatchedUnit> units);

}  // namespace ofsdp::runtime
