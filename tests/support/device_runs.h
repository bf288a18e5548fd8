// Training runs of the real program on a device in host memory (tests/device), and their files:
// rows of metrics without times, the trained file, the device's counts. With comparisons between a
// device's run and the CPU's.
//
// Errors: test failures.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {

struct Trained {
  std::vector<nlohmann::json> rows;
  std::string file, out;
  std::map<std::string, long> counts;
  std::vector<std::string> violations;
  Finished run;
};

// Adds one rank's counts to the sums over ranks.
inline void add_report(const std::string& file, Trained& trained) {
  std::ifstream counted(file);
  std::string word;
  while (counted >> word) {
    if (word == "violation") {
      std::getline(counted, word);
      trained.violations.push_back(word);
    } else {
      long count = 0;
      counted >> count;
      trained.counts[word] += count;
    }
  }
}

inline Trained train(const Words& command, const Words& more, const Words& environment) {
  const testing_data::TempFolder folder;
  const std::string metrics = folder.path() + "/metrics", output = folder.path() + "/out.onnx";
  const std::string report = folder.path() + "/report";
  Start start;
  start.environment = environment + Words{"COUNTING_DEVICE_REPORT=" + report};
  Trained trained{
      {},
      "",
      "",
      {},
      {},
      Program::run(
          command + more + Words{"--threads", "1", "--metrics", metrics, "--output", output},
          start)};
  for (nlohmann::json& row : rows_of(metrics)) {
    if (row["kind"] == "end") {
      EXPECT_EQ(row["peak_bytes"], row["planned_peak_bytes"]);
      continue;
    }
    for (const char* time : {"step_ms", "samples_per_s", "peak_bytes"}) row.erase(time);
    trained.rows.push_back(std::move(row));
  }
  trained.file = onnx_bytes::content(output);
  add_report(report, trained);
  for (int rank = 0; std::filesystem::exists(report + "." + std::to_string(rank)); ++rank) {
    add_report(report + "." + std::to_string(rank), trained);
  }
  return trained;
}

inline Trained on_cpu(const Words& command) { return train(command, {"--device", "cpu"}, {}); }

// `library`: OFSDP_COUNTING_DEVICE or OFSDP_EMULATED_DEVICE.
inline Trained run_on_device(const char* library, const Words& command, const Words& more = {},
                             int seed = 1) {
  return train(command, Words{"--device", "cuda"} + more,
               {std::string("OFSDP_CUDA_LIBRARY=") + library,
                "COUNTING_DEVICE_SEED=" + std::to_string(seed)});
}

inline Trained on_counting_device(const Words& command, const Words& more = {}, int seed = 1) {
  return run_on_device(OFSDP_COUNTING_DEVICE, command, more, seed);
}

struct NamedRun {
  const char* name;
  Words command;
};

inline std::string test_name(const testing::TestParamInfo<NamedRun>& info) {
  return info.param.name;
}

inline Words small_mlp() {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                   "--batch-size", "7", "--epochs", "1", "--eval-data", fixture("mlp/data")});
}
inline Words small_mlp(int world) { return small_mlp() + ranks(world); }
inline Words of_fixture(const char* model, int world) {
  return fsdp_run({fixture(model), "--loss", "cross_entropy", "--data", "synthetic", "--eval-data",
                   "none", "--batch-size", "2", "--steps", "3"}) +
         ranks(world);
}

// `half` steps on the CPU, then the counting device from the checkpoint up to step `whole`: the
// same file as from one run, and the other way round too.
inline void expect_checkpoints_of_both(const Words& command, int half, int whole) {
  const testing_data::TempFolder folder;
  const auto part = [&](const std::string& device, const std::string& dir, int steps,
                        const Words& more) {
    const Words where{"--device",
                      device,
                      "--checkpoint-dir",
                      folder.path() + "/" + dir,
                      "--checkpoint-interval",
                      "4step",
                      "--steps",
                      std::to_string(steps)};
    return train(command + where, more, {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE});
  };
  const Trained expected = on_cpu(command + Words{"--steps", std::to_string(whole)});
  for (const auto& [first, second] : {std::pair{"cpu", "cuda"}, std::pair{"cuda", "cpu"}}) {
    EXPECT_EQ(part(first, first, half, {}).run.status, 0);
    const Trained rest = part(second, first, whole, {"--resume", "latest"});
    EXPECT_EQ(rest.run.status, 0) << rest.run.err;
    EXPECT_TRUE(expected.file == rest.file) << first << " then " << second;
  }
}

inline void expect_both_ran(const Trained& cpu, const Trained& device) {
  EXPECT_EQ(cpu.run.status, 0) << cpu.run.err;
  EXPECT_EQ(device.run.status, 0) << device.run.err;
  EXPECT_EQ(device.violations, std::vector<std::string>{});
}

inline void expect_same_bits(const Trained& cpu, const Trained& device) {
  expect_both_ran(cpu, device);
  EXPECT_EQ(cpu.rows, device.rows);
  EXPECT_FALSE(cpu.file.empty());
  EXPECT_TRUE(cpu.file == device.file) << "the trained files differ";
}

// In two orders of the device's streams, and without graphs; each of `counted` must be positive.
inline void expect_bits_of_the_cpu(const Words& command,
                                   std::initializer_list<const char*> counted = {}) {
  const Trained cpu = on_cpu(command);
  for (const int seed : {1, 2}) {
    SCOPED_TRACE(seed);
    Trained device = on_counting_device(command, {}, seed);
    expect_same_bits(cpu, device);
    for (const char* name : counted) EXPECT_GT(device.counts[name], 0) << name;
  }
  expect_same_bits(cpu, on_counting_device(command, {"--cuda-graph", "off"}));
}

// `allowed`: times the loss.
inline void expect_near_losses(const Trained& cpu, const Trained& device, double allowed) {
  expect_both_ran(cpu, device);
  ASSERT_EQ(cpu.rows.size(), device.rows.size());
  int losses = 0;
  for (size_t i = 0; i < cpu.rows.size(); ++i) {
    if (!cpu.rows[i].contains("loss")) continue;
    const double expected = cpu.rows[i]["loss"], found = device.rows[i]["loss"];
    EXPECT_NEAR(found, expected, allowed * std::abs(expected)) << i;
    ++losses;
  }
  EXPECT_GE(losses, 2);
}

}  // namespace ofsdp
