#include "runtime/executor.h"

#include <array>
#include <cmath>
#include <cstring>

#include "fsdp/rank_sum.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

OFSDP_MULTIARCH void scale_span(const float* __restrict from, float factor, float* __restrict to,
                                int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

const std::byte* bytes_of(const float* values) {
  return reinterpret_cast<const std::byte*>(values);
}

bool has_nan(const TensorView& view) {
  if (view.data == nullptr || view.desc.dtype != DType::kFloat32) return false;
  const auto* values = view.as<const float>();
  for (int64_t i = 0; i < view.desc.numel(); ++i) {
    if (std::isnan(values[i])) return true;
  }
  return false;
}

}  // namespace

Executor::Executor(const Plan& plan, const RankMemoryPlan& offsets, const RankMemory& memory,
                   const std::vector<UnitState>& units, const GradientSlots& slots,
                   OptimizerStep& optimizer, Communicator& communicator, float* loss_weight,
                   const ExecutorOptions& options)
    : plan_(plan),
      offsets_(offsets),
      memory_(memory),
      units_(units),
      slots_(slots),
      optimizer_(optimizer),
      communicator_(communicator),
      loss_weight_(loss_weight),
      options_(options) {
  for (const Unit& unit : plan.units) {
    const int rank = communicator.rank();
    gaps_.push_back(gaps(unit));
    groups_.push_back({plan.shard_group(unit, rank), plan.replica_group(unit, rank),
                       plan.represented(unit, rank)});
  }
  context_.seed = options.seed;
  exposed_ = ExposedTime(plan.units.size());
}

void Executor::begin_update(const UpdateNumbers& numbers) {
  numbers_ = numbers;
  context_.step = numbers.step - 1;
  numbers_.optimizer_step = numbers.step - loss_scale_.skipped_updates;
  scale_used_ = options_.scale_loss ? loss_scale_.scale : 1;
  skip_update_ = false;
  squared_norm_ = 0;
  global_norm_ = 0;
  exposed_.begin_update();
  update_began_ = nanoseconds_now();
}

void Executor::end_update(int64_t exchange_began) {
  const int64_t now = nanoseconds_now();
  exposed_.add(-1, now - exchange_began);
  exposed_.end_update();
  if (options_.trace == nullptr) return;
  options_.trace->add({nullptr, exchange_began, now, kTraceExchange, numbers_.step});
  options_.trace->add({nullptr, update_began_, now, kTraceUpdate, numbers_.step});
}

Status Executor::run(BoundProgram& program, const MicroBatch& batch) {
  empty_ = batch.sample_index.empty();
  loss_ = 0;
  *loss_weight_ = batch.loss_weight * static_cast<float>(scale_used_);
  context_.sample_index = batch.sample_index;
  for (const InputPatch& patch : program.inputs) {
    program.runs[static_cast<size_t>(patch.run)].inputs[static_cast<size_t>(patch.operand)].data =
        batch.columns[static_cast<size_t>(patch.column)];
  }
  if (options_.trace != nullptr) {
    OFSDP_RETURN_IF_ERROR(run_traced(program));
  } else {
    for (const BoundStep& step : program.steps) OFSDP_RETURN_IF_ERROR(execute(program, step));
  }
  if (!program.plan->options.training && !empty_) loss_ = *program.loss;
  return {};
}

Status Executor::run_traced(BoundProgram& program) {
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const int64_t began = nanoseconds_now();
    OFSDP_RETURN_IF_ERROR(execute(program, program.steps[s]));
    options_.trace->add(
        {program.plan, began, nanoseconds_now(), static_cast<int32_t>(s), numbers_.step});
  }
  return {};
}

Status Executor::execute(BoundProgram& program, const BoundStep& step) {
  switch (step.kind) {
    case StepKind::kRun:
      return empty_ ? Status{} : run_node(program, program.runs[static_cast<size_t>(step.index)]);
    case StepKind::kGather:
      return gather(step);
    case StepKind::kFree:
      return {};
    case StepKind::kCheckLoss:
      return check_loss(program);
    case StepKind::kCarry:
      carry(step);
      return {};
    case StepKind::kAcquire:
      return acquire(program, step.index);
    case StepKind::kAccumulate:
      accumulate(program, step.index);
      return {};
    case StepKind::kPost:
      post(step.index);
      return {};
    case StepKind::kReduce:
      return reduce(program, step.index, false);
    case StepKind::kReduceUpdate:
      return reduce(program, step.index, true);
    case StepKind::kAllReduce:
      return all_reduce(step.index);
    case StepKind::kPostShard:
      communicator_.post(shard_channel(step.index), groups_[static_cast<size_t>(step.index)].copies,
                         represented_slot(step.index));
      return {};
    case StepKind::kClip:
      return clip();
    case StepKind::kUpdate:
      update(step.index);
      return {};
  }
  return {};
}

