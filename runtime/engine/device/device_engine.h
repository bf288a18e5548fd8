// DeviceEngine: puts the operations of a bound program on the streams of a device.
//
// The operations are those of CpuEngine, with device addresses. Nodes and what writes gradients run
// on the compute stream; gathers, reductions and updates on the communication stream, with the
// events of StreamPlan. Every decision that depends on values is the device's own: the loss scale,
// whether an update is skipped, the clip factor; after a loss that is NaN, or an index out of
// range, it updates nothing more, and the host, which hears of it an update later, names the node.
// A micro-batch:
//
//   host      wait for the micro-batch before last (its slot), take its numbers
//   upload    inputs and ofsdp_step_numbers, pinned -> slot
//   compute   the program, or the graph captured of it; then the run state -> pinned
//
// A graph is captured a program and slot, after the program has run once; with graphs off every
// step is launched.
//
// [Note: several ranks on devices] The steps are the same; gathers and sums become collectives of
// DeviceRanks, in place and in the order of the stream, which is why Post and Await are nothing
// here. Whether a loss is NaN (`stop`) is agreed after the forward pass of each micro-batch, the
// norm before the clip factor, so all ranks update or none does, and the host reads nothing.
// Captured steps must be launched by all ranks alike: a micro-batch that has fewer samples on some
// is launched step by step on all.
//
// [Note: giving up devices] When a run fails, what the devices wait for may never come. The session
// says why it fails before this is destroyed; then the groups are aborted, the captured graphs that
// NCCL waits for are dropped, and the device runs dry. Where that takes longer than kGivingUp, the
// process ends as it is, with the run's exit status.
//
// With an offload the device has no optimizer: `run` ends, after the last micro-batch of an update,
// with the update on the host ([Note: an update on the host] in device_offload.h).
//
// Ownership: views; RunMemory owns the memory, Runner the programs. Threads: one. No allocation on
// the device, no synchronization with it (but for an offload's update) and no read of its memory in
// `run`.
// Errors: as CpuEngine and DeviceRanks.
#pragma once

#include <functional>
#include <map>

#include "fsdp/comm/communicator.h"
#include "runtime/engine/device/device_offload.h"
#include "runtime/engine/device/device_ranks.h"
#include "runtime/engine/device/device_rules.h"
#include "runtime/engine/device/device_trace.h"
#include "runtime/engine/device/device_updates.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/nan_search.h"
#include "runtime/engine/update_runner.h"
#include "runtime/program/device_memory.h"
#include "runtime/program/stream_plan.h"

namespace ofsdp::runtime {

struct DeviceContext {  // what outlives the executor
  Device& device;
  const Plan& plan;
  const RankMemoryPlan& offsets;
  const DeviceIoPlan& io;
  const DeviceRankMemory& memory;
  const std::vector<UnitState>& units;  // device addresses
  OptimizerStep& optimizer;             // whose segments are used
  DeviceRules* rules = nullptr;         // which update instead of an optimizer
};

class DeviceEngine final : public UpdateRunner, private Engine {
 public:
  // `optimizers` are those of the groups; none with an offload, which is null without one, and
  // where there are rules.
  static Result<std::unique_ptr<DeviceEngine>> make(
      const DeviceContext& context, DeviceOptimizers optimizers, const ExecutorOptions& options,
      std::unique_ptr<DeviceRanks> ranks, std::unique_ptr<DeviceOffload> offload = nullptr);
  ~DeviceEngine() override;

  // While planning: before its first run.
  Status prepare(BoundProgram& program);
  float* loss_weight() const { return &run_state()->loss_weight; }  // a device address

  void begin_update(const UpdateNumbers& numbers) override { numbers_ = numbers; }
  Status run(BoundProgram& program, const MicroBatch& batch) override;
  void end_update(int64_t) override {}
  Result<MicroResult> result() override;
  Status check_evaluation(BoundProgram& program) override;
  Result<std::optional<UpdateOutcome>> outcome(bool settle) override;
  LossScale& loss_scale() override { return loss_scale_; }
  int64_t updates_done(int64_t start) const override {
    return std::max(numbers_.step, start) - loss_scale_.skipped_updates;
  }
  const ExposedTime& exposed() const override { return exposed_; }

 private:
  struct Prepared {
    StreamPlan streams;
    bool ran = false;
    std::array<DeviceGraph, kMicroSlots> graphs;
  };
  struct Slot {  // a micro-batch under way, or taken
    bool pending = false;
    bool training = false, last = false, empty = false;
    double share = 0;
    int64_t step = 0;
    int64_t samples = 0;
    BoundProgram* program = nullptr;
    DeviceEvent uploaded, done;
  };

  DeviceEngine(const DeviceContext& context, DeviceOptimizers optimizers,
               const ExecutorOptions& options, std::unique_ptr<DeviceRanks> ranks,
               std::unique_ptr<DeviceOffload> offload);
  Status start();
  Status make_steps();

