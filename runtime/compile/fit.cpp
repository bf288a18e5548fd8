// Finding changes that fit (fit.h). A Variant is a changed run; a Change changes it; a Ladder has
// changes of one kind, each of which needs less memory than the one before. The search takes the
// first rung that fits of each ladder, then of each pair of ladders, then climbs all ladders that
// help and goes back where it can.
#include "runtime/compile/fit.h"

#include <algorithm>
#include <map>

#include "fsdp/comm/rank_identity.h"
#include "importer/passes/specialize.h"
#include "kernels/base/text.h"
#include "runtime/compile/prediction.h"

namespace ofsdp::runtime {

namespace {

struct Variant {
  Options options;
  BatchSizes batch;
  int ranks = 1;
  Effect effect = Effect::kSameBits;
};

using Change = std::function<void(Variant&)>;
using Ladder = std::vector<Change>;

constexpr size_t kEnoughSingles = 2;  // with as many, pairs are not tried
constexpr size_t kMostRows = 12;
constexpr int kMostRungs = 6;
constexpr int kMostOfPairs = kMostFitPlans * 3 / 4;  // plans made before the last pair
constexpr std::chrono::milliseconds kMeasureFits{1500};

void affect(Variant& v, Effect effect) { v.effect = std::max(v.effect, effect); }

int64_t least_factor(int64_t number) {
  for (int64_t f = 2; f * f <= number; ++f) {
    if (number % f == 0) return f;
  }
  return number;
}

// The ladders of a run.
class Ladders {
 public:
  Ladders(const FitQuestion& question)  // NOLINT: implicit on purpose
      : q_(question), plan_(question.plan), options_(question.settings.options) {
    normalizes_ = joins_rows(options_) || std::ranges::any_of(plan_.programs, [](const auto& p) {
                    return !p.second.graph.carried.empty();
                  });
  }

  // In order of preference.
  std::vector<Ladder> all() const {
    std::vector<Ladder> list{prefetch(),     units(),        recomputation(), strategies(),
                             offloads(),     micro_batch(),  more_ranks(),    state_types(),
                             narrow_types(), fewer_samples()};
    std::erase_if(list, [](const Ladder& ladder) { return ladder.empty(); });
    return list;
  }

 private:
  Ladder prefetch() const {
    const bool gathers = std::ranges::any_of(plan_.shards.units, [](const Unit& unit) {
      return unit.plan.unshard == Unshard::kGather || unit.plan.unshard == Unshard::kFetch;
    });
    if (!gathers || options_.sharding.depth() == 0) return {};
    return {[](Variant& v) { v.options.sharding.prefetch_depth = 0; }};
  }

  // Smaller units, by size.
  Ladder units() const {
    int64_t largest = 0;
    for (const Unit& unit : plan_.shards.units) largest = std::max(largest, unit.numel);
    const bool norms =
        options_.optimizer.clip_grad_norm || options_.sharding.param_dtype == DType::kFloat16;
    const Effect effect = norms || plan_.parameter_norms || plan_.keeps_gradients
                              ? Effect::kRounding
                              : Effect::kSameBits;
    Ladder ladder;
    for (const int64_t part : {4, 16, 64}) {
      const int64_t least = largest / part;
      if (least < 1) break;
      ladder.push_back([=](Variant& v) {
        v.options.sharding.wrap = WrapPolicy::kSize;
        v.options.sharding.min_params = least;
        v.options.sharding.bucket_mb = 0;
        affect(v, effect);
      });
    }
    return ladder;
  }

  Ladder recomputation() const {
    if (options_.sharding.activation_checkpointing == Recompute::kUnit) return {};
    return {[bytes = q_.bytes](Variant& v) {
      v.options.sharding.activation_checkpointing = Recompute::kAuto;
      v.options.sharding.memory_limit = bytes;
    }};
  }

  Ladder strategies() const {
    constexpr Strategy kSteps[] = {Strategy::kNoShard, Strategy::kZero1, Strategy::kShardGradOp,
                                   Strategy::kFullShard};
    const Strategy now = plan_.shards.strategy;
    const auto* const at = std::ranges::find(kSteps, now);
    Ladder ladder;
    if (plan_.shards.world == 1) return ladder;
    const auto* const first = is_hybrid(now) ? std::end(kSteps) - 1 : at + 1;
    for (const Strategy next : std::vector(first, std::end(kSteps))) {
      const bool whole = next == Strategy::kZero1;  // as no_shard, it sums whole gradients
      const bool was_whole = now == Strategy::kNoShard || now == Strategy::kZero1;
      const bool same =
          !is_hybrid(now) && (q_.settings.batch.grad_accum == 1 || whole == was_whole);
      ladder.push_back([=](Variant& v) {
        v.options.sharding.strategy = next;
        affect(v, same ? Effect::kSameBits : Effect::kRounding);
      });
    }
    return ladder;
  }