Status Executor::run_node(const BoundProgram& program, const BoundRun& run) {
  Status status = run.kernel->run({run.inputs, run.outputs, run.workspace, &context_});
  if (status.ok()) return status;
  return std::move(status).with_prefix(fmt::format("{}, step {}, rank {}",
                                                   program.plan->graph.describe(*run.node),
                                                   numbers_.step, communicator_.rank()));
}

Status Executor::check_loss(BoundProgram& program) {
  if (empty_) return {};
  loss_ = *program.loss;
  return std::isnan(loss_) && program.plan->options.training ? blame_nan(program) : Status{};
}

// Nothing has been updated since the micro-batch began, here or anywhere: an update needs this
// rank's Post.
Status Executor::blame_nan(BoundProgram& program) {
  const Graph& graph = program.plan->graph;
  std::string culprit = "none found when run again";
  for (const BoundStep& step : program.steps) {
    if (step.kind == StepKind::kCheckLoss) break;
    if (step.kind != StepKind::kRun && step.kind != StepKind::kGather) continue;
    alone_ = true;  // the others go on to wait for this rank's gradients
    OFSDP_RETURN_IF_ERROR(execute(program, step));
    if (step.kind != StepKind::kRun) continue;
    const BoundRun& run = program.runs[static_cast<size_t>(step.index)];
    bool found = false;
    for (size_t i = 0; i < run.inputs.size() && !found; ++i) {
      if (!has_nan(run.inputs[i])) continue;
      culprit = fmt::format("first in '{}', which node '{}' ({}) reads",
                            graph.value(run.node->inputs[i]).name, run.node->name,
                            run.node->op->full_name());
      found = true;
    }
    for (size_t i = 0; i < run.outputs.size() && !found; ++i) {
      if (!has_nan(run.outputs[i])) continue;
      culprit =
          fmt::format("first made by node '{}' ({})", run.node->name, run.node->op->full_name());
      found = true;
    }
    if (found) break;
  }
  return fault("{}: loss is NaN at step {}, rank {}: {}", graph.file, numbers_.step,
               communicator_.rank(), culprit);
}

void Executor::carry(const BoundStep& step) {
  if (empty_) return;
  std::memcpy(step.slot, step.source, step.bytes);
  round_elements(reinterpret_cast<float*>(step.slot), options_.buffer_dtype,
                 static_cast<int64_t>(step.bytes / sizeof(float)));
}

Status Executor::gather(const BoundStep& step) {
  const auto u = static_cast<size_t>(step.index);
  const UnitOffsets& offsets = offsets_.units[u];
  const CollectiveSite where = site("all-gather", step.index);
  const DType dtype = plan_.param_dtype;
  const ShardSource source{offsets.owned, offsets.owned_stride, units_[u].owned_numel};
  const ExposedTime::Stretch stretch(exposed_, step.index);
  OFSDP_RETURN_IF_ERROR(
      communicator_.all_gather(groups_[u].shards, source, step.slot, dtype, where));
  const Unit& unit = plan_.units[u];
  if (unit.frozen.empty()) return {};
  const ShardSource frozen{offsets.frozen, 0, unit.frozen_padded_numel / groups_[u].shards.count,
                           dtype};
  std::byte* behind = step.slot + static_cast<size_t>(unit.padded_numel) * dtype_size(dtype);
  return communicator_.all_gather(groups_[u].shards, frozen, behind, dtype, where);
}

