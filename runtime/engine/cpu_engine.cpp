#include "runtime/engine/cpu_engine.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "fsdp/comm/communicator.h"
#include "kernels/cpu/parallel.h"
#include "runtime/engine/nan_search.h"

namespace ofsdp::runtime {
namespace {

OFSDP_MULTIARCH void scale_span(const float* __restrict from, float factor, float* __restrict to,
                                int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

const std::byte* bytes_of(const float* values) {
  return reinterpret_cast<const std::byte*>(values);
}

// A slice without samples adds 0, and -0 + 0 is 0. So -0 is the only trace of the slice count.
void drop_negative_zeros(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] += 0.0f;
}

Result<ValueRange> range_of_view(const TensorView& view) {
  ValueRange seen;
  seen.add(view.desc.dtype, {view.data, view.desc.bytes()});
  return seen;
}

SlotSource slot_of(const Operation& op) {
  return {.offset = static_cast<size_t>(op.src.offset),
          .numel = op.part.numel,
          .dtype = op.src.dtype,
          .first = op.part.begin,
          .parts = op.parts};
}

}  // namespace

CpuEngine::CpuEngine(const Plan& plan, const std::vector<UnitState>& units, Updater& updater,
                     Communicator& communicator, float* loss_weights,
                     const ExecutorOptions& options)
    : plan_(plan),
      units_(units),
      updater_(updater),
      communicator_(communicator),
      loss_weights_(loss_weights),
      options_(options),
      limbs_of_ranks_(ExactSquares::kLimbs * static_cast<size_t>(communicator.size())),
      exposed_(plan.units.size()) {
  context_.seed = options.seed;
}

void CpuEngine::begin_update(const UpdateNumbers& numbers) {
  numbers_ = numbers;
  context_.step = numbers.step - 1;
  numbers_.optimizer_step = options_.steps_done + numbers.step - loss_scale_.skipped_updates;
  updater_.begin(numbers_);
  scale_used_ = options_.scale_loss ? loss_scale_.scale : 1;
  skip_update_ = false;
  nan_at_ = -1;
  block_squares_.clear();
  exact_squares_.clear();
  global_norm_ = 0;
  exposed_.begin_update();
  if (options_.watch != nullptr) options_.watch->begin_update(numbers.step);
  outcome_ = {
      .step = numbers.step, .optimizer_step = numbers_.optimizer_step, .scale = scale_used_};
  outcome_given_ = false;
  update_began_ = nanoseconds_now();
}

Result<std::optional<UpdateOutcome>> CpuEngine::outcome(bool) {
  if (outcome_given_) return std::optional<UpdateOutcome>();
  outcome_given_ = true;
  outcome_.squared_norm = ExactSquares::sum(block_squares_.limbs()) / (scale_used_ * scale_used_);
  outcome_.skipped = skip_update_;
  return std::optional(outcome_);
}

void CpuEngine::end_update(int64_t exchange_began) {
  const int64_t now = nanoseconds_now();
  exposed_.add(-1, now - exchange_began);
  exposed_.end_update();
  if (options_.trace == nullptr) return;
  options_.trace->add(
      {nullptr, exchange_began, now, kTraceExchange, TraceRow::kOfStep, numbers_.step});
  options_.trace->add(
      {nullptr, update_began_, now, kTraceUpdate, TraceRow::kOfStep, numbers_.step});
}

Status CpuEngine::run(BoundProgram& program, const MicroBatch& batch) {
  program_ = &program;
  empty_ = batch.sample_index.empty();
  result_ = {};
  const Graph& graph = program.plan->graph;
  for (size_t t = 0; t < batch.shares.size(); ++t) {
    loss_weights_[t] = static_cast<float>(batch.shares[t] * graph.terms[t].factor) *
                       static_cast<float>(scale_used_);
  }
  context_.sample_index = batch.sample_index;
  for (const InputPatch& patch : program.inputs) {
    program.runs[static_cast<size_t>(patch.run)].inputs[static_cast<size_t>(patch.operand)].data =
        batch.columns[static_cast<size_t>(patch.column)];
  }
  OFSDP_RETURN_IF_ERROR(execute(*this, program));
  if (!program.plan->options.training && !empty_) take_losses(program);
  if (program.matches != nullptr && !empty_) {
    result_.right = program.matches[0];
    result_.kept = program.matches[1];
  }
  for (size_t t = 0; t < batch.shares.size(); ++t) {
    outcome_.losses[t] += batch.shares[t] * static_cast<double>(result_.losses[t]);
  }
  outcome_.samples += static_cast<double>(batch.sample_index.size());
  return {};
}

Status CpuEngine::begin_step(const Operation&) {
  if (options_.trace != nullptr) step_began_ = nanoseconds_now();
  return {};
}

Status CpuEngine::end_step(const Operation& op) {
  if (options_.trace == nullptr) return {};
  options_.trace->add(
      {program_->plan, step_began_, nanoseconds_now(), op.step, TraceRow::kOfStep, numbers_.step});
  return {};
}

Status CpuEngine::run_node(const Operation& op) {
  if (empty_ && !op.rowless) return {};
  const BoundRun& run = program_->runs[static_cast<size_t>(op.run)];
  Status status = run.kernel->run({run.inputs, run.outputs, run.workspace, &context_});
  if (status.ok()) return status;
  refused_ = {&program_->plan->graph, run.node};
  return std::move(status).with_prefix(format_text("{}, step {}, rank {}",
                                                   program_->plan->graph.describe(*run.node),
                                                   numbers_.step, communicator_.rank()));
}

void CpuEngine::take_losses(const BoundProgram& program) {
  for (size_t t = 0; t < program.losses.size(); ++t) result_.losses[t] = *program.losses[t];
}

Status CpuEngine::check_loss(const Operation&) {
  if (empty_) return {};
  take_losses(*program_);
  const bool ends = any_nan(result_.losses) && program_->plan->options.training;
  return ends ? blame_nan(*program_) : Status{};
}

Status CpuEngine::check_evaluation(BoundProgram& program) {
  return any_nan(result_.losses) ? blame_nan(program) : Status{};
}

// No rank has updated since the micro-batch began: an update needs this rank's Post, and evaluation
// ends in an exchange.
Status CpuEngine::blame_nan(BoundProgram& program) {
  alone_ = true;  // other ranks wait for this one
  OFSDP_ASSIGN_OR_RETURN(
      const NanFound found,
      first_nan(program, {.execute = [this](const Operation& op) { return execute(*this, op); },
                          .range = range_of_view}));
  return with_table(loss_fault(*program.plan, numbers_.step, communicator_.rank(), found),
                    growth_text(options_.watch));
}

Result<NanFound> CpuEngine::find_in_gradients(bool together) {
  return first_nan(*program_,
                   {.execute = [this](const Operation& op) { return execute(*this, op); },
                    .range = range_of_view,
                    .here = !empty_,
                    .together = together,
                    .gradients = true});
}

// The last reduced gradient is NaN. This rank owns it; another may have made it. Later layers are
// updated already, so the search sees their new weights.
Status CpuEngine::blame_gradient(int unit) {
  alone_ = true;
  const std::vector<UpdateRow>& rows = updater_.table().rows(unit);
  const auto row = std::ranges::find_if(rows, [&](const UpdateRow& r) { return nan_at_ < r.end; });
  const Graph& graph = program_->plan->graph;
  const std::string name =
      row == rows.end() ? "" : graph.parameters[static_cast<size_t>(row->parameter)].name;
  OFSDP_ASSIGN_OR_RETURN(const NanFound found, find_in_gradients(/*together=*/false));
  return with_table(
      with_table(fault("{}: gradient of '{}' is NaN at step {}, rank {}: {}", graph.file, name,
                       numbers_.step, communicator_.rank(), found.first),
                 found.operands),
      growth_text(options_.watch));
}

// All ranks call it, before any update. The first that finds a node reports it.
Status CpuEngine::blame_norm() {
  OFSDP_ASSIGN_OR_RETURN(const NanFound found, find_in_gradients(/*together=*/true));
  const double mine = found.operands.empty() ? 0 : 1;
  std::vector<double> gathered(static_cast<size_t>(communicator_.size()));
  OFSDP_RETURN_IF_ERROR(communicator_.exchange({&mine, 1}, gathered, site("search of a NaN", -1)));
  const auto first = std::ranges::find(gathered, 1.0);
  const auto rank = first == gathered.end() ? 0 : first - gathered.begin();
  if (rank != communicator_.rank()) return communicator_.barrier(site("search of a NaN", -1));
  return with_table(
      with_table(fault("{}: the norm of the gradients is {} at step {}, rank {}: {}",
                       program_->plan->graph.file, std::isnan(global_norm_) ? "NaN" : "infinite",
                       numbers_.step, rank, found.first),
                 found.operands),
      growth_text(options_.watch));
}

Status CpuEngine::buffer(const Operation& op) {
  if (empty_ && !op.rowless) return {};
  std::memcpy(op.dst.data, op.src.data, op.dst.bytes());
  round_elements(op.dst.floats(), options_.buffer_dtype,
                 static_cast<int64_t>(op.dst.bytes() / sizeof(float)));
  return {};
}

Status CpuEngine::unshard(const Operation& op) {
  const ExposedTime::Stretch stretch(exposed_, op.unit);
  const auto own = static_cast<size_t>(op.group.index_of(communicator_.rank())) * op.stride;
  const ShardSource source{static_cast<size_t>(op.src.offset) - own, op.stride, op.part.numel,
                           op.src.dtype, op.parts};
  return communicator_.all_gather(op.group, source, op.dst.data, op.dst.dtype,
                                  site("all-gather", op.unit));
}

Status CpuEngine::await(const Operation& op) {
  const int64_t waited = communicator_.waited();
  const CollectiveSite where =
      op.unit < 0 ? site(kJoinName, -1) : site("reduce-scatter", op.channel);
  OFSDP_RETURN_IF_ERROR(communicator_.acquire(op.channel, op.group, where));
  exposed_.add(op.unit, communicator_.waited() - waited);
  return {};
}

// Another unit may have used the slot, so gaps between parameters are cleared too.
Status CpuEngine::clear(const Operation& op) {
  if (empty_) {
    std::memset(op.dst.data, 0, op.dst.bytes());
    return {};
  }
  const size_t width = dtype_size(op.dst.dtype);
  for (const auto& [begin, end] : op.gaps) {
    std::memset(op.dst.data + static_cast<size_t>(begin) * width, 0,
                static_cast<size_t>(end - begin) * width);
  }
  return {};
}

Status CpuEngine::convert(const Operation& op) {
  convert_elements(op.src.data, op.src.dtype, op.dst.data, op.dst.dtype, op.dst.count);
  return {};
}

Status CpuEngine::add(const Operation& op) {
  add_elements(op.src.data, op.src.dtype, op.dst.floats(), op.dst.count);
  return {};
}

Status CpuEngine::post(const Operation& op) {
  communicator_.post(op.channel, op.group, slot_of(op));
  return {};
}

Status CpuEngine::reduce(const Operation& op) {
  const Stages& then = op.stages;
  float *const dst = op.dst.floats(), *const onto = op.onto.floats();
  Status updated;
  auto sink = [&](int64_t begin, std::span<float> block) {
    const auto numel = static_cast<int64_t>(block.size());
    round_elements(block.data(), then.round_to, numel);
    if (then.adds) add_elements(bytes_of(onto + begin), DType::kFloat32, block.data(), numel);
    if (then.positive_zero) drop_negative_zeros(block.data(), numel);
    const double squares = then.norm ? add_to_norm(op, begin, block) : 0;
    if (then.update && std::isnan(squares)) return;  // the run ends
    if (then.update) {
      if (updated.ok()) updated = updater_.advance(op.unit, begin, block);
    } else {
      std::memcpy(dst + begin, block.data(), block.size_bytes());
    }
  };
  SlotSource slot = slot_of(op);
  slot.onto = then.ordered ? onto : nullptr;
  const int64_t waited = communicator_.waited(), began = nanoseconds_now();
  Status status = communicator_.reduce_scatter(op.channel, op.group, slot, sink,
                                               site("reduce-scatter", op.unit));
  // The fused update is this rank's work; only waiting is exposed communication.
  exposed_.add(op.unit, then.update ? communicator_.waited() - waited : nanoseconds_now() - began);
  OFSDP_RETURN_IF_ERROR(std::move(updated));
  return status.ok() && nan_at_ >= 0 ? blame_gradient(op.unit) : std::move(status);
}

// Sums over replicas: the gradient shard, or the whole gradient if a replica is one rank.
Status CpuEngine::all_reduce(const Operation& op) {
  const int64_t began = nanoseconds_now();
  OFSDP_RETURN_IF_ERROR(
      communicator_.all_reduce(op.channel, op.group, slot_of(op), site("all-reduce", op.unit)));
  exposed_.add(op.unit, nanoseconds_now() - began);
  float* const gradient = op.dst.floats();
  round_elements(gradient, op.stages.round_to, op.dst.count);
  for (int64_t begin = 0; begin < op.unique.numel; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, op.unique.numel - begin);
    const int64_t first = op.unique.begin + begin;
    (void)add_to_norm(op, first, {gradient + first, static_cast<size_t>(count)});
  }
  return nan_at_ >= 0 ? blame_gradient(op.unit) : Status{};
}

