#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/file_answers.h"
#include "runtime/train/prepared_run.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {
namespace {

using Clock = ReferenceRun::Clock;

// Plain gradient descent with steps so large that a weight changes by the gradient to float32
// precision.
constexpr double kRate = 1 << 20;

// Returns options for one update on one CPU rank that writes nothing.
Options options_of_check(Options options) {
  options.files = {};
  options.checkpoint = read_only(options.checkpoint);
  options.edit.adapter.clear();
  options.launch.device = DeviceChoice::kCpu;
  options.launch.nproc_per_node = 1;
  options.launch.nnodes = 1;
  options.launch.deterministic = Determinism::kOn;
  options.sharding.cpu_offload = CpuOffload::kNone;
  options.sharding.strategy = Strategy::kNoShard;
  options.sharding.memory_limit.reset();
  const bool averages = options.optimizer.ema_use;  // of --resume
  options.optimizer = {};
  options.optimizer.ema_use = averages;
  options.optimizer.kind = OptimizerKind::kSgd;
  options.optimizer.lr = kRate;
  options.optimizer.weight_decay = 0;
  options.schedule = {};
  options.run.eval_data = {.kind = DataChoice::Kind::kNone};
  options.run.eval_metrics.clear();
  options.run.early_stop.reset();
  options.run.epochs.reset();
  options.run.steps = 1;
  return options;
}

// One update's gradients, by name.
struct TrainedStep {
  double loss = 0;
  NamedNumbers gradients;
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

class Checker {
 public:
  explicit Checker(const RunContext& context)
      : context_(context),
        options_(options_of_check(context.options)),
        limits_(tolerance_of(options_.sharding.param_dtype)),
        began_(Clock::now()) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(choose_batch());
    OFSDP_RETURN_IF_ERROR(take_batch());
    OFSDP_RETURN_IF_ERROR(read_parameters());
    OFSDP_RETURN_IF_ERROR(run_->check_executable());
    const auto from = Clock::now();
    OFSDP_ASSIGN_OR_RETURN(trained_, train());
    step_lasts_ = Clock::now() - from;
    OFSDP_RETURN_IF_ERROR(refer());
    find_worst();
    if (wrong()) OFSDP_RETURN_IF_ERROR(allow_rounding());
    if (wrong()) find_node();
    say();
    return wrong() ? verdict() : Status{};
  }

 private:
  // By these shares of the limit each stage must end; the process ends in the rest.
  static constexpr double kSlopes = 0.8, kRepeats = 0.87, kRounding = 0.9, kNode = 0.95;
  static constexpr uint32_t kUpdates = 24;      // with weights changed by rounding
  static constexpr uint32_t kDisturbances = 6;  // of the reference

  Clock::time_point when(double part) const {
    const std::chrono::duration<double> seconds(part * context_.options.check.limit_seconds);
    return began_ + std::chrono::duration_cast<Clock::duration>(seconds);
  }

  RunContext alone() {
    return {options_,       context_.origin, context_.registry, context_.optimizers,
            *communicator_, context_.ledger};
  }

  // Chooses the options' batch, for one rank without accumulation.
  Status choose_batch() {
    const Options& given = context_.options;
    options_.batch = {};
    if (given.batch.batch_size.value || given.batch.global_batch_size.value) {
      OFSDP_ASSIGN_OR_RETURN(const BatchSizes sizes,
                             resolve_batch(given, static_cast<int>(asked_ranks(given.launch))));
      options_.batch.batch_size.value = sizes.batch_size;
    }
    OFSDP_ASSIGN_OR_RETURN(communicator_, connect_ranks({}, std::chrono::seconds(60)));
    OFSDP_RETURN_IF_ERROR(prepare());
    // all data rows
    if (first_batch() < rows()) OFSDP_RETURN_IF_ERROR(prepare(first_batch()));
    asked_rows_ = rows();
    while (cost() > 1 && rows() > 1 && fixed_batch(run_->setup().graph) < 0) {
      const auto fewer = static_cast<int64_t>(static_cast<double>(rows()) / cost());
      OFSDP_RETURN_IF_ERROR(prepare(std::clamp<int64_t>(fewer, 1, rows() / 2)));
    }
    affordable_ = cost() <= 1;
    return {};
  }

