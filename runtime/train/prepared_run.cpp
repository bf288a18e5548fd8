#include "runtime/train/prepared_run.h"

#include <algorithm>
#include <cstdio>

#include "importer/passes/passes.h"
#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "kernels/cpu/parallel.h"
#include "runtime/compile/compile.h"
#include "runtime/log/log_parts.h"
#include "runtime/report/plan_report.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/rank_state.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {

namespace {

OffloadTraffic of_update(const CompiledRun& run, const BatchSizes& batch) {
  OffloadTraffic sum;
  for (int64_t micro = 0; micro < batch.grad_accum; ++micro) {
    const StepProgram& program =
        run.programs.at({batch.batch_size, true, micro == 0, micro + 1 == batch.grad_accum});
    const OffloadTraffic one = offload_traffic(lower(program, lowering(run, 0)));
    sum.up += one.up;
    sum.down += one.down;
  }
  return sum;
}

}  // namespace

std::string dtypes_lines(const Options& options, bool on_device) {
  const ShardingOptions& s = options.sharding;
  const bool tf32 = s.matmul_precision == MatmulPrecision::kHigh;
  const StateDType states = options.optimizer.state_dtype;
  const std::string rest =
      states == StateDType::kFloat32
          ? "masters, optimizer state, loss float32"
          : format_text("optimizer state {}; masters, loss float32", name_of(states));
  std::string lines =
      format_text("parameters and computation {}, reduction {}, buffers {}; {}{}{}\n",
                  dtype_name(s.param_dtype), dtype_name(s.reduce_dtype), dtype_name(s.buffer_dtype),
                  rest, s.param_dtype == DType::kFloat16 ? "; dynamic loss scale" : "",
                  tf32 && on_device ? "; products of float32 in TF32" : "");
  if (tf32 && !on_device) {
    lines += "--matmul-precision high: no effect, since the run is on the CPU\n";
  }
  return lines;
}

std::string teacher_line(const ModelSetup& setup) {
  const Teacher* teacher = setup.source->teacher();
  if (teacher == nullptr) return "";
  int64_t count = 0, elements = 0;
  for (const Parameter& p : setup.graph.parameters) {
    if (!p.of_teacher) continue;
    ++count;
    elements += setup.graph.value(p.value).desc.numel();
  }
  return format_text("teacher: {}, {} tensors, {} numbers, frozen; weight {}, temperature {}\n",
                     escaped(teacher->file.path()), count, readable_count(elements),
                     teacher->how.weight, teacher->how.temperature);
}

std::string offload_line(const CompiledRun& run, const RunSettings& settings, bool exact) {
  const CpuOffload offloads = settings.options.sharding.cpu_offload;
  if (offloads == CpuOffload::kNone) return "";
  const std::string flag = format_text("--cpu-offload {}", name_of(offloads));
  if (run.device == nullptr) return flag + ": no effect, since the run is on the CPU\n";
  const OffloadMap& offload = run.memory.offload;
  const OffloadTraffic traffic = of_update(run, settings.batch);
  const auto shown = [exact](size_t bytes) {
    return exact ? format_text("{} bytes", bytes) : readable_bytes(bytes);
  };
  return format_text(
      "{}: {} a rank pinned on the host (parameters {}, optimizer state {}, gradients {}); an "
      "update copies {} up and {} down\n",
      flag, shown(region_bytes(offload.bytes)), shown(offload.parameter_bytes),
      shown(offload.optimizer_bytes), shown(offload.gradient_bytes), shown(traffic.up),
      shown(traffic.down));
}

std::string slices_line(const BatchSizes& batch) {
  if (batch.slices == 0) return "";
  return format_text(
      "across_ranks: {} slices of at most {} samples, {} a rank; the same bits on any number of "
      "ranks with {} thread{} each\n",
      batch.slices, batch.batch_size, batch.grad_accum, pool_threads(),
      pool_threads() == 1 ? "" : "s");
}

