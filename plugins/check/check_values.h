// The numbers that check-plugin tries operators and optimizers with.
//
// Ownership: values. Threads: one per generator. Errors: none.
#pragma once

#include <random>
#include <vector>

namespace ofsdp::plugins {

// normal(0,1), as float32 has them.
inline std::vector<double> normals(size_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

}  // namespace ofsdp::plugins
