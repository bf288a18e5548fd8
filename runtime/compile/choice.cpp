// compile_run: which plans are made, and which one is taken.
//
// A given strategy makes one plan. With --strategy auto there are candidates: those above
// --memory-limit are dropped, rank 0 measures, all ranks receive the predicted seconds of an
// update, and the fastest is taken. If nothing fits, the error says what would (fit.h).
#include <algorithm>

#include "runtime/compile/compile.h"
#include "runtime/compile/fit.h"
#include "runtime/compile/prediction.h"

namespace ofsdp::runtime {

namespace {

// Strategies that --strategy auto compares, in order of preference: the first is chosen among
// equally fast ones.
constexpr Strategy kCandidates[] = {Strategy::kZero1, Strategy::kShardGradOp, Strategy::kFullShard,
                                    Strategy::kNoShard};
constexpr Strategy kHybrids[] = {Strategy::kHybridShard, Strategy::kHybridShardZero2};
constexpr std::chrono::milliseconds kMeasureFor{600};

using Plans = std::vector<std::unique_ptr<CompiledRun>>;

class RunChooser {
 public:
  RunChooser(const RunSettings& settings, const CandidateParts& parts)
      : settings_(settings),
        options_(settings.options),
        parts_(parts),
        on_device_(parts.kernels->device() != nullptr) {}

  Result<std::unique_ptr<CompiledRun>> run() {
    OFSDP_ASSIGN_OR_RETURN(topology_, given_topology());
    if (options_.sharding.strategy == Strategy::kAuto) return choose_strategy();
    OFSDP_ASSIGN_OR_RETURN(auto plan, compile_candidate(settings_, parts_));
    if (fits(*plan)) return plan;
    return refusal(*plan);
  }

 private:
  bool fits(const CompiledRun& plan) const {
    return plan.memory.fits(options_.sharding.memory_limit);
  }

  Result<std::optional<Topology>> given_topology() const {
    if (options_.report.topology.empty()) return std::optional<Topology>();
    OFSDP_ASSIGN_OR_RETURN(Topology topology, read_topology(options_.report.topology));
    return std::optional(std::move(topology));
  }

  // --strategy auto. Returns the fastest plan that fits; if none does, the error about the
  // smallest.
  Result<std::unique_ptr<CompiledRun>> choose_strategy() {
    Plans plans;
    std::unique_ptr<CompiledRun> smallest;
    for (const ShardingOptions& sharding : strategies()) {
      RunSettings settings = settings_;
      settings.options.sharding = sharding;
      OFSDP_ASSIGN_OR_RETURN(auto plan, compile_candidate(settings, parts_));
      if (fits(*plan)) {
        plans.push_back(std::move(plan));
      } else if (smallest == nullptr ||
                 plan->memory.largest_bytes() < smallest->memory.largest_bytes()) {
        smallest = std::move(plan);
      }
    }
    if (plans.empty()) return refusal(*smallest);
    // Kernels take the same time under every strategy, so they are measured only if --topology
    // gives a network whose times are added to them.
    OFSDP_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                           predict(plans, topology_.has_value(), "choice of a strategy"));
    const auto best = std::ranges::min_element(seconds) - seconds.begin();
    auto& chosen = plans[static_cast<size_t>(best)];
    chosen->choice = on_device_ ? device_line(*chosen) : choice_line(plans, seconds, *chosen);
    return std::move(chosen);
  }

  // Returns the options for each candidate. Hybrid strategies keep one copy of the model per host,
  // so they take part only if --topology has several hosts.
  std::vector<ShardingOptions> strategies() const {
    std::vector<ShardingOptions> list;
    auto add = [&](Strategy strategy) {
      list.push_back(options_.sharding);
      list.back().strategy = strategy;
    };
    // CPU ranks on one host read each other's shards in place instead of gathering them ([Note: in
    // place] in plan.h), so shard_grad_op and full_shard are the same there.
    const Communicator& ranks = parts_.communicator;
    const bool in_place = !on_device_ && ranks.ranks_in_common() == ranks.size();
    for (const Strategy strategy : kCandidates) {
      if (!in_place || strategy != Strategy::kShardGradOp) add(strategy);
    }
    if (!topology_ || topology_->hosts == 1 || topology_->world() != ranks.size()) return list;
    for (const Strategy strategy : kHybrids) {
      add(strategy);
      if (!list.back().shard_size) list.back().shard_size = topology_->ranks_per_host;
    }
    return list;
  }

