// The groups of libofsdp_cuda.so, against a library with NCCL's names that notes its calls:
// versions, order, types, registered memory, giving up, errors, captured collectives. Whether NCCL
// then does it needs GPUs.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <thread>

#include "kernels/core/dtype.h"
#include "kernels/cuda/device/groups.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/streams.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {

void use_device(int) {}  // there is none

namespace {

using testing::HasSubstr;
using testing::Not;

struct Ranks : NcclRanks {
  Ranks() : NcclRanks(0) {}
  std::string description() const override { return ""; }
  std::unique_ptr<Kernel> make_kernel(const std::string&, const Problem&, KernelChoice*) override {
    return nullptr;
  }
};

class NcclTest : public testing::Test {
 protected:
  NcclTest() {
    setenv("OFSDP_NCCL_LIBRARY", OFSDP_FAKE_NCCL, 1);
    for (const char* name :
         {"FAKE_NCCL_VERSION", "FAKE_NCCL_ASYNC", "FAKE_NCCL_HANGS", "FAKE_NCCL_SYMMETRIC",
          "NCCL_MULTI_RANK_GPU_ENABLE", "OFSDP_NCCL_REGISTER"}) {
      unsetenv(name);
    }
    fake_ = dlopen(OFSDP_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    call("fake_nccl_reset");
    cudaMalloc(&memory_, kBytes);
    cudaStreamCreateWithPriority(&compute_, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&communication_, cudaStreamNonBlocking, -5);
    cudaEventCreate(&event_);
    unsigned long long id = 0;
    cudaStreamGetId(communication_, &id);
    on_ = " " + std::to_string(id) + "\n";
  }
  ~NcclTest() override {
    cudaEventDestroy(event_);
    cudaStreamDestroy(communication_);
    cudaStreamDestroy(compute_);
    cudaFree(memory_);
    fake_cuda::note_what_is_left();
    EXPECT_EQ(fake_cuda::take_broken_rules(), std::vector<std::string>{});
  }

  void call(const char* name) { reinterpret_cast<void (*)()>(dlsym(fake_, name))(); }
  std::string calls() {
    return reinterpret_cast<const char* (*)()>(dlsym(fake_, "fake_nccl_calls"))();
  }
  std::string can_join(int sharing) {
    std::string engine;
    const Status status = ranks_.can_join(sharing, engine);
    return status.ok() ? "yes: " + engine : "no: " + status.message();
  }
  // Gives up after `patience_` questions.
  ofsdp_group* join(int place = 1, int count = 4) {
    std::array<char, OFSDP_GROUP_KEY_BYTES> key{};
    EXPECT_TRUE(ranks_.make_group_key(key.data()).ok());
    const ofsdp_patience patience{[](void* left) { return --*static_cast<int*>(left) > 0 ? 1 : 0; },
                                  &patience_};
    auto group = ranks_.join_group(key.data(), place, count, patience);
    if (group.ok()) return *group;
    error_ = group.error().message();
    return nullptr;
  }
  // Whether it succeeds; `error_` says why not.
  bool succeeds(const Status& status) {
    if (!status.ok()) error_ = status.message();
    return status.ok();
  }

  // A gather on the communication stream, in a graph that begins on the compute stream.
  cudaGraphExec_t captured_gather(ofsdp_group* group) {
    cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal);
    cudaMemsetAsync(memory_, 0, 4, compute_);
    cudaEventRecord(event_, compute_);
    cudaStreamWaitEvent(communication_, event_, 0);
    EXPECT_TRUE(succeeds(ranks_.all_gather(stream(), group, memory_, memory_, 4)));
    cudaEventRecord(event_, communication_);
    cudaStreamWaitEvent(compute_, event_, 0);
    const auto graph = end_capture(compute_);
    EXPECT_TRUE(graph.ok());
    return graph.ok() ? *graph : nullptr;
  }
  ofsdp_stream* stream() const { return reinterpret_cast<ofsdp_stream*>(communication_); }

