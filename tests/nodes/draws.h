// Outputs of random operators. The expected files hold draws of numpy's generator, ours are
// Philox's, so outputs are held against the definition: which values are possible, and how many of
// each there are, within 4 standard deviations.
//
// Threads: any. Errors: kInput, what was expected and found.
#pragma once

#include <optional>

#include "kernels/core/tensor.h"
#include "tests/nodes/node_test.h"

namespace ofsdp::nodes {

// Null: the test draws nothing.
std::optional<Status> compare_draws(const NodeTest& test, const DataSet& data,
                                    const std::vector<Constant>& found);

}  // namespace ofsdp::nodes
