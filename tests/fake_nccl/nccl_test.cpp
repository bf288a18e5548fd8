// The groups of libofsdp_cuda.so, against a library with NCCL's names that notes its calls: versions,
// order, types, what is made known how, giving up, errors. That NCCL then does it needs GPUs.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>

#include "kernels/core/dtype.h"
#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/handles.h"
#include "tests/support/namespaces.h"

namespace ofsdp::cuda {

void use_device(int) {}  // there is none

namespace {

using testing::HasSubstr;

class NcclTest : public testing::Test {
 protected:
  NcclTest() {
    setenv("OFSDP_NCCL_LIBRARY", OFSDP_FAKE_NCCL, 1);
    for (const char* name : {"FAKE_NCCL_VERSION", "FAKE_NCCL_ASYNC", "FAKE_NCCL_HANGS",
                             "NCCL_MULTI_RANK_GPU_ENABLE", "OFSDP_NCCL_REGISTER"}) {
      unsetenv(name);
    }
    add_groups(table_);
    fake_ = dlopen(OFSDP_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    call("fake_nccl_reset");
  }

  void call(const char* name) { reinterpret_cast<void (*)()>(dlsym(fake_, name))(); }
  std::string calls() {
    return reinterpret_cast<const char* (*)()>(dlsym(fake_, "fake_nccl_calls"))();
  }
  std::string can_join(int sharing) {
    std::array<char, 300> text{};
    const bool can = table_.can_join(&device_, sharing, text.data(), text.size()) != 0;
    return (can ? "yes: " : "no: ") + std::string(text.data());
  }
  // Asked `patience_` times, it gives up.
  ofsdp_group* join(int place = 1, int count = 4) {
    std::array<char, OFSDP_GROUP_KEY_BYTES> key{};
    table_.make_group_key(&device_, key.data());
    const ofsdp_patience patience{[](void* left) { return --*static_cast<int*>(left) > 0 ? 1 : 0; },
                                  &patience_};
    return table_.join_group(&device_, key.data(), place, count, &patience);
  }

  ofsdp_device_table table_{};
  ofsdp_device device_;
  ofsdp_stream* stream_ = reinterpret_cast<ofsdp_stream*>(7);
  std::array<char, 4096> memory_{};
  int patience_ = 1000;
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
  ASSERT_NE(all, nullptr) << device_.error;
  ofsdp_group* const part = table_.split_group(&device_, all, 1, 0);
  table_.leave_group(&device_, part);
  table_.leave_group(&device_, all);
  EXPECT_EQ(calls(), "id\ninit 4 1 1 1 meet here\nsplit 1 1 0\ndestroy 2\ndestroy 1\n");
  EXPECT_STREQ(getenv("NCCL_RUNTIME_CONNECT"), "0");
}

TEST_F(NcclTest, CallsHaveNcclsTypes) {
  ofsdp_group* const all = join();
  call("fake_nccl_reset");
  char* const data = memory_.data();
  const auto scatter = [&](DType dtype, int64_t count) {
    return table_.reduce_scatter(&device_, stream_, all, data, data, static_cast<int32_t>(dtype),
                                 count);
  };
  EXPECT_EQ(table_.all_gather(&device_, stream_, all, data, data, 24), 0);
  EXPECT_EQ(scatter(DType::kFloat32, 5), 0);
  EXPECT_EQ(scatter(DType::kBFloat16, 6), 0);
  EXPECT_EQ(scatter(DType::kFloat16, 7), 0);
  EXPECT_NE(scatter(DType::kInt8, 8), 0);
  EXPECT_THAT(device_.error, HasSubstr("a type without sum"));
  EXPECT_EQ(table_.all_reduce(&device_, stream_, all, data, data,
                              static_cast<int32_t>(DType::kFloat64), 1, OFSDP_SUM),
            0);
  EXPECT_EQ(table_.all_reduce(&device_, stream_, all, data, data,
                              static_cast<int32_t>(DType::kInt32), 1, OFSDP_LARGEST),
            0);
  EXPECT_EQ(calls(),
            "gather 24 1 1 7\nscatter 5 7 0 1\nscatter 6 9 0 1\nscatter 7 6 0 1\nreduce 1 8 0 1\n"
            "reduce 1 2 2 1\n");
  table_.leave_group(&device_, all);
}

TEST_F(NcclTest, PartsAreSentAndReceivedInOneGroup) {
  ofsdp_group* const all = join(0, 2);
  call("fake_nccl_reset");
  const std::array<size_t, 2> offsets{0, 64};
  char* const data = memory_.data();
  const auto exchange = [&](size_t bytes) {
    return table_.exchange_parts(&device_, stream_, all, data, offsets.data(), 2, data + 1024,
                                 bytes);
  };
  EXPECT_EQ(exchange(24), 0);
  EXPECT_EQ(calls(),
            "(\nsend 24 1 0 1 7\nreceive 24 1 0 1 7\nsend 24 1 1 1 7\nreceive 24 1 1 1 7\n)\n");
  call("fake_nccl_reset");
  EXPECT_NE(exchange(13), 0);
  EXPECT_EQ(calls(), "(\nsend 13 1 0 1 7\n)\n");
  EXPECT_EQ(device_.error, "ncclSend, ncclRecv: NCCL says an error (its cause)");
  table_.leave_group(&device_, all);
}

TEST_F(NcclTest, WindowsAreForEqualOffsetsAndNewVersions) {
  ofsdp_group* all = join();
  call("fake_nccl_reset");
  const auto make_known = [&](int32_t same) {
    EXPECT_EQ(table_.make_known(&device_, all, memory_.data(), 4096, same), 0);
  };
  make_known(1);
  make_known(0);
  table_.leave_group(&device_, all);
  EXPECT_EQ(calls(), "window 1 4096 1\nregister 1 4096\nderegister 1 2\nunwindow 1 1\ndestroy 1\n");
  all = join();
  call("fake_nccl_reset");
  setenv("FAKE_NCCL_VERSION", "22603", 1);
  make_known(1);
  setenv("OFSDP_NCCL_REGISTER", "0", 1);
  make_known(1);
  EXPECT_EQ(calls(), "register 3 4096\n");
  table_.leave_group(&device_, all);
}

TEST_F(NcclTest, GivesUpARankThatDoesNotCome) {
  setenv("FAKE_NCCL_HANGS", "init", 1);
  patience_ = 20;
  EXPECT_EQ(join(), nullptr);
  EXPECT_EQ(patience_, 0);
  EXPECT_EQ(device_.error, "gave up waiting for the other ranks");
  call("fake_nccl_release");
}

TEST_F(NcclTest, AnAbortedGroupRefusesWhatFollows) {
  ofsdp_group* const all = join();
  EXPECT_EQ(table_.check_group(&device_, all), 0);
  setenv("FAKE_NCCL_ASYNC", "7", 1);  // in progress
  EXPECT_EQ(table_.check_group(&device_, all), 0);
  setenv("FAKE_NCCL_ASYNC", "6", 1);
  EXPECT_NE(table_.check_group(&device_, all), 0);
  EXPECT_EQ(device_.error, "a collective: NCCL says an error (its cause)");
  call("fake_nccl_reset");
  table_.abort_group(&device_, all);
  table_.abort_group(&device_, all);
  EXPECT_NE(table_.all_gather(&device_, stream_, all, memory_.data(), memory_.data(), 4), 0);
  EXPECT_EQ(device_.error, "the group was aborted");
  table_.leave_group(&device_, all);
  EXPECT_EQ(calls(), "abort 1\n");
}

TEST_F(NcclTest, AFailureIsOneLineWithItsCause) {
  ofsdp_group* const all = join();
  EXPECT_NE(table_.reduce_scatter(&device_, stream_, all, memory_.data(), memory_.data(),
                                  static_cast<int32_t>(DType::kFloat32), 13),
            0);
  EXPECT_EQ(device_.error, "ncclReduceScatter: NCCL says an error (its cause)");
  table_.leave_group(&device_, all);
}

}  // namespace
}  // namespace ofsdp::cuda