std::string memory_lack(const CompiledRun& plan, const Communicator& communicator,
                        const MachineMemory& memory) {
  if (plan.device != nullptr) return "";
  const MemoryMap& m = plan.memory;
  const auto ranks = static_cast<size_t>(communicator.ranks_in_common());
  const size_t unpacked = m.data + m.data_elsewhere;  // one rank unpacks for all on the host
  const size_t needed = ranks * (m.planned_bytes() - m.data) + unpacked;
  if (needed <= static_cast<size_t>(memory.bytes)) return "";
  return format_text("{} needs {} bytes a rank, {} for {} rank{} on this host: {} {} bytes",
                     strategy_name(plan.shards.strategy), m.planned_bytes(), needed, ranks,
                     ranks == 1 ? "" : "s", memory.cgroup ? "its cgroup allows" : "it has",
                     memory.bytes);
}

namespace {

// Returns "KIND:PREDICTION:LABELS the mean over samples; ...": each loss's kind and divisor.
std::string loss_text(const PlannedRun& run) {
  const bool global = run.settings.options.loss_mean == LossMean::kGlobal;
  const char* const mean = global ? "the mean" : "the ranks' mean of means";
  const std::vector<LossSpec>& losses = run.setup.source->settings().losses;
  std::string text;
  for (size_t i = 0; i < run.setup.counts.size(); ++i) {
    const LossCount& count = run.setup.counts[i];
    if (i > 0) text += "; ";
    if (losses.size() > 1) text += escaped(losses[i].said) + " ";
    const std::string over =
        count.by_label ? format_text("the labels of '{}'", escaped(count.labels)) : "samples";
    text +=
        count.sum ? format_text("the sum over {}", over) : format_text("{} over {}", mean, over);
  }
  return text;
}

bool is_float32(const ShardingOptions& s) {
  return s.param_dtype == DType::kFloat32 && s.reduce_dtype == DType::kFloat32 &&
         s.buffer_dtype == DType::kFloat32 && s.matmul_precision == MatmulPrecision::kHighest;
}

// Adds `text` line by line.
void add_lines(const std::string& text, std::vector<std::string>& lines) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(escaped(text.substr(begin, end - begin)));
    begin = end + 1;
  }
}

// Says where the run is kept, or that it is not.
std::string folder_line(const Options& options) {
  if (options.command != Command::kTrain) return "";
  if (!options.folder.path.empty()) return format_text("run: {}\n", options.folder.path);
  if (writes_trained(options)) return "";
  const bool saves = !options.checkpoint.dir.empty();
  return format_text("--run-dir none: {} is kept, as there is no --output\n",
                     saves ? "no trained file" : "nothing");
}

std::vector<std::string> notices(const PlannedRun& run, bool all, bool exact) {
  const Options& options = run.settings.options;
  std::vector<std::string> lines;
  add_lines(folder_line(options), lines);
  add_lines(past_line(run.setup.fed_empty), lines);
  add_lines(run.setup.nhwc_notice, lines);
  add_lines(teacher_line(run.setup), lines);
  add_lines(run.device_notice, lines);
  add_lines(offload_line(run.plan, run.settings, exact), lines);
  if (all || !is_float32(options.sharding)) {
    add_lines(dtypes_lines(options, run.plan.device != nullptr), lines);
  }
  add_lines(slices_line(run.settings.batch), lines);
  add_lines(run.plan.choice, lines);
  return lines;
}

}  // namespace

OpeningFacts opening_facts(const PlannedRun& run, const std::vector<std::string>& settings) {
  const Graph& graph = run.setup.graph;
  OpeningFacts facts;
  facts.model = escaped(run.settings.options.model);
  for (const Parameter& p : graph.parameters) {
    if (p.of_teacher) continue;
    ++facts.tensors;
    if (!p.trained) continue;
    ++facts.trained_tensors;
    facts.trained_numbers += graph.value(p.value).desc.shape.numel();
  }
  facts.loss = loss_text(run);
  facts.settings = settings;
  for (const auto& [rule, count] : run.plan.programs.rbegin()->second.graph.fused) {
    facts.fused.push_back(format_text("{} {}", rule, count));
  }
  facts.wrap_notice = escaped(run.plan.shards.notice);
  facts.notices = notices(run, /*all=*/false, /*exact=*/false);
  for (const PeakShare& share : peak_of(run.plan).shares) {
    if (std::string_view(share.key) != "unused") facts.memory.push_back({share.label, share.bytes});
  }
  facts.strategy = strategy_name(run.plan.shards.strategy);
  facts.ranks = run.communicator.size();
  facts.threads = pool_threads();
  facts.units = static_cast<int64_t>(run.plan.shards.units.size());
  facts.planned_bytes = run.plan.memory.planned_bytes();
  return facts;
}

