// DeviceEngine: the UpdateRunner (executor.h) on a device. It puts the operations of a bound
// program on the device's streams (queues of work that run in order).
//
// The operations are CpuEngine's, with device addresses. Nodes, and operations that write
// gradients, run on the compute stream; gathers, reductions and updates on the communication
// stream; events order the two (StreamSchedule). The device makes every decision that depends on
// values: the loss scale, whether to skip an update, the clip factor. After a NaN loss or an index
// out of range it updates nothing more; the host notices one update later, and finds the node for
// the error.
//
// Inputs, numbers and results have two slots, which micro-batches use in turn. A micro-batch:
//
//   host      waits for the earlier micro-batch in this slot, and reads the loss and run state
//   upload    copies inputs and ofsdp_step_numbers from pinned memory to the slot
//   compute   runs the program, then copies the run state to pinned memory
//
// A program is launched operation by operation at first. After that it is captured once per slot as
// a graph, which later micro-batches launch as a whole (ExecutorOptions::graphs).
//
// [Note: several ranks on devices] The steps are the same; gathers and sums become collectives of
// DeviceRanks, in place and in the order of the stream, so Post and Await do nothing here. Ranks
// agree after each forward pass whether a loss is NaN (ofsdp_run_state::stop), and on the norm
// before the clip factor, so all ranks update or none does, and the host reads nothing. All ranks
// must launch captured steps alike: if some ranks have fewer samples, all launch the micro-batch
// step by step.
//
// [Note: giving up devices] If a run fails, devices may wait for events that never come. The
// session reports the error before this object is destroyed. Then the groups are aborted, graphs
// with collectives are dropped, and the engine waits until the device's streams are empty. If that
// takes longer than kGivingUp, the process ends with the run's exit status.
//
// With an offload the device has no optimizer: after the last micro-batch of an update, `run` ends
// with the update on the host ([Note: an update on the host] in device_offload.h).
//
// RunMemory owns the memory, Runner the programs; both outlive the engine. One thread calls. `run`
// allocates nothing on the device and reads no device memory. It waits for the device in two cases
// only: until the micro-batch two calls earlier has left its slot, and for an offload's update.
// Errors are those of CpuEngine and DeviceRanks.
//
// A unit is a group of parameters that are gathered together (fsdp/plan/plan.h). A bound program is
// the list of operations of a graph with addresses (executor.h). The run state, ofsdp_run_state,
// has the decisions and sums of a run in device memory.
#pragma once

#include <functional>
#include <map>

#include "fsdp/comm/communicator.h"
#include "runtime/compile/program/operation.h"
#include "runtime/engine/device/device_offload.h"
#include "runtime/engine/device/device_ranks.h"
#include "runtime/engine/device/device_rules.h"
#include "runtime/engine/device/device_trace.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/memory.h"
#include "runtime/engine/nan_search.h"

namespace ofsdp::runtime {

struct DeviceContext {  // outlives the engine
  Device& device;
  const Plan& plan;
  const MemoryMap& offsets;
  const DeviceIoMap& io;
  const DeviceRankMemory& memory;
  const std::vector<UnitState>& units;  // device addresses
  Updater* updater = nullptr;           // null with an offload: the host updates
  DeviceRules* rules = nullptr;         // a model's own update, which needs scalars
};

class DeviceEngine final : public UpdateRunner, private Engine {
 public:
  // `offload`: null without --cpu-offload.
  static Result<std::unique_ptr<DeviceEngine>> make(
      const DeviceContext& context, const ExecutorOptions& options,
      std::unique_ptr<DeviceRanks> ranks, std::unique_ptr<DeviceOffload> offload = nullptr);
  ~DeviceEngine() override;

  // Plans streams and events for a program. REQUIRES: called for each program before the first
  // `run`.
  Status prepare(BoundProgram& program);
  float* loss_weights() const { return run_state()->loss_weights; }  // in device memory

  void begin_update(const UpdateNumbers& numbers) override { numbers_ = numbers; }
  Status run(BoundProgram& program, const MicroBatch& batch) override;
  void end_update(int64_t) override {}
  Status swap_average() override;
  Result<MicroResult> result() override;
  std::span<const double> measured(const BoundProgram& program, size_t i) const override;
  Status check_evaluation(BoundProgram& program) override;
  Result<std::optional<UpdateOutcome>> outcome(bool settle) override;
  LossScale& loss_scale() override { return loss_scale_; }
  int64_t updates_done(int64_t start) const override {
    return std::max(numbers_.step, start) - loss_scale_.skipped_updates;
  }
  const ExposedTime& exposed() const override { return exposed_; }

