#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "importer/edit/model_edits.h"
#include "importer/graph/graph.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/report/plan_report.h"
#include "runtime/train/prepared_run.h"
#include "runtime/train/setup/prediction_values.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {

// The doctor's updates: one rank with copied weights; writes nothing.

namespace {

using Json = nlohmann::json;

constexpr int64_t kUpdates = 10;

using Values = std::vector<std::vector<float>>;  // one a unit

Values values_of(const RankState& state) {
  Values values;
  for (const Unit& unit : state.plan().shards.units) {
    const float* begin = state.held(unit, -1).values();
    values.emplace_back(begin, begin + state.plan().shards.owned(unit, state.rank()).numel);
  }
  return values;
}

// Returns the trained tensors that have not changed.
std::vector<std::string> still_tensors(const RankState& state, const Values& before) {
  std::vector<std::string> names;
  const Values after = values_of(state);
  for (size_t u = 0; u < after.size(); ++u) {
    for (const UnitParam& p : state.plan().shards.units[u].params) {
      const auto part = [&](const Values& values) {
        return std::span(values[u]).subspan(static_cast<size_t>(p.offset),
                                            static_cast<size_t>(p.numel));
      };
      // An adapter's B starts with 0, so A has no gradient in the first update.
      const bool same = std::ranges::equal(part(before), part(after));
      if (same && !p.name.ends_with(kAdapterA)) names.push_back(p.name);
    }
  }
  return names;
}

// Plain gradient descent with steps so large that any gradient shows.
Options probe_options(Options options) {
  options.optimizer = {};
  options.optimizer.kind = OptimizerKind::kSgd;
  options.optimizer.lr = 1000;
  options.optimizer.weight_decay = 0;
  options.schedule = {};
  options.sharding.param_dtype = DType::kFloat32;
  options.sharding.reduce_dtype = DType::kFloat32;
  options.qat_scales = QatScales::kFixed;
  return options;
}

// `unfit`: another loss is advised, so this one's size says nothing.
void check_first(const SomeUpdates& first, bool unfit, Findings& findings) {
  if (first.rows.empty()) {
    return findings.add("the first loss: " + first.failure,
                        "look at the values of the data and of the file; --freeze, --train and "
                        "--lr change nothing before the first update",
                        /*fatal=*/true, first.table);
  }
  const double loss = first.rows[0].loss;
  const double chance = first.classes > 1 ? std::log(static_cast<double>(first.classes)) : 0;
  if (!unfit && chance > 0 && loss > 1.5 * chance + 0.5) {
    findings.add(format_text("the first loss is {:.3g}, but guessing among {} classes has {:.3g}: "
                             "the scores are too large or meant for other labels",
                             loss, first.classes, chance),
                 format_text("--replace-head {} draws the last layer anew; or --labels, "
                             "--prediction",
                             first.classes));
  }
  if (!first.still.empty()) {
    findings.add(format_text("the first gradient of {} tensor{} is 0 in every element ({}): what "
                             "they feed is dead or constant",
                             first.still.size(), first.still.size() == 1 ? "" : "s",
                             some_names(first.still)),
                 "--freeze them if that is meant, else start from other values with --resume "
                 "FILE.onnx");
  }
}

void check_course(const SomeUpdates& some, const Options& options, Findings& findings) {
  const std::string mend =
      format_text("--lr {:.6g} (--find-lr tries rates), --warmup-steps or --clip-grad-norm 1",
                  options.optimizer.lr / 10);
  const std::string rate = format_text("--lr {:.6g}: ", options.optimizer.lr);
  if (!some.failure.empty()) {
    return findings.add(rate + some.failure, mend, /*fatal=*/false, some.table);
  }
  const size_t count = some.rows.size();
  if (count < 4) return;
  const double first = some.rows[0].loss;
  const double last = (some.rows[count - 1].loss + some.rows[count - 2].loss) / 2;
  if (last < 2 * first + 0.5) return;
  findings.add(
      format_text("{}the loss rises from {:.3g} to {:.3g} in {} updates", rate, first, last, count),
      mend);
}

}  // namespace