std::string opening_tables(const PlannedRun& run) {
  const CompiledRun& plan = run.plan;
  std::string text = run.settings.configuration + trained_table(run.setup.graph);
  if (!plan.shards.notice.empty()) text += escaped(plan.shards.notice) + "\n";
  text += "loss: " + loss_text(run) + "\n" + fused_line(plan);
  for (const std::string& line : notices(run, /*all=*/true, /*exact=*/true)) text += line + "\n";
  return text;
}

int64_t tokens_a_sample(const ModelSetup& setup) {
  const LossCount& count = setup.counts.front();
  if (!count.by_label) return 1;
  const auto& rows = setup.source->settings().rows;
  const auto row = rows.find(count.labels);
  const bool line = row != rows.end() && row->second.rank() == 1;
  return line ? std::max<int64_t>(row->second.numel(), 1) : 1;
}

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
  if (may_resume && evaluates) OFSDP_RETURN_IF_ERROR(open_checkpoints());
  std::optional<SavedRun> saved;
  if (checkpoint_ != nullptr) {
    OFSDP_ASSIGN_OR_RETURN(saved, saved_run());
  }
  OFSDP_ASSIGN_OR_RETURN(ModelSetup setup,
                         ModelSetup::make(options, origin, context_.registry, communicator,
                                          context_.ledger, data, saved ? &*saved : nullptr));
  setup_ = std::make_unique<ModelSetup>(std::move(setup));
  settings_ = resolve_settings(options, origin, *setup_, configuration);
  place_adapter();
  if (sizes != nullptr) settings_.given = *sizes;
  if (saved) take_weights_alone();
  OFSDP_RETURN_IF_ERROR(check_before_planning());
  if (may_resume && !evaluates) OFSDP_RETURN_IF_ERROR(open_checkpoints());
  settings_.start = resume_point(checkpoint_.get());
  OFSDP_ASSIGN_OR_RETURN(chosen_, choose_device(options, context_.registry, communicator));
  OFSDP_RETURN_IF_ERROR(make_plan());
  if (checkpoint_ == nullptr) return {};
  OFSDP_RETURN_IF_ERROR(with_edits_of(checkpoint_->manifest(), options,
                                      check_resumable(checkpoint_->manifest(), *plan_, *setup_))
                            .with_prefix("--resume: " + checkpoint_->folder()));
  const bool warns = options.command == Command::kTrain && communicator.rank() == 0;
  if (warns) warn_of_other_settings(*checkpoint_, settings_.configuration);
  return {};
}

Status PreparedRun::plan_for(const GivenSizes& sizes) {
  settings_.given = sizes;
  return make_plan();
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
    plan = planned();
  }
  OFSDP_ASSIGN_OR_RETURN(plan_, std::move(plan));
  return {};
}

// Checks conditions that would otherwise fail after hours.
Status PreparedRun::check_before_planning() const {
  const Options& options = context_.options;
  const DataSetup& data = setup_->data;
  if (options.command == Command::kEval && !data.eval) {
    return input_error("eval: the data have no evaluation part; name one with --eval-data");
  }
  OFSDP_RETURN_IF_ERROR(check_best());
  if (writes_trained(settings_.options) && options.command != Command::kEval) {
    OFSDP_RETURN_IF_ERROR(
        setup_->source->check_output(settings_.options.files.output, trained_state(settings_, 0)));
  }
  if (options.command == Command::kDoctor) return {};
  for (const LossCount& count : setup_->counts) {
    if (!count.by_label) continue;
    const LabelRange range{count.classes, count.ignore_index};
    if (data.train) OFSDP_RETURN_IF_ERROR(data.train->check_labels(count.labels, range));
    if (data.eval) OFSDP_RETURN_IF_ERROR(data.eval->check_labels(count.labels, range));
  }
  return {};
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

// Rank 0 takes the folder for this run; all ranks find the checkpoint to resume.
Status PreparedRun::open_checkpoints() {
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
    OFSDP_REJECT_IF(c.resume.empty() && !c.overwrite && !store.newest().empty(),
                    "--checkpoint-dir {}: has checkpoints of another run ({}): expected --resume "
                    "latest, --overwrite-checkpoints on or another folder",
                    c.dir, store.newest());
    store_ = std::make_unique<CheckpointStore>(std::move(store));
  }
  OFSDP_ASSIGN_OR_RETURN(checkpoint_, find_checkpoint(options, communicator, store_.get()));
  return {};
}

