// A folder with a good model and good data, which a test spoils in one place, and the contract for
// a command with wrong input: the exit status, one line on stderr once a run that names the
// subject, and no file written. Every check is made with one rank and with two.
//
// Ownership: ModelFolder owns its folder on disk. Threads: one. Errors: test failures.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/namespaces.h"
#include "tests/support/small_model.h"
#include "tests/support/training_runs.h"

namespace ofsdp {

class ModelFolder : public onnx_bytes::Folder {
 public:
  ModelFolder() {
    write("model.onnx", onnx_bytes::linear_model().bytes());
    write("data/x.npy", onnx_bytes::linear_inputs());
    write("data/labels.npy", onnx_bytes::linear_labels());
  }

  std::string model() const { return *this / "model.onnx"; }
  std::string output() const { return *this / "trained.onnx"; }
  Words train() const {
    return fsdp_run({model(), "--loss", "cross_entropy", "--batch-size", "2", "--steps", "2",
                     "--output", output()});
  }

  // Every file below, with the bytes.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path())) {
      const bool file = entry.is_regular_file();
      found[entry.path().string()] = file ? onnx_bytes::content(entry.path().string()) : "";
    }
    return found;
  }
};

inline std::vector<std::string> names_of(const std::map<std::string, std::string>& contents) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : contents) names.push_back(name);
  return names;
}

// One line, with every fact in it; up to two lines of advice may follow.
inline void expect_one_line(const std::string& err, const Words& facts) {
  const std::vector<std::string> lines = lines_of(err);
  ASSERT_FALSE(lines.empty());
  EXPECT_LE(lines.size(), 3u) << err;
  EXPECT_THAT(lines[0], testing::StartsWith("fsdp-run: "));
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i], testing::Not(testing::StartsWith("fsdp-run: "))) << "said twice";
  }
  for (const std::string& fact : facts) EXPECT_THAT(lines[0], testing::HasSubstr(fact));
  EXPECT_LT(lines[0].size(), 700u);
}

struct Refusal {
  int status = 2;
  bool one_rank = true;  // also without --nproc-per-node
  Start start = {};
};

inline void expect_refused(const ModelFolder& folder, const Words& words, const Words& facts,
                           const Refusal& refusal = {}) {
  const auto before = folder.contents();
  for (const int count : {1, 2}) {
    if (count == 1 && !refusal.one_rank) continue;
    SCOPED_TRACE(format_text("{} with {} ranks", joined(words, " "), count));
    const Finished run = Program::run(words + (count == 1 ? Words{} : ranks(count)), refusal.start);
    EXPECT_EQ(run.status, refusal.status) << run.err;
    expect_one_line(run.err, facts);
    if (refusal.status == 2) {
      EXPECT_EQ(run.out.find("epoch 1"), std::string::npos) << "it began to train:\n" << run.out;
    }
    const auto after = folder.contents();
    EXPECT_EQ(names_of(after), names_of(before));
    EXPECT_TRUE(after == before) << "a file was changed";
  }
}

inline void expect_refused(const ModelFolder& folder, const Words& facts,
                           const Refusal& refusal = {}) {
  expect_refused(folder, folder.train(), facts, refusal);
}

inline void expect_trains(const ModelFolder& folder, const Words& more = {}) {
  const Finished run = Program::run(folder.train() + more);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(std::filesystem::is_regular_file(folder.output()));
  std::filesystem::remove(folder.output());
}

}  // namespace ofsdp
