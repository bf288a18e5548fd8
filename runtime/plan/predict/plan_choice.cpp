#include "runtime/plan/predict/plan_choice.h"

#include <algorithm>
#include <functional>

#include "runtime/plan/predict/prediction.h"

namespace ofsdp::runtime {
namespace {

// The first of equally fast ones is chosen.
constexpr Strategy kCandidates[] = {Strategy::kZero1, Strategy::kShardGradOp, Strategy::kFullShard,
                                    Strategy::kNoShard};
constexpr Strategy kHybrids[] = {Strategy::kHybridShard, Strategy::kHybridShardZero2};
constexpr std::chrono::milliseconds kMeasureFor{600};

class PlanChooser {
 public:
  PlanChooser(const RunSettings& settings, const ModelSetup& setup, Communicator& communicator,
              const std::vector<OptimizerDef>& optimizers, Device* device)
      : settings_(settings),
        options_(settings.options),
        setup_(setup),
        communicator_(communicator),
        optimizers_(optimizers),
        kernels_(std::make_shared<KernelCache>(device)) {}

  Result<std::unique_ptr<RunPlan>> run() {
    if (options_.sharding.strategy == Strategy::kAuto) return choose_strategy();
    OFSDP_ASSIGN_OR_RETURN(auto plan, make(settings_));
    if (fits(*plan)) return plan;
    return refusal(*plan);
  }

 private:
  using MadePlan = Result<std::unique_ptr<RunPlan>>;

  MadePlan make(const RunSettings& settings) const {
    return RunPlan::make(settings, setup_, communicator_, optimizers_, kernels_);
  }

  bool fits(const RunPlan& plan) const { return plan.memory.fits(options_.sharding.memory_limit); }

  MadePlan choose_strategy() const {
    std::vector<std::unique_ptr<RunPlan>> plans;
    std::unique_ptr<RunPlan> smallest;
    OFSDP_ASSIGN_OR_RETURN(const std::optional<Topology> topology, given_topology());
    for (const ShardingOptions& sharding : candidates(topology)) {
      RunSettings settings = settings_;
      settings.options.sharding = sharding;
      OFSDP_ASSIGN_OR_RETURN(auto plan, make(settings));
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
    // Without gathers shard_grad_op is full_shard.
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

  // Rank 0 measures, and all take its figures. Without a network next to the kernels, these take
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
        seconds[i] = predicted_seconds(*plans[i], machine, settings_.batch);
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
    return {ErrorKind::kInput,
            format_text("--memory-limit {}: the plan ({}) needs {} bytes a rank, of which {} for a "
                        "micro-batch of {}{}",
                        *options_.sharding.memory_limit, strategy_name(plan.plan.strategy),
                        plan.memory.largest_bytes(), plan.memory.arena, settings_.batch.batch_size,
                        advice())};  // in lines of its own
  }

  using Change = std::function<void(RunSettings&)>;
  static void shard(RunSettings& s) { s.options.sharding.strategy = Strategy::kFullShard; }
  static void recompute(RunSettings& s) {
    s.options.sharding.activation_checkpointing = Recompute::kUnit;
  }
  static Change offload(CpuOffload what) {
    return [what](RunSettings& s) { s.options.sharding.cpu_offload = what; };
  }
  static Change batch_of(int64_t size) {
    return [size](RunSettings& s) { s.batch.batch_size = size; };
  }

  // Slower, and only of a device; the lesser one if it is enough.
  template <typename Offer>
  void offer_offload(const Offer& offer) const {
    if (kernels_->device() == nullptr) return;
    const CpuOffload now = options_.sharding.cpu_offload;
    if (now == CpuOffload::kNone &&
        offer("--cpu-offload optimizer", {offload(CpuOffload::kOptimizer)})) {
      return;
    }
    if (now != CpuOffload::kParams) offer("--cpu-offload params", {offload(CpuOffload::kParams)});
  }

  // Each way alone; if none fits, together; and the largest batch that fits.
  std::string advice() const {
    std::string list;
    auto offer = [&](const std::string& flags, std::initializer_list<Change> changes) {
      RunSettings settings = settings_;
      for (const Change& change : changes) change(settings);
      const auto plan = make(settings);
      if (!plan.ok() || !fits(**plan)) return false;
      list += format_text("{}{} ({} bytes)", list.empty() ? "\nwould fit: " : "; ", flags,
                          (*plan)->memory.largest_bytes());
      return true;
    };
    const std::string both = "--strategy full_shard --activation-checkpointing unit";
    offer("--activation-checkpointing unit", {recompute});
    offer("--strategy full_shard", {shard});
    offer_offload(offer);
    if (list.empty()) offer(both, {recompute, shard});
    if (list.empty() && kernels_->device() != nullptr) {
      offer(both + " --cpu-offload params", {recompute, shard, offload(CpuOffload::kParams)});
    }
    for (int64_t batch = settings_.batch.batch_size / 2; batch > 0; batch /= 2) {
      if (offer(format_text("--batch-size {}", batch), {batch_of(batch)})) break;
    }
    for (int64_t batch = settings_.batch.batch_size / 2; list.empty() && batch > 0; batch /= 2) {
      offer(format_text("{} --batch-size {}", both, batch), {recompute, shard, batch_of(batch)});
    }
    if (!list.empty()) return list;
    return "\nno strategy, batch size or activation checkpointing fits; more ranks need less each";
  }

  const RunSettings& settings_;
  const Options& options_;
  const ModelSetup& setup_;
  Communicator& communicator_;
  const std::vector<OptimizerDef>& optimizers_;
  const std::shared_ptr<KernelCache> kernels_;
};

}  // namespace

Result<std::unique_ptr<RunPlan>> choose_plan(const RunSettings& settings, const ModelSetup& setup,
                                             Communicator& communicator,
                                             const std::vector<OptimizerDef>& optimizers,
                                             Device* device) {
  return PlanChooser(settings, setup, communicator, optimizers, device).run();
}

}  // namespace ofsdp::runtime