// Adds the unique part of a block, which begins at element `begin` of the shard, to the norm;
// returns the sum of squares. Without a clip factor or loss scale, nothing decides whether to
// update, so a NaN ends the run.
double CpuEngine::add_to_norm(const Operation& op, int64_t begin, std::span<const float> block) {
  const auto size = static_cast<int64_t>(block.size());
  const int64_t from = std::clamp<int64_t>(op.unique.begin - begin, 0, size);
  const int64_t to = std::clamp<int64_t>(op.unique.begin + op.unique.numel - begin, from, size);
  const auto mine = block.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
  const double squares = add_squares(op.unit, begin + from, mine);
  if (op.stages.exact) exact_squares_.add(mine);
  if (std::isnan(squares) && !scales_gradients() && nan_at_ < 0) {
    const auto nan = std::ranges::find_if(mine, [](float v) { return std::isnan(v); });
    nan_at_ = begin + from + (nan - mine.begin());
  }
  if (options_.watch == nullptr) return squares;
  const float* const weights = units_[static_cast<size_t>(op.unit)].owned + begin + from;
  options_.watch->add(op.unit, mine, squares, weights);
  return squares;
}

// Adds a piece, which begins at element `begin` of the shard, block by block to the norm. Returns
// its own sum. A unique span ends where a block ends.
double CpuEngine::add_squares(int unit, int64_t begin, std::span<const float> piece) {
  const NormBlocks blocks = plan_.norm_blocks(plan_.units[static_cast<size_t>(unit)]);
  int64_t at = units_[static_cast<size_t>(unit)].owned_begin + begin;
  double sum = 0;
  while (!piece.empty()) {
    const int64_t end = blocks.end(at);
    const auto count = std::min(piece.size(), static_cast<size_t>(end - at));
    const double before = open_block_.sum();
    open_block_.add(piece.first(count));
    const double squares = open_block_.sum();
    sum += std::isinf(squares) ? squares : squares - before;
    piece = piece.subspan(count);
    at += static_cast<int64_t>(count);
    if (at < end) continue;
    block_squares_.add_sum(squares);
    open_block_ = {};
  }
  return sum;
}