  Ladder offloads() const {
    Ladder ladder;
    if (plan_.device == nullptr) return ladder;
    for (const CpuOffload what : {CpuOffload::kOptimizer, CpuOffload::kParams}) {
      const CpuOffload now = options_.sharding.cpu_offload;
      if (now == what || now == CpuOffload::kParams) continue;
      ladder.push_back([=](Variant& v) {
        v.options.sharding.cpu_offload = what;
        affect(v, Effect::kRounding);  // the host's arithmetic
      });
    }
    return ladder;
  }

  bool may_cut_batch() const {
    return q_.settings.batch.slices == 0 && fixed_batch(q_.parts.setup.graph) < 0;
  }

  // Smaller micro-batches, more of them.
  Ladder micro_batch() const {
    Ladder ladder;
    int64_t factor = 1;
    for (int64_t left = q_.settings.batch.batch_size; may_cut_batch() && left > 1;) {
      if (static_cast<int>(ladder.size()) == kMostRungs) break;
      const int64_t next = least_factor(left);
      factor *= next;
      left /= next;
      ladder.push_back(
          [factor, effect = normalizes_ ? Effect::kOtherBatch : Effect::kRounding](Variant& v) {
            if (v.batch.batch_size % factor != 0) return;
            v.batch.batch_size /= factor;
            v.batch.grad_accum *= factor;
            affect(v, effect);
          });
    }
    return ladder;
  }

  // Keeps the global batch where it can be divided.
  Ladder more_ranks() const {
    Ladder ladder;
    const Communicator& ranks = q_.parts.communicator;
    const bool may_grow = options_.report.topology.empty() && q_.settings.batch.slices == 0 &&
                          ranks.ranks_on_each_host() > 0 && !is_hybrid(plan_.shards.strategy);
    for (int times = 2; may_grow && times * ranks.size() <= kMaxRanks; times *= 2) {
      if (static_cast<int>(ladder.size()) == kMostRungs) break;
      ladder.push_back([times, this](Variant& v) { grow(v, times); });
    }
    return ladder;
  }

  void grow(Variant& v, int times) const {
    v.ranks *= times;
    affect(v, Effect::kRounding);
    for (; times > 1; times /= 2) {
      if (may_cut_batch() && v.batch.batch_size % 2 == 0) {
        v.batch.batch_size /= 2;
        if (normalizes_) affect(v, Effect::kOtherBatch);
      } else if (v.batch.grad_accum % 2 == 0) {
        v.batch.grad_accum /= 2;
      } else {
        v.batch.global_batch_size *= 2;
        affect(v, Effect::kOtherBatch);
      }
    }
  }

  Ladder state_types() const {
    Ladder ladder;
    if (plan_.updates.states.empty()) return ladder;
    for (const StateDType dtype : {StateDType::kBFloat16, StateDType::kInt8}) {
      if (dtype <= options_.optimizer.state_dtype) continue;
      ladder.push_back([dtype](Variant& v) {
        v.options.optimizer.state_dtype = dtype;
        affect(v, Effect::kFewerBits);
      });
    }
    return ladder;
  }

  Ladder narrow_types() const {
    if (options_.sharding.param_dtype != DType::kFloat32) return {};
    return {[](Variant& v) {
      v.options.sharding.param_dtype = DType::kBFloat16;
      affect(v, Effect::kFewerBits);
    }};
  }

  Ladder fewer_samples() const {
    Ladder ladder;
    const bool given = options_.batch.global_batch_size.value.has_value();
    for (int64_t part = 2; may_cut_batch() && !given; part *= 2) {
      if (part > q_.settings.batch.batch_size || static_cast<int>(ladder.size()) == kMostRungs) {
        break;
      }
      ladder.push_back([part](Variant& v) {
        const int64_t size = std::max<int64_t>(1, v.batch.batch_size / part);
        v.batch.global_batch_size = v.batch.global_batch_size / v.batch.batch_size * size;
        v.batch.batch_size = size;
        affect(v, Effect::kOtherBatch);
      });
    }
    return ladder;
  }

