// A CUDA runtime in host memory that checks CUDA's rules. Tests, and the libraries that replace
// NVIDIA's, link it in place of cudart (tests/emulator/cuda_runtime_api.h has the calls).
//
// Work is queued on streams and runs as late as allowed: when the host waits or asks, in a drawn
// order that streams and events allow. A graph's nodes run in a drawn order that the edges allow,
// so a missing edge gives other bits. Only running work can touch memory of the device, and no
// address is given twice.
//
// A broken rule is one line, "cuda rule: RULE; CALL: OPERAND", on standard error and in
// take_broken_rules(). The call returns CUDA's error if CUDA notices. For fsdp-run,
// COUNTING_DEVICE_SEED is the seed of the draws; COUNTING_DEVICE_REPORT is a file for the count of
// each call, the broken rules, and the objects that live at the end.
//
// Ownership: the caller destroys handles. Threads: any; one call at a time. Errors: see above.
// Touching memory of the device beyond an allocation ends the process with the line.
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
void note_what_is_left();                // live objects, as broken rules
long count_of(const std::string& call);  // since the process began
void refuse_next(const std::string& call, cudaError_t error);
void draw_from(uint64_t seed);

}  // namespace fake_cuda
