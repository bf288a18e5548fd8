// The CUDA library's host code against a runtime that checks CUDA's rules and a cuBLASLt that notes
// the calls. Whether a card then obeys them needs a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <optional>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/streams.h"
#include "kernels/cuda/matmul/product.h"
#include "tests/fake_cuda/cublasLt.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace {

const std::vector<std::string> kNone;

// A capture with work on two streams of different priorities.
class CapturedGraphTest : public testing::Test {
 protected:
  CapturedGraphTest() {
    cudaStreamCreateWithPriority(&compute_, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&communication_, cudaStreamNonBlocking, -5);
    cudaEventCreate(&event_);
    cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(event_, compute_);
    cudaStreamWaitEvent(communication_, event_, 0);
    for (cudaStream_t stream : {compute_, communication_}) {
      fake_cuda::enqueue("work", stream, {}, [this] { ++ran_; });
    }
    cudaEventRecord(event_, communication_);
    cudaStreamWaitEvent(compute_, event_, 0);
  }
  ~CapturedGraphTest() override {
    cudaEventDestroy(event_);
    cudaStreamDestroy(communication_);
    cudaStreamDestroy(compute_);
    fake_cuda::note_what_is_left();
    EXPECT_EQ(fake_cuda::take_broken_rules(), kNone);
  }

  cudaStream_t compute_ = nullptr, communication_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int ran_ = 0;
};

// Without the flag the nodes of the communication stream run with the priority of the launching
// stream. That is the compute stream, with the lowest priority: a broken rule.
TEST_F(CapturedGraphTest, KeepsThePrioritiesOfItsStreams) {
  const long uploads = fake_cuda::count_of("cudaGraphUpload");
  const auto graph = end_capture(compute_);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(fake_cuda::count_of("cudaGraphUpload"), uploads + 1);
  EXPECT_EQ(ran_, 0);
  EXPECT_EQ(cudaGraphLaunch(*graph, compute_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(compute_), cudaSuccess);
  EXPECT_EQ(ran_, 2);
  cudaGraphExecDestroy(*graph);
}

TEST_F(CapturedGraphTest, IsNotLeftWhereItCannotBeInstantiated) {
  fake_cuda::refuse_next("cudaGraphInstantiate", cudaErrorInvalidValue);
  const auto graph = end_capture(compute_);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().message(), "cudaGraphInstantiate: an error");
}

// An event after `operations` on a stream.
class EventWait : public testing::Test {
 protected:
  EventWait() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaEventCreate(&event_);
  }
  ~EventWait() override {
    cudaDeviceSynchronize();
    cudaEventDestroy(event_);
    cudaStreamDestroy(stream_);
    fake_cuda::note_what_is_left();
    EXPECT_EQ(fake_cuda::take_broken_rules(), kNone);
  }

  cudaError_t wait_after(int operations) {
    for (int i = 0; i < operations; ++i) fake_cuda::enqueue("work", stream_, {}, [] {});
    cudaEventRecord(event_, stream_);
    return wait_for_event(event_);
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  const long blocked_ = fake_cuda::count_of("cudaEventSynchronize");
};

TEST_F(EventWait, DoesNotBlockForWhatIsReachedAtOnce) {
  EXPECT_EQ(wait_after(0), cudaSuccess);
  EXPECT_EQ(fake_cuda::count_of("cudaEventSynchronize"), blocked_);
}

// At each query the runtime does a few operations, far from all in time.
TEST_F(EventWait, BlocksForWhatTakesLonger) {
  EXPECT_EQ(wait_after(100000), cudaSuccess);
  EXPECT_EQ(fake_cuda::count_of("cudaEventSynchronize"), blocked_ + 1);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
}