// Also clears what a unit of another shape has left in the gaps of the slot.
Status Executor::acquire(const BoundProgram& program, int unit) {
  const auto u = static_cast<size_t>(unit);
  const int64_t waited = communicator_.waited();
  for (int other : slots_.shares_bytes[u]) {
    OFSDP_RETURN_IF_ERROR(
        communicator_.acquire(other, summing_group(other), site("reduce-scatter", other)));
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
  return {offsets_.units[u].slot, units_[u].owned_numel, plan_.slot_dtype(plan_.units[u])};
}

// What is summed over the copies.
SlotSource Executor::represented_slot(int unit) const {
  const auto u = static_cast<size_t>(unit);
  const bool shard = plan_.shards_gradients(plan_.units[u]);
  return {shard ? static_cast<size_t>(offsets_.units[u].gradient) : offsets_.units[u].slot,
          groups_[u].represented.numel};
}

// The gradients are complete: for the sum over the shards, or where a copy is one rank over copies.
void Executor::post(int unit) {
  communicator_.post(unit, summing_group(unit),
                     scatters(unit) ? gradient_slot(unit) : represented_slot(unit));
}

// A gradient that is summed over copies afterwards is no gradient yet: its norm is taken there.
Status Executor::reduce(const BoundProgram& program, int unit, bool update_now) {
  const auto u = static_cast<size_t>(unit);
  const CompileOptions& options = program.plan->options;
  const bool add = !options.first_micro && plan_.shards_gradients(plan_.units[u]);
  const bool complete = options.last_micro && groups_[u].copies.count == 1;
  float* const kept = units_[u].gradient;
  auto sink = [&](int64_t begin, std::span<float> block) {
    const auto numel = static_cast<int64_t>(block.size());
    round_elements(block.data(), plan_.reduce_dtype, numel);
    if (add) add_elements(bytes_of(kept + begin), DType::kFloat32, block.data(), numel);
    if (complete) squared_norm_ += sum_of_squares(block);
    if (update_now) {
      optimizer_.update(unit, begin, block, numbers_);
    } else {
      std::memcpy(kept + begin, block.data(), block.size_bytes());
    }
  };
  const SlotSource slot = gradient_slot(unit);
  const int64_t waited = communicator_.waited(), began = nanoseconds_now();
  Status status = communicator_.reduce_scatter(unit, groups_[u].shards, slot, sink,
                                               site("reduce-scatter", unit));
  // Fused with the update, which is work of the rank: only the wait is the others'.
  exposed_.add(unit, update_now ? communicator_.waited() - waited : nanoseconds_now() - began);
  return status;
}

// Over the copies: of the gradient shard, or of the whole gradient where a copy is one rank.
Status Executor::all_reduce(int unit) {
  const auto u = static_cast<size_t>(unit);
  const Span part = groups_[u].represented;
  const bool shard = plan_.shards_gradients(plan_.units[u]);
  const SlotSource slot = represented_slot(unit);
  const int64_t began = nanoseconds_now();
  OFSDP_RETURN_IF_ERROR(communicator_.all_reduce(
      shard ? shard_channel(unit) : unit, groups_[u].copies, slot, site("all-reduce", unit)));
  exposed_.add(unit, nanoseconds_now() - began);
  round_elements(units_[u].gradient, plan_.reduce_dtype, units_[u].owned_numel);
  const float* mine = units_[u].gradient + (part.begin - units_[u].owned_begin);
  for (int64_t begin = 0; begin < part.numel; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, part.numel - begin);
    squared_norm_ += sum_of_squares({mine + begin, static_cast<size_t>(count)});
  }
  return {};
}

Status Executor::share_norm(std::span<double> all) {
  const ExposedTime::Stretch stretch(exposed_, -1);
  return communicator_.exchange({&squared_norm_, 1}, all, site("norm exchange", -1));
}

Status Executor::clip() {
  std::array<double, kMostRanks> all;
  const std::span<double> gathered(all.data(), static_cast<size_t>(communicator_.size()));
  OFSDP_RETURN_IF_ERROR(share_norm(gathered));
  double sum = 0;
  for (const double part : gathered) sum += part;
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
  const bool scaled_gradients = options_.clip_norm > 0 || options_.scale_loss;
  alignas(kTensorAlignment) std::array<float, kReduceBlock> scaled;
  for (int64_t begin = 0; begin < units_[u].owned_numel; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, units_[u].owned_numel - begin);
    const float* block = units_[u].gradient + begin;
    if (scaled_gradients) {
      scale_span(block, gradient_factor_, scaled.data(), count);
      block = scaled.data();
    }
    optimizer_.update(unit, begin, {block, static_cast<size_t>(count)}, numbers_);
  }
}

}  // namespace ofsdp