  static constexpr size_t kBytes = 4096;
  Ranks ranks_;
  cudaStream_t compute_ = nullptr, communication_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* memory_ = nullptr;
  std::string on_;  // the end of a line that names the communication stream
  int patience_ = 1000;
  std::string error_;
  void* fake_ = nullptr;
};

TEST_F(NcclTest, SaysWhatItIsAndWhetherRanksMayShareADevice) {
  EXPECT_EQ(can_join(1), "yes: NCCL 2.28.9");
  EXPECT_EQ(can_join(2),
            "no: 2 of them share a GPU, which NCCL 2.28.9 cannot; expected a GPU a rank, or NCCL "
            "2.30");
  setenv("FAKE_NCCL_VERSION", "23007", 1);
  EXPECT_THAT(can_join(2), HasSubstr("or NCCL_MULTI_RANK_GPU_ENABLE=1 for NCCL 2.30.7"));
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  EXPECT_EQ(can_join(2), "yes: NCCL 2.30.7");
}

TEST_F(NcclTest, JoinsSplitsAndLeavesInOrder) {
  ofsdp_group* const all = join();
  ASSERT_NE(all, nullptr) << error_;
  ofsdp_group* const part = *ranks_.split_group(all, 1, 0);
  ranks_.leave_group(part);
  ranks_.leave_group(all);
  EXPECT_EQ(calls(), "id\ninit 4 1 1 1 meet here\nsplit 1 1 0\ndestroy 2\ndestroy 1\n");
  EXPECT_STREQ(getenv("NCCL_RUNTIME_CONNECT"), "0");
}

TEST_F(NcclTest, CallsHaveNcclsTypes) {
  ofsdp_group* const all = join();
  call("fake_nccl_reset");
  char* const data = static_cast<char*>(memory_);
  const auto scatter = [&](DType dtype, int64_t count) {
    return succeeds(
        ranks_.reduce_scatter(stream(), all, data, data, static_cast<int32_t>(dtype), count));
  };
  EXPECT_TRUE(succeeds(ranks_.all_gather(stream(), all, data, data, 24)));
  EXPECT_TRUE(scatter(DType::kFloat32, 5));
  EXPECT_TRUE(scatter(DType::kBFloat16, 6));
  EXPECT_TRUE(scatter(DType::kFloat16, 7));
  EXPECT_FALSE(scatter(DType::kInt8, 8));
  EXPECT_THAT(error_, HasSubstr("a type without sum"));
  EXPECT_TRUE(succeeds(ranks_.all_reduce(stream(), all, data, data,
                                         static_cast<int32_t>(DType::kFloat64), 1, OFSDP_SUM)));
  EXPECT_TRUE(succeeds(ranks_.all_reduce(stream(), all, data, data,
                                         static_cast<int32_t>(DType::kInt32), 1, OFSDP_LARGEST)));
  EXPECT_EQ(calls(), "gather 24 1 1" + on_ +
                         "scatter 5 7 0 1\nscatter 6 9 0 1\nscatter 7 6 0 1\nreduce 1 8 0 1\n"
                         "reduce 1 2 2 1\n");
  ranks_.leave_group(all);
}

TEST_F(NcclTest, PartsAreSentAndReceivedInOneGroup) {
  ofsdp_group* const all = join(0, 2);
  call("fake_nccl_reset");
  const std::array<size_t, 2> offsets{0, 64};
  char* const data = static_cast<char*>(memory_);
  const auto exchange = [&](size_t bytes) {
    return succeeds(
        ranks_.exchange_parts(stream(), all, data, offsets.data(), 2, data + 1024, bytes));
  };
  EXPECT_TRUE(exchange(24));
  EXPECT_EQ(calls(), "(\nsend 24 1 0 1" + on_ + "receive 24 1 0 1" + on_ + "send 24 1 1 1" + on_ +
                         "receive 24 1 1 1" + on_ + ")\n");
  call("fake_nccl_reset");
  EXPECT_FALSE(exchange(13));
  EXPECT_EQ(calls(), "(\nsend 13 1 0 1" + on_ + ")\n");
  EXPECT_EQ(error_, "ncclSend, ncclRecv: NCCL says an error (its cause)");
  ranks_.leave_group(all);
}

TEST_F(NcclTest, WindowsAreForEqualOffsetsAndNewVersions) {
  ofsdp_group* all = join();
  call("fake_nccl_reset");
  const auto known = [&](bool same) {
    EXPECT_TRUE(succeeds(ranks_.make_known(all, memory_, 4096, same)));
  };
  known(true);
  known(false);
  ranks_.leave_group(all);
  EXPECT_EQ(calls(), "window 1 4096 1\nregister 1 4096\nderegister 1 2\nunwindow 1 1\ndestroy 1\n");
  all = join();
  call("fake_nccl_reset");
  setenv("FAKE_NCCL_VERSION", "22603", 1);
  known(true);
  setenv("OFSDP_NCCL_REGISTER", "0", 1);
  known(true);
  EXPECT_EQ(calls(), "register 3 4096\n");
  ranks_.leave_group(all);
}

// As between hosts under NCCL 2.30.
TEST_F(NcclTest, WithoutSymmetricMemoryABufferIsRegistered) {
  setenv("FAKE_NCCL_VERSION", "23007", 1);
  setenv("FAKE_NCCL_SYMMETRIC", "0", 1);
  ofsdp_group* all = join();
  call("fake_nccl_reset");
  EXPECT_TRUE(succeeds(ranks_.make_known(all, memory_, 4096, true)));
  ranks_.leave_group(all);
  EXPECT_EQ(calls(), "window 1 4096 1\nregister 1 4096\nderegister 1 1\ndestroy 1\n");
}

TEST_F(NcclTest, GivesUpARankThatDoesNotCome) {
  setenv("FAKE_NCCL_HANGS", "init", 1);
  patience_ = 20;
  EXPECT_EQ(join(), nullptr);
  EXPECT_EQ(patience_, 0);
  EXPECT_EQ(error_, "gave up waiting for the other ranks");
  call("fake_nccl_release");
}

TEST_F(NcclTest, AnAbortedGroupRefusesWhatFollows) {
  ofsdp_group* const all = join();
  EXPECT_TRUE(succeeds(ranks_.check_group(all)));
  setenv("FAKE_NCCL_ASYNC", "7", 1);  // in progress
  EXPECT_TRUE(succeeds(ranks_.check_group(all)));
  setenv("FAKE_NCCL_ASYNC", "6", 1);
  EXPECT_FALSE(succeeds(ranks_.check_group(all)));
  EXPECT_EQ(error_, "a collective: NCCL says an error (its cause)");
  call("fake_nccl_reset");
  ranks_.abort_group(all);
  ranks_.abort_group(all);
  EXPECT_FALSE(succeeds(ranks_.all_gather(stream(), all, memory_, memory_, 4)));
  EXPECT_EQ(error_, "the group was aborted");
  ranks_.leave_group(all);
  EXPECT_EQ(calls(), "abort 1\n");
}

TEST_F(NcclTest, AGroupIsNotLockedWhileItIsAborted) {
  ofsdp_group* const all = join();
  setenv("FAKE_NCCL_HANGS", "abort", 1);
  std::thread worker([&] { ranks_.abort_group(all); });
  while (succeeds(ranks_.check_group(all))) std::this_thread::yield();
  EXPECT_EQ(error_, "the group was aborted");
  EXPECT_THAT(calls(), Not(HasSubstr("abort")));
  call("fake_nccl_release");
  worker.join();
  EXPECT_THAT(calls(), HasSubstr("abort 1"));
  ranks_.leave_group(all);
}

// Without priorities the collective would have the compute stream's, which is a broken rule.
TEST_F(NcclTest, ACapturedCollectiveKeepsThePriorityOfItsStream) {
  ofsdp_group* const all = join();
  const cudaGraphExec_t graph = captured_gather(all);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cudaGraphLaunch(graph, compute_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(compute_), cudaSuccess);
  cudaGraphExecDestroy(graph);
  ranks_.leave_group(all);
}

TEST_F(NcclTest, AnAbortWaitsForTheGraphsThatHoldCollectives) {
  ofsdp_group* const all = join();
  ofsdp_group* const part = *ranks_.split_group(all, 0, 0);
  const cudaGraphExec_t graph = captured_gather(all);
  std::thread worker([&] { ranks_.abort_group(all); });
  while (succeeds(ranks_.check_group(all))) std::this_thread::yield();
  ranks_.abort_group(part);  // no graph holds it
  EXPECT_THAT(calls(), HasSubstr("abort 2"));
  EXPECT_THAT(calls(), Not(HasSubstr("abort 1")));
  cudaGraphExecDestroy(graph);
  worker.join();
  EXPECT_THAT(calls(), HasSubstr("abort 1"));
  ranks_.leave_group(part);
  ranks_.leave_group(all);
}

TEST_F(NcclTest, NoGroupIsUsedWhileAnotherIsBeingAborted) {
  ofsdp_group* const all = join();
  ofsdp_group* const part = *ranks_.split_group(all, 0, 0);
  const cudaGraphExec_t graph = captured_gather(all);
  std::thread worker([&] { ranks_.abort_group(all); });
  while (succeeds(ranks_.check_group(all))) std::this_thread::yield();
  const auto gathers = [&] { return ranks_.all_gather(stream(), part, memory_, memory_, 4).ok(); };
  while (gathers()) std::this_thread::yield();  // until the abort has begun
  EXPECT_THAT(calls(), HasSubstr("used 2 while aborting 1"));
  cudaGraphExecDestroy(graph);
  worker.join();
  EXPECT_TRUE(gathers());
  ranks_.leave_group(part);
  ranks_.leave_group(all);
}

TEST_F(NcclTest, AFailureIsOneLineWithItsCause) {
  ofsdp_group* const all = join();
  EXPECT_FALSE(succeeds(ranks_.reduce_scatter(stream(), all, memory_, memory_,
                                              static_cast<int32_t>(DType::kFloat32), 13)));
  EXPECT_EQ(error_, "ncclReduceScatter: NCCL says an error (its cause)");
  ranks_.leave_group(all);
}

}  // namespace
}  // namespace ofsdp::kernels::cuda
