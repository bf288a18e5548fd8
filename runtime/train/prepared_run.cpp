#include "runtime/train/prepared_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/compile/compile.h"
#include "runtime/log/log_parts.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/rank_state.h"
#include "runtime/train/setup/metric_layout.h"
#include "runtime/train/setup/run_files.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {
Result<std::unique_ptr<PreparedRun>> PreparedRun::make(const RunContext& context,
                                                       const std::string& configuration) {
  std::unique_ptr<PreparedRun> run(new PreparedRun(context));
  OFSDP_RETURN_IF_ERROR(run->prepare(configuration, nullptr, nullptr));
  return run;
}

Result<std::unique_ptr<PreparedRun>> PreparedRun::make(const RunContext& context,
                                                       const DataSpec& data,
                                                       const GivenSizes& sizes) {
  std::unique_ptr<PreparedRun> run(new PreparedRun(context));
  OFSDP_RETURN_IF_ERROR(run->prepare("", &data, &sizes));
  return run;
}

Status PreparedRun::prepare(const std::string& configuration, const DataSpec* data,
                            const GivenSizes* sizes) {
  const Options& options = context_.options;
  Communicator& communicator = context_.communicator;
  OFSDP_REJECT_IF(communicator.size() > kMaxRanks, "{} ranks: at most {} are supported",
                  communicator.size(), kMaxRanks);
  ModelOrigin origin = context_.origin;
  OFSDP_ASSIGN_OR_RETURN(origin.weights, weights_to_start_from(options));
  const bool may_resume = origin.weights.empty(), evaluates = options.command == Command::kEval;
  if (evaluates) OFSDP_RETURN_IF_ERROR(open_checkpoints(may_resume));
  std::optional<SavedRun> saved;
  if (checkpoint_ != nullptr) {
    OFSDP_ASSIGN_OR_RETURN(saved, saved_run(*checkpoint_));
  } else if (may_resume) {
    OFSDP_ASSIGN_OR_RETURN(saved, examined_run());
  }
  OFSDP_ASSIGN_OR_RETURN(ModelSetup setup,
                         ModelSetup::make(options, origin, context_.registry, communicator,
                                          context_.ledger, data, saved ? &*saved : nullptr));
  setup_ = std::make_unique<ModelSetup>(std::move(setup));
  settings_ = resolve_settings(options, origin, *setup_, configuration);
  place_adapter();
  if (sizes != nullptr) settings_.given = *sizes;
  if (evaluates) leave_optimizer_out();
  OFSDP_RETURN_IF_ERROR(check_before_planning());
  if (!evaluates) OFSDP_RETURN_IF_ERROR(open_checkpoints(may_resume));
  settings_.start = resume_point(checkpoint_.get());
  if (checkpoint_ != nullptr) settings_.early_stop = checkpoint_->manifest().early_stop;
  OFSDP_RETURN_IF_ERROR(weigh_ranks());
  OFSDP_ASSIGN_OR_RETURN(chosen_, choose_device(options, context_.registry, communicator));
  place_updates();
  OFSDP_RETURN_IF_ERROR(make_plan());
  warn_of_warmup();
  if (checkpoint_ == nullptr) return {};
  OFSDP_RETURN_IF_ERROR(with_edits_of(checkpoint_->manifest(), options,
                                      check_resumable(checkpoint_->manifest(), *plan_, *setup_))
                            .with_prefix("--resume: " + checkpoint_->folder()));
  if (!evaluates) {
    OFSDP_RETURN_IF_ERROR(check_untrained_adapters(checkpoint_->manifest(), options, *setup_)
                              .with_prefix("--resume: " + checkpoint_->folder()));
  }
  if (options.command != Command::kTrain) return {};
  OFSDP_RETURN_IF_ERROR(check_rows().with_prefix("--resume: " + checkpoint_->folder()));
  if (communicator.rank() == 0) warn_of_other_settings(*checkpoint_, settings_.configuration);
  return {};
}

Status PreparedRun::plan_for(const GivenSizes& sizes) {
  settings_.given = sizes;
  if (plan_->chosen) settings_.options.sharding = *plan_->chosen;  // `auto` chooses once
  return make_plan();
}

