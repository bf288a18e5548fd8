#include "runtime/engine/device/device_engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/host_tasks.h"

namespace ofsdp::runtime {

namespace {

// Ends the process with status() unless destroyed within `limit`, since a call into the driver may
// never return. status() runs on its own thread. Without memory for a thread the process ends at
// once.
class ExitDeadline {
 public:
  // Writes no buffered output and runs no destructors: errors were reported before.
  ExitDeadline(std::chrono::milliseconds limit, std::function<int()> status);
  ExitDeadline(const ExitDeadline&) = delete;
  ~ExitDeadline();

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread watch_;
};

ExitDeadline::ExitDeadline(std::chrono::milliseconds limit, std::function<int()> status) {
  auto watch = start_thread("ofsdp-deadline", "a deadline", [this, limit, status] {
    std::unique_lock lock(mutex_);
    if (!over_.wait_for(lock, limit, [this] { return done_; })) _exit(status());
  });
  if (!watch.ok()) _exit(status());
  watch_ = std::move(*watch);
}

ExitDeadline::~ExitDeadline() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  over_.notify_one();
  watch_.join();
}

// Less than LaunchPlan's grace, after which the launcher kills this process as if it had reported
// nothing.
constexpr std::chrono::seconds kGivingUp{2};

}  // namespace

DeviceEngine::DeviceEngine(const DeviceContext& context, const ExecutorOptions& options,
                           std::unique_ptr<DeviceRanks> ranks,
                           std::unique_ptr<DeviceOffload> offload)
    : context_(context),
      device_(context.device),
      options_(options),
      ranks_(std::move(ranks)),
      offload_(std::move(offload)),
      exposed_(context.plan.units.size()) {
  step_.seed = options.seed;
  for (const Unit& unit : context.plan.units) {
    std::vector<size_t>& of_ranks = parts_.emplace_back();
    for (int r = 0; r < context.plan.world && context.plan.across_ranks; ++r) {
      of_ranks.push_back(static_cast<size_t>(context.plan.owned(unit, r).begin) *
                         dtype_size(unit.plan.gradient_dtype));
    }
  }
}

Result<std::unique_ptr<DeviceEngine>> DeviceEngine::make(const DeviceContext& context,
                                                         const ExecutorOptions& options,
                                                         std::unique_ptr<DeviceRanks> ranks,
                                                         std::unique_ptr<DeviceOffload> offload) {
  std::unique_ptr<DeviceEngine> made(
      new DeviceEngine(context, options, std::move(ranks), std::move(offload)));
  for (Slot& slot : made->slots_) {
    OFSDP_ASSIGN_OR_RETURN(slot.uploaded, DeviceEvent::make(context.device));
    OFSDP_ASSIGN_OR_RETURN(slot.done, DeviceEvent::make(context.device));
  }
  OFSDP_ASSIGN_OR_RETURN(made->trace_, DeviceTrace::make(context.device, options.trace));
  if (made->offload_ != nullptr) made->offload_->set_trace(made->trace_.get());
  return made;
}

// Work under way means that the run has failed. Queued work refers to kernels and must end before
// they do.
DeviceEngine::~DeviceEngine() {
  std::optional<ExitDeadline> deadline;
  const bool under_way = std::ranges::any_of(slots_, [](const Slot& s) { return s.pending; });
  if (ranks_->several() && (under_way || ranks_->in_vain())) {
    deadline.emplace(kGivingUp, [this] { return ranks_->exit_status(); });
    ranks_->abort([this] {
      for (auto& [program, prepared] : prepared_) prepared.graphs = {};
    });
  }
  (void)device_.synchronize().with_prefix("the end of the run");
}

Status DeviceEngine::prepare(BoundProgram& program) {
  Prepared& prepared = prepared_[&program];
  prepared.streams =
      schedule_streams(step_accesses(program.operations, program.plan->schedule.steps.size()));
  for (DeviceGraph& graph : prepared.graphs) graph = DeviceGraph(nullptr, {&device_});
  while (events_.size() < static_cast<size_t>(prepared.streams.events)) {
    OFSDP_ASSIGN_OR_RETURN(DeviceEvent event, DeviceEvent::make(device_));
    events_.push_back(std::move(event));
  }
  if (trace_ == nullptr) return {};
  return trace_->reserve(program.operations.size(), context_.plan.units.size());
}

