// CpuEngine: runs bound programs with CPU kernels and a Communicator, block by block, so that a
// reduction with an update is one pass.
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
#include "runtime/engine/executor.h"
#include "runtime/engine/nan_search.h"
#include "runtime/engine/optimizer_step.h"
#include "runtime/engine/update_runner.h"
#include "runtime/engine/watch.h"
#include "runtime/log/trace.h"

namespace ofsdp::runtime {

class CpuEngine final : public UpdateRunner, private Engine {
 public:
  CpuEngine(const Plan& plan, const std::vector<UnitState>& units, OptimizerStep& optimizer,
            Communicator& communicator, float* loss_weights, const ExecutorOptions& options);

  void begin_update(const UpdateNumbers& numbers) override;
  void end_update(int64_t exchange_began) override;
  Status run(BoundProgram& program, const MicroBatch& batch) override;
  Result<MicroResult> result() override { return result_; }
  Status check_evaluation(BoundProgram& program) override;
  Result<std::optional<UpdateOutcome>> outcome(bool settle) override;

  const ExposedTime& exposed() const override { return exposed_; }
  LossScale& loss_scale() override { return loss_scale_; }
  int64_t updates_done(int64_t start) const override {
    return std::max(numbers_.step, start) - loss_scale_.skipped_updates;
  }

 private:
  Status begin_step(const Operation& op) override;
  Status end_step(const Operation& op) override;
  Status run_node(const Operation& op) override;
  Status unshard(const Operation& op) override;
  Status await(const Operation& op) override;
  Status clear(const Operation& op) override;
  Status convert(const Operation& op) override;
  Status add(const Operation& op) override;
  Status post(const Operation& op) override;
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
  Status watch(const Operation& op) override;
  Status meet(const Operation& op) override;
  Status place_rows(const Operation& op) override;
  Status join_rows(const Operation& op) override;
  Status copy_up(const Operation& op) override { return absent(op); }
  Status copy_down(const Operation& op) override { return absent(op); }
  Status signal(const Operation& op) override { return absent(op); }

  void take_losses(const BoundProgram& program);
  Status blame_nan(BoundProgram& program);
  Result<NanFound> find_in_gradients(bool together);
  Status blame_gradient(int unit);
  Status blame_norm();
  double add_to_norm(const Operation& op, int64_t begin, std::span<const float> block);
  Result<double> exchange_norm();
  Result<double> exchange_exact_norm();
  float clip_factor() const;
  bool scales_gradients() const { return options_.clip_norm > 0 || options_.scale_loss; }
  CollectiveSite site(const char* collective, int unit) const {
    return {collective, unit, numbers_.step, alone_};
  }

  const std::vector<UnitState>& units_;
  OptimizerStep& optimizer_;
  Communicator& communicator_;
  float* loss_weights_;
  ExecutorOptions options_;

  BoundProgram* program_ = nullptr;  // of the present micro-batch
  StepContext context_;
  ExposedTime exposed_;
  int64_t update_began_ = 0, step_began_ = 0;  // nanoseconds_now
  UpdateNumbers numbers_;
  bool empty_ = false;
  bool alone_ = false;  // this rank runs again what the others do not
  MicroResult result_;
  UpdateOutcome outcome_;
  bool outcome_given_ = true;
  LossScale loss_scale_;
  double scale_used_ = 1;       // of the present update
  bool skip_update_ = false;    // its gradients are not finite
  float gradient_factor_ = 1;   // clip factor over loss scale
  int64_t nan_at_ = -1;         // of a gradient: an element of what is owned of the present unit
  double squared_norm_ = 0;     // of this rank's spans, this update
  ExactSquares exact_squares_;  // of a clipped run that is the same on any number of ranks
  double global_norm_ = 0;
  std::optional<StepLengths> step_lengths_;  // of an optimizer that needs them
  HostArithmetic arithmetic_;
};

}  // namespace ofsdp::runtime