// --shard-weights auto: in 64ths of the memory of the host that has most, so that small differences
// do not count. Groups of a hybrid strategy have the same weights.
Status PreparedRun::weigh_ranks() {
  constexpr double kParts = 64;
  ShardWeights& weights = settings_.options.sharding.shard_weights;
  if (!std::exchange(weights.automatic, false)) return {};
  Communicator& communicator = context_.communicator;
  const int here = communicator.ranks_on_each_host();
  OFSDP_REJECT_IF(here == 0, "--shard-weights auto: expected as many ranks on every host");
  const auto world = static_cast<size_t>(communicator.size());
  std::vector<double> bytes(world);
  const auto mine = static_cast<double>(machine_memory().bytes);
  OFSDP_RETURN_IF_ERROR(communicator.exchange({&mine, 1}, bytes, {"memory of the hosts", -1, 0}));
  const ShardingOptions& sharding = settings_.options.sharding;
  const bool hybrid = is_hybrid(sharding.strategy);
  const int64_t each = hybrid ? sharding.shard_size.value_or(here) : communicator.size();
  const auto sharing = static_cast<size_t>(std::clamp<int64_t>(each, 1, communicator.size()));
  for (size_t r = sharing; r < world; ++r) {
    bytes[r % sharing] = std::min(bytes[r % sharing], bytes[r]);
  }
  bytes.resize(sharing);
  const double most = std::ranges::max(bytes);
  for (double& b : bytes) b = std::ceil(b / most * kParts);
  if (std::ranges::min(bytes) < kParts) weights.of_ranks = bytes;
  return {};
}

// With a device, optimizers of plug-ins update in host memory, also where no option says so.
void PreparedRun::place_updates() {
  CpuOffload& offload = settings_.options.sharding.cpu_offload;
  const bool moves = chosen_.device != nullptr && offload == CpuOffload::kNone &&
                     updates_in_host_memory(settings_.options);
  if (!moves) return;
  offload = CpuOffload::kOptimizer;
  chosen_.notice +=
      "\noptimizers of plug-ins update in host memory, as with --cpu-offload optimizer";
}

// With --device auto, a model without a plan for the GPU runs on the CPU.
Status PreparedRun::make_plan() {
  const auto planned = [this] {
    return compile_run(settings_, *setup_, context_.communicator, context_.optimizers,
                       chosen_.device.get());
  };
  auto plan = planned();
  const bool may_change = context_.options.launch.device != DeviceChoice::kCuda;
  if (!plan.ok() && chosen_.device != nullptr && may_change) {
    chosen_ = {nullptr, "device: the CPU, since " + plan.error().message()};
    settings_.options.sharding.cpu_offload = context_.options.sharding.cpu_offload;
    plan = planned();
  }
  OFSDP_ASSIGN_OR_RETURN(plan_, std::move(plan));
  return {};
}

// Checks conditions that would otherwise fail after hours.
Status PreparedRun::check_before_planning() const {
  const Options& options = context_.options;
  const DataSetup& data = setup_->data;
  OFSDP_RETURN_IF_ERROR(check_best());
  OFSDP_RETURN_IF_ERROR(check_accuracy());
  OFSDP_RETURN_IF_ERROR(check_value_metrics());
  if (writes_trained(settings_.options) && options.command != Command::kEval) {
    OFSDP_RETURN_IF_ERROR(
        setup_->source->check_output(settings_.options.files.output, trained_state(settings_, 0)));
  }
  const bool examines = options.command == Command::kPlan || options.command == Command::kDoctor;
  if (examines) OFSDP_RETURN_IF_ERROR(check_log_targets(settings_.options));
  if (options.command == Command::kDoctor) return {};  // which lists what it finds in data
  if (data.train) OFSDP_RETURN_IF_ERROR(check_labels(*setup_, *data.train));
  return data.eval ? check_labels(*setup_, *data.eval) : Status{};
}

// --keep-best and --early-stop need evaluations.
Status PreparedRun::check_best() const {
  const Options& options = context_.options;
  const std::string& best = options.checkpoint.keep_best;
  for (const char* flag :
       {best.empty() ? "" : "--keep-best", options.run.early_stop ? "--early-stop" : ""}) {
    OFSDP_REJECT_IF(*flag != 0 && !setup_->data.eval,
                    "{}: the data have no evaluation part; name one with --eval-data", flag);
  }
  if (best.empty() || best == "loss") return {};
  std::vector<std::string> names;
  for (const MetricSpec& metric : options.run.eval_metrics) names.push_back(metric.name);
  if (std::ranges::find(names, best) != names.end()) return {};
  return input_error("--keep-best {}: expected loss or one of --eval-metrics, found only {}{}",
                     best, joined(names, ", "), did_you_mean(best, names));
}