  int64_t first_batch() const { return run_->plan().train_sampler->micro_size(0, 0); }

  Status prepare(int64_t rows) {
    options_.batch.batch_size.value = rows;
    return prepare();
  }

  Status prepare() {
    run_.reset();
    OFSDP_ASSIGN_OR_RETURN(run_, PreparedRun::make(alone(), ""));
    OFSDP_ASSIGN_OR_RETURN(graph_, run_->setup().source->forward_graph(rows()));
    std::vector<ValueId> losses;
    for (const LossTerm& term : graph_.terms) losses.push_back(term.value);
    prune(graph_, losses);
    return {};
  }

  int64_t rows() const { return run_->settings().batch.batch_size; }

  // Returns a forward pass's cost in double relative to the allowed maximum. The pass may use a
  // part of the memory, and so little time that many derivatives fit into the limit; with a single
  // row, for some near the loss.
  double cost() const {
    constexpr double kMaxBytes = 4e9;
    const double seconds = ReferenceRun::seconds_of(graph_);
    const double allowed = context_.options.check.limit_seconds / (rows() > 1 ? 200 : 2);
    return std::max(seconds / allowed, ReferenceRun::bytes_of(graph_) / kMaxBytes);
  }

  Status take_batch() {
    const ModelSetup& setup = run_->setup();
    RowSource& source = setup.data.train_rows();
    std::vector<std::byte> staging(Loader::staging_bytes(source, rows()) + 2 * kTensorAlignment);
    void* at = staging.data();
    size_t room = staging.size();
    std::align(kTensorAlignment, 1, at, room);
    Loader loader(source, *run_->plan().train_sampler, label_rules(setup.counts, source),
                  {static_cast<std::byte*>(at), room - room % kTensorAlignment});
    loader.start(0, 1);
    OFSDP_ASSIGN_OR_RETURN(const Batch* batch, loader.next());
    const auto columns = source.columns();
    for (size_t i = 0; i < columns.size(); ++i) {
      std::vector<int64_t> axes{batch->size};
      axes.insert(axes.end(), columns[i].row.axes().begin(), columns[i].row.axes().end());
      numbers_[columns[i].name] = to_doubles({columns[i].dtype, Shape(axes)}, batch->columns[i]);
    }
    samples_.assign(batch->sample_index.begin(), batch->sample_index.end());
    for (size_t t = 0; t < setup.counts.size(); ++t) {
      if (setup.counts[t].form == TermForm::kNumerator) graph_.terms[t].factor /= batch->kept[t];
    }
    loader.release();
    return {};
  }

  // Reads the values in the file.
  Status read_parameters() {
    const TrainingSource& source = *run_->setup().source;
    for (const Parameter& p : graph_.parameters) {
      const TensorDesc& desc = graph_.value(p.value).desc;
      const OnnxFile& file = source.file_of(p);
      const Initializer& initializer = file.initializers()[static_cast<size_t>(p.initializer)];
      if (p.raw) {
        std::vector<std::byte> bytes(desc.bytes());
        OFSDP_RETURN_IF_ERROR(file.read_raw(initializer, 0, bytes));
        numbers_[p.name] = to_doubles(desc, bytes.data());
      } else {
        std::vector<float> values(static_cast<size_t>(desc.numel()));
        OFSDP_RETURN_IF_ERROR(file.read(initializer, 0, values));
        numbers_[p.name].assign(values.begin(), values.end());
      }
    }
    return {};
  }

