#include "runtime/plan/predict/plan_choice.h"

#include <algorithm>
#include <functional>

#include "runtime/plan/predict/prediction.h"

namespace ofsdp::runtime {
namespace {

// Of equally fast ones the first.
constexpr Strategy kCandidates[] = {Strategy::kZero1, Strategy::kShardGradOp, Strategy::kFullShard,
                                    Strategy::kNoShard};
constexpr Strategy kHybrids[] = {Strategy::kHybridShard, Strategy::kHybridShardZero2};
constexpr std::chrono::milliseconds kMeasureFor{600};

class PlanChooser {
 public:
  PlanChooser(const Options& options, const ModelSetup& setup, Communicator& communicator,
              const std::vector<OptimizerDef>& optimizers, Device* device)
      : options_(options),
        setup_(setup),
        communicator_(communicator),
        optimizers_(optimizers),
        kernels_(std::make_shared<KernelCache>(device)) {}

  Result<std::unique_ptr<RunPlan>> run() {
    if (options_.sharding.strategy == Strategy::kAuto) return choose_strategy();
    OFSDP_ASSIGN_OR_RETURN(auto plan, make(options_));
    if (fits(*plan)) return plan;
    return refusal(*plan);
  }

 private:
  using MadePlan = Result<std::unique_ptr<RunPlan>>;

  MadePlan make(const Options& options) const {
    return RunPlan::make(options, setup_, communicator_, optimizers_, kernels_);
  }

  bool fits(const RunPlan& plan) const { return plan.memory.fits(options_.sharding.memory_limit); }

  MadePlan choose_strategy() const {
    std::vector<std::unique_ptr<RunPlan>> plans;
    std::unique_ptr<RunPlan> smallest;
    OFSDP_ASSIGN_OR_RETURN(const std::optional<Topology> topology, given_topology());
    for (const ShardingOptions& sharding : candidates(topology)) {
      Options options = options_;
      options.sharding = sharding;
      OFSDP_ASSIGN_OR_RETURN(auto plan, make(options));
      if (fits(*plan)) {
        plans.push_back(std::move(plan));
      } else if (smallest == nullptr ||
                 plan->memory.largest_bytes() < smallest->memory.largest_bytes()) {
        smallest = std::move(plan);
      }
    }
    if (plans.empty()) return refusal(*smallest);
    OFSDP_ASSIGN_OR_RETURN(const std::vector<double> seconds, predict(plans, topology));
    const auto best = std::ranges::min_element(seconds) - seconds.begin();
    auto& chosen = plans[static_cast<size_t>(best)];
    const bool measured = kernels_->device() == nullptr;
    chosen->choice = measured ? choice_line(plans, seconds, *chosen) : device_line(*chosen);
    return std::move(chosen);
  }

  Result<std::optional<Topology>> given_topology() const {
    if (options_.report.topology.empty()) return std::optional<Topology>();
    OFSDP_ASSIGN_OR_RETURN(Topology topology, read_topology(options_.report.topology));
    return std::optional(std::move(topology));
  }

  // Copies of the model, a host each, where the hosts are known.
  std::vector<ShardingOptions> candidates(const std::optional<Topology>& topology) const {
    std::vector<ShardingOptions> list;
    auto add = [&](Strategy strategy) {
      list.push_back(options_.sharding);
      list.back().strategy = strategy;
    };
    // Where nothing is gathered, shard_grad_op is full_shard.
    const bool in_place =
        kernels_->device() == nullptr && communicator_.ranks_in_common() == communicator_.size();
    for (const Strategy strategy : kCandidates) {
      if (!in_place || strategy != Strategy::kShardGradOp) add(strategy);
    }
    if (!topology || topology->hosts == 1 || topology->world() != communicator_.size()) return list;
    for (const Strategy strategy : kHybrids) {
      add(strategy);
      if (!list.back().shard_size) list.back().shard_size = topology->ranks_per_host;
    }
    return list;
  }

  // Measured by rank 0, whose figures all take. Without a network beside the kernels, these take
  // the same under every strategy and need not be measured.
  Result<std::vector<double>> predict(const std::vector<std::unique_ptr<RunPlan>>& plans,
                                      const std::optional<Topology>& topology) const {
    std::vector<double> seconds(plans.size());
    if (kernels_->device() != nullptr) return seconds;  // nothing measures devices yet
    if (communicator_.rank() == 0) {
      Machine machine;
      machine.topology = topology;
      if (topology) {
        OFSDP_ASSIGN_OR_RETURN(machine.kernels, measure_kernels(*plans[0], kMeasureFor));
      }
      OFSDP_ASSIGN_OR_RETURN(machine.rates, measure_rates(*plans[0]));
      for (size_t i = 0; i < plans.size(); ++i) {
        seconds[i] = predicted_seconds(*plans[i], machine, options_.batch);
      }
    }
    std::vector<double> all(seconds.size() * static_cast<size_t>(communicator_.size()));
    OFSDP_RETURN_IF_ERROR(communicator_.exchange(seconds, all, {"choice of a strategy", -1, 0}));
    return std::vector<double>(all.begin(), all.begin() + static_cast<int64_t>(seconds.size()));
  }