Result<SomeUpdates> run_updates(const RunContext& context, int64_t count, bool compare,
                                const std::function<bool(const StepRow&)>& goes_on) {
  Options options = context.options;
  options.run.epochs.reset();
  options.run.steps = count;
  options.files.watch = 1;  // reports growing norms, if any
  const RunContext own{
      options,       context.origin, context.registry, context.optimizers, context.communicator,
      context.ledger};
  OFSDP_ASSIGN_OR_RETURN(const auto run, PreparedRun::make(own, ""));
  OFSDP_ASSIGN_OR_RETURN(const auto state,
                         RankState::make(run->plan(), run->setup(), own.communicator, own.ledger,
                                         run->executor_options()));
  const Values before = compare ? values_of(*state) : Values();
  MetricsWriter metrics;
  Trainer trainer(run->settings(), *state, own.communicator, own.ledger, *run->plan().train_sampler,
                  metrics);
  SomeUpdates some;
  const LossCount& counted = run->setup().counts.front();
  some.classes =
      counted.form == TermForm::kSum ? 0 : counted.classes;  // a mean, which chance would reach
  for (int64_t step = 1; step <= count; ++step) {
    const auto row = trainer.run_one(step);
    if (!row.ok()) {
      const std::string& message = row.error().message();
      const size_t end = std::min(message.find('\n'), message.size());
      some.failure = message.substr(0, end);
      some.table = message.substr(std::min(end + 1, message.size()));
      return some;
    }
    some.rows.push_back(*row);
    if (step == 1 && compare) some.still = still_tensors(*state, before);
    if (goes_on && !goes_on(*row)) return some;
  }
  return some;
}

Status check_updates(const RunContext& context, int64_t total, bool unfit, Findings& findings) {
  const Options probe = probe_options(context.options);
  const RunContext probing{
      probe,         context.origin, context.registry, context.optimizers, context.communicator,
      context.ledger};
  OFSDP_ASSIGN_OR_RETURN(const SomeUpdates first, run_updates(probing, 1, true, {}));
  check_first(first, unfit, findings);
  if (findings.stops) return {};
  Options options = context.options;
  if (!options.schedule.total_steps) options.schedule.total_steps = total;
  const RunContext running{
      options,       context.origin, context.registry, context.optimizers, context.communicator,
      context.ledger};
  OFSDP_ASSIGN_OR_RETURN(const SomeUpdates some,
                         run_updates(running, std::min(total, kUpdates), false, {}));
  check_course(some, context.options, findings);
  return {};
}

// Checks the model.

