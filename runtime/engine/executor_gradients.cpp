// What the executor does with gradients: sums over micro-batches and ranks, the norm, the update.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "fsdp/comm/rank_sum.h"
#include "kernels/cpu/parallel.h"
#include "runtime/engine/executor.h"

namespace ofsdp::runtime {
namespace {

OFSDP_MULTIARCH void scale_span(const float* __restrict from, float factor, float* __restrict to,
                                int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

const std::byte* bytes_of(const float* values) {
  return reinterpret_cast<const std::byte*>(values);
}

// A slice without samples adds 0, and -0 + 0 is 0: the one trace that the number of slices leaves.
void drop_negative_zeros(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] += 0.0f;
}

}  // namespace

// Also clears what a unit of another shape has left in the gaps of the slot.
Status Executor::acquire(const BoundProgram& program, int unit) {
  const auto u = static_cast<size_t>(unit);
  const int64_t waited = communicator_.waited();
  for (int other : slots_.shares_bytes[u]) {
    OFSDP_RETURN_IF_ERROR(communicator_.acquire(other, groups_[static_cast<size_t>(other)].sums,
                                                site("reduce-scatter", other)));
  }
  exposed_.add(unit, communicator_.waited() - waited);
  const size_t width = dtype_size(plan_.param_dtype);  // of what nodes write
  std::byte* const own = program.accumulate[u];
  std::byte* const target = own != nullptr ? own : units_[u].slot;
  if (empty_) {
    std::memset(target, 0, static_cast<size_t>(plan_.units[u].padded_numel) * width);
    return {};
  }
  for (const auto& [begin, end] : gaps_[u]) {
    std::memset(target + static_cast<size_t>(begin) * width, 0,
                static_cast<size_t>(end - begin) * width);
  }
  return {};
}

void Executor::accumulate(const BoundProgram& program, int unit) {
  const auto u = static_cast<size_t>(unit);
  const std::byte* src = program.accumulate[u];
  const int64_t numel = plan_.units[u].padded_numel;
  if (program.plan->options.first_micro) {
    convert_elements(src, plan_.param_dtype, units_[u].slot, DType::kFloat32, numel);
  } else {
    add_elements(src, plan_.param_dtype, reinterpret_cast<float*>(units_[u].slot), numel);
  }
}

SlotSource Executor::gradient_slot(int unit) const {
  const auto u = static_cast<size_t>(unit);
  return {offsets_.units[u].slot, units_[u].owned_numel, plan_.units[u].plan.gradient_dtype,
          units_[u].owned_begin};
}

// What is summed over the copies.
SlotSource Executor::represented_slot(int unit) const {
  const auto u = static_cast<size_t>(unit);
  const bool shard = plan_.units[u].plan.shards_gradients;
  return {shard ? static_cast<size_t>(offsets_.units[u].gradient) : offsets_.units[u].slot,
          groups_[u].represented.numel};
}

// The gradients are complete: for the sum over the shards, or where a copy is one rank over copies.
void Executor::post(int unit) {
  communicator_.post(unit, groups_[static_cast<size_t>(unit)].sums,
                     scatters(unit) ? gradient_slot(unit) : represented_slot(unit));
}

// A gradient that is summed over copies afterwards is no gradient yet: its norm is taken there.
Status Executor::reduce(const BoundProgram& program, int unit, bool update_now) {
  const auto u = static_cast<size_t>(unit);
  const CompileOptions& options = program.plan->options;
  const bool ordered = plan_.across_ranks;
  const bool more = !options.first_micro && plan_.units[u].plan.shards_gradients;
  const bool complete = options.last_micro && !plan_.units[u].plan.sums_copies;
  float* const kept = units_[u].gradient;
  auto sink = [&](int64_t begin, std::span<float> block) {
    const auto numel = static_cast<int64_t>(block.size());
    if (!ordered || complete) round_elements(block.data(), plan_.reduce_dtype, numel);
    if (more && !ordered)
      add_elements(bytes_of(kept + begin), DType::kFloat32, block.data(), numel);
    if (complete && ordered) drop_negative_zeros(block.data(), numel);
    if (complete) add_to_norm(unit, begin, block);
    if (update_now) {
      optimizer_.update(unit, begin, block, numbers_);
    } else {
      std::memcpy(kept + begin, block.data(), block.size_bytes());
    }
  };
  SlotSource slot = gradient_slot(unit);
  slot.onto = more && ordered ? kept : nullptr;
  const int64_t waited = communicator_.waited(), began = nanoseconds_now();
  Status status =
      communicator_.reduce_scatter(unit, groups_[u].sums, slot, sink, site("reduce-scatter", unit));
  // Fused with the update, which is work of the rank: only the wait is the others'.
  exposed_.add(unit, update_now ? communicator_.waited() - waited : nanoseconds_now() - began);
  return status;
}

// Over the copies: of the gradient shard, or of the whole gradient where a copy is one rank.
Status Executor::all_reduce(int unit) {
  const auto u = static_cast<size_t>(unit);
  const Span part = groups_[u].represented;
  const bool shard = plan_.units[u].plan.shards_gradients;
  const SlotSource slot = represented_slot(unit);
  const int64_t began = nanoseconds_now();
  OFSDP_RETURN_IF_ERROR(communicator_.all_reduce(
      shard ? shard_channel(unit) : unit, groups_[u].copies, slot, site("all-reduce", unit)));
  exposed_.add(unit, nanoseconds_now() - began);
  round_elements(units_[u].gradient, plan_.reduce_dtype, units_[u].owned_numel);
  const int64_t first = part.begin - units_[u].owned_begin;
  for (int64_t begin = 0; begin < part.numel; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, part.numel - begin);
    add_to_norm(unit, first + begin,
                {units_[u].gradient + first + begin, static_cast<size_t>(count)});
  }
  return {};
}

