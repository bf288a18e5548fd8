#include "runtime/engine/device/device_factors.h"

#include <algorithm>

namespace ofsdp::runtime {

DeviceFactors::DeviceFactors(const DeviceFactorsContext& context) : context_(context) {
  float* at = context.means;
  for (const Unit& unit : context.plan.units) {
    for (const OptimizerStep::Factored& f : context.optimizer.factored(unit.id)) {
      const auto parameter = static_cast<size_t>(f.parameter);
      means_.resize(std::max(means_.size(), parameter + 1));
      means_[parameter] = at;
      at += f.shape.matrices;
    }
  }
}

Status DeviceFactors::sum(int unit, Span part, const float* gradient, float* sums) const {
  Device& device = context_.device;
  for (const OptimizerStep::Factored& f : context_.optimizer.factored(unit)) {
    const int64_t begin = std::max(part.begin, f.offset);
    const int64_t end = std::min(part.begin + part.numel, f.offset + f.shape.numel());
    if (begin >= end) continue;
    const ofsdp_matrix_squares squares{f.shape.rows,
                                       f.shape.columns,
                                       begin - f.offset,
                                       end - begin,
                                       gradient + (begin - part.begin),
                                       sums + f.rows,
                                       sums + f.columns};
    OFSDP_RETURN_IF_ERROR(device.sum_matrix_squares(device.communication(), &squares)
                              .with_prefix("second moments of matrices"));
  }
  return {};
}

Status DeviceFactors::advance(int unit, const float* sums) const {
  Device& device = context_.device;
  const UnitState& state = context_.units[static_cast<size_t>(unit)];
  for (const OptimizerStep::Factored& f : context_.optimizer.factored(unit)) {
    const auto held = [&](size_t i, const StatePart& part) {
      return state.optimizer[context_.optimizer.state_index(f.parameter, i)].floats() + part.at;
    };
    const auto advance = [&](size_t i, const StatePart& part, int64_t first, int64_t length) {
      if (part.count == 0) return ok_status();
      const ofsdp_factor_advance step{held(i, part), sums + first + part.first, part.count, length,
                                      context_.state};
      return device.advance_factors(device.communication(), &step)
          .with_prefix("second moments of matrices");
    };
    OFSDP_RETURN_IF_ERROR(advance(0, f.held_rows, f.rows, f.shape.columns));
    OFSDP_RETURN_IF_ERROR(advance(1, f.held_columns, f.columns, f.shape.rows));
    const int64_t first = f.held_rows.first / f.shape.rows;
    const int64_t matrices = f.held_rows.count / f.shape.rows;
    if (matrices == 0) continue;
    OFSDP_RETURN_IF_ERROR(device
                              .mean_rows(device.communication(), held(0, f.held_rows), f.shape.rows,
                                         matrices, means_[static_cast<size_t>(f.parameter)] + first)
                              .with_prefix("second moments of matrices"));
  }
  return {};
}

}  // namespace ofsdp::runtime