  // If `draw` is not 0, trained values are changed by the type's rounding.
  Result<TrainedStep> train(uint32_t draw = 0) const {
    OFSDP_ASSIGN_OR_RETURN(const auto state,
                           RankState::make(run_->plan(), run_->setup(), *communicator_,
                                           context_.ledger, run_->executor_options()));
    MetricsWriter metrics;
    Trainer trainer(run_->settings(), *state, *communicator_, context_.ledger,
                    *run_->plan().train_sampler, metrics);
    if (draw != 0) disturb(*state, draw);
    const auto before = values_of(*state);
    OFSDP_ASSIGN_OR_RETURN(const StepRow row, trainer.run_one(1));
    OFSDP_RETURN_IF_ERROR(state->fetch());
    TrainedStep made{row.loss, values_of(*state)};
    for (auto& [name, values] : made.gradients) {
      const std::vector<double>& from = before.at(name);
      for (size_t i = 0; i < values.size(); ++i) values[i] = (from[i] - values[i]) / kRate;
    }
    return made;
  }

  template <typename Visit>
  static void each_part(const RankState& state, const Visit& visit) {
    for (const Unit& unit : state.plan().shards.units) {
      const Status status =
          state.held(unit, -1).for_each_part([&](const ShardPart& part) -> Status {
            visit(part);
            return {};
          });
      OFSDP_CHECK(status.ok(), "{}", status.message());
    }
  }

  static NamedNumbers values_of(const RankState& state) {
    NamedNumbers found;
    each_part(state, [&](const ShardPart& part) {
      std::vector<double>& values = found[state.parameter(part.param.parameter).name];
      values.insert(values.end(), part.values.begin(), part.values.end());
    });
    return found;
  }

  void disturb(const RankState& state, uint32_t draw) const {
    std::minstd_rand random(draw);
    std::uniform_real_distribution<double> share(-limits_.rounding, limits_.rounding);
    each_part(state, [&](const ShardPart& part) {
      for (float& v : part.values) v = static_cast<float>(v * (1 + share(random)));
    });
  }

  // Computes the reference's loss and derivatives while there is time.
  Status refer() {
    for (const Parameter& p : graph_.parameters) {
      if (p.trained) not_checked_.insert(p.name);
    }
    if (!affordable_) return {};
    step_ = {run_->executor_options().seed, 0, samples_};
    ReferenceRun& reference = reference_.emplace(graph_, step_);
    reference.set_deadline(when(kSlopes));
    if (options_.sharding.param_dtype == DType::kFloat32)
      OFSDP_RETURN_IF_ERROR(take_sides(node_search(), graph_, reference));
    const auto from = Clock::now();
    Status status = begin(reference);
    forward_ = Clock::now() - from;
    if (out_of_time(status)) return {};
    OFSDP_RETURN_IF_ERROR(std::move(status));
    loss_.emplace(trained_.loss, reference.loss());
    return differentiate(reference);
  }

  // If `draw` is not 0, given numbers are changed by the type's rounding.
  Status begin(ReferenceRun& reference, uint32_t draw = 0) const {
    std::minstd_rand random(draw + 1);
    std::uniform_real_distribution<double> share(-limits_.rounding, limits_.rounding);
    for (size_t id = 1; id < graph_.values.size(); ++id) {
      const Value& value = graph_.values[id];
      const bool given = value.kind == ValueKind::kInput || value.kind == ValueKind::kParameter;
      const auto found = numbers_.find(value.name);
      if (!given || found == numbers_.end()) continue;
      std::vector<double> numbers = found->second;
      const bool moves = draw != 0 && is_floating(value.desc.dtype);
      for (double& number : numbers) number *= moves ? 1 + share(random) : 1;
      reference.set(static_cast<ValueId>(id), std::move(numbers));
    }
    return reference.run();
  }

  static bool out_of_time(const Status& status) {
    return !status.ok() && status.message().ends_with("out of time");
  }