// Of a block that begins at `begin` of what the rank owns, the part that counts here and nowhere
// else.
void Executor::add_to_norm(int unit, int64_t begin, std::span<const float> block) {
  const auto u = static_cast<size_t>(unit);
  const int64_t first = groups_[u].represented.begin - units_[u].owned_begin;
  const auto size = static_cast<int64_t>(block.size());
  const int64_t from = std::clamp<int64_t>(first - begin, 0, size);
  const int64_t to = std::clamp<int64_t>(first + groups_[u].represented.numel - begin, from, size);
  const auto mine = block.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
  squared_norm_ += sum_of_squares(mine);
  if (plan_.across_ranks && scales_gradients()) exact_squares_.add(mine);
}

Result<double> Executor::exchange_norm() {
  std::array<double, kMostRanks> all;
  const std::span<double> gathered(all.data(), static_cast<size_t>(communicator_.size()));
  OFSDP_RETURN_IF_ERROR(
      communicator_.exchange({&squared_norm_, 1}, gathered, site("norm exchange", -1)));
  double sum = 0;
  for (const double part : gathered) sum += part;
  return sum;
}

Result<double> Executor::exchange_exact_norm() {
  constexpr size_t kLimbs = ExactSquares::kLimbs;
  std::array<double, kLimbs * kMostRanks> all;
  const std::span<double> gathered(all.data(), kLimbs * static_cast<size_t>(communicator_.size()));
  OFSDP_RETURN_IF_ERROR(
      communicator_.exchange(exact_squares_.limbs(), gathered, site("norm exchange", -1)));
  return ExactSquares::sum(gathered);
}

Status Executor::clip() {
  const int64_t began = nanoseconds_now();
  OFSDP_ASSIGN_OR_RETURN(const double sum,
                         plan_.across_ranks ? exchange_exact_norm() : exchange_norm());
  exposed_.add(-1, nanoseconds_now() - began);
  global_norm_ = std::sqrt(sum) / scale_used_;
  gradient_factor_ = clip_factor() / static_cast<float>(scale_used_);
  if (!options_.scale_loss) return {};
  skip_update_ = !std::isfinite(global_norm_);
  loss_scale_.note(!skip_update_);
  return {};
}

// torch.nn.utils.clip_grad_norm_: float32 arithmetic on the norm.
float Executor::clip_factor() const {
  if (options_.clip_norm <= 0) return 1.0f;
  const float factor =
      static_cast<float>(options_.clip_norm) / (static_cast<float>(global_norm_) + 1e-6f);
  return std::min(factor, 1.0f);
}

void Executor::update(int unit) {
  if (skip_update_) return;
  const auto u = static_cast<size_t>(unit);
  alignas(kTensorAlignment) std::array<float, kReduceBlock> scaled;
  for (int64_t begin = 0; begin < units_[u].owned_numel; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, units_[u].owned_numel - begin);
    const float* block = units_[u].gradient + begin;
    if (scales_gradients()) {
      scale_span(block, gradient_factor_, scaled.data(), count);
      block = scaled.data();
    }
    optimizer_.update(unit, begin, {block, static_cast<size_t>(count)}, numbers_);
  }
}

// Also an update that is skipped is agreed on by all.
Status Executor::trust() {
  if (skip_update_) return {};
  const int64_t waited = communicator_.waited();
  OFSDP_RETURN_IF_ERROR(step_lengths_->agree(optimizer_, numbers_, communicator_));
  exposed_.add(-1, communicator_.waited() - waited);
  return {};
}

}  // namespace ofsdp::runtime