  // Returns the predicted seconds per update of each plan; on a device, which nothing measures, 0.
  // Rank 0 measures, and the exchange gives its numbers to all ranks, so that all make the same
  // choice. If measuring fails, rank 0 returns the error and ends the run, and the exchange returns
  // kPeer on the other ranks.
  Result<std::vector<double>> predict(const Plans& plans, bool kernels, const char* what) {
    std::vector<double> seconds(plans.size());
    if (on_device_) return seconds;
    if (parts_.communicator.rank() == 0) {
      OFSDP_RETURN_IF_ERROR(measure(plans, kernels));
      for (size_t i = 0; i < plans.size(); ++i) {
        seconds[i] = predicted_seconds(*plans[i], machine_, settings_.batch);
      }
    }
    std::vector<double> all(seconds.size() * static_cast<size_t>(parts_.communicator.size()));
    OFSDP_RETURN_IF_ERROR(parts_.communicator.exchange(seconds, all, {what, -1, 0}));
    return std::vector<double>(all.begin(), all.begin() + static_cast<int64_t>(seconds.size()));
  }

  // Measures the kernels that earlier plans did not have; rates, once.
  Status measure(const Plans& plans, bool kernels) {
    machine_.topology = topology_;
    std::vector<const CompiledRun*> list;
    for (const auto& plan : plans) list.push_back(plan.get());
    if (kernels) OFSDP_RETURN_IF_ERROR(measure_kernels(list, kMeasureFor, machine_.kernels));
    if (measured_) return {};
    measured_ = true;
    OFSDP_ASSIGN_OR_RETURN(machine_.rates, measure_rates(*plans[0]));
    return {};
  }

  std::string device_line(const CompiledRun& chosen) const {
    if (parts_.communicator.size() == 1) return "";
    return format_text("strategy auto: {}, the first that fits; on GPUs nothing is measured yet\n",
                       strategy_name(chosen.shards.strategy));
  }

  std::string choice_line(const Plans& plans, const std::vector<double>& seconds,
                          const CompiledRun& chosen) const {
    std::string line = format_text(
        "strategy auto: {}; predicted ms an update{}:", strategy_name(chosen.shards.strategy),
        options_.report.topology.empty() ? " beside the kernels" : "");
    for (size_t i = 0; i < plans.size(); ++i) {
      line += format_text("{} {} {:.3g}", i == 0 ? "" : ",",
                          strategy_name(plans[i]->shards.strategy), seconds[i] * 1e3);
    }
    return line + "\n";
  }

  // Returns the error that `plan` exceeds --memory-limit, with advice.
  Status refusal(const CompiledRun& plan) const {
    return {ErrorKind::kInput,
            format_text("--memory-limit {}: the plan ({}) needs {} bytes a rank, of which {} for a "
                        "micro-batch of {}{}",
                        *options_.sharding.memory_limit, strategy_name(plan.shards.strategy),
                        plan.memory.largest_bytes(), plan.memory.arena, settings_.batch.batch_size,
                        advice(settings_, parts_))};  // starts with a line break
  }

  const RunSettings& settings_;
  const Options& options_;
  const CandidateParts& parts_;
  const bool on_device_;
  std::optional<Topology> topology_;
  Machine machine_;  // on rank 0
  bool measured_ = false;
};

}  // namespace

Result<std::unique_ptr<CompiledRun>> compile_run(const RunSettings& settings,
                                                 const ModelSetup& setup,
                                                 Communicator& communicator,
                                                 const std::vector<OptimizerDef>& optimizers,
                                                 Device* device) {
  const CandidateParts parts{setup, communicator, optimizers,
                             std::make_shared<KernelCache>(device)};
  return RunChooser(settings, parts).run();
}

}  // namespace ofsdp::runtime
