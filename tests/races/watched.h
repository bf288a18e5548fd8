// Runs launches under the detector and prints its findings and the emulator's as lines.
//
// Owns the memory that launches take. One at a time. Threads: one.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/emulator/cuda_runtime.h"
#include "tests/races/code_names.h"
#include "tests/races/device_memory.h"

namespace ofsdp::races {

using Launching = std::function<cudaError_t(Buffers&)>;

class Watched {
 public:
  Watched();
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  std::vector<std::string> run(bool backwards, const Launching& launch);
  const std::set<const void*>& kernels() const { return detector_.kernels(); }  // launched so far

 private:
  DeviceMemory memory_;
  Detector detector_;
  CodeNames names_;  // of code in findings
};

}  // namespace ofsdp::races
