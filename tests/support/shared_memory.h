// SharedMemory: looks for files that a run left in /dev/shm. The product's memory has no name, so a
// file that stays there is a defect; files of tests that run at the same time come and go.
//
//   const SharedMemory before;  ...  EXPECT_TRUE(before.nothing_was_added());
//   const SharedMemory ours("fsdp");  // only files with this in their names
//
// Ownership: a value. Threads: one. Errors: none.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "tests/support/run_program.h"

namespace ofsdp {

class SharedMemory {
 public:
  explicit SharedMemory(std::string part = "") : part_(std::move(part)), before_(names()) {}

  // Each new file goes away soon.
  testing::AssertionResult nothing_was_added() const {
    std::set<std::string> added = names();
    for (const std::string& name : before_) added.erase(name);
    const auto is_gone = [&] {
      const std::set<std::string> now = names();
      std::erase_if(added, [&](const std::string& name) { return !now.contains(name); });
      return added.empty();
    };
    if (holds_within(kSoon, is_gone)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << *added.begin() << " was left in " << kFolder;
  }

 private:
  static constexpr const char* kFolder = "/dev/shm";
  static constexpr double kSoon = 20;  // seconds that another test's run may take

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
      const std::string name = entry.path().filename().string();
      if (name.find(part_) != std::string::npos) names.insert(name);
    }
    return names;
  }

  std::string part_;
  std::set<std::string> before_;
};

}  // namespace ofsdp
