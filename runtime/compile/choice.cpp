// compile_run: which plans are made, and which one is taken.
//
// A given strategy and wrap make one plan. With --strategy auto or --wrap auto there are
// candidates: those above --memory-limit are dropped, rank 0 measures, all ranks receive the
// predicted seconds of an update, and the fastest is taken. If nothing fits, the error says what
// would (fit.h).
//
// [Note: candidates of --wrap auto] Stage one has the partitions: the policies transformer, size
// and none; blocks joined by --bucket-mb 2, 4, 8, ... times the largest; units by size, each a
// quarter of the one before. Stage two varies the fastest of them: --prefetch-depth and
// --keep-gathered where units are gathered, and recomputation (as much as the limit asks for) where
// a plan would be faster but does not fit. Among plans within a hundredth of the fastest the first
// one is taken, so noise of the measurement does not decide.
#include <algorithm>
#include <cmath>
#include <set>

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
    if (options_.sharding.wrap == WrapPolicy::kAuto) return choose_units();
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
    std::vector<Candidate> compared;
    std::unique_ptr<CompiledRun> smallest;
    for (const ShardingOptions& sharding : strategies()) {
      RunSettings settings = settings_;
      settings.options.sharding = sharding;
      OFSDP_ASSIGN_OR_RETURN(auto plan, compile_candidate(settings, parts_));
      plan->chosen = sharding;
      compared.push_back(facts_of(*plan, sharding));
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
    auto next = seconds.begin();
    for (Candidate& candidate : compared) {
      if (!candidate.fits) continue;
      candidate.chosen = next - seconds.begin() == best;
      candidate.seconds = *next++;
    }
    chosen->candidates = std::move(compared);
    chosen->candidates_rule =
        format_text("strategy auto compares plans; the fastest that fits wins{}\n",
                    topology_ || on_device_ ? "" : "; ms beside the kernels");
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
        seconds[i] = predicted_seconds(*plans[i], machine_);
      }
    }
    OFSDP_RETURN_IF_ERROR(take_from_rank0(seconds, what));
    return seconds;
  }

  Status take_from_rank0(std::span<double> values, const char* what) {
    Communicator& ranks = parts_.communicator;
    for (size_t begin = 0; begin < values.size(); begin += kMaxExchange) {
      const size_t count = std::min<size_t>(kMaxExchange, values.size() - begin);
      std::vector<double> all(count * static_cast<size_t>(ranks.size()));
      OFSDP_RETURN_IF_ERROR(ranks.exchange(values.subspan(begin, count), all, {what, -1, 0}));
      std::copy_n(all.begin(), count, values.begin() + static_cast<int64_t>(begin));
    }
    return {};
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

  // Returns the settings with the policy that `auto` has chosen.
  RunSettings of_plan(const CompiledRun& plan) const {
    RunSettings settings = settings_;
    if (plan.chosen) settings.options.sharding = *plan.chosen;
    return settings;
  }

  // --- --wrap auto

  struct Tried {
    std::unique_ptr<CompiledRun> plan;  // null once it cannot be chosen
    ShardingOptions sharding;
    Candidate facts;
    std::vector<ParameterGroup> groups;
    bool gathers = false;
  };

  // Returns the fastest candidate that fits; if none does, the error about the smallest.
  Result<std::unique_ptr<CompiledRun>> choose_units() {
    OFSDP_ASSIGN_OR_RETURN(graph_, parts_.setup.training_graph(settings_.batch.batch_size));
    std::vector<ShardingOptions> starts{options_.sharding};
    if (options_.sharding.strategy == Strategy::kAuto) starts = strategies();
    std::vector<ShardingOptions> list;
    for (const ShardingOptions& start : starts)
      std::ranges::copy(policies(start), std::back_inserter(list));
    OFSDP_RETURN_IF_ERROR(try_all(list));
    // An evaluation has no update whose time could decide.
    if (options_.command != Command::kEval) OFSDP_RETURN_IF_ERROR(try_more());
    Tried& taken = choice();
    if (!taken.facts.fits) return refusal(*taken.plan);
    return finish(taken);
  }

  Status try_more() {
    OFSDP_RETURN_IF_ERROR(try_all(other_units(leader().sharding)));
    OFSDP_RETURN_IF_ERROR(try_all(variations()));
    return try_all(recomputations());
  }

  std::unique_ptr<CompiledRun> finish(Tried& taken) {
    taken.facts.chosen = true;
    CompiledRun& plan = *taken.plan;
    for (const Tried& tried : tried_) plan.candidates.push_back(tried.facts);
    plan.candidates_rule =
        "wrap auto compares plans; the first that fits and is within 1 % of the fastest wins\n";
    const std::string predicted =
        on_device_ ? "on GPUs nothing is measured yet"
                   : format_text("predicted {:.4g} ms an update", taken.facts.seconds * 1e3);
    plan.choice = format_text("wrap auto: {}; {}; {} plans compared\n", taken.facts.flags,
                              predicted, tried_.size());
    return std::move(taken.plan);
  }

  // The policies that a user can name.
  static std::vector<ShardingOptions> policies(const ShardingOptions& start) {
    std::vector<ShardingOptions> list;
    for (const WrapPolicy wrap : {WrapPolicy::kTransformer, WrapPolicy::kSize, WrapPolicy::kNone}) {
      list.push_back(start);
      list.back().wrap = wrap;
    }
    return list;
  }

  // Larger and smaller units.
  std::vector<ShardingOptions> other_units(const ShardingOptions& start) const {
    constexpr int kSizes = 5;
    int64_t total = 0, largest = 0;
    for (const Parameter& p : graph_.parameters) {
      if (p.trained) total += graph_.value(p.value).desc.numel();
    }
    for (const Tried& tried : tried_) {
      if (tried.sharding.wrap == WrapPolicy::kTransformer) largest = tried.facts.largest_unit;
    }
    std::vector<ShardingOptions> list;
    const double unit_mb = static_cast<double>(largest) *
                           static_cast<double>(dtype_size(start.param_dtype)) / (1 << 20);
    for (int times = 2; times < (2 << kSizes); times *= 2) {
      list.push_back(start);
      list.back().wrap = WrapPolicy::kTransformer;
      list.back().bucket_mb = std::ceil(times * unit_mb * 16) / 16;  // a short text
    }
    for (int64_t least = total / 4; least > 0 && std::ssize(list) < 2 * kSizes; least /= 4) {
      list.push_back(start);
      list.back().wrap = WrapPolicy::kSize;
      list.back().bucket_mb = 0;
      list.back().min_params = least;
    }
    return list;
  }

  static bool gathers(const Plan& plan) {
    return std::ranges::any_of(plan.units, [](const Unit& unit) {
      return unit.plan.unshard == Unshard::kGather || unit.plan.unshard == Unshard::kFetch;
    });
  }

  // Other depths of prefetch, and units that stay gathered, for the two fastest that fit, or the
  // two smallest. The root, which may be alone, knows neither.
  std::vector<ShardingOptions> variations() {
    int varied = 0;
    std::vector<ShardingOptions> list;
    for (const Tried* tried : ranking(tried_.size())) {
      if (!tried->gathers || tried->facts.units < 2) continue;
      if (varied++ == 2) break;
      const bool fixed = options_.sharding.prefetch_depth.has_value();
      for (const int depth : {0, 2, 4}) {
        if (fixed) break;
        list.push_back(tried->sharding);
        list.back().prefetch_depth = depth;
      }
      const Strategy strategy = tried->sharding.strategy;
      if (strategy != Strategy::kFullShard && strategy != Strategy::kHybridShard) continue;
      const int64_t units = tried->facts.units - 1;
      for (const int64_t kept : std::set<int64_t>{1, units / 2, units}) {
        if (kept < 1 || options_.sharding.keep_gathered > 0) continue;
        list.push_back(tried->sharding);
        list.back().keep_gathered = kept;
      }
    }
    return list;
  }

  // For plans that do not fit: as much recomputation as the limit asks for, if they would be faster
  // than the leader or nothing fits; then also without prefetch.
  std::vector<ShardingOptions> recomputations() {
    constexpr size_t kMost = 6;
    std::vector<ShardingOptions> list;
    if (options_.sharding.activation_checkpointing != Recompute::kNone) return list;
    const Tried& lead = leader();
    std::vector<const Tried*> slow;
    for (const Tried& tried : tried_) {
      if (!tried.facts.fits && (!lead.facts.fits || tried.facts.seconds < lead.facts.seconds)) {
        slow.push_back(&tried);
      }
    }
    std::ranges::stable_sort(slow, {}, [&](const Tried* t) { return t->facts.bytes; });
    if (slow.size() > kMost) slow.resize(kMost);
    for (const Tried* tried : slow) {
      list.push_back(tried->sharding);
      list.back().activation_checkpointing = Recompute::kAuto;
      if (options_.sharding.prefetch_depth || !tried->gathers) continue;
      list.push_back(list.back());
      list.back().prefetch_depth = 0;
    }
    return list;
  }

  // Compiles candidates whose plans are new, and predicts their times.
  Status try_all(const std::vector<ShardingOptions>& list) {
    Plans plans;
    std::vector<Tried> fresh;
    for (const ShardingOptions& sharding : list) {
      if (tried_.size() + fresh.size() == kMostCandidates) break;
      OFSDP_ASSIGN_OR_RETURN(Partition parts, partition(graph_, sharding));
      if (is_known(sharding, parts.groups, tried_) || is_known(sharding, parts.groups, fresh)) {
        continue;
      }
      RunSettings settings = settings_;
      settings.options.sharding = sharding;
      auto plan = compile_candidate(settings, parts_);
      if (!plan.ok()) {  // such as more units than there are channels
        if (first_error_.ok()) first_error_ = std::move(plan).status();
        continue;
      }
      (*plan)->chosen = sharding;
      fresh.push_back({nullptr, sharding, facts_of(**plan, sharding), std::move(parts.groups),
                       gathers((*plan)->shards)});
      plans.push_back(*std::move(plan));
    }
    if (plans.empty() && tried_.empty()) return std::move(first_error_);
    if (plans.empty()) return {};
    OFSDP_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                           predict(plans, true, "choice of units"));
    for (size_t i = 0; i < plans.size(); ++i) {
      fresh[i].facts.seconds = seconds[i];
      fresh[i].plan = std::move(plans[i]);
      tried_.push_back(std::move(fresh[i]));
    }
    drop_losers();
    return {};
  }

  // Plans of large models take much memory. The leader's seconds only fall.
  void drop_losers() {
    const Tried* const lead = &leader();
    for (Tried& tried : tried_) {
      if (&tried != lead && !is_as_good(tried, *lead)) tried.plan.reset();
    }
  }

  static bool is_known(const ShardingOptions& sharding, const std::vector<ParameterGroup>& groups,
                       const std::vector<Tried>& list) {
    const auto same = [](const ParameterGroup& a, const ParameterGroup& b) {
      return a.kind == b.kind && a.parameters == b.parameters;
    };
    return std::ranges::any_of(list, [&](const Tried& tried) {
      const ShardingOptions& s = tried.sharding;
      return s.strategy == sharding.strategy && s.prefetch_depth == sharding.prefetch_depth &&
             s.keep_gathered == sharding.keep_gathered &&
             s.activation_checkpointing == sharding.activation_checkpointing &&
             std::ranges::equal(tried.groups, groups, same);
    });
  }

  Candidate facts_of(const CompiledRun& plan, const ShardingOptions& sharding) const {
    Candidate facts;
    facts.flags = joined(sharding_flags(options_.sharding, sharding), " ");
    facts.units = std::ssize(plan.shards.units);
    for (const Unit& unit : plan.shards.units) {
      if (unit.id != plan.shards.root || facts.units == 1) {
        facts.largest_unit = std::max(facts.largest_unit, unit.numel);
      }
    }
    facts.recompute_level = plan.recompute_level;
    facts.bytes = plan.memory.largest_bytes();
    facts.fits = fits(plan);
    return facts;
  }

  // Orders plans that fit by time, before the others by size.
  static bool before(const Tried* a, const Tried* b) {
    if (a->facts.fits != b->facts.fits) return a->facts.fits;
    return a->facts.fits ? a->facts.seconds < b->facts.seconds : a->facts.bytes < b->facts.bytes;
  }

  std::vector<const Tried*> ranking(size_t most) const {
    std::vector<const Tried*> list;
    for (const Tried& tried : tried_) list.push_back(&tried);
    std::ranges::stable_sort(list, before);
    list.resize(std::min(list.size(), most));
    return list;
  }

  const Tried& leader() const { return *ranking(1)[0]; }

  static bool is_as_good(const Tried& tried, const Tried& lead) {
    constexpr double kAsGood = 1.01;
    return tried.facts.fits && tried.facts.seconds <= kAsGood * lead.facts.seconds;
  }

  // Returns the first that is as good as the leader.
  Tried& choice() {
    const Tried& lead = leader();
    for (Tried& tried : tried_) {
      if (&tried == &lead || is_as_good(tried, lead)) return tried;
    }
    OFSDP_CHECK(false, "the leader is one of them");
  }

  // Returns the error that `plan` exceeds --memory-limit, with advice.
  Status refusal(const CompiledRun& plan) const {
    return {ErrorKind::kInput,
            format_text("--memory-limit {}: the plan ({}) needs {} bytes a rank, of which {} for a "
                        "micro-batch of {}{}",
                        *options_.sharding.memory_limit, strategy_name(plan.shards.strategy),
                        plan.memory.largest_bytes(), plan.memory.arena,
                        plan.train_sampler->options().batch_size,
                        advice(of_plan(plan), parts_))};  // starts with a line break
  }

  const RunSettings& settings_;
  const Options& options_;
  const CandidateParts& parts_;
  const bool on_device_;
  std::optional<Topology> topology_;
  Machine machine_;  // on rank 0
  bool measured_ = false;
  Graph graph_;               // of --wrap auto
  std::vector<Tried> tried_;  // the same
  Status first_error_;        // of a candidate
};

}  // namespace

