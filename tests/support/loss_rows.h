// Twelve rows for linear_model() (tests/support/small_model.h) with labels in three classes, and
// the softmax of a row in double: for tests of losses against plain loops.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/small_model.h"

namespace ofsdp::loss_rows {

constexpr size_t kRows = 12;
constexpr double kRate = 0.5;  // for SGD

using Triple = std::array<double, 3>;

// Returns number i in a row of linear_inputs().
inline double x(size_t row, size_t i) {
  return static_cast<float>((row * 4 + i) * 7 % 11) / 8 - 0.5;
}

// A third of the labels is ignored, mostly in the second half.
inline int64_t label_of(size_t row) {
  return row == 1 || row > 8 ? -100 : static_cast<int64_t>(row * row % 3);
}

inline Triple softmax(Triple z, double temperature) {
  double sum = 0;
  for (double& v : z) sum += v = std::exp(v / temperature);
  for (double& v : z) v /= sum;
  return z;
}

// Weights for a teacher with linear_model()'s graph.
inline std::vector<float> teacher_weights() {
  std::vector<float> weights = onnx_bytes::linear_weights();
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 2 * weights[weights.size() - 1 - i];
  return weights;
}

}  // namespace ofsdp::loss_rows
