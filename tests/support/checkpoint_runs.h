// Runs that save and resume, for tests of checkpoints: a perceptron in several units, with batches
// that are not a multiple of anything and a short last one in each of four epochs.
//
// Ownership: CheckpointRuns owns its folder. Threads: one. Errors: test failures.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {

inline Words checkpointed_model() {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000"});
}

class CheckpointRuns {
 public:
  std::string path() const { return folder_.path(); }
  std::string operator/(const std::string& name) const { return path() + "/" + name; }
  std::string dir() const { return *this / "checkpoints"; }
  Words saving() const { return {"--checkpoint-dir", dir()}; }
  Words resuming() const { return saving() + Words{"--resume", "latest"}; }

  // A run's trained file.
  std::string trained(const Words& words, const Start& start = {}) const {
    const std::string output = *this / "trained.onnx";
    std::filesystem::remove(output);
    last_ = Program::run(words + Words{"--output", output}, start);
    EXPECT_EQ(last_.status, 0) << last_.err;
    return onnx_bytes::content(output);
  }
  const Finished& last() const { return last_; }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir())) {
      const std::string name = entry.path().filename().string();
      if (name != ".lock") names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  nlohmann::json manifest(const std::string& name) const {
    return nlohmann::json::parse(onnx_bytes::content(dir() + "/" + name + "/manifest.json"));
  }

 private:
  testing_data::TempFolder folder_;
  mutable Finished last_;
};

// Reads a metrics file.
inline std::vector<std::pair<int64_t, double>> losses_by_step(const std::string& metrics) {
  std::vector<std::pair<int64_t, double>> losses;
  for (const auto& row : rows_of(metrics, "step")) {
    losses.emplace_back(row.at("step"), row.at("loss"));
  }
  return losses;
}

}  // namespace ofsdp