// The loss scale begins at the initial one, or where a resumed run left off.
Status DeviceEngine::start() {
  if (started_) return {};
  started_ = true;
  ofsdp_run_state& first = pinned_result(0);
  first = {};
  first.scale_used = 1;
  first.gradient_factor = 1;
  first.loss_scale = loss_scale_.scale;
  first.good_updates = loss_scale_.good_updates;
  first.skipped_updates = loss_scale_.skipped_updates;
  first.steps_before = options_.steps_done;
  OFSDP_RETURN_IF_ERROR(device_.copy(device_.upload(), run_state(), &first, sizeof(first))
                            .with_prefix("the run's state"));
  if (context_.plan.across_ranks) OFSDP_RETURN_IF_ERROR(clear_exact_sum());
  OFSDP_RETURN_IF_ERROR(device_.synchronize().with_prefix("the run's state"));
  return trace_ == nullptr ? Status{} : trace_->start();
}

Status DeviceEngine::run(BoundProgram& program, const MicroBatch& batch) {
  OFSDP_RETURN_IF_ERROR(start());
  const size_t slot = next_;
  OFSDP_RETURN_IF_ERROR(collect(slot));
  empty_ = batch.sample_index.empty();
  step_.numbers = device_numbers(slot);
  step_.fault = &run_state()->fault;
  if (context_.rules != nullptr) {
    context_.rules->use(context_.memory.io() + context_.io.scalars[slot]);
  }
  step_.samples = static_cast<int64_t>(batch.sample_index.size());
  OFSDP_RETURN_IF_ERROR(upload(program, batch, slot));
  slots_[slot].pending = true;
  if (offload_ != nullptr) OFSDP_RETURN_IF_ERROR(offload_->begin());
  OFSDP_RETURN_IF_ERROR(play(program, slot, batch.alike));
  Slot& under_way = slots_[slot];
  OFSDP_RETURN_IF_ERROR(
      device_.record(under_way.done.get(), device_.compute()).with_prefix("an event"));
  const CompileOptions& options = program.plan->options;
  under_way.training = options.training;
  under_way.last = options.last_micro;
  under_way.empty = empty_;
  std::ranges::copy(batch.shares, under_way.shares.begin());
  under_way.step = numbers_.step;
  under_way.samples = step_.samples;
  under_way.program = &program;
  next_ = (slot + 1) % kMicroSlots;
  // From here on the loader may reuse the staging memory, while the device still computes.
  OFSDP_RETURN_IF_ERROR(device_.await(under_way.uploaded.get()).with_prefix("the upload"));
  if (!program.host.empty()) {
    OFSDP_RETURN_IF_ERROR(offload_->update(
        program.host, numbers_, scales_gradients(),
        [this](ofsdp_event* event) { return ranks_->wait(event, numbers_.step); }));
  }
  if (trace_ != nullptr) trace_->finish();
  return {};
}

Status DeviceEngine::play(BoundProgram& program, size_t slot, bool alike) {
  const auto it = prepared_.find(&program);
  OFSDP_CHECK(it != prepared_.end(), "a program that was not prepared");
  Prepared& prepared = it->second;
  const bool may_replay = alike && !empty_;
  if (!options_.graphs || !prepared.ran || !may_replay || tracing()) {
    prepared.ran = prepared.ran || may_replay;
    patch_inputs(program, slot);
    return enqueue(program, prepared, slot);
  }
  DeviceGraph& graph = prepared.graphs[slot];
  if (graph == nullptr) OFSDP_RETURN_IF_ERROR(capture(program, prepared, slot));
  return device_.launch(graph.get(), device_.compute()).with_prefix("the captured step");
}

Status DeviceEngine::capture(BoundProgram& program, Prepared& prepared, size_t slot) {
  patch_inputs(program, slot);
  OFSDP_RETURN_IF_ERROR(device_.capture_begin(device_.compute()).with_prefix("capture"));
  Status status = enqueue(program, prepared, slot);
  auto made = device_.capture_end(device_.compute());
  prepared.graphs[slot] = DeviceGraph(made.ok() ? *made : nullptr, {&device_});
  OFSDP_RETURN_IF_ERROR(std::move(status));
  return made.ok() ? Status{} : std::move(made).status().with_prefix("capture");
}