  const FitQuestion& q_;
  const CompiledRun& plan_;
  const Options& options_;
  bool normalizes_ = false;  // rows of a micro-batch depend on each other
};

// Returns the words that turn the command of the run into that of a variant.
class Flags {
 public:
  Flags(const RunSettings& given, const Variant& from, const Variant& to)
      : given_(given.options), from_(from), to_(to) {}

  std::vector<std::string> words() {
    words_ = sharding_flags(given_.sharding, to_.options.sharding, given_.report.fit_text);
    const StateDType states = to_.options.optimizer.state_dtype;
    add(given_.optimizer.state_dtype != states, "--state-dtype", name_of(states));
    add_ranks();
    add_batch();
    return std::move(words_);
  }

 private:
  void add(bool differs, std::string_view flag, std::string_view value) {
    if (!differs) return;
    words_.emplace_back(flag);
    words_.emplace_back(value);
  }

  void add_ranks() {
    const bool here = !given_.report.world;
    const auto hosts = static_cast<int>(here ? given_.launch.nnodes : 1);
    add(from_.ranks != to_.ranks, here ? "--nproc-per-node" : "--world",
        std::to_string(to_.ranks / hosts));
  }

  void add_batch() {
    const BatchSizes &was = from_.batch, &now = to_.batch;
    const bool differs = was.batch_size != now.batch_size || was.grad_accum != now.grad_accum;
    add(differs, "--batch-size", std::to_string(now.batch_size));
    add(differs, "--grad-accum", std::to_string(now.grad_accum));
  }

  const Options& given_;
  const Variant& from_;
  const Variant& to_;
  std::vector<std::string> words_;
};

class FitFinder {
 public:
  explicit FitFinder(const FitQuestion& question)
      : q_(question), makers_(question), ladders_(makers_.all()) {
    start_ = {q_.settings.options, q_.settings.batch, q_.parts.communicator.size()};
    if (q_.plan.chosen) start_.options.sharding = *q_.plan.chosen;
    start_.batch.global_batch_size =
        start_.batch.batch_size * start_.batch.grad_accum * start_.ranks;
    least_ = q_.plan.memory.largest_bytes();
  }

  Result<FitAnswer> run() {
    FitAnswer answer;
    answer.peak_bytes = q_.plan.memory.largest_bytes();
    if (answer.peak_bytes > static_cast<size_t>(q_.bytes)) {
      try_singles();
      if (found_.size() < kEnoughSingles) try_pairs();
      if (found_.empty()) try_all();
      if (found_.empty()) return nothing_fits();
    }
    OFSDP_RETURN_IF_ERROR(predict(answer));
    answer.compiled = compiled_;
    return answer;
  }

 private:
  enum class Use { kNone, kCompiles, kHelps };

  // Rungs by ladder; -1: the ladder is not taken.
  using Rungs = std::vector<int>;

  struct Found {
    Variant variant;
    int changes = 1;
    std::unique_ptr<CompiledRun> plan;
  };

  Rungs none() const { return Rungs(ladders_.size(), -1); }
  int top(size_t ladder) const { return static_cast<int>(ladders_[ladder].size()) - 1; }

  Variant variant(const Rungs& rungs) const {
    Variant v = start_;
    for (size_t l = 0; l < rungs.size(); ++l) {
      if (rungs[l] >= 0) ladders_[l][static_cast<size_t>(rungs[l])](v);
    }
    return v;
  }

  // Returns the plan of the variant, or null if it cannot be compiled.
  std::unique_ptr<CompiledRun> compile(const Variant& v) {
    if (compiled_ == kMostFitPlans) return nullptr;
    ++compiled_;
    const ModelSetup* const setup = setup_for(v.options);
    if (setup == nullptr) return nullptr;
    RunSettings settings = q_.settings;
    settings.options = v.options;
    settings.batch = v.batch;
    const CandidateParts parts{*setup, communicator_for(v.ranks), q_.parts.optimizers,
                               q_.parts.kernels};
    auto plan = compile_candidate(settings, parts);
    return plan.ok() ? *std::move(plan) : nullptr;
  }

  const ModelSetup* setup_for(const Options& options) {
    const DType dtype = options.sharding.param_dtype;
    if (dtype == q_.settings.options.sharding.param_dtype) return &q_.parts.setup;
    if (const auto it = setups_.find(dtype); it != setups_.end()) return it->second.get();
    auto opened = q_.open(options);
    auto& setup = setups_[dtype];
    if (opened.ok()) setup = std::make_unique<ModelSetup>(*std::move(opened));
    return setup.get();
  }

