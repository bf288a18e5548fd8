// execute() runs the operations of a bound program on an engine: CpuEngine (a Communicator and CPU
// kernels) or DeviceEngine (streams of a device). Operations are ordered and have all operands; an
// engine decides by values alone (an empty micro-batch, a NaN). It allocates nothing, and returns
// errors from kernels and collectives.
//
// UpdateRunner is the interface of both engines to the trainer.
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

// JoinRows' exchange, in messages.
inline constexpr const char* kJoinName = "all-gather of rows";

class Engine {
 public:
  virtual ~Engine() = default;

  // Called before the first and after the last operation of a step.
  virtual Status begin_step(const Operation&) { return {}; }
  virtual Status end_step(const Operation&) { return {}; }

  // One method for each kind of operation.
#define OPERATION(kind, engine, cost, traffic, description) \
  virtual Status engine(const Operation& op) = 0;
#include "runtime/compile/program/steps.inc"

 protected:
  // Ends the process: no program of this engine has the operation.
  static Status absent(const Operation& op);
};

Status execute(Engine& engine, const Operation& operation);
Status execute(Engine& engine, const BoundProgram& program);

struct MicroBatch {
  std::span<std::byte* const> columns;  // in the order of Graph::inputs; borrowed until `run` ends
  std::span<const int64_t> sample_index = {};
  std::span<const double> shares = {};  // per loss term: this micro-batch's share in the mean
  bool alike = true;                    // all ranks have equally many samples
};

struct MicroResult {
  std::array<float, kMaxLossTerms> losses{};  // per Graph::terms; 0 if the micro-batch was empty
  int64_t right = 0, kept = 0;
};

struct UpdateOutcome {  // on this rank
  int64_t step = 0;     // as in UpdateNumbers, like the next
  int64_t optimizer_step = 0;
  std::array<double, kMaxLossTerms>
      losses{};             // per Graph::terms: micro-batches, weighted by their shares
  double squared_norm = 0;  // unscaled
  double samples = 0;
  bool skipped = false;    // float16: gradients were not finite, so nothing was updated
  double scale = 1;        // loss scale
  std::string cause = {};  // why the update was skipped, if the loss scale cannot fall further
};

class TraceRecorder;
class Watch;

struct ExecutorOptions {
  uint64_t seed = 0;
  double clip_norm = 0;                  // 0: none
  bool scale_loss = false;               // float16
  int64_t steps_done = 0;                // optimizer steps before the run
  DType buffer_dtype = DType::kFloat32;  // running statistics are rounded to it
  TraceRecorder* trace = nullptr;        // null: nothing is recorded
  Watch* watch = nullptr;                // null: no norms are kept
  bool graphs = true;                    // devices: capture steps and replay them
  double timeout_seconds = 300;          // devices: how long a rank may be late
};

// An update is begin_update, then `run` for each micro-batch. On a device `run` puts work on
// streams and returns, so numbers arrive one update late: `outcome` returns those of the oldest
// update that were not returned yet. The thread that made it calls it.
class UpdateRunner {
 public:
  virtual ~UpdateRunner() = default;

  virtual void begin_update(const UpdateNumbers& numbers) = 0;
  virtual Status run(BoundProgram& program, const MicroBatch& batch) = 0;
  // Ends a training update; this rank entered the closing exchange at `exchange_began`.
  virtual void end_update(int64_t exchange_began) = 0;

  // Waits for the last micro-batch and returns its numbers.
  virtual Result<MicroResult> result() = 0;
  // Returns kFault if an evaluation's loss is NaN or infinite. REQUIRES: result() was called.
  virtual Status check_evaluation(BoundProgram& program) = 0;
  // Returns nothing if all outcomes were returned, or, unless `settle`, if only the present update
  // is left, which may be under way.
  virtual Result<std::optional<UpdateOutcome>> outcome(bool settle) = 0;
  // As of the outcomes returned.
  virtual LossScale& loss_scale() = 0;
  // Returns the updates that were not skipped, `start` before this run included.
  virtual int64_t updates_done(int64_t start) const = 0;
  virtual const ExposedTime& exposed() const = 0;
};

}  // namespace ofsdp::runtime
