// A CUDA runtime in host memory that checks CUDA's rules: tests and the libraries that stand for
// NVIDIA's link it in the place of cudart (tests/emulator/cuda_runtime_api.h has the calls).
//
// Work is queued on streams and runs as late as it may: when the host waits or asks, in a drawn
// order of what streams and events leave open. A graph's nodes run in a drawn order of what its
// edges leave open, so a missing edge gives other bits. Memory of the device can be touched by
// running work alone, and never has an address twice.
//
// A broken rule is one line, "cuda rule: RULE; CALL: OPERAND", on standard error and in
// take_broken_rules(); the call returns what CUDA says where CUDA notices. As a device of
// fsdp-run it is told by COUNTING_DEVICE_SEED what to draw, and writes to COUNTING_DEVICE_REPORT
// how often each call was made, broken rules, and what lives at the end.
//
// Ownership: handles are the caller's to destroy. Threads: any; one call at a time. Errors: see
// above. Touching memory of the device beyond an allocation ends the process with the line.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/emulator/cuda_runtime_api.h"
#include "tests/emulator/launch_parameter.h"

namespace fake_cuda {

// --- for libraries that put work on streams ---
struct Operand {
  const char* name;
  const void* data;
  size_t bytes;
};
// Work that reads and writes these operands.
cudaError_t enqueue(const std::string& call, cudaStream_t stream,
                    const std::vector<Operand>& operands, std::function<void()> work);

struct Launch {
  const cudaLaunchConfig_t& config;
  std::string kernel;
  int most_threads;
  std::vector<LaunchParameter> parameters;
};
cudaError_t launch(const Launch& launch, std::function<void()> work);

void say_broken(const std::string& rule, const std::string& call, const std::string& operand);

// --- for tests ---
std::vector<std::string> take_broken_rules();
void note_what_is_left();                // what was made and lives, as broken rules
long count_of(const std::string& call);  // since the process began
void refuse_next(const std::string& call, cudaError_t error);
void draw_from(uint64_t seed);

}  // namespace fake_cuda