namespace {

// Returns the node that computes a value, past nodes that only move it.
const Node* source_of(const Graph& graph, ValueId value) {
  static const std::set<std::string> kMoves = {"Identity", "Reshape",   "Squeeze", "Unsqueeze",
                                               "Cast",     "Transpose", "Flatten"};
  const Node* node = maker_of(graph, value);
  while (node != nullptr && kMoves.contains(node->op->full_name())) {
    node = maker_of(graph, node->inputs[0]);
  }
  return node;
}

void check_merged(const std::string& warning, Findings& findings) {
  if (warning.empty()) return;
  const size_t advice = warning.rfind(" (--untie");
  findings.add("merged copies: " + warning.substr(0, advice),
               "--untie auto gives each reader its own");
}

void check_statistics(const Graph& graph, Findings& findings) {
  std::vector<std::string> frozen;
  for (const Node& node : graph.nodes) {
    const bool norm = node.op->full_name() == "BatchNormalization";
    if (norm && node.attributes.i("training_mode", 0) == 0) frozen.push_back(node.name);
  }
  if (frozen.empty()) return;
  findings.add(format_text("frozen statistics: BatchNormalization {} normalizes with the file's "
                           "mean and variance, which training does not change (training_mode 0)",
                           some_names(frozen)),
               "--freeze their scales as well if that is meant, else export the model in training "
               "mode (--sync-batch-norm on then joins the ranks)");
}

// Names Constant nodes that a layer reads as its weights, and that are not trained by default.
void check_constants(const OnnxFile& file, const Options& options, Findings& findings) {
  const std::vector<std::string>& left = file.contents().other_weights;
  if (left.empty() || !options.train.empty()) return;
  findings.add(
      format_text("constants that stay: {} Constant node{} that layers read as weights: {}",
                  left.size(), left.size() == 1 ? "" : "s", some_names(left)),
      "--train '*' trains them, too, and --train NAME one of them alone; fine if they are "
      "meant to stay");
}

void check_reached(const Graph& graph, const Options& options, Findings& findings) {
  std::vector<std::string> unreached;
  for (const Parameter& p : graph.parameters) {
    if (!p.trained && p.reason == kUnreached) unreached.push_back(p.name);
  }
  if (unreached.empty()) return;
  findings.add(format_text("the loss does not reach {} initializer{} {}: {}", unreached.size(),
                           unreached.size() == 1 ? "" : "s",
                           options.train.empty() ? "that could be trained" : "that --train names",
                           some_names(unreached)),
               "--loss output:NAME or --prediction NAME of an output that needs them, or --freeze "
               "them");
}

void check_prediction(const ModelSetup& setup, const LossSpec& loss, Findings& findings) {
  if (!loss.scores.empty()) return;  // the loss looks through the end
  const ValueId prediction = loss.prediction.empty() ? 0 : setup.graph.find(loss.prediction);
  const Node* node = prediction == 0 ? nullptr : source_of(setup.graph, prediction);
  if (node == nullptr) return;
  const std::string op = node->op->full_name();
  const std::string name = escaped(loss.prediction);
  const std::string_view kind = name_of(loss.kind);
  const PredictionKind reads = loss_traits(loss.kind).reads;
  const std::string scores =
      format_text("--prediction {}, the scores before it",
                  node->inputs.empty() ? "" : escaped(setup.graph.value(node->inputs[0]).name));
  if (reads == PredictionKind::kScores && op == "Softmax") {
    findings.add(format_text("the prediction '{}' is a Softmax, and {} takes the softmax of it "
                             "once more",
                             name, kind),
                 scores);
  } else if (reads == PredictionKind::kScores && op == "Sigmoid") {
    findings.add(
        format_text("the prediction '{}' is a Sigmoid, which {} takes for scores", name, kind),
        scores);
  } else if (reads == PredictionKind::kLogits && (op == "Sigmoid" || op == "Softmax")) {
    findings.add(format_text("the prediction '{}' is a {}, and {} takes the sigmoid of it once "
                             "more",
                             name, op, kind),
                 scores);
  } else if (reads == PredictionKind::kLogProbabilities && op == "Softmax") {
    findings.add(format_text("the prediction '{}' is a Softmax, and {} takes logarithms of "
                             "probabilities",
                             name, kind),
                 "--loss cross_entropy " + scores);
  }
}

}  // namespace

Status check_model(const ModelSetup& setup, const Options& options, Findings& findings) {
  if (options.edit.untie.empty()) {
    OFSDP_ASSIGN_OR_RETURN(const std::string merged, merged_copies_warning(setup.file));
    check_merged(merged, findings);
  }
  OFSDP_RETURN_IF_ERROR(check_export(setup.file, options.free_batch, findings));
  check_statistics(setup.graph, findings);
  check_constants(setup.file, options, findings);
  check_reached(setup.graph, options, findings);
  OFSDP_RETURN_IF_ERROR(check_preprocessing(setup, findings));
  for (const LossSpec& loss : setup.source->settings().losses) {
    check_prediction(setup, loss, findings);
  }
  return {};
}