// Nothing measures accuracy in a loss without classes: a run that asks for it would have no value.
Status PreparedRun::check_accuracy() const {
  const RunOptions& run = context_.options.run;
  const bool listed = std::ranges::any_of(run.eval_metrics, is_plain_accuracy);
  const bool best = context_.options.checkpoint.keep_best == "accuracy";
  if (!listed || !(run.asks_metrics || best)) return {};
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup_->evaluation_graph(setup_->batch.batch_size));
  const LossKind kind = setup_->source->settings().losses[0].kind;
  const bool binary = kind == LossKind::kBce || kind == LossKind::kBceWithLogits;
  OFSDP_REJECT_IF(graph.matches == 0,
                  "{} accuracy: expected a loss over classes of two or more, found --loss {}; "
                  "--eval-metrics {}",
                  best ? "--keep-best" : "--eval-metrics", name_of(kind),
                  binary ? "f1,auc measure labels of 0 and 1" : "rmse,mae,r2 measure numbers");
  return {};
}

// Logits are no numbers in the units of labels 0 and 1.
Status PreparedRun::check_value_metrics() const {
  const std::vector<LossSpec>& losses = setup_->source->settings().losses;
  for (const MetricSpec& metric : context_.options.run.eval_metrics) {
    if (metric_traits(metric.kind).rows != MetricRows::kValues) continue;
    const auto loss = metric.prediction.empty()
                          ? losses.begin()
                          : std::ranges::find(losses, metric.prediction, &LossSpec::prediction);
    OFSDP_REJECT_IF(loss != losses.end() && loss->kind == LossKind::kBceWithLogits,
                    "--eval-metrics {}: expected a prediction in the units of its labels, found "
                    "logits, as --loss bce_with_logits reads them; --eval-metrics f1,auc measure "
                    "labels of 0 and 1",
                    metric.name);
  }
  return {};
}

// Rank 0 takes the folder for this run; all ranks find the checkpoint to resume.
// `may_resume`: --resume names no model file, from which a run begins anew.
Status PreparedRun::open_checkpoints(bool may_resume) {
  const Options& options = context_.options;
  Communicator& communicator = context_.communicator;
  const Command command = options.command;
  if (command == Command::kPlan || command == Command::kDoctor || command == Command::kCheck) {
    return {};
  }
  const CheckpointOptions& c = options.checkpoint;
  warn_of_no_folder();
  if (options.command == Command::kTrain && !c.dir.empty() && communicator.rank() == 0) {
    const Retention retention{c.keep, c.keep_best,
                              lower_is_better(options.run.eval_metrics, c.keep_best)};
    OFSDP_ASSIGN_OR_RETURN(CheckpointStore store, CheckpointStore::open(c.dir, retention));
    OFSDP_REJECT_IF((c.resume.empty() || !may_resume) && !c.overwrite && !store.newest().empty(),
                    "--checkpoint-dir {}: has checkpoints of another run ({}): expected --resume "
                    "latest, --overwrite-checkpoints on or another folder",
                    c.dir, store.newest());
    store_ = std::make_unique<CheckpointStore>(std::move(store));
  }
  if (!may_resume) return {};
  OFSDP_ASSIGN_OR_RETURN(checkpoint_, find_checkpoint(options, communicator, store_.get()));
  return {};
}

// The data may have grown or shrunk since, but not to before the position in the epoch.
Status PreparedRun::check_rows() const {
  const SamplerPosition& saved = checkpoint_->manifest().sampler;
  const int64_t rows = plan_->train_sampler->options().samples;
  if (rows == saved.samples) return {};
  OFSDP_REJECT_IF(saved.sample > rows,
                  "it has used {} rows of its epoch's {}, and the data have only {}: expected the "
                  "same data, or --resume FILE.onnx for a new run from trained weights",
                  saved.sample, saved.samples, rows);
  if (context_.communicator.rank() != 0) return {};
  const auto text = [](int64_t count) {
    return count == kEndless ? std::string("endless") : plural(count, "row");
  };
  print_lines(stderr, format_text("fsdp-run: warning: the checkpoint was trained with data of {}, "
                                  "these are {}: rows may come twice or not at all in this epoch\n",
                                  text(saved.samples), text(rows)));
  return {};
}