Result<double> CpuEngine::exchange_norm(const ExactSquares& squares) {
  OFSDP_RETURN_IF_ERROR(
      communicator_.exchange(squares.limbs(), limbs_of_ranks_, site("norm exchange", -1)));
  return ExactSquares::sum(limbs_of_ranks_);
}

Status CpuEngine::clip(const Operation& op) {
  const int64_t began = nanoseconds_now();
  OFSDP_ASSIGN_OR_RETURN(const double sum,
                         exchange_norm(op.stages.exact ? exact_squares_ : block_squares_));
  exposed_.add(-1, nanoseconds_now() - began);
  global_norm_ = std::sqrt(sum) / scale_used_;
  gradient_factor_ = clip_factor() / static_cast<float>(scale_used_);
  const bool finite = std::isfinite(global_norm_);
  if (!options_.scale_loss) return finite ? Status{} : blame_norm();
  skip_update_ = !finite;
  loss_scale_.note(finite);
  if (finite || scale_used_ > LossScale::kMin) return {};
  OFSDP_ASSIGN_OR_RETURN(const NanFound found, find_in_gradients(/*together=*/true));
  outcome_.cause = found.first;
  return {};
}

// torch.nn.utils.clip_grad_norm_: float32 arithmetic on the norm.
float CpuEngine::clip_factor() const {
  if (options_.clip_norm <= 0) return 1.0f;
  const float factor =
      static_cast<float>(options_.clip_norm) / (static_cast<float>(global_norm_) + 1e-6f);
  return std::min(factor, 1.0f);
}

