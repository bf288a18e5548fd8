// The CUDA library's host code without a GPU: the real program trains through cuda_device.cpp,
// captured graphs and cuBLASLt's calls, over a runtime that checks CUDA's rules (tests/fake_cuda).
// No rule may be broken, and losses are the CPU's within 5e-5. More models: long.checked_cuda.
#include "tests/support/checked_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace checked_cuda_test {

Words gpt(const char* steps) {
  return fsdp_run({fixture("gpt2_tiny/model.onnx"), "--loss", "cross_entropy", "--data",
                   "synthetic", "--eval-data", "none", "--batch-size", "2", "--steps", steps}) +
         ranks(1);
}

TEST(CheckedCuda, TrainsEvaluatesAndSaves) {
  const testing_data::TempFolder folder;
  expect_rules_kept(small_mlp(1) + Words{"--clip-grad-norm", "0.1"},
                    {"--checkpoint-dir", folder.path(), "--checkpoint-interval", "4step"});
}

TEST(CheckedCuda, TrainsWithOffloads) {
  for (const char* what : {"params", "optimizer"}) {
    SCOPED_TRACE(what);
    expect_rules_kept(small_mlp(1) + Words{"--grad-accum", "2"}, {"--cpu-offload", what});
  }
  expect_rules_kept(gpt("5"), {"--cpu-offload", "params"});
}

// The fastest algorithm is found on separate streams and memory.
TEST(CheckedCuda, TimesAlgorithms) {
  expect_rules_kept(small_mlp(1) + Words{"--steps", "6"}, {"--deterministic", "off"});
}

// In any order that streams and events allow.
TEST(CheckedCuda, GivesTheSameBitsInAnotherOrderAndWithoutGraphs) {
  const Words command = small_mlp(1) + Words{"--param-dtype", "bfloat16", "--steps", "7"};
  for (const Words& offload : {Words{}, Words{"--cpu-offload", "optimizer"}}) {
    const Trained first = on_checked_cuda(command, offload);
    const Trained again = on_checked_cuda(command, offload + Words{"--cuda-graph", "off"}, 2);
    expect_same_bits(first, again);
    expect_same_bits(first, on_checked_cuda(command, offload, 3));
  }
}

TEST(CheckedCuda, GoesOnFromWhatItSaved) {
  const testing_data::TempFolder folder;
  const Words where{"--checkpoint-dir", folder.path(), "--checkpoint-interval", "4step"};
  const Trained whole = on_checked_cuda(small_mlp(1) + Words{"--steps", "11"});
  expect_both_ran(whole, on_checked_cuda(small_mlp(1) + where + Words{"--steps", "6"}));
  const Trained rest =
      on_checked_cuda(small_mlp(1) + where + Words{"--steps", "11", "--resume", "latest"});
  expect_both_ran(whole, rest);
  EXPECT_TRUE(whole.file == rest.file) << "the trained files differ";
}

}  // namespace checked_cuda_test
}  // namespace ofsdp