// doctor and check: returns the checkpoint's run with its values, or nothing without --resume. For
// plan, values do not matter.
Result<std::optional<SavedRun>> PreparedRun::examined_run() const {
  const Options& options = context_.options;
  const std::string& resume = options.checkpoint.resume;
  if (resume.empty()) return std::optional<SavedRun>();
  if (options.command == Command::kPlan && resume != kLatest) {
    OFSDP_RETURN_IF_ERROR(CheckpointReader::open(resume).status().with_prefix("--resume"));
  }
  const bool examines = options.command == Command::kDoctor || options.command == Command::kCheck;
  if (!examines) return std::optional<SavedRun>();
  OFSDP_ASSIGN_OR_RETURN(auto checkpoint, find_checkpoint(options, context_.communicator, nullptr));
  if (checkpoint == nullptr) return std::optional<SavedRun>();
  OFSDP_ASSIGN_OR_RETURN(SavedRun saved,
                         saved_run(std::move(checkpoint), options.optimizer.ema_use));
  return std::optional(std::move(saved));
}

// An evaluation has no optimizer. The average in a checkpoint, if any, is loaded as the weights.
void PreparedRun::leave_optimizer_out() {
  OptimizerOptions& optimizer = settings_.options.optimizer;
  if (checkpoint_ != nullptr) {
    settings_.evaluated = weights_kind(checkpoint_->manifest(), optimizer.ema_use);
  }
  optimizer = {};
  optimizer.kind = OptimizerKind::kSgd;
}

// A folder keeps adapters that cannot be merged in place of the model.
void PreparedRun::place_adapter() {
  Options& options = settings_.options;
  if (!options.folder.keeps_model || setup_->source->adapter_alone().empty()) return;
  options.edit.adapter = setup_->source->adapter_alone();
  options.files.output.clear();
}

void PreparedRun::warn_of_no_folder() const {
  const CheckpointOptions& c = context_.options.checkpoint;
  const CheckpointOptions plain;
  const bool best = c.keep_best != plain.keep_best && !context_.options.run.early_stop;
  const bool said = !(c.interval == plain.interval) || c.keep != plain.keep || best ||
                    c.type != plain.type || c.sync;
  if (!c.dir.empty() || !said || context_.communicator.rank() != 0) return;
  print_lines(stderr,
              "fsdp-run: warning: without --checkpoint-dir nothing is saved, so the other "
              "options about checkpoints have no effect\n");
}

void PreparedRun::warn_of_warmup() const {
  const Options& options = context_.options;
  const bool alone = options.command == Command::kTrain && context_.communicator.rank() == 0;
  const int64_t total = total_updates(options, *plan_->train_sampler);
  const int64_t warmup = options.schedule.warmup_steps;
  if (!alone || warmup <= total) return;
  print_lines(stderr, format_text("fsdp-run: warning: --warmup-steps {}: the run has {}, all of "
                                  "them below --lr {:.6g}\n",
                                  warmup, plural(total, "update"), options.optimizer.lr));
}

Status PreparedRun::check_executable() const {
  const std::string lack = memory_lack(*plan_, context_.communicator, machine_memory());
  OFSDP_REJECT_IF(!lack.empty(), "{}; `fsdp-run plan` with --memory-limit says what would fit",
                  lack);
  return agree();
}

// All ranks must have compiled the same collectives in the same order.
Status PreparedRun::agree() const {
  Communicator& communicator = context_.communicator;
  const uint64_t hash = plan_->hash;
  const std::array<double, 2> mine{static_cast<double>(hash >> 32),
                                   static_cast<double>(hash & 0xffffffffu)};
  std::vector<double> all(2 * static_cast<size_t>(communicator.size()));
  OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, {"schedule exchange", -1, 0}));
  for (size_t r = 0; r < all.size() / 2; ++r) {
    if (all[2 * r] == mine[0] && all[2 * r + 1] == mine[1]) continue;
    return first_difference(*plan_, communicator);
  }
  return {};
}

ExecutorOptions PreparedRun::executor_options() const {
  const Options& options = context_.options;
  return {.seed = options.run.seed,
          .clip_norm = options.optimizer.clip_grad_norm.value_or(0),
          .scale_loss = options.sharding.param_dtype == DType::kFloat16,
          .steps_done = settings_.optimizer_steps,
          .buffer_dtype = options.sharding.buffer_dtype,
          .graphs = options.launch.cuda_graph,
          .timeout_seconds = options.launch.timeout_seconds};
}

}  // namespace ofsdp::runtime
