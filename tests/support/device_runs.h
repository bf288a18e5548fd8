// Training runs of the real program on a device that lives in host memory (tests/device), and what
// they left behind: rows of metrics without times, the trained file, what the device counted.
//
// Ownership: values. Threads: any. Errors: test failures.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/training_runs.h"

namespace ofsdp {

struct Trained {
  std::vector<nlohmann::json> rows;
  std::string file, out;
  std::map<std::string, long> counts;
  std::vector<std::string> violations;
  Finished run;
};

// Of one rank; those of several are added up.
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
  std::ifstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    auto row = nlohmann::json::parse(line);
    if (row["kind"] == "end") {
      EXPECT_EQ(row["peak_bytes"], row["planned_peak_bytes"]);
      continue;
    }
    for (const char* time : {"step_ms", "samples_per_s", "peak_bytes"}) row.erase(time);
    trained.rows.push_back(row);
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

}  // namespace ofsdp
