#include "runtime/program/device_slices.h"

#include <algorithm>

namespace ofsdp::runtime {

SliceRoom slice_room(const Plan& plan, const Unit& unit, std::byte* slices) {
  const auto owned = static_cast<size_t>(plan.owned_numel(unit));
  const auto ranks = static_cast<size_t>(plan.world == 1 ? 0 : plan.world);
  const size_t parts = ranks * owned * dtype_size(unit.plan.gradient_dtype);
  std::byte* const sum = slices + align_up(parts, kTensorAlignment);
  std::byte* const rounded = sum + align_up(owned * sizeof(float), kTensorAlignment);
  return {slices, reinterpret_cast<float*>(sum), reinterpret_cast<float*>(rounded)};
}

void add_slices(DeviceIoPlan& io, const Plan& plan) {
  size_t most = 0;
  for (const Unit& unit : plan.units) {
    const SliceRoom room = slice_room(plan, unit, nullptr);
    const auto end = reinterpret_cast<uintptr_t>(room.rounded + plan.owned_numel(unit));
    most = std::max(most, static_cast<size_t>(end));
  }
  io.slices = align_up(io.device_bytes, kTensorAlignment);
  io.exact_sum = io.slices + align_up(most, kTensorAlignment);
  io.exact_limbs = io.exact_sum + align_up(sizeof(ofsdp_exact_sum), kTensorAlignment);
  io.device_bytes = io.exact_limbs + OFSDP_EXACT_LIMBS * sizeof(double);
}

}  // namespace ofsdp::runtime
