// Training runs of the real program on the CUDA library's own host code, over a runtime that checks
// CUDA's rules (tests/fake_cuda); a broken rule is a violation in the run (device_runs.h).
//
// Errors: test failures.
#pragma once

#include "tests/support/device_runs.h"

namespace ofsdp {

inline Trained on_checked_cuda(const Words& command, const Words& more = {}, int seed = 1) {
  return train(
      command, Words{"--device", "cuda"} + more,
      {"OFSDP_CUDA_LIBRARY=" OFSDP_CHECKED_CUDA, "OFSDP_CUBLASLT_LIBRARY=" OFSDP_FAKE_CUBLASLT,
       "OFSDP_NCCL_LIBRARY=" OFSDP_FAKE_NCCL, "OFSDP_NVRTC_LIBRARY=none",
       "COUNTING_DEVICE_SEED=" + std::to_string(seed)});
}

// The losses equal the CPU's, every rule is kept, and captured steps are launched again.
inline void expect_rules_kept(const Words& command, const Words& more, double allowed = 5e-5) {
  Trained checked = on_checked_cuda(command, more);
  expect_near_losses(on_cpu(command), checked, allowed);
  EXPECT_GT(checked.counts["cudaGraphLaunch"], checked.counts["cudaGraphInstantiate"]);
  EXPECT_GT(checked.counts["cublasLtMatmul"], 0);
}

}  // namespace ofsdp
