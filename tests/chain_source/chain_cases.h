// The written chains: every sample case of ofsdp.Chain and ofsdp.ChainGrad in float32, float16 and
// bfloat16. Cases with several results come once more without the second.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/pointwise/chain.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {

struct ChainCase {
  std::string name;
  Problem problem;
  cuda::ChainProgram program;
  std::vector<bool> wanted;
};

std::vector<ChainCase> chain_cases();

// A chain as written source: `run` launches one of the two kernels on the emulator.
struct WrittenChain {
  const char* name;
  int (*run)(const cuda::ChainArguments& arguments, bool wide);
};

extern const std::vector<WrittenChain> kWrittenChains;

}  // namespace ofsdp::testing
