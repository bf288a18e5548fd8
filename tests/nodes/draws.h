// Outputs of random operators. The expected files hold draws from numpy's generator, ours are
// Philox's. So outputs are checked against the definition: the possible values, and the count of
// each, within 4 standard deviations.
//
// Threads: any. Errors: kInput, with the expected and the found.
#pragma once

#include <optional>

#include "kernels/core/tensor.h"
#include "tests/nodes/node_test.h"

namespace ofsdp::nodes {

// Null: the test has no random outputs.
std::optional<Status> compare_draws(const NodeTest& test, const DataSet& data,
                                    const std::vector<Constant>& found);

}  // namespace ofsdp::nodes
