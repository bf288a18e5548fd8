// The answer of `fsdp-run plan --fit` (runtime/compile/fit.h) as text of at most 20 lines and as
// JSON (docs/internals/plan.md).
#pragma once

#include <string>
#include <vector>

#include "runtime/compile/fit.h"

namespace ofsdp::runtime {

// `command`: the words as typed. Each row ends with them and the flags of the change, without
// --fit, ready to be typed again.
std::string fit_text(const FitAnswer& answer, const PlanReportOptions& asked,
                     const std::vector<std::string>& command);
std::string fit_json(const FitAnswer& answer, const PlanReportOptions& asked,
                     const std::vector<std::string>& command);

}  // namespace ofsdp::runtime
