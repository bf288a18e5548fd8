// Small programs that break a rule of CUDA, to test the runtime that finds them: streams, events
// and memory that end with the test, and the messages since.
//
// Errors: test failures.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/emulator/cuda_runtime.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fake_cuda {

class Planted : public testing::Test {
 protected:
  Planted() {
    cudaStreamCreateWithPriority(&first_, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&second_, cudaStreamNonBlocking, -5);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&other_, cudaEventDisableTiming);
    cudaMalloc(&memory_, kBytes);
    cudaHostAlloc(&pinned_, kBytes, cudaHostAllocDefault);
    numbers_ = static_cast<int*>(memory_);
    results_ = static_cast<int*>(pinned_);
    expect_none();
  }
  ~Planted() override {
    cudaDeviceSynchronize();
    cudaFreeHost(pinned_);
    cudaFree(memory_);
    cudaEventDestroy(other_);
    cudaEventDestroy(event_);
    cudaStreamDestroy(second_);
    cudaStreamDestroy(first_);
    note_what_is_left();
    expect_none();
  }

  // Expects exactly one line; each rule is reported once.
  static void expect_broken(const std::string& rule, const std::string& call,
                            const std::string& operand) {
    const std::vector<std::string> lines = take_broken_rules();
    ASSERT_EQ(lines.size(), 1u) << testing::PrintToString(lines);
    EXPECT_THAT(lines[0], testing::StartsWith("cuda rule: " + rule + "; " + call));
    EXPECT_THAT(lines[0], testing::HasSubstr(operand));
  }
  static void expect_none() { EXPECT_EQ(take_broken_rules(), std::vector<std::string>{}); }

  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(first_, mode), cudaSuccess);
  }
  // Ends the capture under way, whether it succeeded or not.
  cudaError_t end(cudaGraph_t* graph = nullptr) {
    cudaGraph_t made = nullptr;
    const cudaError_t error = cudaStreamEndCapture(first_, &made);
    if (graph != nullptr) {
      *graph = made;
    } else if (made != nullptr) {
      cudaGraphDestroy(made);
    }
    return error;
  }
  void order(cudaStream_t before, cudaStream_t after) {
    EXPECT_EQ(cudaEventRecord(event_, before), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(after, event_, 0), cudaSuccess);
  }

  static constexpr size_t kBytes = 4096;
  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr, other_ = nullptr;
  void *memory_ = nullptr, *pinned_ = nullptr;
  int *numbers_ = nullptr, *results_ = nullptr;  // on the device, on the host
};

}  // namespace fake_cuda