Status DeviceEngine::order(int event, ofsdp_stream* first, ofsdp_stream* then) {
  ofsdp_event* const at = events_[static_cast<size_t>(event)].get();
  if (first != nullptr) OFSDP_RETURN_IF_ERROR(device_.record(at, first).with_prefix("an event"));
  return then == nullptr ? Status{} : device_.wait(then, at).with_prefix("an event");
}

Status DeviceEngine::enqueue(BoundProgram& program, const Prepared& prepared, size_t slot) {
  ofsdp_stream* const compute = device_.compute();
  const CompileOptions& options = program.plan->options;
  if (tracing()) OFSDP_RETURN_IF_ERROR(trace_->begin_steps(compute));
  OFSDP_RETURN_IF_ERROR(device_
                            .begin(compute, run_state(), device_numbers(slot),
                                   options.first_micro || !options.training, options_.scale_loss)
                            .with_prefix("begin"));
  program_ = &program;
  streams_ = &prepared.streams;
  OFSDP_RETURN_IF_ERROR(execute(*this, program));
  for (const int e : prepared.streams.joins) OFSDP_RETURN_IF_ERROR(order(e, nullptr, compute));
  if (offload_ != nullptr) OFSDP_RETURN_IF_ERROR(offload_->join());
  OFSDP_RETURN_IF_ERROR(finish_micro_batch(program, slot));
  return tracing() ? trace_->end(compute) : Status{};
}

Status DeviceEngine::begin_step(const Operation& op) {
  const StreamStep& streams = streams_->steps[static_cast<size_t>(op.step)];
  const bool computes = streams.stream == Lane::kCompute;
  ofsdp_stream* const on = computes ? device_.compute() : device_.communication();
  if (streams.forks >= 0) {
    OFSDP_RETURN_IF_ERROR(order(streams.forks, device_.compute(), device_.communication()));
    if (offload_ != nullptr) offload_->forked(events_[static_cast<size_t>(streams.forks)].get());
  }
  for (const int e : streams.waits) OFSDP_RETURN_IF_ERROR(order(e, nullptr, on));
  for (const int e : streams.copies_wait) {
    OFSDP_RETURN_IF_ERROR(offload_->wait_to_copy_up(events_[static_cast<size_t>(e)].get()));
  }
  if (!tracing()) return {};
  const StepKind kind = program_->plan->schedule.steps[static_cast<size_t>(op.step)].kind;
  const bool agrees = op.kind == OpKind::kCheckLoss && ranks_->several();
  const bool shown = traits(kind).traced && traits(kind).on_device;
  if (!agrees && !shown) return {};
  OFSDP_ASSIGN_OR_RETURN(
      stretch_,
      trace_->open(on, computes ? TraceRow::kCompute : TraceRow::kCommunication, op.step));
  return {};
}

Status DeviceEngine::end_step(const Operation& op) {
  const StreamStep& streams = streams_->steps[static_cast<size_t>(op.step)];
  if (stretch_) {
    const bool computes = streams.stream == Lane::kCompute;
    OFSDP_RETURN_IF_ERROR(
        trace_->close(*stretch_, computes ? device_.compute() : device_.communication()));
    stretch_.reset();
  }
  if (streams.records < 0) return {};
  const bool lands = streams.stream == Lane::kDownload;
  return order(streams.records, lands ? offload_->download() : device_.communication(), nullptr);
}

Status DeviceEngine::note_losses(const BoundProgram& program, ofsdp_stream* stream) {
  for (size_t t = 0; t < program.losses.size(); ++t) {
    OFSDP_RETURN_IF_ERROR(device_
                              .note_loss(stream, run_state(), static_cast<int>(t),
                                         program.losses[t], program.plan->options.training)
                              .with_prefix("the loss"));
  }
  return {};
}