  Communicator& communicator_for(int ranks) {
    Communicator& now = q_.parts.communicator;
    if (ranks == now.size()) return now;
    auto& made = communicators_[ranks];
    const int hosts = now.size() / std::max(now.ranks_on_each_host(), 1);
    const bool common = q_.settings.options.report.topology.empty();
    if (made == nullptr) made = make_absent_ranks(ranks, hosts, common);
    return *made;
  }

  // Compiles and returns whether it fits; then `fitting_` has the plan.
  bool fits(const Rungs& rungs) {
    const Variant v = variant(rungs);
    auto plan = compile(v);
    last_bytes_ = plan == nullptr ? SIZE_MAX : plan->memory.largest_bytes();
    if (last_bytes_ < least_) {
      least_ = last_bytes_;
      least_flags_ = Flags(q_.settings, start_, v).words();
    }
    if (last_bytes_ > static_cast<size_t>(q_.bytes)) return false;
    fitting_ = {v, static_cast<int>(std::ranges::count_if(rungs, [](int r) { return r >= 0; })),
                std::move(plan)};
    return true;
  }

  void try_singles() {
    use_.assign(ladders_.size(), Use::kNone);
    for (size_t l = 0; l < ladders_.size(); ++l) {
      Rungs rungs = none();
      for (rungs[l] = 0; rungs[l] <= top(l); ++rungs[l]) {
        if (fits(rungs)) {
          found_.push_back(std::move(fitting_));
          break;
        }
        if (last_bytes_ == SIZE_MAX) continue;
        const bool helps = last_bytes_ < q_.plan.memory.largest_bytes();
        use_[l] = std::max(use_[l], helps ? Use::kHelps : Use::kCompiles);
      }
    }
  }

  // More ranks help sharded strategies alone, so one of a pair may be of no use by itself.
  void try_pairs() {
    for (size_t i = 0; i < ladders_.size(); ++i) {
      for (size_t j = i + 1; j < ladders_.size(); ++j) {
        if (std::max(use_[i], use_[j]) < Use::kHelps || compiled_ > kMostOfPairs) continue;
        if (std::min(use_[i], use_[j]) == Use::kNone) continue;
        Rungs rungs = none();
        rungs[i] = top(i);
        rungs[j] = top(j);
        if (fits(rungs)) settle(rungs, 0);
      }
    }
  }

  // Takes the mildest ladders first, then goes back as far as it can.
  void try_all() {
    Rungs rungs = none();
    for (size_t l = 0; l < ladders_.size(); ++l) {
      if (use_[l] == Use::kNone) continue;
      rungs[l] = top(l);
      if (fits(rungs)) return settle(rungs, -1);
    }
  }

  // Goes down ladder by ladder, to rung `lowest` at least, the last ladder first, and keeps the
  // result. REQUIRES: `rungs` fits.
  void settle(Rungs rungs, int lowest) {
    Found best = std::move(fitting_);
    for (size_t l = ladders_.size(); l-- > 0;) {
      while (rungs[l] > lowest) {
        --rungs[l];
        if (!fits(rungs)) {
          ++rungs[l];
          break;
        }
        best = std::move(fitting_);
      }
    }
    found_.push_back(std::move(best));
  }

  // Predicted seconds hold for as many threads a rank as this process has.
  bool same_threads(int ranks) const {
    const Options& options = q_.settings.options;
    return options.launch.threads || !options.report.topology.empty() ||
           cores_per_rank(ranks) == cores_per_rank(start_.ranks);
  }

  Status predict(FitAnswer& answer) {
    Machine machine;
    const bool measures = q_.plan.device == nullptr;
    if (measures) OFSDP_RETURN_IF_ERROR(measure(machine));
    if (measures) answer.seconds = predicted_seconds(q_.plan, machine);
    for (const Found& found : found_) {
      FittingRun& run = answer.runs.emplace_back();
      run.flags = Flags(q_.settings, start_, found.variant).words();
      run.changes = found.changes;
      run.effect = found.variant.effect;
      run.peak_bytes = found.plan->memory.largest_bytes();
      if (measures && same_threads(found.variant.ranks)) {
        run.seconds = predicted_seconds(*found.plan, machine);
      }
    }
    std::ranges::stable_sort(answer.runs, {}, [](const FittingRun& run) {
      return std::tuple(run.changes, run.effect, run.seconds.value_or(1e30));
    });
    if (answer.runs.size() > kMostRows) answer.runs.resize(kMostRows);
    return {};
  }

