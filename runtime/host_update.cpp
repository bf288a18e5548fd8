#include "runtime/host_update.h"

#include <array>

#include "fsdp/rank_sum.h"
#include "kernels/core/device_table.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {

void HostUpdate::run(int unit, const UpdateNumbers& numbers, const float* factor) const {
  constexpr int64_t kBlocksWorthAThread = 4;
  int64_t at = 0;
  for (const OptimizerStep::Segment& segment : segments_[static_cast<size_t>(unit)]) {
    const int64_t numel = segment.end - at;
    const int64_t blocks = (numel + kReduceBlock - 1) / kReduceBlock;
    parallel_for(blocks, kBlocksWorthAThread, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        const int64_t begin = b * kReduceBlock, count = std::min(kReduceBlock, numel - begin);
        run_block(unit, at + begin, count, segment.weight_decay, numbers, factor);
      }
    });
    at = std::max(at, segment.end);
  }
}

void HostUpdate::run_block(int unit, int64_t begin, int64_t count, double weight_decay,
                           const UpdateNumbers& numbers, const float* factor) const {
  const OffloadedUnit& from = offloaded(unit);
  const UnitState& to = state(unit);
  alignas(kTensorAlignment) std::array<float, kReduceBlock> gradient;
  convert_elements(pinned_ + from.gradient + static_cast<size_t>(begin) * dtype_size(from.landed),
                   from.landed, reinterpret_cast<std::byte*>(gradient.data()), DType::kFloat32,
                   count);
  round_elements(gradient.data(), from.rounded_to, count);
  for (int64_t i = 0; factor != nullptr && i < count; ++i) {
    gradient[static_cast<size_t>(i)] *= *factor;
  }
  std::array<float*, OFSDP_MOST_OPTIMIZER_STATES> states{};
  for (size_t i = 0; i < to.optimizer.size(); ++i) states[i] = to.optimizer[i] + begin;
  optimizer_.update(settings_, {to.owned + begin, gradient.data(), states.data(), count, numbers.lr,
                                weight_decay, numbers.optimizer_step});
  publish(unit, begin, count);
}

void HostUpdate::publish(int unit, int64_t begin, int64_t count) const {
  convert_elements(reinterpret_cast<const std::byte*>(state(unit).owned + begin), DType::kFloat32,
                   rest(unit) + static_cast<size_t>(begin) * dtype_size(rest_dtype_), rest_dtype_,
                   count);
}

}  // namespace ofsdp