namespace {

Options on_cpu(Options options) {
  options.launch.device = DeviceChoice::kCpu;
  options.sharding.cpu_offload = CpuOffload::kNone;
  return options;
}

// Turns off options that write.
Options looking(Options options) {
  options.files = {};
  options.checkpoint = read_only(options.checkpoint);
  options.edit.adapter.clear();
  return options;
}

// The same options for one rank, with as many rows as each rank would have if there were several.
Options of_one_rank(Options options, int64_t batch_size) {
  options.launch.nproc_per_node = 1;
  options.launch.nnodes = 1;
  options.launch.deterministic = Determinism::kOn;
  options.sharding.strategy = Strategy::kNoShard;
  options.sharding.memory_limit.reset();
  options.run.eval_data = {.kind = DataChoice::Kind::kNone};
  options.run.early_stop.reset();
  options.batch = {};
  options.batch.batch_size.value = batch_size;
  return options;
}

// Returns "PROBLEM: OPTION", and the table in indented lines.
std::string text_of(const Finding& finding) {
  std::string text = finding.problem + ": " + finding.option;
  for (size_t begin = 0; begin < finding.table.size();) {
    const size_t end = std::min(finding.table.find('\n', begin), finding.table.size());
    text += "\n  " + finding.table.substr(begin, end - begin);
    begin = end + 1;
  }
  return text;
}

// Joins the lines by semicolons.
std::string one_line(std::string text) {
  for (size_t at; (at = text.find('\n')) != std::string::npos;) {
    const size_t next = std::min(text.find_first_not_of("\n ", at), text.size());
    text.replace(at, next - at, next < text.size() ? "; " : "");
  }
  return text;
}

class Doctor {
 public:
  explicit Doctor(const RunContext& context)
      : context_(context), whole_(on_cpu(context.options)), options_(looking(whole_)) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(look_at_plan());
    OFSDP_RETURN_IF_ERROR(check_model(planned_->setup(), options_, findings_));
    alone_ = of_one_rank(options_, planned_->settings().batch.batch_size);
    OFSDP_RETURN_IF_ERROR(look_at_data());
    const int64_t total = total_updates(options_, *planned_->plan().train_sampler);
    OFSDP_ASSIGN_OR_RETURN(const bool fits, fits_alone());
    // else the model has its own optimizer
    const bool named = planned_->setup().source->updates() == nullptr;
    const bool runs = fits && named && !findings_.stops;
    if (runs) OFSDP_RETURN_IF_ERROR(check_updates(alone(), total, unfit_, findings_));
    const bool sweeps = options_.doctor.find_lr && runs;
    options_.json ? say_json(!sweeps) : say();
    if (sweeps) return find_lr();
    OFSDP_REJECT_IF(options_.doctor.find_lr,
                    "--find-lr: {}: expected a run without mistakes that fits one rank, found the "
                    "above",
                    options_.model);
    return {};
  }

 private:
  RunContext with(const Options& options, Communicator& communicator) {
    return {options,      context_.origin, context_.registry, context_.optimizers,
            communicator, context_.ledger};
  }
  RunContext alone() { return with(alone_, *alone_communicator_); }

  // With all options, so that a run's preparation refuses what training refuses. If the plan
  // exceeds --memory-limit, adds a finding and continues without the limit.
  Status look_at_plan() {
    auto planned = PreparedRun::make(with(whole_, context_.communicator), "");
    if (!planned.ok() && planned.error().message().starts_with("--memory-limit")) {
      findings_.add("memory", planned.error().message());
      options_.sharding.memory_limit.reset();
      whole_.sharding.memory_limit.reset();
      planned = PreparedRun::make(with(whole_, context_.communicator), "");
    }
    OFSDP_ASSIGN_OR_RETURN(planned_, std::move(planned));
    OFSDP_RETURN_IF_ERROR(check_evaluation(planned_->setup(), findings_));
    const std::string lack = memory_lack(planned_->plan(), context_.communicator, machine_memory());
    if (!lack.empty()) {
      findings_.add(
          "memory: " + lack,
          "--activation-checkpointing auto with --memory-limit, a smaller --batch-size, or "
          "--strategy full_shard on more ranks");
    }
    return {};
  }

