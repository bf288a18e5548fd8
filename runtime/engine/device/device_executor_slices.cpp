// What DeviceExecutor does with gradients where their sum must not depend on the number of ranks.
#include <array>

#include "runtime/engine/device/device_executor.h"
#include "runtime/program/device_slices.h"

namespace ofsdp::runtime {

// A sum begins at 0, so that it is never -0: the CPU drops that at its end.
Status DeviceExecutor::reduce_slices(const BoundProgram& program, int unit, bool update_now) {
  const auto u = static_cast<size_t>(unit);
  const UnitState& state = context_.units[u];
  const CompileOptions& options = program.plan->options;
  const Unit& of = context_.plan.units[u];
  const SliceRoom room = slice_room(context_.plan, of, context_.memory.io() + context_.io.slices);
  float* const sum = state.gradient != nullptr ? state.gradient : room.sum;
  const DType dtype = of.plan.gradient_dtype;
  const size_t bytes = static_cast<size_t>(state.owned_numel) * dtype_size(dtype);
  OFSDP_ASSIGN_OR_RETURN(const std::byte* parts, parts_of_all_ranks(unit, room, bytes));
  ofsdp_stream* const stream = device_.communication();
  const auto clear = [&](float* values) {
    return device_.call("reduce-scatter", table_.clear, stream, static_cast<void*>(values),
                        static_cast<size_t>(state.owned_numel) * sizeof(float));
  };
  const auto add = [&](const void* from, DType type, float* to) {
    return device_.call("reduce-scatter", table_.add, stream, from, number(type), to,
                        state.owned_numel);
  };
  if (options.first_micro) OFSDP_RETURN_IF_ERROR(clear(sum));
  for (int r = 0; r < context_.plan.world; ++r) {
    OFSDP_RETURN_IF_ERROR(add(parts + static_cast<size_t>(r) * bytes, dtype, sum));
  }
  if (!options.last_micro) return {};
  if (const DType rounded = context_.plan.reduce_dtype; rounded != DType::kFloat32) {
    OFSDP_RETURN_IF_ERROR(device_.call("reduce-scatter", table_.round, stream, sum, number(rounded),
                                       state.owned_numel));
    OFSDP_RETURN_IF_ERROR(clear(room.rounded));
    OFSDP_RETURN_IF_ERROR(add(sum, DType::kFloat32, room.rounded));
    OFSDP_RETURN_IF_ERROR(device_.call("reduce-scatter", table_.copy, stream,
                                       static_cast<void*>(sum),
                                       static_cast<const void*>(room.rounded),
                                       static_cast<size_t>(state.owned_numel) * sizeof(float)));
  }
  const ofsdp_gradient gradient{sum, number(DType::kFloat32), number(DType::kFloat32), nullptr};
  const ofsdp_reduce norm = reduction(unit, gradient, true);
  if (options.clip) {
    return device_.call("the norm", table_.add_exact_squares, stream,
                        static_cast<const float*>(sum + norm.norm_first), norm.norm_count,
                        exact_sum());
  }
  OFSDP_RETURN_IF_ERROR(device_.call("the norm", table_.reduce, stream, &norm));
  return update_now ? update(unit, gradient, false) : Status{};
}

Status DeviceExecutor::clear_exact_sum() {
  return device_.call("the norm", table_.clear, device_.upload(), static_cast<void*>(exact_sum()),
                      sizeof(ofsdp_exact_sum));
}

// Over all ranks, behind all units.
Status DeviceExecutor::sum_norm() {
  if (!context_.plan.across_ranks) return ranks_->sum_norm(&run_state()->squared_norm);
  auto* const limbs = reinterpret_cast<double*>(context_.memory.io() + context_.io.exact_limbs);
  OFSDP_RETURN_IF_ERROR(
      device_.call("the norm", table_.take_exact_sum, device_.communication(), exact_sum(), limbs));
  OFSDP_RETURN_IF_ERROR(ranks_->sum_norm(limbs, OFSDP_EXACT_LIMBS));
  return device_.call("the norm", table_.exact_norm, device_.communication(),
                      static_cast<const double*>(limbs), run_state());
}

// What each rank's slot has of the elements that this one owns.
Result<const std::byte*> DeviceExecutor::parts_of_all_ranks(int unit, const SliceRoom& room,
                                                            size_t bytes) {
  const auto u = static_cast<size_t>(unit);
  if (!ranks_->several()) return static_cast<const std::byte*>(context_.units[u].slot);
  const Unit& of = context_.plan.units[u];
  const size_t width = dtype_size(of.plan.gradient_dtype);
  std::array<size_t, kMostRanks> offsets;
  const auto world = static_cast<size_t>(context_.plan.world);
  for (size_t r = 0; r < world; ++r) {
    offsets[r] = static_cast<size_t>(context_.plan.owned(of, static_cast<int>(r)).begin) * width;
  }
  OFSDP_RETURN_IF_ERROR(ranks_->exchange_parts(
      unit, context_.units[u].slot, std::span(offsets.data(), world), room.parts, bytes));
  return static_cast<const std::byte*>(room.parts);
}

}  // namespace ofsdp::runtime
