// Tests with one case for each operator in the registry: operators, and names of the cases.
//
// No errors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

// The names that `wanted` takes.
template <typename Wanted>
std::vector<std::string> operator_names(Wanted wanted) {
  std::vector<std::string> names;
  const Registry registry = make_registry();
  for (const auto& [key, op] : registry.all()) {
    if (wanted(op)) names.push_back(op.full_name());
  }
  return names;
}

// Without the dots in the domain.
inline std::string operator_test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
}

}  // namespace ofsdp