  std::string device_line(const RunPlan& chosen) const {
    if (communicator_.size() == 1) return "";
    return format_text("strategy auto: {}, the first that fits; on GPUs nothing is measured yet\n",
                       strategy_name(chosen.plan.strategy));
  }

  std::string choice_line(const std::vector<std::unique_ptr<RunPlan>>& plans,
                          const std::vector<double>& seconds, const RunPlan& chosen) const {
    std::string line = format_text(
        "strategy auto: {}; predicted ms an update{}:", strategy_name(chosen.plan.strategy),
        options_.report.topology.empty() ? " beside the kernels" : "");
    for (size_t i = 0; i < plans.size(); ++i) {
      line += format_text("{} {} {:.3g}", i == 0 ? "" : ",", strategy_name(plans[i]->plan.strategy),
                          seconds[i] * 1e3);
    }
    return line + "\n";
  }

  Status refusal(const RunPlan& plan) const {
    return input_error(
        "--memory-limit {}: the plan ({}) needs {} bytes a rank, of which {} for a "
        "micro-batch of {}{}",
        *options_.sharding.memory_limit, strategy_name(plan.plan.strategy),
        plan.memory.largest_bytes(), plan.memory.arena, options_.batch.batch_size, advice());
  }

  // Slower, and only of a device; the lesser one if it is enough.
  template <typename Offer>
  void offer_offload(const Offer& offer) const {
    if (kernels_->device() == nullptr) return;
    const auto optimizer = [](Options& o) { o.sharding.cpu_offload = CpuOffload::kOptimizer; };
    const auto params = [](Options& o) { o.sharding.cpu_offload = CpuOffload::kParams; };
    const CpuOffload now = options_.sharding.cpu_offload;
    if (now == CpuOffload::kNone && offer("--cpu-offload optimizer", optimizer)) return;
    if (now != CpuOffload::kParams) offer("--cpu-offload params", params);
  }

  // Each way alone; if none fits, together; and the largest batch that fits.
  std::string advice() const {
    std::string list;
    auto offer = [&](const std::string& flags, const std::function<void(Options&)>& change) {
      Options options = options_;
      change(options);
      const auto plan = make(options);
      if (!plan.ok() || !fits(**plan)) return false;
      list += format_text("{}{} ({} bytes)", list.empty() ? "\nwould fit: " : "; ", flags,
                          (*plan)->memory.largest_bytes());
      return true;
    };
    auto recompute = [](Options& o) { o.sharding.activation_checkpointing = Recompute::kUnit; };
    auto shard = [](Options& o) { o.sharding.strategy = Strategy::kFullShard; };
    offer("--activation-checkpointing unit", recompute);
    offer("--strategy full_shard", shard);
    offer_offload(offer);
    if (list.empty()) {
      offer("--strategy full_shard --activation-checkpointing unit", [&](Options& o) {
        recompute(o);
        shard(o);
      });
    }
    if (list.empty() && kernels_->device() != nullptr) {
      const std::string flags = "--strategy full_shard --activation-checkpointing unit";
      offer(flags + " --cpu-offload params", [&](Options& o) {
        recompute(o);
        shard(o);
        o.sharding.cpu_offload = CpuOffload::kParams;
      });
    }
    for (int64_t batch = options_.batch.batch_size / 2; batch > 0; batch /= 2) {
      const auto smaller = [&](Options& o) { o.batch.batch_size = batch; };
      if (offer(format_text("--batch-size {}", batch), smaller)) break;
    }
    for (int64_t batch = options_.batch.batch_size / 2; list.empty() && batch > 0; batch /= 2) {
      const std::string flags = "--strategy full_shard --activation-checkpointing unit";
      offer(format_text("{} --batch-size {}", flags, batch), [&](Options& o) {
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
  Communicator& communicator_;
  const std::vector<OptimizerDef>& optimizers_;
  const std::shared_ptr<KernelCache> kernels_;
};

}  // namespace

Result<std::unique_ptr<RunPlan>> choose_plan(const Options& options, const ModelSetup& setup,
                                             Communicator& communicator,
                                             const std::vector<OptimizerDef>& optimizers,
                                             Device* device) {
  return PlanChooser(options, setup, communicator, optimizers, device).run();
}

}  // namespace ofsdp::runtime