  // Takes each parameter along one direction, then all along the next, in a new random order.
  Status differentiate(ReferenceRun& reference) {
    constexpr int kPasses = 4;  // for a derivative without kinks
    std::vector<CheckedParameter> list;
    for (const Parameter& p : graph_.parameters) {
      if (p.trained) list.push_back({p.name, p.value, kPasses * reference.pass_behind(p.value)});
    }
    std::mt19937_64 random(context_.options.run.seed + 1);
    std::ranges::shuffle(list, random);
    OFSDP_RETURN_IF_ERROR(take_slopes(reference, list, random));
    not_checked_.clear();
    for (CheckedParameter& p : list) {
      if (p.derivatives.empty()) {
        not_checked_.insert(p.name);
      } else {
        parameters_.push_back(std::move(p));
      }
    }
    std::ranges::sort(parameters_, {}, &CheckedParameter::name);
    return {};
  }

  // Skips a parameter if its derivative, and then the rounding for all that differ, would not end
  // in time; derivatives near the loss are cheaper.
  Status take_slopes(ReferenceRun& reference, std::vector<CheckedParameter>& list,
                     std::mt19937_64& random) const {
    for (int64_t d = 0; d < context_.options.check.directions; ++d) {
      for (CheckedParameter& p : list) {
        Clock::duration rounding = forward_ + repeats_last();
        for (const CheckedParameter& q : list) {
          if (far(q) || &q == &p) rounding += (d + 1) * q.lasts;
        }
        if (Clock::now() + p.lasts > when(kSlopes)) continue;
        if (Clock::now() + p.lasts + rounding > when(kRounding)) continue;
        Status status = along_one(reference, p, random);
        if (out_of_time(status)) continue;
        OFSDP_RETURN_IF_ERROR(std::move(status));
        scale(list);
      }
    }
    return {};
  }

  std::vector<double> direction_of(const CheckedParameter& p, uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<double> direction(static_cast<size_t>(graph_.value(p.value).desc.numel()));
    for (double& v : direction) v = normal(random);
    return direction;
  }

  // If a direction crosses a kink, takes another.
  Status along_one(ReferenceRun& reference, CheckedParameter& p, std::mt19937_64& random) const {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i) {
      const uint64_t seed = random();
      const std::vector<double> direction = direction_of(p, seed);
      OFSDP_ASSIGN_OR_RETURN(const Slope slope, reference.slope({{p.value, direction}}));
      if (slope.kink) continue;
      p.directions.push_back(seed);
      p.derivatives.emplace_back(derivative_of(trained_, p, direction), slope.value);
      return {};
    }
    return {};
  }

  // A derivative that is 0 except for rounding (a bias before a normalization) has no digits. So if
  // two derivatives differ, training runs again with all weights changed by the rounding in the
  // type, and then, if that does not explain it, the reference with all numbers changed.
  Status allow_rounding() {
    if (reference_) masked_ = before_rows_without_digits(graph_, *reference_);
    repeat_training();
    find_worst();
    if (wrong()) OFSDP_RETURN_IF_ERROR(disturb_reference());
    reference_.reset();
    leave_undecided();
    find_worst();
    return {};
  }

  Clock::duration repeats_last() const {
    return std::min(kUpdates * step_lasts_, when(kRepeats) - when(kSlopes));
  }

  // One repetition is made in any case.
  void repeat_training() {
    for (uint32_t draw = 1; draw <= kUpdates; ++draw) {
      if (draw > 1 && Clock::now() + step_lasts_ > when(kRepeats)) break;
      const Result<TrainedStep> step = train(draw);
      if (!step.ok()) break;
      loss_->repeat(step->loss);
      for (CheckedParameter& p : parameters_) {
        if (!far(p)) continue;
        for (size_t i = 0; i < p.directions.size(); ++i) {
          p.derivatives[i].repeat(derivative_of(*step, p, direction_of(p, p.directions[i])));
        }
      }
    }
  }

  static double derivative_of(const TrainedStep& step, const CheckedParameter& p,
                              const std::vector<double>& direction) {
    const auto gradient = step.gradients.find(p.name);
    return gradient == step.gradients.end() ? 0 : dot(gradient->second, direction);
  }

