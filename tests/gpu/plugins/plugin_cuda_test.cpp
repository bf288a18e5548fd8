// cuda_forward and cuda_backward of a plug-in against the plug-in's CPU kernels, on a stream.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plugins/loading/loader.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

constexpr int64_t kCount = 3 * 4099;

// Device memory with a copy of `values`.
class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, bytes()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceFloats() { cudaFree(data_); }
  DeviceFloats(const DeviceFloats&) = delete;
  void* data() const { return data_; }
  std::vector<float> values() const {
    std::vector<float> host(count_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  size_t bytes() const { return count_ * sizeof(float); }
  size_t count_;
  void* data_ = nullptr;
};

std::vector<float> numbers(float frequency) {
  std::vector<float> made;
  for (int64_t i = 0; i < kCount; ++i) {
    made.push_back(2 * std::sin(frequency * static_cast<float>(i)));
  }
  return made;
}

void expect_close(const std::vector<float>& found, const std::vector<float>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 1e-5) << "element " << i;
  }
}

TEST(CudaPlugin, KernelsAgreeWithThoseOfTheCpu) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  auto library = PluginLibrary::open(OFSDP_CUDA_PLUGIN);
  ASSERT_TRUE(library.ok()) << library.error().message();
  auto operators = plugin_operators(*library);
  ASSERT_TRUE(operators.ok() && operators->size() == 1);
  const PluginOperatorPtr op = operators->front();
  ASSERT_NE(op->def.cuda_forward, nullptr);
  ASSERT_NE(op->def.cuda_backward, nullptr);

  Attributes attributes;
  attributes.set("alpha", 1.7159f);
  attributes.set("beta", 0.6667f);
  const TensorDesc desc{DType::kFloat32, {3, kCount / 3}};
  PluginNode node(op, attributes, {desc}, {desc}, {desc}, {desc});
  std::vector<float> x = numbers(0.7f), dy = numbers(1.3f), y(x.size()), dx(x.size());
  const auto use = [&](void* in, void* out, void* grad_out, void* grad_in) {
    node.inputs().set(0, in);
    node.outputs().set(0, out);
    node.grad_outputs().set(0, grad_out);
    node.grad_inputs().set(0, grad_in);
  };
  use(x.data(), y.data(), dy.data(), dx.data());
  ASSERT_EQ(op->def.forward(&node.node()), OFSDP_OK);
  ASSERT_EQ(op->def.backward(&node.node()), OFSDP_OK);

  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const std::vector<float> blank(x.size(), NAN);
  const DeviceFloats on_x(x), on_y(blank), on_dy(dy), on_dx(blank);
  use(on_x.data(), on_y.data(), on_dy.data(), on_dx.data());
  EXPECT_EQ(op->def.cuda_forward(&node.node(), stream), OFSDP_OK);
  EXPECT_EQ(op->def.cuda_backward(&node.node(), stream), OFSDP_OK);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  expect_close(on_y.values(), y);
  expect_close(on_dx.values(), dx);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace ofsdp
