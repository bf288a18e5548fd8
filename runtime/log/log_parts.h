// StepTimes: the median wall time of a step in milliseconds, in constant memory and without
// allocating in the loop.
//
// If there are more than six steps, the first three (page faults, cold caches) are left out. Up to
// `most_kept` times, an even number, the median is exact; beyond that every second time is kept,
// then every fourth, ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::runtime {

class StepTimes {
 public:
  static constexpr size_t kMaxKept = 65536;

  explicit StepTimes(size_t most_kept = kMaxKept) : most_kept_(most_kept) {
    kept_.reserve(most_kept);
  }

  void add(double step_ms);
  int64_t count() const { return count_; }
  double median() const;  // NaN if there was no step

 private:
  static constexpr int64_t kWarmup = 3;

  size_t most_kept_;
  double first_[kWarmup] = {};
  std::vector<float> kept_;
  int64_t stride_ = 1;
  int64_t count_ = 0;
};

// Checks and creates the files into which a run writes rows while it trains: --metrics and --trace.
// Like --output they must be new or regular files. Since they are written in place, a link, a
// device, a pipe or a folder is refused before anything is opened; run_files.h refuses files that
// the run reads. Errors: kInput with the flag, the path and the kind found.

Status check_log_target(const char* flag, const std::string& path);

// Creates the empty file `part` next to `path`; follows no link.
Status make_log_part(const char* flag, const std::string& path, const std::string& part);

}  // namespace ofsdp::runtime
