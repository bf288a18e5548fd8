// UpdateRunner: what runs an update, on the CPU (CpuEngine) or on a device (DeviceEngine).
//
// An update is begin_update, then `run` for each of its micro-batches. On a device `run` puts the
// work on its streams and comes back, so the numbers of an update come one update late: `outcome`
// gives those of the oldest update that has not been given. On the CPU there is nothing to wait
// for.
//
// Ownership: views. Threads: the one that made it. Errors: as CpuEngine.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "runtime/engine/loss_scale.h"
#include "runtime/engine/optimizer_step.h"
#include "runtime/log/exposed_time.h"
#include "runtime/program/binding.h"

namespace ofsdp::runtime {

struct MicroBatch {
  std::span<std::byte* const> columns;  // in the order of Graph::inputs; free again after `run`
  std::span<const int64_t> sample_index = {};
  std::span<const double> shares = {};  // of each term's global mean, in this micro-batch
  bool alike = true;                    // every rank's has as many samples
};

struct MicroResult {
  std::array<float, kMaxLossTerms> losses{};  // of Graph::terms; 0 when it was empty
  int64_t right = 0, kept = 0;
};

struct UpdateOutcome {  // of this rank
  int64_t step = 0;     // as in UpdateNumbers, both
  int64_t optimizer_step = 0;
  std::array<double, kMaxLossTerms>
      losses{};             // of Graph::terms, each micro-batch's times its share
  double squared_norm = 0;  // unscaled
  double samples = 0;
  bool skipped = false;    // float16: the gradients were not finite, nothing was updated
  double scale = 1;        // of the loss
  std::string cause = {};  // in words, of a skipped update after which the scale cannot fall
};

class TraceRecorder;
class Watch;

struct ExecutorOptions {
  uint64_t seed = 0;
  double clip_norm = 0;                  // 0: none
  bool scale_loss = false;               // float16
  int64_t steps_done = 0;                // of the optimizer before the run
  DType buffer_dtype = DType::kFloat32;  // what running statistics are rounded to
  TraceRecorder* trace = nullptr;        // null: nothing is recorded
  Watch* watch = nullptr;                // null: no norms are kept
  bool graphs = true;                    // of a device: steps are captured and replayed
  double timeout_seconds = 300;          // of a device: how long a rank may be late
};

class UpdateRunner {
 public:
  virtual ~UpdateRunner() = default;

  virtual void begin_update(const UpdateNumbers& numbers) = 0;
  virtual Status run(BoundProgram& program, const MicroBatch& batch) = 0;
  // Ends a training update. `exchange_began` is when this rank entered the closing exchange.
  virtual void end_update(int64_t exchange_began) = 0;

  // The numbers of the last micro-batch; waits for it.
  virtual Result<MicroResult> result() = 0;
  // kFault when that of an evaluation is a loss that is NaN or infinite. Follows result().
  virtual Status check_evaluation(BoundProgram& program) = 0;
  // Nothing: all have been given, or (unless `settle`) the oldest is the present one and under way.
  virtual Result<std::optional<UpdateOutcome>> outcome(bool settle) = 0;
  // As of the updates given.
  virtual LossScale& loss_scale() = 0;
  // Updates that were made, not skipped; `start` of them before this run.
  virtual int64_t updates_done(int64_t start) const = 0;
  virtual const ExposedTime& exposed() const = 0;
};

}  // namespace ofsdp::runtime