std::vector<std::string> sharding_flags(const ShardingOptions& given, const ShardingOptions& wanted,
                                        const std::string& limit) {
  std::vector<std::string> words;
  const auto add = [&](bool differs, std::string_view flag, std::string_view value) {
    if (!differs) return;
    words.emplace_back(flag);
    words.emplace_back(value);
  };
  add(given.strategy != wanted.strategy, "--strategy", strategy_name(wanted.strategy));
  add(given.shard_size != wanted.shard_size, "--shard-size",
      std::to_string(wanted.shard_size.value_or(0)));
  add(given.wrap != wanted.wrap, "--wrap", name_of(wanted.wrap));
  add(given.min_params != wanted.min_params, "--min-params", std::to_string(wanted.min_params));
  add(given.bucket_mb != wanted.bucket_mb, "--bucket-mb", format_text("{}", wanted.bucket_mb));
  add(given.keep_gathered != wanted.keep_gathered, "--keep-gathered",
      std::to_string(wanted.keep_gathered));
  add(given.prefetch_depth != wanted.prefetch_depth, "--prefetch-depth",
      std::to_string(wanted.depth()));
  add(given.activation_checkpointing != wanted.activation_checkpointing,
      "--activation-checkpointing", name_of(wanted.activation_checkpointing));
  add(given.memory_limit != wanted.memory_limit, "--memory-limit", limit);
  add(given.cpu_offload != wanted.cpu_offload, "--cpu-offload", name_of(wanted.cpu_offload));
  add(given.param_dtype != wanted.param_dtype, "--param-dtype", dtype_name(wanted.param_dtype));
  return words;
}

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