  // A micro-batch.
  Status upload(BoundProgram& program, const MicroBatch& batch, size_t slot);
  Status copy_inputs(BoundProgram& program, const MicroBatch& batch, size_t slot);
  Status upload_scalars(size_t slot);
  void patch_inputs(BoundProgram& program, size_t slot);
  Status play(BoundProgram& program, size_t slot, bool alike);
  Status capture(BoundProgram& program, Prepared& prepared, size_t slot);
  Status enqueue(BoundProgram& program, const Prepared& prepared, size_t slot);
  Status finish_micro_batch(const BoundProgram& program, size_t slot);
  Status collect(size_t slot);
  Status blame(size_t slot);
  Status blame_evaluation(size_t slot);
  Status blame_data(BoundProgram& program, const ofsdp_data_fault& found, int64_t step);
  Status ask_the_cpu(const Graph& graph, const BoundRun& run);
  Status read_back(const TensorView& view, std::byte* to);
  Result<NanFound> find_nan(BoundProgram& program, bool here);
  Status settle();
  Result<ValueRange> range_of(const TensorView& view);
  // Shows the elements of a view, in order, until `see` has seen enough. Slow: for runs that end.
  Status in_pieces(const TensorView& view,
                   const std::function<bool(std::span<const std::byte>)>& see);

  // Operations.
  Status begin_step(const Operation& op) override;
  Status end_step(const Operation& op) override;
  Status run_node(const Operation& op) override;
  Status unshard(const Operation& op) override;
  Status clear(const Operation& op) override;
  Status convert(const Operation& op) override;
  Status add(const Operation& op) override;
  Status reduce(const Operation& op) override;
  Status all_reduce(const Operation& op) override;
  Status check_loss(const Operation& op) override;
  Status buffer(const Operation& op) override;
  Status clip(const Operation& op) override;
  Status update(const Operation& op) override;
  Status trust(const Operation& op) override;
  Status apply(const Operation& op) override;
  Status sums(const Operation& op) override;
  Status factors(const Operation& op) override;
  Status orthogonalize(const Operation& op) override;
  Status place_rows(const Operation& op) override;
  Status join_rows(const Operation& op) override;
  // The order of the streams and their collectives replaces these three.
  Status await(const Operation&) override { return {}; }
  Status post(const Operation&) override { return {}; }
  Status meet(const Operation&) override { return {}; }
  Status watch(const Operation& op) override { return absent(op); }  // device_choice.h
  Status copy_up(const Operation& op) override { return offload_->copy_up(op); }
  Status copy_down(const Operation& op) override { return offload_->copy_down(op); }
  Status signal(const Operation& op) override;

  Status reduce_slices(const Operation& op);
  Status clear_exact_sum();
  ofsdp_exact_sum* exact_sum() const {
    return reinterpret_cast<ofsdp_exact_sum*>(context_.memory.io() + context_.io.exact_sum);
  }
  Result<const std::byte*> parts_of_all_ranks(const Operation& op, const SliceRoom& room);
  Status update_from(int unit, const ofsdp_gradient& gradient, bool scaled);
  void place_states(const UnitState& state, const OptimizerStep::Segment& segment, int64_t begin,
                    ofsdp_device_update& update) const;
  Status update_and_keep(int unit, int64_t begin, const OptimizerStep::Segment& segment,
                         ofsdp_device_update update);
  ofsdp_reduce reduction(const Operation& op, const ofsdp_gradient& gradient) const;
  bool scales_gradients() const { return options_.clip_norm > 0 || options_.scale_loss; }
  bool tracing() const { return trace_ != nullptr && trace_->active(); }
  Status order(int event, ofsdp_stream* first, ofsdp_stream* then);

  ofsdp_run_state* run_state() const {
    return reinterpret_cast<ofsdp_run_state*>(context_.memory.io() + context_.io.state);
  }
  ofsdp_step_numbers* device_numbers(size_t slot) const {
    return reinterpret_cast<ofsdp_step_numbers*>(context_.memory.io() + context_.io.numbers[slot]);
  }
  ofsdp_run_state& pinned_result(size_t slot) const {
    return *reinterpret_cast<ofsdp_run_state*>(context_.memory.pinned() +
                                               context_.io.pinned_results[slot]);
  }

  DeviceContext context_;
  Device& device_;
  DeviceOptimizers optimizers_;
  ExecutorOptions options_;
  std::unique_ptr<DeviceRanks> ranks_;             // outlives the graphs, as does
  std::unique_ptr<DeviceOffload> offload_;         // null: none
  std::vector<std::vector<size_t>> parts_;         // per unit and rank, with across_ranks: bytes
                                                   // before its part of the buffer
  std::optional<DeviceFactors> factors_;           // where second moments are factored
  DeviceOptimizers keeps_;                         // per group, where steps need the gradient
  std::optional<DeviceStepLengths> step_lengths_;  // where steps need norms of parameters
  std::unique_ptr<DeviceTrace> trace_;             // null: nothing is recorded
  std::vector<DeviceEvent> events_;
  std::map<const BoundProgram*, Prepared> prepared_;

  BoundProgram* program_ = nullptr;  // whose operations are put on the streams
  const StreamPlan* streams_ = nullptr;
  std::optional<size_t> stretch_;  // of the step under way, in the trace
  bool started_ = false;
  size_t next_ = 0;  // slot
  std::array<Slot, kMicroSlots> slots_;
  DeviceStepContext step_;
  const std::byte* scalars_ = nullptr;  // of the rules, on the device
  UpdateNumbers numbers_;
  bool empty_ = false;
  MicroResult result_;
  UpdateOutcome summed_;  // of the oldest update that is not complete
  std::array<std::optional<UpdateOutcome>, 2> ready_;
  LossScale loss_scale_;
  ExposedTime exposed_;
};

}  // namespace ofsdp::runtime
