#include "runtime/engine/host_update.h"

#include <array>

#include "fsdp/comm/rank_sum.h"
#include "kernels/core/device_values.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::runtime {

HostUpdate::HostUpdate(OptimizerStep& step, const std::vector<UnitState>& units,
                       const OffloadPlan& offload, const std::byte* pinned, const Plan& plan,
                       Communicator& communicator)
    : step_(step), units_(units), offload_(offload), pinned_(pinned), communicator_(communicator) {
  if (step.needs_norms()) lengths_.emplace(plan, units, communicator.rank());
}

Status HostUpdate::take_steps(const UpdateNumbers& numbers) {
  OFSDP_RETURN_IF_ERROR(lengths_->agree(step_, numbers, communicator_));
  for (size_t u = 0; u < units_.size(); ++u) {
    step_.apply(static_cast<int>(u), numbers, lengths_->lengths());
  }
  return {};
}

void HostUpdate::run(int unit, const UpdateNumbers& numbers, const float* factor) {
  constexpr int64_t kBlocksWorthAThread = 4;
  const int64_t numel = units_[static_cast<size_t>(unit)].owned_numel;
  const int64_t blocks = (numel + kReduceBlock - 1) / kReduceBlock;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * kReduceBlock;
      run_block(unit, begin, std::min(kReduceBlock, numel - begin), numbers, factor);
    }
  };
  if (step_.of_one_thread()) return run(0, blocks);
  parallel_for(blocks, kBlocksWorthAThread, run);
}

void HostUpdate::run_block(int unit, int64_t begin, int64_t count, const UpdateNumbers& numbers,
                           const float* factor) {
  const OffloadedUnit& from = offload_.units[static_cast<size_t>(unit)];
  alignas(kTensorAlignment) std::array<float, kReduceBlock> gradient;
  convert_elements(pinned_ + from.gradient + static_cast<size_t>(begin) * dtype_size(from.landed),
                   from.landed, reinterpret_cast<std::byte*>(gradient.data()), DType::kFloat32,
                   count);
  round_elements(gradient.data(), from.rounded_to, count);
  for (int64_t i = 0; factor != nullptr && i < count; ++i) {
    gradient[static_cast<size_t>(i)] *= *factor;
  }
  const std::span<const float> block(gradient.data(), static_cast<size_t>(count));
  if (step_.of_one_thread()) return step_.update(unit, begin, block, numbers);
  std::array<float*, OFSDP_MOST_OPTIMIZER_STATES> scratch{};
  step_.update(unit, begin, block, numbers, scratch);
}

}  // namespace ofsdp::runtime
