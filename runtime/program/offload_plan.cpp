#include "runtime/program/offload_plan.h"

#include <algorithm>

#include "kernels/core/device_values.h"
#include "runtime/program/placement.h"

namespace ofsdp::runtime {
namespace {

// How the gradient arrives on the host; lower sends it so.
void plan_gradient(const Plan& plan, const Unit& unit, bool accumulates, OffloadedUnit& made) {
  const bool summed = accumulates && unit.plan.shards_gradients;
  const bool summed_again = unit.plan.sums_copies && unit.plan.shards_gradients;
  made.summed = summed || summed_again;
  made.passes_slots = summed && !summed_again && plan.offload == CpuOffload::kParams;
  if (made.summed) return;
  made.landed = unit.plan.gradient_dtype;
  made.rounded_to = plan.reduce_dtype;
}

OffloadedUnit offload_unit(const Plan& plan, const Unit& unit, int optimizer_states,
                           bool accumulates, OffloadPlan& offload) {
  const auto numel = static_cast<size_t>(plan.owned_numel(unit));
  const size_t bytes = numel * sizeof(float), rest = numel * dtype_size(plan.rest_dtype);
  OffloadedUnit made;
  made.owned = made.rest = take(offload.bytes, bytes);
  offload.parameter_bytes += bytes;
  if (plan.rest_dtype != DType::kFloat32) {
    made.rest = take(offload.bytes, rest);
    offload.parameter_bytes += rest;
  }
  if (plan.offload == CpuOffload::kParams) {
    const size_t frozen =
        static_cast<size_t>(plan.owned_frozen(unit, 0).numel) * dtype_size(plan.param_dtype);
    made.frozen = take(offload.bytes, frozen);
    offload.parameter_bytes += frozen;
  }
  for (int i = 0; i < optimizer_states; ++i) {
    made.optimizer.push_back(take(offload.bytes, bytes));
    offload.optimizer_bytes += bytes;
  }
  made.gradient = take(offload.bytes, bytes);
  offload.gradient_bytes += bytes;
  plan_gradient(plan, unit, accumulates, made);
  return made;
}

}  // namespace

OffloadPlan plan_offload(const Plan& plan, int optimizer_states, bool accumulates, int ahead) {
  OffloadPlan offload;
  if (plan.offload == CpuOffload::kNone) return offload;
  offload.decision = take(offload.bytes, sizeof(ofsdp_run_state));
  offload.arrivals = take(offload.bytes, (plan.units.size() + 1) * sizeof(int64_t));
  for (const Unit& unit : plan.units) {
    offload.units.push_back(offload_unit(plan, unit, optimizer_states, accumulates, offload));
    if (!offload.units.back().passes_slots) continue;
    const size_t bytes = static_cast<size_t>(plan.owned_numel(unit)) * sizeof(float);
    offload.slot_bytes = std::max(offload.slot_bytes, align_up(bytes, kTensorAlignment));
    offload.slots = std::max(2, ahead + 1);
  }
  return offload;
}

}  // namespace ofsdp::runtime