// Evaluation has no CheckLoss.
Status DeviceEngine::finish_micro_batch(const BoundProgram& program, size_t slot) {
  ofsdp_stream* const compute = device_.compute();
  if (!empty_ && !program.plan->options.training) {
    OFSDP_RETURN_IF_ERROR(note_losses(program, compute));
  }
  if (!empty_ && program.matches != nullptr) {
    OFSDP_RETURN_IF_ERROR(
        device_
            .copy(compute, run_state()->matches, program.matches, sizeof(ofsdp_run_state::matches))
            .with_prefix("the matches"));
  }
  for (size_t i = 0; i < program.measured.size() && !empty_; ++i) {
    OFSDP_RETURN_IF_ERROR(device_
                              .copy(compute, measured_rows(program, slot, i),
                                    program.measured[i].data(), program.measured[i].size_bytes())
                              .with_prefix("rows for metrics"));
  }
  return device_.copy(compute, &pinned_result(slot), run_state(), sizeof(ofsdp_run_state))
      .with_prefix("the results");
}

double* DeviceEngine::measured_rows(const BoundProgram& program, size_t slot, size_t i) const {
  size_t at = context_.io.pinned_measured[slot];
  for (size_t k = 0; k < i; ++k) at += align_up(program.measured[k].size_bytes(), kTensorAlignment);
  return reinterpret_cast<double*>(context_.memory.pinned() + at);
}

std::span<const double> DeviceEngine::measured(const BoundProgram& program, size_t i) const {
  const size_t latest = (next_ + kMicroSlots - 1) % kMicroSlots;
  return {measured_rows(program, latest, i), program.measured[i].size()};
}

std::array<float, kMaxLossTerms> DeviceEngine::losses_in(size_t slot) const {
  static_assert(OFSDP_MAX_LOSSES == kMaxLossTerms);
  std::array<float, kMaxLossTerms> losses{};
  std::copy_n(pinned_result(slot).losses, slots_[slot].program->losses.size(), losses.begin());
  return losses;
}

// Waits for the slot's micro-batch and reads the loss and run state.
Status DeviceEngine::collect(size_t slot) {
  Slot& done = slots_[slot];
  if (!done.pending) return {};
  OFSDP_RETURN_IF_ERROR(ranks_->wait(done.done.get(), done.step));
  done.pending = false;
  if (trace_ != nullptr) OFSDP_RETURN_IF_ERROR(trace_->collect(slot));
  const ofsdp_run_state& state = pinned_result(slot);
  if (!done.training && state.fault.node != 0) return blame_evaluation(slot);
  if (done.training && state.stop != 0) return blame(slot);
  result_ = {};
  if (!done.empty) result_.losses = losses_in(slot);
  const bool matches = !done.empty && done.program->matches != nullptr;
  if (matches) result_ = {result_.losses, state.matches[0], state.matches[1]};
  if (!done.training) return {};
  summed_.step = done.step;
  summed_.optimizer_step = state.optimizer_step;
  summed_.skipped = state.skip != 0;
  summed_.scale = state.scale_used;
  for (size_t t = 0; t < done.shares.size(); ++t) {
    summed_.losses[t] += done.shares[t] * static_cast<double>(result_.losses[t]);
  }
  summed_.samples += static_cast<double>(done.samples);
  if (!done.last) return {};
  // With clipping the norm is summed over ranks already, so only rank 0 reports it.
  const bool of_all = done.program->plan->options.clip;
  summed_.squared_norm = of_all && ranks_->rank() != 0
                             ? 0
                             : state.squared_norm / (state.scale_used * state.scale_used);
  loss_scale_ = {state.loss_scale, state.good_updates, state.skipped_updates};
  auto& place = ready_[0] ? ready_[1] : ready_[0];
  OFSDP_CHECK(!place, "three updates whose numbers nobody took");
  place = summed_;
  summed_ = {};
  return {};
}

Result<MicroResult> DeviceEngine::result() {
  OFSDP_RETURN_IF_ERROR(collect(next_));
  OFSDP_RETURN_IF_ERROR(collect((next_ + 1) % kMicroSlots));
  return result_;
}

// The next slot to use has the older micro-batch.
Result<std::optional<UpdateOutcome>> DeviceEngine::outcome(bool settle) {
  for (const size_t slot : {next_, (next_ + 1) % kMicroSlots}) {
    if (!settle && slots_[slot].step == numbers_.step) continue;
    OFSDP_RETURN_IF_ERROR(collect(slot));
  }
  const std::optional<UpdateOutcome> oldest = ready_[0];
  ready_[0] = ready_[1];
  ready_[1].reset();
  return oldest;
}