TEST_F(EventWait, SaysWhatFails) {
  fake_cuda::refuse_next("cudaEventQuery", cudaErrorLaunchFailure);
  EXPECT_EQ(wait_after(0), cudaErrorLaunchFailure);
  EXPECT_EQ(fake_cuda::count_of("cudaEventSynchronize"), blocked_);
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

  // A product with a shape that no other test uses: answers are kept.
  std::unique_ptr<MatrixProduct> product(DType dtype) {
    static int64_t rows = 64;
    ProductShape shape;
    shape.dtype = dtype;
    shape.rows = ++rows;
    shape.columns = 768;
    shape.inner = kInner;
    return make_product(device_, shape);
  }

  template <typename Value>
  std::optional<Value> preference(cublasLtMatmulPreferenceAttributes_t attribute) {
    Value value{};
    const size_t bytes = function<size_t (*)(int, void*)>("fake_lt_preference")(attribute, &value);
    if (bytes != sizeof(value)) return std::nullopt;
    return value;
  }

  // Leading dimensions of A, B and D in a bfloat16 product.
  std::array<int64_t, 3> leading(ProductShape shape) {
    shape.dtype = DType::kBFloat16;
    EXPECT_NE(make_product(device_, shape), nullptr);
    const auto of = function<int64_t (*)(size_t)>("fake_lt_leading");
    return {of(1), of(0), of(2)};
  }

  // Runs the product on zeros, `off` bytes past an aligned address.
  cudaError_t run(MatrixProduct& product, size_t off = 0) {
    std::array<void*, 4> memory{};
    for (void*& one : memory) {
      cudaMalloc(&one, kBytes);
      cudaMemset(one, 0, kBytes);
    }
    const auto at = [&](size_t i) { return static_cast<std::byte*>(memory[i]) + off; };
    const cudaError_t error = product.run(nullptr, at(0), at(1), nullptr, at(2), memory[3]);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (void* one : memory) cudaFree(one);
    return error;
  }

  static constexpr int64_t kInner = 32;
  static constexpr size_t kBytes = 1 << 19;  // more than 128 x 768 floats

  DeviceState device_;
  void* library_ = nullptr;
};

// GPT-2's head: logits, the gradients for the activations and for the weights.
TEST_F(ProductTest, RowsThatAreApartHaveTheirPitchAsLeadingDimension) {
  const int64_t vocabulary = 50257, pitch = 50304, width = 768, tokens = 4;
  const ProductShape logits{
      .rows = tokens, .columns = vocabulary, .inner = width, .transpose_b = true, .ld_d = pitch};
  EXPECT_EQ(leading(logits), (std::array{width, width, pitch}));
  const ProductShape activations{
      .rows = tokens, .columns = width, .inner = vocabulary, .ld_a = pitch};
  EXPECT_EQ(leading(activations), (std::array{pitch, width, width}));
  const ProductShape weights{.rows = vocabulary,
                             .columns = width,
                             .inner = tokens,
                             .transpose_a = true,
                             .ld_a = pitch,
                             .bias_grad = BiasGrad::kOfA};
  EXPECT_EQ(leading(weights), (std::array{pitch, width, width}));
  const ProductShape transposed{
      .rows = width, .columns = vocabulary, .inner = tokens, .transpose_a = true, .ld_b = pitch};
  EXPECT_EQ(leading(transposed), (std::array{width, pitch, vocabulary}));
  ProductShape dense = logits;
  dense.ld_d = 0;
  EXPECT_EQ(leading(dense), (std::array{width, width, vocabulary}));
}

// Partial sums in 16 bits would each round to the 8 bits of a bfloat16.
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
    EXPECT_EQ(made->workspace_bytes(), 2048u);  // enough for any candidate
    ASSERT_EQ(run(*made), cudaSuccess);
    EXPECT_EQ(function<uint64_t (*)()>("fake_lt_algorithm")(), 101u);
  }
  function<void (*)(int)>("fake_lt_offer")(1);  // the only one is refused
  EXPECT_EQ(product(DType::kBFloat16), nullptr);
}

// The heuristic may have chosen a kernel that reads 16 bytes at a time.
TEST_F(ProductTest, OperandsThatAreLessAlignedThanPromisedAreFound) {
  const auto made = product(DType::kBFloat16);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*made), cudaSuccess);
  EXPECT_EQ(fake_cuda::take_broken_rules(), kNone);
  EXPECT_NE(run(*made, 2), cudaSuccess);
  const std::vector<std::string> broken = fake_cuda::take_broken_rules();
  ASSERT_FALSE(broken.empty());
  EXPECT_TRUE(broken[0].starts_with(
      "cuda rule: operands are as aligned as was promised; cublasLtMatmul: A at "))
      << broken[0];
}

}  // namespace
}  // namespace ofsdp::kernels::cuda