  Status disturb_reference() {
    for (uint32_t draw = 0; draw < kDisturbances; ++draw) {
      ReferenceRun& disturbed = *reference_;
      disturbed.set_deadline(when(kRounding));
      disturbed.disturb(limits_.rounding, draw);
      Status status = begin(disturbed, draw + 1);
      if (out_of_time(status)) break;
      OFSDP_RETURN_IF_ERROR(std::move(status));
      loss_->disturb(disturbed.loss());
      for (CheckedParameter& p : parameters_) {
        if (!wrong(p)) continue;
        for (size_t i = 0; i < p.directions.size(); ++i) {
          const auto slope = disturbed.slope({{p.value, direction_of(p, p.directions[i])}});
          if (!slope.ok()) break;
          p.derivatives[i].disturb(slope->value);
        }
      }
    }
    return {};
  }

  static void scale(std::vector<CheckedParameter>& list) {
    double of_all = 0;
    for (const CheckedParameter& p : list) of_all = std::max(of_all, p.largest());
    for (CheckedParameter& p : list) p.scale = std::max({p.largest(), 1e-4 * of_all, 1e-30});
  }

  void find_worst() {
    const auto worst = std::ranges::max_element(parameters_, {}, &CheckedParameter::excess);
    worst_ = worst == parameters_.end() ? nullptr : &*worst;
  }

  void leave_undecided() {
    const auto rest = std::ranges::stable_partition(parameters_, [&](const CheckedParameter& p) {
      return p.decided(limits_.derivative) && !(far(p) && masked_.contains(p.value));
    });
    std::ranges::move(rest, std::back_inserter(undecided_));
    parameters_.erase(rest.begin(), rest.end());
  }

  double loss_scale() const { return std::max(std::abs(loss_->reference()), 1e-6); }
  double loss_limit() const { return limits_.loss + loss_->cautious_rounding() / loss_scale(); }

  bool far(const CheckedParameter& p) const { return !(p.difference() <= limits_.derivative); }
  bool wrong(const CheckedParameter& p) const { return !(p.excess() <= limits_.derivative); }
  bool wrong_loss() const {
    return loss_ && !(loss_->mostly_apart() <= loss_limit() * loss_scale());
  }
  bool wrong() const { return wrong_loss() || (worst_ != nullptr && wrong(*worst_)); }

  NodeSearch node_search() const {
    return {*run_->setup().source,       rows(), numbers_, step_, when(kNode),
            std::max(1e-4, limits_.loss)};
  }

  // If no node is found, the parameter is still named.
  void find_node() {
    if (Clock::now() + 2 * forward_ > when(kNode)) return;
    auto found = first_parting_node(node_search());
    if (found.ok()) node_ = *found;
  }

  Status verdict() const {
    const std::string where =
        node_.empty() ? ""
                      : format_text("; the first node where the two part is '{}'", escaped(node_));
    if (worst_ == nullptr || !wrong(*worst_)) {
      return fault("check: {}: loss {:.9g}, the reference has {:.9g}{}", options_.model,
                   trained_.loss, loss_->reference(), where);
    }
    return fault(
        "check: {}: parameter '{}': derivatives are {:.3g} of the largest away from the "
        "reference's, at most {:.3g} expected{}",
        options_.model, escaped(worst_->name), worst_->difference(),
        limits_.derivative + worst_->rounding(), where);
  }

  void say() const {
    print_lines(stdout, context_.options.json ? escaped_json(json()) + "\n" : table());
    std::fflush(stdout);
  }

