// The CUDA library's host code against a runtime and a cuBLASLt that note the calls. Whether a card
// then does what was asked needs a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "kernels/cuda/device/captured_graph.h"
#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/event_wait.h"
#include "kernels/cuda/matmul/product.h"
#include "tests/fake_cuda/cublasLt.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace {

// Without the flag the nodes of the communication stream run with the priority of the stream that
// the graph is launched into, which is the compute stream's, the lowest.
TEST(CapturedGraph, KeepsThePrioritiesOfItsStreams) {
  fake_cuda::asked() = {};
  const auto graph = end_capture(nullptr);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(fake_cuda::asked().instantiated_with, cudaGraphInstantiateFlagUseNodePriority);
  EXPECT_EQ(fake_cuda::asked().uploads, 1);
  EXPECT_EQ(fake_cuda::asked().graphs, 0);
}

TEST(CapturedGraph, IsNotLeftWhereItCannotBeInstantiated) {
  fake_cuda::asked() = {.refuses_to_instantiate = true};
  const auto graph = end_capture(nullptr);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().message(), "cudaGraphInstantiate: an error");
  EXPECT_EQ(fake_cuda::asked().graphs, 0);
}

TEST(EventWait, DoesNotBlockForWhatIsReachedAtOnce) {
  fake_cuda::asked() = {};
  EXPECT_EQ(wait_for_event(nullptr), cudaSuccess);
  EXPECT_EQ(fake_cuda::asked().waits, 0);
}

TEST(EventWait, BlocksForWhatTakesLonger) {
  fake_cuda::asked() = {.early_queries = 1 << 30};
  EXPECT_EQ(wait_for_event(nullptr), cudaSuccess);
  EXPECT_EQ(fake_cuda::asked().waits, 1);
}

TEST(EventWait, SaysWhatFails) {
  fake_cuda::asked() = {.event_fails = true};
  EXPECT_EQ(wait_for_event(nullptr), cudaErrorLaunchFailure);
  EXPECT_EQ(fake_cuda::asked().waits, 0);
}

class ProductTest : public testing::Test {
 protected:
  ProductTest() {
    setenv("OFSDP_CUBLASLT_LIBRARY", OFSDP_FAKE_CUBLASLT, 1);
    library_ = dlopen(OFSDP_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    function<void (*)(int)>("fake_lt_offer")(3);
  }

  template <typename Function>
  Function function(const char* name) {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  // A product of a shape that no other test has: answers are kept.
  std::unique_ptr<MatrixProduct> product(DType dtype) {
    static int64_t rows = 64;
    ProductShape shape;
    shape.dtype = dtype;
    shape.rows = ++rows;
    shape.columns = 768;
    shape.inner = 65536;
    return make_product(device_, shape);
  }

  template <typename Value>
  std::optional<Value> preference(cublasLtMatmulPreferenceAttributes_t attribute) {
    Value value{};
    const size_t bytes = function<size_t (*)(int, void*)>("fake_lt_preference")(attribute, &value);
    if (bytes != sizeof(value)) return std::nullopt;
    return value;
  }

  DeviceState device_;
  void* library_ = nullptr;
};

// Partial sums of 16 bits would each round to 8 bits of a bfloat16.
TEST_F(ProductTest, PartialSumsOf16BitsAreInFloat32) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    ASSERT_NE(product(dtype), nullptr);
    const uint32_t wanted = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    EXPECT_EQ(preference<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK), wanted);
  }
  ASSERT_NE(product(DType::kFloat32), nullptr);
  EXPECT_EQ(preference<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK), std::nullopt);
}

// A 768 x 3072 gradient has partial sums of 9.4 MB.
TEST_F(ProductTest, EightSplitsHaveRoomForTheirPartialSums) {
  ASSERT_NE(product(DType::kBFloat16), nullptr);
  EXPECT_GE(preference<size_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES), 8u * 768 * 3072 * 4);
}

TEST_F(ProductTest, TakesTheFirstAlgorithmThatTheHeuristicStandsFor) {
  for (const bool may_vary : {false, true}) {
    device_.may_vary = may_vary;
    const auto made = product(DType::kBFloat16);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->workspace_bytes(), may_vary ? 2048u : 1024u);
    ASSERT_EQ(made->run(nullptr, {}), cudaSuccess);
    EXPECT_EQ(function<uint64_t (*)()>("fake_lt_algorithm")(), 101u);
  }
  function<void (*)(int)>("fake_lt_offer")(1);  // which it does not stand for
  EXPECT_EQ(product(DType::kBFloat16), nullptr);
}

}  // namespace
}  // namespace ofsdp::kernels::cuda
