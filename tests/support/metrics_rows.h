// The rows in a run's --metrics file (docs/reference/metrics.md), read back.
//
// Errors: exceptions of nlohmann::json, if a row lacks a requested value.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/run_program.h"

namespace ofsdp {

inline std::vector<nlohmann::json> rows_of(const std::string& metrics) {
  std::vector<nlohmann::json> rows;
  for (const std::string& line : lines_of(onnx_bytes::content(metrics))) {
    rows.push_back(nlohmann::json::parse(line));
  }
  return rows;
}

// `kind`: "step", "eval" or "end".
inline std::vector<nlohmann::json> rows_of(const std::string& metrics, const std::string& kind) {
  std::vector<nlohmann::json> rows = rows_of(metrics);
  std::erase_if(rows, [&](const nlohmann::json& row) { return row.at("kind") != kind; });
  return rows;
}

inline std::vector<double> losses_of(const std::string& metrics, const std::string& kind = "step") {
  std::vector<double> losses;
  for (const auto& row : rows_of(metrics, kind)) losses.push_back(row.at("loss"));
  return losses;
}

}  // namespace ofsdp