// Returns the settings that an evaluation takes from the checkpoint's run.
Result<SavedRun> PreparedRun::saved_run() const {
  const Manifest& m = checkpoint_->manifest();
  SavedRun saved;
  for (const NamedTensor& tensor : m.trained) saved.trained.insert(tensor.name);
  OFSDP_ASSIGN_OR_RETURN(saved.edits,
                         prefixed("--resume: " + checkpoint_->folder(), edits_from(m.edits)));
  return saved;
}

// An evaluation has no optimizer. The average, if any, is loaded as the weights.
void PreparedRun::take_weights_alone() {
  OptimizerOptions& optimizer = settings_.options.optimizer;
  const bool averaged =
      optimizer.ema_use && std::ranges::count(checkpoint_->manifest().states, kAverageState) > 0;
  settings_.evaluated = averaged ? kAverageState : kParameterKind;
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

namespace {

class Session {
 public:
  Session(const RunContext& context, const std::function<void(const Status&)>& on_failure)
      : options_(context.options),
        communicator_(context.communicator),
        ledger_(context.ledger),
        on_failure_(on_failure) {}

  Result<int> run(const RunContext& context, const RunTexts& texts) {
    signal_ = context.signal;
    folder_ = context.folder;
    texts_ = &texts;
    OFSDP_ASSIGN_OR_RETURN(run_, PreparedRun::make(context, texts.configuration));
    const ModelSetup& setup = run_->setup();
    const CompiledRun& plan = run_->plan();
    if (options_.command == Command::kPlan) {
      OFSDP_RETURN_IF_ERROR(report_plan(setup, plan));
      return 0;
    }
    OFSDP_RETURN_IF_ERROR(run_->check_executable());
    const bool done = options_.command == Command::kTrain && finished(plan);
    if (folder_ != nullptr && run_->checkpoint() != nullptr) {
      folder_->log(format_text("resuming from {}\n", escaped(run_->checkpoint()->folder())));
    }
    done ? print_done(plan) : print_opening(setup, plan, texts);
    OFSDP_RETURN_IF_ERROR(execute(setup, plan, done));
    return stopped_by_ == 0 ? 0 : stopped_status(stopped_by_);
  }

 private:
  // If a finished run is resumed, it only writes the output.
  bool finished(const CompiledRun& plan) const {
    return run_->checkpoint() != nullptr &&
           settings().start.update >= total_updates(options_, *plan.train_sampler);
  }

  PlannedRun planned(const ModelSetup& setup, const CompiledRun& plan) const {
    return {setup, plan, settings(), communicator_, run_->device_notice()};
  }

  void warn(const CompiledRun& plan) const {
    if (plan.warning.empty()) return;
    print_lines(stderr, format_text("fsdp-run: warning: {}\n", escaped(plan.warning)));
  }

  void print_opening(const ModelSetup& setup, const CompiledRun& plan,
                     const RunTexts& texts) const {
    if (communicator_.rank() != 0) return;
    warn(plan);
    const PlannedRun run = planned(setup, plan);
    const OpeningFacts facts = opening_facts(run, texts.settings);
    print(options_.files.verbose ? opening_tables(run) + "\nunits\n" + text(plan.shards) +
                                       "\nmemory of this rank, bytes\n" + text(plan.memory) +
                                       orthogonal_table(plan) + "\n" + ranks_line(facts)
                                 : opening_text(facts));
  }

  void print_done(const CompiledRun& plan) const {
    if (communicator_.rank() != 0) return;
    const RunOptions& run = options_.run;
    const int64_t total = total_updates(options_, *plan.train_sampler);
    const bool by_steps = run.steps && total == *run.steps;
    print(format_text("step {} of {}: nothing left to do; raise --{}\n", settings().start.update,
                      total, by_steps ? "steps" : "epochs"));
  }

  // On stdout, and in the log of the run's folder.
  void print(const std::string& lines) const {
    print_lines(stdout, lines);
    std::fflush(stdout);
    if (folder_ != nullptr) folder_->log(escaped_lines(lines));
  }

  // Only rank 0 measures and prints.
  Status report_plan(const ModelSetup& setup, const CompiledRun& plan) const {
    if (communicator_.rank() != 0) return {};
    if (options_.report.operations) {
      print_lines(stdout, operations_text(plan));
      return {};
    }
    OFSDP_ASSIGN_OR_RETURN(const PlanReport report, make_report(plan, settings()));
    if (!options_.report.html.empty()) {
      OFSDP_RETURN_IF_ERROR(write_page(options_.report.html, page(report, settings())));
    }
    if (options_.json) {
      print_lines(stdout, escaped_json(to_json(report, settings())) + "\n");
      return {};
    }
    warn(plan);
    print_lines(stdout, opening_tables(planned(setup, plan)));
    if (!options_.report.world && options_.report.topology.empty()) {
      const std::string lack = memory_lack(plan, communicator_, machine_memory());
      if (!lack.empty()) print_lines(stdout, "a run would be refused: " + lack + "\n");
    }
    print_lines(stdout, "\n" + text(report));
    if (options_.report.explain) print_lines(stdout, "\n" + explain(plan));
    return {};
  }

  Status check_log_targets() const {
    const OutputOptions& files = options_.files;
    OFSDP_RETURN_IF_ERROR(check_log_target("--metrics", files.metrics));
    for (const std::string& log : files.log) {
      const std::string path = log.substr(log.find(':') + 1);
      if (log.starts_with("csv:")) OFSDP_RETURN_IF_ERROR(check_log_target("--log", path));
    }
    return check_log_target("--trace", files.trace);
  }

  Status execute(const ModelSetup& setup, const CompiledRun& plan, bool done) {
    if (!done) OFSDP_RETURN_IF_ERROR(check_log_targets());
    OFSDP_ASSIGN_OR_RETURN(TraceFile trace,
                           TraceFile::open(done ? "" : options_.files.trace, communicator_.rank()));
    MetricsWriter metrics;
    if (communicator_.rank() == 0 && !done) {
      using Mode = MetricsWriter::Mode;
      const bool resumed = options_.command == Command::kTrain && run_->checkpoint() != nullptr;
      OFSDP_ASSIGN_OR_RETURN(
          metrics,
          MetricsWriter::open(options_.files.metrics, resumed ? Mode::kAppend : Mode::kTruncate));
      metrics.also_to_caller();
      std::vector<std::string> names;
      for (const MetricSpec& metric : options_.run.eval_metrics) names.push_back(metric.name);
      for (const MetricValue& loss : reported_losses(setup)) names.push_back("losses/" + loss.name);
      if (plan.watch_interval > 0) {
        std::ranges::copy(watched_columns(watched_units(plan.shards)), std::back_inserter(names));
      }
      if (options_.sharding.param_dtype == DType::kFloat16) names.push_back("skipped");
      for (const std::string& log : options_.files.log) {
        OFSDP_RETURN_IF_ERROR(
            metrics.add_log(log, names, resumed ? Mode::kAppend : Mode::kTruncate));
      }
    }
    OFSDP_ASSIGN_OR_RETURN(const auto state,
                           RankState::make(plan, setup, communicator_, ledger_,
                                           run_->executor_options(), run_->checkpoint()));
    Status status = use(*state, setup, plan, done, metrics, trace);
    if (!status.ok()) on_failure_(status);
    return status;
  }

  Status use(RankState& state, const ModelSetup& setup, const CompiledRun& plan, bool done,
             MetricsWriter& metrics, TraceFile& trace) {
    const bool evaluates = options_.command == Command::kEval;
    Ending ending;
    ending.updates = ending.total = total_updates(options_, *plan.train_sampler);
    if (evaluates) {
      OFSDP_RETURN_IF_ERROR(evaluate(state, metrics));
    } else if (!done) {
      OFSDP_ASSIGN_OR_RETURN(ending, train(state, metrics));
    }
    if (!done && state.trace() != nullptr) {
      OFSDP_RETURN_IF_ERROR(trace.write(*state.trace(), plan.shards, communicator_));
    }
    if (evaluates) return {};  // and writes no output
    if (writes_trained(settings().options)) {
      OFSDP_RETURN_IF_ERROR(write_trained(state, communicator_, settings().options.files.output,
                                          trained_state(settings(), ending.updates)));
    }
    if (communicator_.rank() == 0) {
      stopped_by_ == 0 ? print_closing(setup.graph, done) : print_stopped(ending);
      // [run report] The page of the folder: write_run_report(options_.folder.path) goes here.
    }
    if (stopped_by_ == 0) return {};
    // mpirun and srun end all ranks if one exits with another status than 0, so rank 0 is first.
    return communicator_.barrier({"end of the stopped run", -1, ending.updates});
  }

  // How training ended.
  struct Ending {
    int64_t updates = 0;  // made in all
    int64_t total = 0;    // of the whole run
    bool saved = false;   // a stop has left a checkpoint
  };

  Result<Ending> train(RankState& state, MetricsWriter& metrics) {
    std::unique_ptr<Checkpointing> checkpoints;
    if (!options_.checkpoint.dir.empty()) {
      OFSDP_ASSIGN_OR_RETURN(checkpoints,
                             Checkpointing::make(settings(), state, communicator_, run_->store()));
    }
    if (folder_ != nullptr) folder_->keep();
    Trainer trainer(settings(), state, communicator_, ledger_, *state.plan().train_sampler, metrics,
                    checkpoints.get(), signal_,
                    folder_ != nullptr ? folder_->log_descriptor() : -1);
    OFSDP_RETURN_IF_ERROR(trainer.run());
    closing_ = trainer.closing();
    stopped_by_ = trainer.stopped_by();
    const bool made_any = trainer.updates() > settings().start.update;
    return Ending{.updates = trainer.updates(),
                  .total = trainer.total(),
                  .saved = checkpoints != nullptr && made_any};
  }

  Status evaluate(RankState& state, MetricsWriter& metrics) {
    Evaluator evaluator(state, communicator_, *state.plan().eval_sampler);
    OFSDP_ASSIGN_OR_RETURN(const EvalRow row,
                           evaluator.run(settings().start.update, settings().start.epoch));
    if (communicator_.rank() != 0) return {};
    Progress(stdout_progress(options_.files.log_interval, 0, 0)).eval(row);
    warn_of_undefined(evaluator, row);
    return metrics.eval(row);
  }

  // The trained file so far on stdout, and how to go on on stderr.
  void print_stopped(const Ending& ending) const {
    const Options& options = settings().options;
    std::vector<WrittenFile> files;
    for (const std::string& path : {options.edit.adapter, options.files.output}) {
      if (!path.empty()) files.push_back({escaped(path), "so far"});
    }
    print(written_text(files));
    const std::string line =
        stopped_line(*texts_, options, ending.updates, ending.total, ending.saved);
    print_lines(stderr, line);
    if (folder_ != nullptr) folder_->log(escaped_lines(line));
  }

  // `resumed`: a finished run that only writes the output again.
  void print_closing(const Graph& graph, bool resumed) const {
    const std::string& output = settings().options.files.output;
    std::string text = resumed ? "" : closing_text(closing_);
    std::vector<WrittenFile> files;
    const auto add = [&files](const std::string& path, const char* what) {
      if (!path.empty()) files.push_back({escaped(path), what});
    };
    add(settings().options.edit.adapter, "adapter");
    add(output, "");
    if (!resumed) {
      add(options_.files.metrics, "metrics");
      for (const std::string& log : options_.files.log) add(log.substr(log.find(':') + 1), "log");
      add(options_.files.trace, "trace");
      add(options_.checkpoint.dir, "checkpoints");
    }
    text += written_text(files);
    int active = 0;
    for (const Node& node : graph.nodes) {
      active += node.op->full_name() == "Dropout" && !node.name.ends_with(".lora_dropout");
    }
    if (!output.empty() && active > 0) {
      text +=
          format_text("its {} Dropout nodes keep the training_mode of the input file\n", active);
    }
    print(text);
  }

  const RunSettings& settings() const { return run_->settings(); }

  const Options& options_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
  const std::function<void(const Status&)>& on_failure_;
  const StopSignal* signal_ = nullptr;
  RunFolder* folder_ = nullptr;
  const RunTexts* texts_ = nullptr;
  std::unique_ptr<PreparedRun> run_;
  ClosingFacts closing_;  // rank 0, after training
  int stopped_by_ = 0;    // the signal; 0: none
};

}  // namespace

Result<int> run_session(const RunContext& context, const RunTexts& texts,
                        const std::function<void(const Status&)>& on_failure) {
  return Session(context, on_failure).run(context, texts);
}

}  // namespace ofsdp::runtime
