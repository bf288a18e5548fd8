// Executor: runs bound programs. The loop over steps decides nothing: what to do, in which order
// and where is in the program.
//
// An update is grad_accum calls of `run`, each with the program of its place; `begin_update` comes
// first and sets the numbers of the update. A micro-batch without samples runs no node but takes
// part in every collective, with zero gradients.
//
// Ownership: views; the session owns memory, communicator and programs. Threads: the one that made
// it. No allocation in `run`. Errors: what kernels and collectives say, with step, node and rank
// before it; a loss that is NaN is kFault and names the first node whose output has one (found by
// running the forward again, node by node, which may be slow: the run is over), in training and in
// evaluation; in evaluation a loss that is infinite is kFault too.
#pragma once

#include <algorithm>
#include <optional>

#include "fsdp/comm/communicator.h"
#include "runtime/engine/exact_squares.h"
#include "runtime/engine/step_lengths.h"
#include "runtime/engine/update_runner.h"
#include "runtime/log/trace.h"

namespace ofsdp::runtime {

struct ExecutorOptions {
  uint64_t seed = 0;
  double clip_norm = 0;                  // 0: none
  bool scale_loss = false;               // float16
  int64_t steps_done = 0;                // of the optimizer before the run
  DType buffer_dtype = DType::kFloat32;  // what carried statistics are rounded to
  TraceRecorder* trace = nullptr;        // null: nothing is recorded
  bool graphs = true;                    // of a device: steps are captured and replayed
  double timeout_seconds = 300;          // of a device: how long a rank may be late
};

class Executor final : public UpdateRunner {
 public:
  Executor(const Plan& plan, const RankMemoryPlan& offsets, const RankMemory& memory,
           const std::vector<UnitState>& units, const GradientSlots& slots,
           OptimizerStep& optimizer, Communicator& communicator, float* loss_weight,
           const ExecutorOptions& options);

  void begin_update(const UpdateNumbers& numbers) override;
  void end_update(int64_t exchange_began) override;
  Status run(BoundProgram& program, const MicroBatch& batch) override;
  Result<MicroResult> result() override { return result_; }
  Status check_evaluation(BoundProgram& program) override;
  Result<std::optional<UpdateOutcome>> outcome(bool settle) override;

  const ExposedTime& exposed() const override { return exposed_; }
  // Of this rank's spans, this update, unscaled.
  double squared_norm() const { return squared_norm_ / (scale_used_ * scale_used_); }
  LossScale& loss_scale() override { return loss_scale_; }
  int64_t updates_done(int64_t start) const override {
    return std::max(numbers_.step, start) - loss_scale_.skipped_updates;
  }
  double clipped_norm() const {
    return global_norm_;
  }  // after Clip: the global norm before clipping

 private:
  struct UnitGroups {
    RankGroup shards;  // ranks that share this rank's copy
    RankGroup copies;  // ranks with the same shard of the others
    RankGroup sums;    // ranks whose slots are reduced: who waits for each other on the channel
    Span represented;
  };

  bool scatters(int unit) const {
    const auto u = static_cast<size_t>(unit);
    return groups_[u].shards.count > 1 || plan_.units[u].plan.shards_gradients;
  }
  int shard_channel(int unit) const { return static_cast<int>(plan_.units.size()) + unit; }

  Status run_traced(BoundProgram& program);
  Status execute(BoundProgram& program, const BoundStep& step);
  Status run_node(const BoundProgram& program, const BoundRun& run);
  Status check_loss(BoundProgram& program);
  Status blame_nan(BoundProgram& program);
  void carry(const BoundStep& step);
  Status gather(const BoundStep& step);
  Status acquire(const BoundProgram& program, int unit);
  void accumulate(const BoundProgram& program, int unit);
  SlotSource gradient_slot(int unit) const;
  SlotSource represented_slot(int unit) const;
  void post(int unit);
  Status reduce(const BoundProgram& program, int unit, bool update);
  Status all_reduce(int unit);
  void add_to_norm(int unit, int64_t begin, std::span<const float> block);
  Result<double> exchange_norm();
  Result<double> exchange_exact_norm();
  Status clip();
  float clip_factor() const;
  bool scales_gradients() const { return options_.clip_norm > 0 || options_.scale_loss; }
  void update(int unit);
  Status trust();
  CollectiveSite site(const char* collective, int unit) const {
    return {collective, unit, numbers_.step, alone_};
  }

  const Plan& plan_;
  const RankMemoryPlan& offsets_;
  const RankMemory& memory_;
  const std::vector<UnitState>& units_;
  const GradientSlots& slots_;
  OptimizerStep& optimizer_;
  Communicator& communicator_;
  float* loss_weight_;
  ExecutorOptions options_;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> gaps_;  // per unit
  std::vector<UnitGroups> groups_;                              // per unit

  StepContext context_;
  ExposedTime exposed_;
  int64_t update_began_ = 0;  // nanoseconds_now
  UpdateNumbers numbers_;
  bool empty_ = false;
  bool alone_ = false;  // this rank runs again what the others do not
  MicroResult result_;
  UpdateOutcome outcome_;
  bool outcome_given_ = true;
  LossScale loss_scale_;
  double scale_used_ = 1;      // of the present update
  bool skip_update_ = false;   // its gradients are not finite
  float gradient_factor_ = 1;  // clip factor over loss scale
  double squared_norm_ = 0;
  ExactSquares exact_squares_;  // of a clipped run that is the same on any number of ranks
  double global_norm_ = 0;
  std::optional<StepLengths> step_lengths_;  // of an optimizer that needs them
};

}  // namespace ofsdp::runtime
