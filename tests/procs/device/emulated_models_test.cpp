// Every kind of exported model in tests/oracle/cases trains with the CUDA kernels on the emulated
// device: each node has a kernel, in forward and backward, and losses are the CPU's within 5e-5.
#include <filesystem>

#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace emulated_models_test {

const std::string kCases = OFSDP_SOURCE_DIR "/tests/oracle/cases/";

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kCases)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// The last file by name among several exporters': the "legacy" one.
std::string graph_of(const std::string& kind) {
  std::string last;
  for (const auto& entry : std::filesystem::directory_iterator(kCases + kind)) {
    const std::string path = entry.path().string();
    if (path.ends_with(".onnx")) last = std::max(last, path);
  }
  return last;
}

class EmulatedModels : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Kinds, EmulatedModels, testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param; });

// Plain SGD: Adam's steps would show the signs of gradients that are almost 0.
void expect_the_losses_of_the_cpu(const std::string& kind, const Words& more, double allowed) {
  const Words command = fsdp_run({graph_of(kind), "--loss", "cross_entropy", "--optimizer", "sgd",
                                  "--lr", "0.05", "--eval-data", "none", "--batch-size", "2",
                                  "--steps", "3", "--no-shuffle", "--nproc-per-node", "1"}) +
                        more;
  const Trained cpu = on_cpu(command), device = run_on_device(OFSDP_EMULATED_DEVICE, command);
  ASSERT_EQ(cpu.run.status, 0) << cpu.run.err;
  ASSERT_EQ(device.run.status, 0) << device.run.err;
  EXPECT_EQ(device.violations, std::vector<std::string>{});
  ASSERT_EQ(cpu.rows.size(), device.rows.size());
  int losses = 0;
  for (size_t i = 0; i < cpu.rows.size(); ++i) {
    if (!cpu.rows[i].contains("loss")) continue;
    const double expected = cpu.rows[i]["loss"], found = device.rows[i]["loss"];
    EXPECT_NEAR(found, expected, allowed * std::max(1.0, std::abs(expected))) << i;
    ++losses;
  }
  EXPECT_EQ(losses, 3);
}

TEST_P(EmulatedModels, GiveTheLossesOfTheCpu) {
  expect_the_losses_of_the_cpu(GetParam(), {}, 5e-5);
}

// Sums in another order round to other neighbours.
TEST_P(EmulatedModels, GiveTheLossesOfTheCpuInBfloat16) {
  expect_the_losses_of_the_cpu(GetParam(), {"--param-dtype", "bfloat16"}, 1e-2);
}

}  // namespace emulated_models_test
}  // namespace ofsdp
