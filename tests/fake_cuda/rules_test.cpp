// Planted errors in memory, launches, streams and events: the runtime that checks the rules has to
// find each. Captures and graphs: graph_rules_test.cpp.
#include <set>

#include "tests/fake_cuda/planted.h"

namespace fake_cuda {
namespace {

void __launch_bounds__(64) add_one(int* numbers) { ++numbers[threadIdx.x]; }
void reach(int* numbers, int64_t at) { numbers[at] = 1; }
struct Large {
  int words[1200];
};
void take(Large large, int* number) { *number = large.words[0]; }
struct Holder {
  int64_t count;
  int* numbers;
};
void fill(Holder holder) { holder.numbers[0] = static_cast<int>(holder.count); }

template <typename... P, typename... A>
cudaError_t start(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(P...),
                  A... arguments) {
  cudaLaunchConfig_t config;
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

class CudaRules : public Planted {};

// --- no error ---
TEST_F(CudaRules, WorkRunsInTheOrderOfItsStreamAndNoSooner) {
  ASSERT_EQ(cudaMemsetAsync(memory_, 0, kBytes, first_), cudaSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(start(first_, 1, 64, add_one, numbers_), cudaSuccess);
  results_[5] = -1;
  ASSERT_EQ(cudaMemcpyAsync(results_, numbers_, kBytes, cudaMemcpyDefault, first_), cudaSuccess);
  EXPECT_EQ(results_[5], -1);
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(results_[5], 3);
  EXPECT_EQ(results_[64], 0);
}

TEST_F(CudaRules, WithoutAnEventTwoStreamsRunInEitherOrder) {
  std::set<int> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    draw_from(seed);
    cudaMemsetAsync(memory_, 0, kBytes, first_);
    cudaMemcpyAsync(results_, numbers_, 4, cudaMemcpyDefault, second_);
    cudaDeviceSynchronize();
    cudaMemsetAsync(memory_, 1, kBytes, first_);
    order(first_, second_);
    cudaMemcpyAsync(results_ + 1, numbers_, 4, cudaMemcpyDefault, second_);
    cudaDeviceSynchronize();
    EXPECT_EQ(results_[1], 0x01010101);
    if (seed > 0) seen.insert(results_[0]);  // the memory was set to 1 before
  }
  EXPECT_EQ(seen, (std::set<int>{0, 0x01010101}));
}

TEST_F(CudaRules, AStructuresPointerIsFollowedToo) {
  EXPECT_EQ(start(first_, 1, 1, fill, Holder{7, numbers_}), cudaSuccess);
  expect_none();
  void* gone = nullptr;
  cudaMalloc(&gone, 64);
  cudaFree(gone);
  EXPECT_NE(start(first_, 1, 1, fill, Holder{7, static_cast<int*>(gone)}), cudaSuccess);
  expect_broken("an operand's allocation lives", "kernel test_unit_cuda_rules", "parameter 0");
}

// --- memory ---
TEST_F(CudaRules, AKernelsPointerIsInAnAllocation) {
  int local = 0;
  EXPECT_NE(start(first_, 1, 1, add_one, &local), cudaSuccess);
  expect_broken("an operand is in an allocation", "kernel test_unit_cuda_rules+0x",
                "parameter 0 at");
}

TEST_F(CudaRules, FreedMemoryIsNotUsed) {
  void* gone = nullptr;
  cudaMalloc(&gone, 64);
  cudaFree(gone);
  EXPECT_NE(cudaMemsetAsync(gone, 0, 64, first_), cudaSuccess);
  expect_broken("an operand's allocation lives", "cudaMemsetAsync", "64 of cudaMalloc, freed");
  EXPECT_NE(cudaFree(gone), cudaSuccess);
  expect_broken("only what was allocated, and lives, is freed", "cudaFree", "freed");
}

TEST_F(CudaRules, ACopyEndsWithinItsAllocations) {
  EXPECT_NE(cudaMemcpyAsync(numbers_ + 1, pinned_, kBytes, cudaMemcpyDefault, first_), cudaSuccess);
  expect_broken("an operand ends within its allocation", "cudaMemcpyAsync",
                "destination, 4096 bytes at ");
}

TEST_F(CudaRules, ACopysKindIsThatOfItsAddresses) {
  EXPECT_NE(cudaMemcpyAsync(memory_, pinned_, 4, cudaMemcpyDeviceToDevice, first_), cudaSuccess);
  expect_broken("a copy's kind is that of its addresses", "cudaMemcpyAsync", "kind 3");
}

using CudaRulesDeath = CudaRules;

TEST_F(CudaRulesDeath, AKernelThatWritesBehindItsOperandEndsTheProcess) {
  EXPECT_EXIT(
      {
        start(first_, 1, 1, reach, numbers_, kBytes / sizeof(int) + 2);
        cudaStreamSynchronize(first_);
      },
      testing::ExitedWithCode(70),
      "work stays in the allocations of its operands; kernel .*, byte 4104 of 4096");
}

TEST_F(CudaRulesDeath, TheHostDoesNotTouchMemoryOfTheDevice) {
  EXPECT_EXIT(*numbers_ = 1, testing::ExitedWithCode(70),
              "the host does not touch memory of the device; the host: .*byte 0 of 4096");
}

// --- launches ---
TEST_F(CudaRules, ABlockHasAtMostTheThreadsOfItsBounds) {
  EXPECT_EQ(start(first_, 1, 64, add_one, numbers_), cudaSuccess);
  expect_none();
  EXPECT_NE(start(first_, 1, 65, add_one, numbers_), cudaSuccess);
  expect_broken("a block has at most the threads of its kernel's __launch_bounds__", "kernel",
                "65 threads, bounds 64");
}

TEST_F(CudaRules, GridsBlocksAndParametersHaveLimits) {
  EXPECT_NE(start(first_, dim3(1, 65536), 1, reach, numbers_, 0), cudaSuccess);
  expect_broken("a grid has 1 to 2147483647 x 65535 x 65535 blocks", "kernel", "1 x 65536 x 1");
  EXPECT_NE(start(first_, 0, 1, reach, numbers_, 0), cudaSuccess);
  expect_broken("a grid has 1 to 2147483647 x 65535 x 65535 blocks", "kernel", "0 x 1 x 1");
  EXPECT_NE(start(first_, 1, dim3(1, 1, 65), reach, numbers_, 0), cudaSuccess);
  expect_broken("a block has 1 to 1024 x 1024 x 64 threads", "kernel", "1 x 1 x 65");
  EXPECT_NE(start(first_, 1, dim3(1024, 2), reach, numbers_, 0), cudaSuccess);
  expect_broken("a block has at most the threads of its kernel's __launch_bounds__", "kernel",
                "2048 threads, bounds 1024");
  EXPECT_NE(start(first_, 1, 1, take, Large{}, numbers_), cudaSuccess);
  expect_broken("a kernel has at most 4096 bytes of parameters", "kernel", "4808 bytes");
}

// --- streams and events ---
TEST_F(CudaRules, AnEventIsRecordedBeforeItIsWaitedFor) {
  EXPECT_EQ(cudaStreamWaitEvent(first_, event_, 0), cudaSuccess);
  expect_broken("an event is recorded before it is waited for", "cudaStreamWaitEvent", "event ");
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  expect_broken("an event is recorded before it is waited for", "cudaEventSynchronize", "event ");
}

TEST_F(CudaRules, TimesAreOfEventsThatKeepThem) {
  for (cudaEvent_t event : {event_, other_}) cudaEventRecord(event, first_);
  cudaStreamSynchronize(first_);
  float milliseconds = 0;
  EXPECT_NE(cudaEventElapsedTime(&milliseconds, event_, other_), cudaSuccess);
  expect_broken("times are of events that keep them", "cudaEventElapsedTime", "event ");
}

TEST_F(CudaRules, DestroyedStreamsAndEventsAreNotUsed) {
  cudaEvent_t event = nullptr;
  cudaStream_t stream = nullptr;
  cudaEventCreate(&event);
  cudaStreamCreate(&stream);
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
  EXPECT_NE(cudaEventRecord(event, first_), cudaSuccess);
  expect_broken("an event lives", "cudaEventRecord", "event ");
  EXPECT_NE(cudaMemsetAsync(memory_, 0, 4, stream), cudaSuccess);
  expect_broken("a stream lives", "cudaMemsetAsync", "stream ");
}

TEST_F(CudaRules, APriorityIsInTheRange) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -6), cudaSuccess);
  expect_broken("a stream's priority is in the device's range", "cudaStreamCreateWithPriority",
                "priority -6");
  cudaStreamDestroy(stream);
}

TEST_F(CudaRules, WhatIsLeftAtTheEndIsNamed) {
  cudaStream_t stream = nullptr;
  void* data = nullptr;
  cudaStreamCreate(&stream);
  cudaMalloc(&data, 123);
  note_what_is_left();  // the fixture has six
  const std::vector<std::string> lines = take_broken_rules();
  const std::string rule = "cuda rule: everything made is destroyed before the end; ";
  EXPECT_THAT(lines, testing::Contains(rule + "cudaMalloc: 123 bytes"));
  EXPECT_THAT(lines, testing::Contains(testing::StartsWith(rule + "cudaStreamCreate: stream ")));
  EXPECT_EQ(lines.size(), 8u);
  cudaFree(data);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace fake_cuda