Status CpuEngine::update(const Operation& op) {
  if (skip_update_) return {};
  alignas(kTensorAlignment) std::array<float, kReduceBlock> scaled;
  for (int64_t begin = 0; begin < op.src.count; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, op.src.count - begin);
    const float* block = op.src.floats() + begin;
    if (scales_gradients()) {
      scale_span(block, gradient_factor_, scaled.data(), count);
      block = scaled.data();
    }
    OFSDP_RETURN_IF_ERROR(updater_.advance(op.unit, begin, {block, static_cast<size_t>(count)}));
  }
  return {};
}

// All ranks agree on skipped updates too.
Status CpuEngine::trust(const Operation&) {
  if (skip_update_) return {};
  const int64_t waited = communicator_.waited();
  OFSDP_RETURN_IF_ERROR(updater_.agree_on_norms(communicator_, numbers_.step));
  exposed_.add(-1, communicator_.waited() - waited);
  return {};
}

Status CpuEngine::sums(const Operation& op) {
  if (skip_update_) return {};
  std::memset(op.dst.data, 0, op.dst.bytes());
  return updater_.sum_squares(op.unit, op.src.floats(), op.dst.floats(), {});
}

Status CpuEngine::factors(const Operation& op) {
  if (skip_update_) return {};
  return updater_.advance_factors(op.unit, op.src.floats(), {});
}

