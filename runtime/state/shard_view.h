// ShardView: the span of a unit that a rank holds, or its share of it, with the values of the
// parameters or of one state of the optimizer. What loads, saves and checks values walks it by
// parameter.
//
// Ownership: a view of the rank's memory. Threads: any. Errors: those of the visitor.
#pragma once

#include <span>

#include "fsdp/plan/plan.h"
#include "kernels/base/overlap.h"

namespace ofsdp::runtime {

struct ShardPart {
  const UnitParam& param;
  int64_t first;            // element of the parameter that `values` begins with
  std::span<float> values;  // of the parameter, as far as the span has it
};

class ShardView {
 public:
  ShardView(const Unit& unit, const Span& span, float* values)
      : unit_(&unit), span_(span), values_(values) {}

  float* values() const { return values_; }

  // Calls visit(ShardPart), which returns a Status, for each parameter in the span.
  template <typename Visit>
  Status for_each_part(const Visit& visit) const {
    return base::for_each_part(
        unit_->params, span_.begin, span_.numel,
        [&](const UnitParam& param, int64_t first, int64_t at, int64_t count) -> Status {
          return visit(ShardPart{param, first, {values_ + at, static_cast<size_t>(count)}});
        });
  }

 private:
  const Unit* unit_;
  Span span_;
  float* values_;
};

}  // namespace ofsdp::runtime
