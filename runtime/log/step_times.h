// StepTimes: the median wall time of a step, in constant memory and without allocating in the loop.
//
// The first three steps (page faults, cold caches) are left out when there are more than six. Up to
// `most_kept` times (an even number) the median is exact; beyond that every second one is kept,
// then every fourth, ...
//
// Takes milliseconds. Ownership: owns its buffer, allocated at construction. Threads: one. Errors:
// none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ofsdp::runtime {

class StepTimes {
 public:
  static constexpr size_t kMostKept = 65536;

  explicit StepTimes(size_t most_kept = kMostKept) : most_kept_(most_kept) {
    kept_.reserve(most_kept);
  }

  void add(double step_ms);
  int64_t count() const { return count_; }
  double median() const;  // NaN when there was no step

 private:
  static constexpr int64_t kWarmup = 3;

  size_t most_kept_;
  double first_[kWarmup] = {};
  std::vector<float> kept_;
  int64_t stride_ = 1;
  int64_t count_ = 0;
};

}  // namespace ofsdp::runtime
