// The learning rate sweep of --find-lr (Smith, "Cyclical learning rates for training neural
// networks", 2017): updates with rates that grow by a constant factor from 1e-7 to 10, until the
// loss has grown fourfold.
//
// The suggested rate is where the smoothed loss falls fastest, per factor of the rate. Curves are
// functions of the points alone. Threads: one. Errors: kInput of a sweep of fewer than 5 updates.
#pragma once

#include <string>
#include <vector>

#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

struct LrPoint {
  double lr = 0;
  double loss = 0;  // smoothed
};

// `context` has one rank.
Result<std::vector<LrPoint>> sweep(const RunContext& context);

double suggested_lr(const std::vector<LrPoint>& points);
std::string curve_text(const std::vector<LrPoint>& points);
std::string curve_svg(const std::vector<LrPoint>& points);

}  // namespace ofsdp::runtime
