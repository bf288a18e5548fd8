// A plug-in's functions for CUDA in a run on a GPU of this host: plugins/examples/cuda_scaled_tanh
// against the plug-in's CPU kernels, captured, launched and once more. Skipped without a GPU.
#include <filesystem>

#include "kernels/core/device.h"
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

TEST(PluginOnAGpu, GivesTheLossesOfTheCpuAndTheSameTwice) {
  if (!count_devices().ok()) GTEST_SKIP() << count_devices().error().message();
  const std::string library = OFSDP_EXAMPLE_PLUGINS "/libcuda_scaled_tanh.so";
  if (!std::filesystem::exists(library)) GTEST_SKIP() << "built without nvcc: cuda_scaled_tanh";
  const Words command = fsdp_run({fixture("plugins/scaled_tanh/model.onnx"), "--plugin", library,
                                  "--loss", "cross_entropy", "--batch-size", "12", "--steps", "12",
                                  "--eval-data", "none", "--nproc-per-node", "1"});
  const Words on_gpu{"--device", "cuda"};
  const Trained captured = train(command, on_gpu, {}), again = train(command, on_gpu, {});
  expect_near_losses(on_cpu(command), captured, 5e-5);
  expect_same_bits(captured, again);
  expect_same_bits(captured, train(command, on_gpu + Words{"--cuda-graph", "off"}, {}));
}

}  // namespace
}  // namespace ofsdp