Status CpuEngine::orthogonalize(const Operation& op) {
  if (skip_update_) return {};
  return updater_.orthogonalize(op.unit, op.dst.floats(), op.onto.data, {});
}

Status CpuEngine::watch(const Operation& op) {
  Watch& watch = *options_.watch;
  if (!watch.due()) return {};
  const int64_t began = nanoseconds_now();
  const std::span<float> slot(op.dst.floats(), static_cast<size_t>(op.dst.count));
  const CollectiveSite where = site("all-reduce of norms", -1);
  OFSDP_RETURN_IF_ERROR(communicator_.acquire(op.channel, op.group, where));
  watch.write(slot, communicator_.rank(), scale_used_);
  communicator_.post(op.channel, op.group, slot_of(op));
  OFSDP_RETURN_IF_ERROR(communicator_.all_reduce(op.channel, op.group, slot_of(op), where));
  exposed_.add(-1, nanoseconds_now() - began);
  watch.take(slot);
  return {};
}

Status CpuEngine::meet(const Operation& op) {
  const int64_t began = nanoseconds_now();
  OFSDP_RETURN_IF_ERROR(communicator_.barrier(site("meeting before a gather", op.unit)));
  exposed_.add(op.unit, nanoseconds_now() - began);
  return {};
}

Status CpuEngine::apply(const Operation& op) {
  return skip_update_ ? Status{} : updater_.apply(op.unit, {});
}

Status CpuEngine::place_rows(const Operation& op) {
  if (!empty_) return run_node(op);
  std::memset(op.dst.data, 0, op.dst.bytes());
  return {};
}

Status CpuEngine::join_rows(const Operation& op) {
  const int64_t began = nanoseconds_now();
  OFSDP_RETURN_IF_ERROR(
      communicator_.all_reduce(op.channel, op.group, slot_of(op), site(kJoinName, -1)));
  exposed_.add(-1, nanoseconds_now() - began);
  return {};
}

}  // namespace ofsdp::runtime
