// Losses and gradient norms of a run's steps: from a metrics file, and as PyTorch recorded them
// (expected.json in a fixture, with PyTorch's version).
//
// Errors: test failures.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {

struct Trajectory {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  double loss_rtol = 2e-5;
};

inline Trajectory reference(const std::string& name) {
  const auto json = nlohmann::json::parse(std::ifstream(fixture(name + "/expected.json")));
  return {json["losses"], json["grad_norms"], json["loss_rtol"]};
}

inline Trajectory steps_of(const std::string& metrics) {
  Trajectory found;
  for (const auto& row : rows_of(metrics, "step")) {
    EXPECT_EQ(row["step"], found.losses.size() + 1);
    found.losses.push_back(row["loss"].is_null() ? std::nan("") : row["loss"].get<double>());
    found.grad_norms.push_back(row["grad_norm"].is_null() ? std::nan("")
                                                          : row["grad_norm"].get<double>());
  }
  return found;
}

inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                        double rtol, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], rtol * std::abs(expected[i])) << what << " " << i + 1;
  }
}

inline void expect_near(const Trajectory& found, const Trajectory& expected) {
  expect_near(found.losses, expected.losses, expected.loss_rtol, "loss of step");
  expect_near(found.grad_norms, expected.grad_norms, 1e-4, "gradient norm of step");
}

}  // namespace ofsdp
