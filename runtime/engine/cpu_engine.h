// CpuEngine: the UpdateRunner (executor.h) on the CPU. It runs bound programs with CPU kernels and
// a Communicator. A reduction passes on the sum in blocks of kReduceBlock elements, and the update
// takes each block while it is in the cache.
//
// `run` gets the program for the micro-batch's position in the update (first, last). A micro-batch
// without samples runs no node, but takes part in every collective with zero gradients.
//
// Owns nothing but small state: memory, communicator, updater and programs outlive it. `run`
// allocates nothing. Errors of kernels and collectives have step, node and rank as a prefix. If a
// loss is NaN, `run` computes forward again to find the first node with a NaN output, and returns
// kFault with that node; after an evaluation check_evaluation does.
#pragma once

#include <algorithm>
#include <optional>

#include "fsdp/comm/communicator.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/nan_search.h"
#include "runtime/engine/updater.h"
#include "runtime/engine/watch.h"
#include "runtime/log/trace.h"

namespace ofsdp::runtime {

class CpuEngine final : public UpdateRunner, private Engine {
 public:
  CpuEngine(const Plan& plan, const std::vector<UnitState>& units, Updater& updater,
            Communicator& communicator, float* loss_weights, const ExecutorOptions& options);

  void begin_update(const UpdateNumbers& numbers) override;
  void end_update(int64_t exchange_began) override;
  Status swap_average() override { return updater_.swap_average({}); }
  Status run(BoundProgram& program, const MicroBatch& batch) override;
  Result<MicroResult> result() override { return result_; }
  std::span<const double> measured(const BoundProgram& program, size_t i) const override {
    return program.measured[i];
  }
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
  double add_squares(int unit, int64_t begin, std::span<const float> piece);
  Result<double> exchange_norm(const ExactSquares& squares);
  float clip_factor() const;
  bool scales_gradients() const { return options_.clip_norm > 0 || options_.scale_loss; }
  CollectiveSite site(const char* collective, int unit) const {
    return {collective, unit, numbers_.step, alone_};
  }

  const Plan& plan_;
  const std::vector<UnitState>& units_;
  Updater& updater_;
  Communicator& communicator_;
  float* loss_weights_;
  ExecutorOptions options_;
  std::vector<double> limbs_of_ranks_;  // scratch of exchange_norm: kLimbs numbers per rank

  BoundProgram* program_ = nullptr;  // the present micro-batch's
  StepContext context_;
  ExposedTime exposed_;
  int64_t update_began_ = 0, step_began_ = 0;  // nanoseconds_now
  UpdateNumbers numbers_;
  bool empty_ = false;
  bool alone_ = false;  // only this rank searches for a NaN
  MicroResult result_;
  UpdateOutcome outcome_;
  bool outcome_given_ = true;
  LossScale loss_scale_;
  double scale_used_ = 1;      // the present update's loss scale
  bool skip_update_ = false;   // the present update's gradients are not finite
  float gradient_factor_ = 1;  // clip factor / loss scale
  int64_t nan_at_ = -1;        // first shard element with a NaN gradient in this unit; -1: none
  // Over this rank's unique spans, this update: sums of the norm's blocks (NormBlocks), the block
  // that is not complete yet, and the elements of all one by one (--deterministic across_ranks).
  ExactSquares block_squares_;
  SquareLanes open_block_;
  ExactSquares exact_squares_;
  double global_norm_ = 0;
};

}  // namespace ofsdp::runtime