 private:
  struct Prepared {
    StreamSchedule streams;
    bool ran = false;
    std::array<DeviceGraph, kMicroSlots> graphs;
  };
  struct Slot {  // a micro-batch, under way or done
    bool pending = false;
    bool training = false, last = false, empty = false;
    std::array<double, kMaxLossTerms> shares{};
    int64_t step = 0;
    int64_t samples = 0;
    BoundProgram* program = nullptr;
    DeviceEvent uploaded, done;
  };

  DeviceEngine(const DeviceContext& context, const ExecutorOptions& options,
               std::unique_ptr<DeviceRanks> ranks, std::unique_ptr<DeviceOffload> offload);
  Status start();

  // A micro-batch: its data, its program, and its results.
  Status upload(BoundProgram& program, const MicroBatch& batch, size_t slot);
  Status copy_inputs(BoundProgram& program, const MicroBatch& batch, size_t slot);
  Status upload_scalars(size_t slot);
  void patch_inputs(BoundProgram& program, size_t slot);
  // Launches the program, captured or operation by operation. `alike`: all ranks launch it
  // captured.
  Status play(BoundProgram& program, size_t slot, bool alike);
  double* measured_rows(const BoundProgram& program, size_t slot, size_t i) const;
  Status note_losses(const BoundProgram& program, ofsdp_stream* stream);
  Status capture(BoundProgram& program, Prepared& prepared, size_t slot);
  Status enqueue(BoundProgram& program, const Prepared& prepared, size_t slot);
  Status finish_micro_batch(const BoundProgram& program, size_t slot);
  Status collect(size_t slot);
  // Returns the losses of the slot's micro-batch, which is complete.
  std::array<float, kMaxLossTerms> losses_in(size_t slot) const;
  // Find the node, the sample or the index that caused a failure, for the error; slow.
  Status blame(size_t slot);
  Status blame_evaluation(size_t slot);
  Status blame_data(BoundProgram& program, const ofsdp_data_fault& found, int64_t step);
  // Runs the graph on the CPU with the device's values, since its kernels name the fault.
  Status ask_the_cpu(const Graph& graph, const BoundRun& run);
  Status read_back(const TensorView& view, std::byte* to);
  Result<NanFound> find_nan(BoundProgram& program, bool here);
  Status settle();
  Result<ValueRange> range_of(const TensorView& view);
  // Calls see(bytes) for one piece of a tensor after the other until it returns false. Slow: for
  // runs that end with an error.
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
  // These order ranks on the CPU. Here streams and collectives run in order anyway.
  Status await(const Operation&) override { return {}; }
  Status post(const Operation&) override { return {}; }
  Status meet(const Operation&) override { return {}; }
  Status watch(const Operation& op) override { return absent(op); }  // only_on_cpu refuses it
  Status copy_up(const Operation& op) override { return offload_->copy_up(op); }
  Status copy_down(const Operation& op) override { return offload_->copy_down(op); }
  Status signal(const Operation& op) override;

  Status reduce_slices(const Operation& op);
  Status clear_exact_sum();
  ofsdp_exact_sum* exact_sum() const {
    return reinterpret_cast<ofsdp_exact_sum*>(context_.memory.io() + context_.io.exact_sum);
  }
  Result<const std::byte*> parts_of_all_ranks(const Operation& op, const SliceRoom& room);
  Status advance(int unit, GradientForm form, const Updater::Gradient& gradient);
  DeviceStepContext update_context() const;
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
  ExecutorOptions options_;
  std::unique_ptr<DeviceRanks> ranks_;      // outlives the graphs, as does offload_
  std::unique_ptr<DeviceOffload> offload_;  // null: none
  // With --deterministic across_ranks: [unit][rank] is the offset in bytes of the rank's part of
  // the gradient slot.
  std::vector<std::vector<size_t>> parts_;
  std::unique_ptr<DeviceTrace> trace_;  // null: nothing is recorded
  std::vector<DeviceEvent> events_;
  std::map<const BoundProgram*, Prepared> prepared_;

  BoundProgram* program_ = nullptr;  // the one that is being put on the streams
  const StreamSchedule* streams_ = nullptr;
  std::optional<size_t> stretch_;  // the present step's entry in the trace
  bool started_ = false;
  size_t next_ = 0;  // the next micro-batch's slot
  std::array<Slot, kMicroSlots> slots_;
  DeviceStepContext step_;
  UpdateNumbers numbers_;
  bool empty_ = false;
  MicroResult result_;
  UpdateOutcome summed_;  // of the oldest incomplete update: sums so far
  std::array<std::optional<UpdateOutcome>, 2> ready_;
  LossScale loss_scale_;
  ExposedTime exposed_;
};

}  // namespace ofsdp::runtime