  Status look_at_data() {
    OFSDP_ASSIGN_OR_RETURN(
        alone_communicator_,
        connect_ranks({},
                      std::chrono::seconds(static_cast<int64_t>(options_.launch.timeout_seconds))));
    OFSDP_ASSIGN_OR_RETURN(run_alone_, PreparedRun::make(alone(), ""));
    for (const UnfitPrediction& unfit : unfit_predictions(run_alone_->setup())) {
      if (!is_found(unfit)) findings_.add(unfit.problem, unfit.option);
      unfit_ = true;
    }
    return check_data(run_alone_->setup(), options_, findings_);
  }

  // The prediction's last node may have told it already.
  bool is_found(const UnfitPrediction& unfit) const {
    const std::string prediction = unfit.problem.substr(0, unfit.problem.find("' has ") + 1);
    return std::ranges::any_of(findings_.list, [&](const Finding& finding) {
      return finding.problem.starts_with(prediction);
    });
  }

  Result<bool> fits_alone() {
    return memory_lack(run_alone_->plan(), *alone_communicator_, machine_memory()).empty();
  }

  void say() const {
    std::string text;
    for (const Finding& finding : findings_.list) text += "- " + text_of(finding) + "\n";
    const auto count = static_cast<int64_t>(findings_.list.size());
    text += count == 0 ? "doctor: nothing found\n"
                       : format_text("doctor: {}\n", plural(count, "finding"));
    print_lines(stdout, text);
    std::fflush(stdout);
  }

  // Prints the object unless find_lr adds to it.
  void say_json(bool complete) {
    object_ = {{"command", "doctor"}, {"model", options_.model}, {"findings", Json::array()}};
    for (const Finding& finding : findings_.list) {
      Json one{{"problem", finding.problem}, {"option", finding.option}};
      if (!finding.table.empty()) one["table"] = finding.table;
      object_["findings"].push_back(std::move(one));
    }
    if (complete) print_object();
  }

  void print_object() const {
    print_lines(stdout,
                escaped_json(object_.dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n");
    std::fflush(stdout);
  }

  Status find_lr() {
    OFSDP_ASSIGN_OR_RETURN(const auto points, lr_sweep(alone()));
    if (!options_.json) print_lines(stdout, curve_text(points));
    const std::string& picture = options_.doctor.picture;
    if (!picture.empty()) OFSDP_RETURN_IF_ERROR(write_page(picture, curve_svg(points)));
    if (options_.json) {
      object_["lr"] = suggested_lr(points);
      object_["curve"] = Json::array();
      for (const LrPoint& p : points) object_["curve"].push_back({{"lr", p.lr}, {"loss", p.loss}});
      if (!picture.empty()) object_["files"] = {{"picture", picture}};
      print_object();
    } else if (!picture.empty()) {
      print_lines(stdout, format_text("wrote {}\n", escaped(picture)));
    }
    return {};
  }

  const RunContext& context_;
  Options whole_;    // with the files that a run would write
  Options options_;  // without
  Options alone_;
  Findings findings_;
  bool unfit_ = false;  // the loss takes the prediction for something else
  Json object_;         // of --json
  std::unique_ptr<Communicator> alone_communicator_;
  std::unique_ptr<PreparedRun> planned_, run_alone_;
};

}  // namespace

void Findings::add(const std::string& what, const std::string& mend, bool fatal,
                   const std::string& table) {
  list.push_back({one_line(what), one_line(mend), table});
  stops = stops || fatal;
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += format_text("{}'{}'", i == 0 ? "" : ", ", escaped(names[i]));
  }
  if (names.size() > kShown) text += format_text(" and {} more", names.size() - kShown);
  return text;
}

Status run_doctor(const RunContext& context) { return Doctor(context).run(); }

}  // namespace ofsdp::runtime