Status DeviceEngine::upload(BoundProgram& program, const MicroBatch& batch, size_t slot) {
  bool traced = false;
  if (trace_ != nullptr) {
    OFSDP_ASSIGN_OR_RETURN(traced, trace_->begin(slot, *program.plan, numbers_.step));
  }
  size_t stretch = 0;
  if (traced) {
    OFSDP_ASSIGN_OR_RETURN(stretch, trace_->open(device_.upload(), TraceRow::kInputs, 0));
  }
  OFSDP_RETURN_IF_ERROR(copy_inputs(program, batch, slot));
  if (traced) OFSDP_RETURN_IF_ERROR(trace_->close(stretch, device_.upload()));
  ofsdp_event* uploaded = slots_[slot].uploaded.get();
  OFSDP_RETURN_IF_ERROR(device_.record(uploaded, device_.upload()).with_prefix("an event"));
  return device_.wait(device_.compute(), uploaded).with_prefix("an event");
}

Status DeviceEngine::copy_inputs(BoundProgram& program, const MicroBatch& batch, size_t slot) {
  auto* numbers = reinterpret_cast<ofsdp_step_numbers*>(context_.memory.pinned() +
                                                        context_.io.pinned_numbers[slot]);
  *numbers = {.seed = options_.seed,
              .step = numbers_.step - 1,
              .samples = step_.samples,
              .lr = numbers_.lr,
              .factor = numbers_.factor,
              .loss_shares = {},
              .skipped_updates = numbers_.skipped,
              .lr_if_skipped = numbers_.lr_if_skipped,
              .factor_if_skipped = numbers_.factor_if_skipped};
  const std::vector<LossTerm>& terms = program.plan->graph.terms;
  for (size_t t = 0; t < batch.shares.size(); ++t) {
    numbers->loss_shares[t] = static_cast<float>(batch.shares[t] * terms[t].factor);
  }
  const size_t indexes = batch.sample_index.size_bytes();
  if (indexes > 0) std::memcpy(numbers + 1, batch.sample_index.data(), indexes);
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    return device_.copy(device_.upload(), to, from, bytes).with_prefix("the upload");
  };
  OFSDP_RETURN_IF_ERROR(copy(device_numbers(slot), numbers, sizeof(*numbers) + indexes));
  if (program.plan->options.training) OFSDP_RETURN_IF_ERROR(upload_scalars(slot));
  const Graph& graph = program.plan->graph;
  std::byte* to = context_.memory.io() + context_.io.inputs[slot];
  for (size_t c = 0; c < graph.inputs.size() && !empty_; ++c) {
    const size_t bytes = graph.value(graph.inputs[c]).desc.bytes();
    if (bytes > 0) OFSDP_RETURN_IF_ERROR(copy(to, batch.columns[c], bytes));
    to += align_up(bytes, kTensorAlignment);
  }
  return {};
}

Status DeviceEngine::upload_scalars(size_t slot) {
  if (context_.rules == nullptr) return {};
  std::byte* const from = context_.memory.pinned() + context_.io.pinned_scalars[slot];
  const size_t bytes = context_.rules->write_scalars(numbers_.step, from);
  std::byte* const to = context_.memory.io() + context_.io.scalars[slot];
  return device_.copy(device_.upload(), to, from, bytes).with_prefix("the upload");
}

void DeviceEngine::patch_inputs(BoundProgram& program, size_t slot) {
  const Graph& graph = program.plan->graph;
  for (const InputPatch& patch : program.inputs) {
    std::byte* data = context_.memory.io() + context_.io.inputs[slot];
    for (int c = 0; c < patch.column; ++c) {
      const ValueId input = graph.inputs[static_cast<size_t>(c)];
      data += align_up(graph.value(input).desc.bytes(), kTensorAlignment);
    }
    program.runs[static_cast<size_t>(patch.run)].inputs[static_cast<size_t>(patch.operand)].data =
        data;
  }
}

}  // namespace ofsdp::runtime