  std::string json() const {
    using Json = nlohmann::json;
    Json made;
    made["loss"] = Json::array({trained_.loss, loss_ ? Json(loss_->reference()) : Json()});
    made["parameters"] = made["rounding"] = Json::object();
    for (const CheckedParameter& p : parameters_) {
      made["parameters"][p.name] = p.difference();
      if (p.rounding() > 0) made["rounding"][p.name] = p.rounding();
    }
    if (loss_ && loss_limit() > limits_.loss)
      made["rounding"]["loss"] = loss_limit() - limits_.loss;
    made["not_checked"] = Json::array();
    for (const CheckedParameter& p : undecided_) made["not_checked"].push_back(p.name);
    for (const std::string& name : not_checked_) made["not_checked"].push_back(name);
    made["worst"] = worst_ == nullptr ? Json() : Json(worst_->name);
    made["node"] = node_.empty() ? Json() : Json(node_);
    return made.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::string table() const {
    std::string text;
    if (rows() != asked_rows_)
      text +=
          format_text("{} of the {} rows of the first batch: the reference would take too long\n",
                      rows(), asked_rows_);
    if (!loss_) {
      text += format_text(
          "loss {:.9g}; nothing was compared: the reference takes longer than --limit\n",
          trained_.loss);
    } else {
      text += format_text(
          "loss {:.9g}, reference {:.9g}: difference {:.2g}, at most {:.2g} expected\n",
          trained_.loss, loss_->reference(), loss_->apart() / loss_scale(), loss_limit());
    }
    size_t width = 9;
    for (const CheckedParameter& p : parameters_) width = std::max(width, escaped(p.name).size());
    if (!parameters_.empty())
      text += format_text("{:<{}}  difference  directions\n", "parameter", width);
    for (const CheckedParameter& p : parameters_) {
      const std::string allowed =
          p.rounding() > 0 ? format_text("  {:.2g} may be rounding", p.rounding()) : "";
      text += format_text("{:<{}}  {:>10.2g}  {:>10}{}{}\n", escaped(p.name), width, p.difference(),
                          p.directions.size(), allowed, wrong(p) ? "  wrong" : "");
    }
    for (const CheckedParameter& p : undecided_) text += undecided_line(p);
    for (const std::string& name : not_checked_)
      text += format_text("not checked: {}\n", escaped(name));
    return text + (wrong() ? "" : summary());
  }

  std::string undecided_line(const CheckedParameter& p) const {
    const auto masked = masked_.find(p.value);
    const std::string why =
        masked != masked_.end() ? format_text("rows of '{}' are masked whole, so rounding decides",
                                              escaped(masked->second))
        : p.guessed()           ? "no time was left to see if it is rounding: raise --limit"
                      : format_text("{:.2g} may be rounding, too much to tell", p.rounding());
    return format_text("not decided: {}: {:.2g} away, {}\n", escaped(p.name), p.difference(), why);
  }

  std::string summary() const {
    std::string text =
        format_text("check: {} parameter{} agree{}", parameters_.size(),
                    parameters_.size() == 1 ? "" : "s", parameters_.size() == 1 ? "s" : "");
    if (!undecided_.empty()) text += format_text(", {} not decided", undecided_.size());
    if (!not_checked_.empty()) text += format_text(", {} not checked", not_checked_.size());
    return text + "\n";
  }

  const RunContext& context_;
  Options options_;
  const TypeTolerance limits_;
  const Clock::time_point began_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<PreparedRun> run_;
  Graph graph_;
  int64_t asked_rows_ = 0;
  bool affordable_ = false;
  NamedNumbers numbers_;  // inputs and parameters
  std::vector<int64_t> samples_;
  StepContext step_;
  TrainedStep trained_;
  std::optional<ReferenceRun> reference_;
  Clock::duration forward_{};     // the first run's time
  Clock::duration step_lasts_{};  // time for one update
  std::optional<CheckedNumber> loss_;
  std::vector<CheckedParameter> parameters_, undecided_;
  const CheckedParameter* worst_ = nullptr;  // the one that exceeds its allowance most
  std::set<std::string> not_checked_;
  std::map<ValueId, std::string> masked_;  // before_rows_without_digits
  std::string node_;
};

}  // namespace

Status run_check(const RunContext& context) { return Checker(context).run(); }

}  // namespace ofsdp::runtime
