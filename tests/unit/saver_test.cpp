// The thread that writes checkpoints: order, the first failure, and an end in mid-job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/train/checkpointing.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace saver_test {

class SaverTest : public testing::Test {
 protected:
  WriteJob job(int number, std::function<Status(const std::atomic<bool>&)> more = {}) const {
    return {.folder = folder_ / std::to_string(number),
            .configuration = "a: 1\n",
            .more = std::move(more)};
  }

  onnx_bytes::Folder folder_;
};

TEST_F(SaverTest, JobsAreDoneInOrder) {
  Saver saver;
  std::vector<int> done;  // by the thread; read after wait()
  for (int i = 0; i < 20; ++i) {
    saver.write(job(i, [&done, i](const std::atomic<bool>&) {
      done.push_back(i);
      return ok_status();
    }));
    EXPECT_LE(saver.written(), i + 1);
    EXPECT_TRUE(saver.failure().ok());
  }
  ASSERT_TRUE(saver.wait().ok());
  EXPECT_EQ(saver.written(), 20);
  EXPECT_EQ(saver.committed(), 0);
  EXPECT_EQ(done.size(), 20u);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(onnx_bytes::content(folder_ / "19/config.yaml"), "a: 1\n");
}

TEST_F(SaverTest, TheFirstFailureEndsTheWork) {
  Saver saver;
  saver.write(job(0));
  saver.write(job(1, [](const std::atomic<bool>&) { return fault("no room"); }));
  saver.write(job(2));
  EXPECT_EQ(saver.wait().message(), "no room");
  EXPECT_EQ(saver.failure().message(), "no room");
  EXPECT_EQ(saver.written(), 1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "2"));
}

TEST_F(SaverTest, AJobHearsThatItIsCancelled) {
  std::atomic<bool> began{false};
  Saver saver;
  saver.write(job(0, [&](const std::atomic<bool>& cancelled) {
    began = true;
    while (!cancelled) std::this_thread::yield();
    return ok_status();
  }));
  saver.write(job(1));
  while (!began) std::this_thread::yield();
  saver.stop();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "1"));
}

}  // namespace saver_test
}  // namespace ofsdp
