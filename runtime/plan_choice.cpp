#include "runtime/plan_choice.h"

#include <algorithm>
#include <functional>

namespace ofsdp {
namespace {

constexpr Strategy kCandidates[] = {Strategy::kZero1, Strategy::kShardGradOp, Strategy::kFullShard,
                                    Strategy::kNoShard};

// One state tensor instead of two.
bool is_light(OptimizerKind kind) {
  return kind == OptimizerKind::kSgd || kind == OptimizerKind::kLion ||
         kind == OptimizerKind::kAdagrad;
}

class PlanChooser {
 public:
  PlanChooser(const Options& options, const ModelSetup& setup, const Communicator& communicator,
              const std::vector<OptimizerDef>& optimizers, Device* device)
      : options_(options),
        setup_(setup),
        communicator_(communicator),
        optimizers_(optimizers),
        device_(device) {}

  Result<std::unique_ptr<RunPlan>> run() {
    if (options_.sharding.strategy == Strategy::kAuto) return choose_strategy();
    OFSDP_ASSIGN_OR_RETURN(auto plan, make(options_));
    if (fits(*plan)) return plan;
    return refusal(*plan);
  }

 private:
  using MadePlan = Result<std::unique_ptr<RunPlan>>;

  MadePlan make(const Options& options) const {
    return RunPlan::make(options, setup_, communicator_, optimizers_, device_);
  }

  bool fits(const RunPlan& plan) const { return plan.memory.fits(options_.sharding.memory_limit); }

  MadePlan choose_strategy() const {
    std::vector<Strategy> order(std::begin(kCandidates), std::end(kCandidates));
    const int states = is_light(options_.optimizer.kind) ? 1 : 2;
    std::ranges::stable_sort(order, {}, [&](Strategy s) {
      return bytes_moved(s, communicator_.size(), options_.batch.grad_accum, states);
    });
    std::unique_ptr<RunPlan> smallest;
    for (Strategy strategy : order) {
      Options options = options_;
      options.sharding.strategy = strategy;
      OFSDP_ASSIGN_OR_RETURN(auto plan, make(options));
      if (fits(*plan)) return plan;
      const size_t bytes = plan->memory.largest_bytes();
      if (smallest == nullptr || bytes < smallest->memory.largest_bytes())
        smallest = std::move(plan);
    }
    return refusal(*smallest);
  }

  Status refusal(const RunPlan& plan) const {
    return input_error(
        "--memory-limit {}: the plan ({}) needs {} bytes a rank, of which {} for a "
        "micro-batch of {}{}",
        *options_.sharding.memory_limit, strategy_name(plan.plan.strategy),
        plan.memory.largest_bytes(), plan.memory.arena, options_.batch.batch_size, advice());
  }

  // Each way alone; if none fits, together; and the largest batch that fits.
  std::string advice() const {
    std::string list;
    auto offer = [&](const std::string& flags, const std::function<void(Options&)>& change) {
      Options options = options_;
      change(options);
      const auto plan = make(options);
      if (!plan.ok() || !fits(**plan)) return false;
      list += fmt::format("{}{} ({} bytes)", list.empty() ? "\nwould fit: " : "; ", flags,
                          (*plan)->memory.largest_bytes());
      return true;
    };
    auto recompute = [](Options& o) { o.sharding.activation_checkpointing = Recompute::kUnit; };
    auto shard = [](Options& o) { o.sharding.strategy = Strategy::kFullShard; };
    offer("--activation-checkpointing unit", recompute);
    offer("--strategy full_shard", shard);
    if (list.empty()) {
      offer("--strategy full_shard --activation-checkpointing unit", [&](Options& o) {
        recompute(o);
        shard(o);
      });
    }
    for (int64_t batch = options_.batch.batch_size / 2; batch > 0; batch /= 2) {
      const auto smaller = [&](Options& o) { o.batch.batch_size = batch; };
      if (offer(fmt::format("--batch-size {}", batch), smaller)) break;
    }
    for (int64_t batch = options_.batch.batch_size / 2; list.empty() && batch > 0; batch /= 2) {
      const std::string flags = "--strategy full_shard --activation-checkpointing unit";
      offer(fmt::format("{} --batch-size {}", flags, batch), [&](Options& o) {
        recompute(o);
        shard(o);
        o.batch.batch_size = batch;
      });
    }
    if (!list.empty()) return list;
    return "\nno strategy, batch size or activation checkpointing fits; more ranks need less each";
  }

  const Options& options_;
  const ModelSetup& setup_;
  const Communicator& communicator_;
  const std::vector<OptimizerDef>& optimizers_;
  Device* device_;
};

}  // namespace

double bytes_moved(Strategy strategy, int world, int64_t grad_accum, int states) {
  const double n = world, micro = static_cast<double>(grad_accum);
  const double update = 3.0 + 2.0 * states;  // parameter in and out, gradient in, states in and out
  const double gather = world > 1 ? 2 : 0, others = (n - 1) / n;
  switch (strategy) {
    case Strategy::kNoShard:
      return micro + 1 / n + 2 * others + update;
    case Strategy::kZero1:
      return micro + gather * others + update / n;
    case Strategy::kShardGradOp:
      return micro * (1 + gather) + update / n;
    default:
      return micro * (1 + 2 * gather) + update / n;
  }
}

Result<std::unique_ptr<RunPlan>> choose_plan(const Options& options, const ModelSetup& setup,
                                             const Communicator& communicator,
                                             const std::vector<OptimizerDef>& optimizers,
                                             Device* device) {
  return PlanChooser(options, setup, communicator, optimizers, device).run();
}

}  // namespace ofsdp