  Status measure(Machine& machine) const {
    std::vector<const CompiledRun*> plans{&q_.plan};
    for (const Found& found : found_) plans.push_back(found.plan.get());
    const std::string& topology = q_.settings.options.report.topology;
    if (!topology.empty()) {
      OFSDP_ASSIGN_OR_RETURN(machine.topology, read_topology(topology));
    }
    OFSDP_RETURN_IF_ERROR(measure_kernels(plans, kMeasureFits, machine.kernels));
    OFSDP_ASSIGN_OR_RETURN(machine.rates, measure_rates(q_.plan));
    return {};
  }

  Status nothing_fits() const {
    return input_error(
        "--fit {}: expected a change that makes a rank need so little, found none; "
        "the least is {} bytes ({}) with {}",
        q_.settings.options.report.fit_text, least_, readable_bytes(least_),
        least_flags_.empty() ? "the run as it is" : joined(least_flags_, " "));
  }

  const FitQuestion& q_;
  const Ladders makers_;
  const std::vector<Ladder> ladders_;
  Variant start_;
  std::map<DType, std::unique_ptr<ModelSetup>> setups_;
  std::map<int, std::unique_ptr<Communicator>> communicators_;
  std::vector<Use> use_;  // by ladder, by itself and without fitting
  std::vector<Found> found_;
  Found fitting_;
  size_t last_bytes_ = 0;
  size_t least_ = 0;
  std::vector<std::string> least_flags_;
  int compiled_ = 0;
};

}  // namespace

Result<FitAnswer> find_fits(const FitQuestion& question) { return FitFinder(question).run(); }

namespace {

using Setting = std::function<void(RunSettings&)>;

void shard(RunSettings& s) { s.options.sharding.strategy = Strategy::kFullShard; }
void recompute_units(RunSettings& s) {
  s.options.sharding.activation_checkpointing = Recompute::kUnit;
}
Setting offload(CpuOffload what) {
  return [what](RunSettings& s) { s.options.sharding.cpu_offload = what; };
}
Setting batch_of(int64_t size) {
  return [size](RunSettings& s) { s.batch.batch_size = size; };
}

class Adviser {
 public:
  Adviser(const RunSettings& settings, const CandidateParts& parts)
      : settings_(settings), parts_(parts), on_device_(parts.kernels->device() != nullptr) {}

  std::string advice() {
    const std::string both = "--strategy full_shard --activation-checkpointing unit";
    const int64_t half = settings_.batch.batch_size / 2;
    offer("--activation-checkpointing unit", {recompute_units});
    offer("--strategy full_shard", {shard});
    offer_offload();
    if (list_.empty()) offer(both, {recompute_units, shard});
    if (list_.empty() && on_device_) {
      offer(both + " --cpu-offload params", {recompute_units, shard, offload(CpuOffload::kParams)});
    }
    for (int64_t batch = half; batch > 0; batch /= 2) {
      if (offer(format_text("--batch-size {}", batch), {batch_of(batch)})) break;
    }
    for (int64_t batch = half; list_.empty() && batch > 0; batch /= 2) {
      offer(format_text("{} --batch-size {}", both, batch),
            {recompute_units, shard, batch_of(batch)});
    }
    if (!list_.empty()) return list_;
    return "\nno strategy, batch size or activation checkpointing fits; more ranks need less each";
  }

 private:
  bool offer(const std::string& flags, std::initializer_list<Setting> changes) {
    RunSettings settings = settings_;
    for (const Setting& change : changes) change(settings);
    const auto plan = compile_candidate(settings, parts_);
    if (!plan.ok() || !(*plan)->memory.fits(settings.options.sharding.memory_limit)) return false;
    list_ += format_text("{}{} ({} bytes)", list_.empty() ? "\nwould fit: " : "; ", flags,
                         (*plan)->memory.largest_bytes());
    return true;
  }

  // Offers to keep the optimizer in host memory, or, if that does not suffice, also the parameters,
  // which is slower.
  void offer_offload() {
    if (!on_device_) return;
    const CpuOffload now = settings_.options.sharding.cpu_offload;
    if (now == CpuOffload::kNone &&
        offer("--cpu-offload optimizer", {offload(CpuOffload::kOptimizer)})) {
      return;
    }
    if (now != CpuOffload::kParams) offer("--cpu-offload params", {offload(CpuOffload::kParams)});
  }

  const RunSettings& settings_;
  const CandidateParts& parts_;
  const bool on_device_;
  std::string list_;
};

}  // namespace

std::string advice(const RunSettings& settings, const CandidateParts& parts) {
  return Adviser(settings, parts).advice();
}

}  // namespace ofsdp::runtime
