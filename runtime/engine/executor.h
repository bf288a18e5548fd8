// execute() runs a bound program, which is one micro-batch's list of operations, on an engine:
// CpuEngine (CPU kernels and a Communicator) or DeviceEngine (a device's streams). The compiler has
// fixed the order and the operands of all operations. An engine branches only on values that are
// unknown before the run: whether this rank's micro-batch is empty, whether a loss is NaN, whether
// float16 gradients are finite.
//
// Engine is what execute() calls, with one method per operation kind. UpdateRunner is what trainer
// and evaluator call. CpuEngine and DeviceEngine implement both.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "runtime/engine/binding.h"
#include "runtime/engine/loss_scale.h"
#include "runtime/engine/updater.h"
#include "runtime/log/exposed_time.h"

namespace ofsdp::runtime {

// How messages name the collective of ofsdp.JoinRows, the graph node that gathers all ranks' rows
// for losses over the global batch.
inline constexpr const char* kJoinName = "all-gather of rows";

class Engine {
 public:
  virtual ~Engine() = default;

  // A step is an entry of the schedule (a row of steps.inc), which the compiler lowers to one or
  // more operations. execute() calls begin_step with the step's first operation, before it, and
  // end_step with the last, after it.
  virtual Status begin_step(const Operation&) { return {}; }
  virtual Status end_step(const Operation&) { return {}; }

  // One method per operation kind; the column `engine` in steps.inc is the method's name.
#define OPERATION(kind, engine, cost, traffic, description) \
  virtual Status engine(const Operation& op) = 0;
#include "runtime/compile/program/steps.inc"

 protected:
  // Aborts the process. For operations that the compiler never emits for this engine.
  static Status absent(const Operation& op);
};

// Return the first error of a kernel or a collective. Allocate nothing.
Status execute(Engine& engine, const Operation& operation);
Status execute(Engine& engine, const BoundProgram& program);

struct MicroBatch {
  std::span<std::byte* const> columns;  // in the order of Graph::inputs; borrowed until `run` ends
  std::span<const int64_t> sample_index = {};
  // Per loss term: the weight of this micro-batch's mean in the update's mean.
  std::span<const double> shares = {};
  bool alike = true;  // all ranks have the same sample count in this micro-batch
};

struct MicroResult {
  std::array<float, kMaxLossTerms> losses{};  // per loss term; 0 if the micro-batch was empty
  // Labels that the model predicted; labels that count, because they are not ignored.
  int64_t right = 0, kept = 0;
};

// The numbers of one update on this rank.
struct UpdateOutcome {
  int64_t step = 0;            // from 1
  int64_t optimizer_step = 0;  // from 1; skipped updates do not count
  // Per loss term: the sum over micro-batches, each times its share.
  std::array<double, kMaxLossTerms> losses{};
  // This rank's part of the squared gradient norm, without the loss scale; ranks add up the parts.
  double squared_norm = 0;
  double samples = 0;
  bool skipped = false;    // float16: gradients were not finite, so nothing was updated
  double scale = 1;        // the loss scale of this update
  std::string cause = {};  // why the update was skipped, if the loss scale cannot fall further
};

class TraceRecorder;
class Watch;

struct ExecutorOptions {
  uint64_t seed = 0;
  double clip_norm = 0;                  // 0: none
  bool scale_loss = false;               // float16
  int64_t steps_done = 0;                // optimizer steps before the run
  DType buffer_dtype = DType::kFloat32;  // the engine rounds running statistics to it
  TraceRecorder* trace = nullptr;        // null: nothing is recorded
  Watch* watch = nullptr;                // --watch: keeps norms per unit; null: off
  bool graphs = true;                    // devices: capture steps and replay them
  double timeout_seconds = 300;          // devices: how long a rank may be late
};

// The node whose kernel refused its data, such as an index outside of a table.
struct RefusedNode {
  const Graph* graph = nullptr;
  const Node* node = nullptr;  // null: none did
};

// Training calls, per update: begin_update, `run` for each micro-batch (the last program also runs
// the optimizer), `outcome`, the trainer's own exchange of the numbers between ranks, end_update.
// Evaluation calls begin_update once, then per micro-batch `run`, `result` and, if a NaN ends it,
// check_evaluation.
//
// On a CPU `run` returns when the micro-batch is complete. On a device it only enqueues work on
// streams, so `outcome` returns each update's numbers one update late.
//
// If a call returns an error, the caller must report it with Communicator::fail: that ends the
// waits of the other ranks. Only the thread that created the runner may call it.
class UpdateRunner {
 public:
  virtual ~UpdateRunner() = default;

  virtual void begin_update(const UpdateNumbers& numbers) = 0;
  virtual Status run(BoundProgram& program, const MicroBatch& batch) = 0;
  // Ends a training update, after the trainer's exchange. A CPU adds the time from
  // `exchange_began` (steady clock, nanoseconds) to now to the exposed times and the trace; a
  // device ignores it.
  virtual void end_update(int64_t exchange_began) = 0;

  // Blocks until the last micro-batch is complete and returns its numbers.
  virtual Result<MicroResult> result() = 0;
  // Returns the rows of Graph::measured[i] of that micro-batch, valid until the next `run`.
  // REQUIRES: result() was called, and the micro-batch was not empty.
  virtual std::span<const double> measured(const BoundProgram& program, size_t i) const = 0;
  // Returns kFault, with the first bad node, if an evaluation's loss is NaN. It ends the run.
  // REQUIRES: result() was called.
  virtual Status check_evaluation(BoundProgram& program) = 0;
  // Returns the oldest outcome that it has not returned yet; nothing if there is none. If `settle`
  // is true, blocks until the present update is complete. If it is false, a device leaves the
  // present update's outcome for a later call, since the update may still be running.
  // The trainer settles before an evaluation, a save and the end of the run.
  virtual Result<std::optional<UpdateOutcome>> outcome(bool settle) = 0;
  // --ema: swaps the parameters with their average; a second call swaps back. REQUIRES: the updates
  // are settled. Ranks must meet before the next program, which gathers from other ranks.
  virtual Status swap_average() = 0;
  // Returns the loss scale after the latest update whose numbers have arrived.
  virtual LossScale& loss_scale() = 0;
  // Returns how many updates changed the parameters, in this run and in the `start` updates before
  // it.
  virtual int64_t updates_done(int64_t start) const = 0;
  // Returns the times for which computation waited for communication.
  virtual const ExposedTime& exposed() const = 0;
  // Returns the node whose error a call has returned.
  const RefusedNode& refused() const { return refused_; }

 protected:
  RefusedNode refused_;
};

}  // namespace ofsdp::runtime
