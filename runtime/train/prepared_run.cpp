#include "runtime/train/prepared_run.h"

#include <algorithm>
#include <cstdio>

#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/compile/compile.h"
#include "runtime/log/log_parts.h"
#include "runtime/log/row_log.h"
#include "runtime/log/run_curves.h"
#include "runtime/report/plan_report.h"
#include "runtime/report/run_report.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/file_answers.h"
#include "runtime/train/rank_state.h"
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
  if (sizes != nullptr) settings_.given = *sizes;
  if (evaluates) leave_optimizer_out();
  OFSDP_RETURN_IF_ERROR(check_before_planning());
  if (may_resume && !evaluates) OFSDP_RETURN_IF_ERROR(open_checkpoints());
  settings_.start = resume_point(checkpoint_.get());
  OFSDP_ASSIGN_OR_RETURN(chosen_, choose_device(options, context_.registry, communicator));
  OFSDP_RETURN_IF_ERROR(make_plan());
  if (checkpoint_ == nullptr) return {};
  OFSDP_RETURN_IF_ERROR(check_resumable(checkpoint_->manifest(), *plan_, *setup_)
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
  OFSDP_RETURN_IF_ERROR(check_best());
  if (writes_trained(options) && options.command != Command::kEval) {
    OFSDP_RETURN_IF_ERROR(
        setup_->source->check_output(options.files.output, trained_state(settings_, 0)));
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

// An evaluation has no optimizer. The average in a checkpoint, if any, is loaded as the weights.
void PreparedRun::leave_optimizer_out() {
  OptimizerOptions& optimizer = settings_.options.optimizer;
  if (checkpoint_ != nullptr) {
    const bool averaged =
        optimizer.ema_use && std::ranges::count(checkpoint_->manifest().states, kAverageState) > 0;
    settings_.evaluated = averaged ? kAverageState : kParameterKind;
  }
  optimizer = {};
  optimizer.kind = OptimizerKind::kSgd;
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

  Status run(const RunContext& context, const RunTexts& texts) {
    OFSDP_ASSIGN_OR_RETURN(run_, PreparedRun::make(context, texts.configuration));
    const ModelSetup& setup = run_->setup();
    const CompiledRun& plan = run_->plan();
    if (options_.command == Command::kPlan) return report_plan(setup, plan);
    OFSDP_RETURN_IF_ERROR(run_->check_executable());
    print_opening(setup, plan, texts);
    return execute(setup, plan);
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
    for (const std::string& warning : {plan.warning, batch_warning(plan)}) {
      if (warning.empty()) continue;
      print_lines(stderr, format_text("fsdp-run: warning: {}\n", escaped(warning)));
    }
  }

  // A batch size that was given and that no data can fill.
  std::string batch_warning(const CompiledRun& plan) const {
    const GivenCount& given = options_.batch.batch_size;
    const bool trains = options_.command == Command::kTrain || options_.command == Command::kPlan;
    if (!trains || !given.value || run_->setup().data.train == nullptr) return "";
    const int64_t rows = plan.train_sampler->options().samples;
    if (*given.value <= rows) return "";
    return format_text("{} {}: the data have {}; no batch is larger",
                       given.said.empty() ? "--batch-size" : given.said, *given.value,
                       plural(rows, "row"));
  }

  void print_opening(const ModelSetup& setup, const CompiledRun& plan,
                     const RunTexts& texts) const {
    if (communicator_.rank() != 0) return;
    warn(plan);
    if (!prints_screen(options_)) return;
    const PlannedRun run = planned(setup, plan);
    const OpeningFacts facts = opening_facts(run, texts.settings);
    print_lines(stdout, options_.files.verbose
                            ? opening_tables(run) + "\nunits\n" + text(plan.shards) +
                                  "\nmemory of this rank, bytes\n" + text(plan.memory) +
                                  orthogonal_table(plan) + "\n" + after_tables_text(facts)
                            : opening_text(facts, terminal_columns()));
    std::fflush(stdout);
  }

  PlanFacts plan_facts(const ModelSetup& setup, const CompiledRun& plan) const {
    const OpeningFacts facts = opening_facts(planned(setup, plan), {});
    PlanFacts made{.model = facts.model,
                   .tensors = facts.tensors,
                   .trained_tensors = facts.trained_tensors,
                   .trained_numbers = facts.trained_numbers,
                   .loss = facts.loss,
                   .notices = facts.notices,
                   .verdict = {}};
    const bool here = !options_.report.world && options_.report.topology.empty();
    if (!here || plan.device != nullptr) return made;
    const MachineMemory memory = machine_memory();
    const std::string lack = memory_lack(plan, communicator_, memory);
    if (!lack.empty()) {
      made.verdict = "a run would be refused: " + lack;
    } else {
      made.verdict =
          format_text("fits: {}, {} each; this host has {}", plural(communicator_.size(), "rank"),
                      readable_bytes(plan.memory.planned_bytes()),
                      readable_bytes(static_cast<uint64_t>(memory.bytes)));
    }
    return made;
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
    const PlanFacts facts = plan_facts(setup, plan);
    const bool steps = options_.report.schedule;
    if (options_.files.verbose) {
      const std::string verdict = facts.verdict.empty() ? "" : facts.verdict + "\n";
      print_lines(stdout,
                  opening_tables(planned(setup, plan)) + verdict + "\n" + text(report, steps));
    } else {
      print_lines(stdout, summary_text(report, facts, settings().batch) +
                              (steps ? schedule_text(report) : ""));
    }
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
    const std::string& page = options_.pictures.report;
    if (options_.command == Command::kTrain && !page.empty()) {
      OFSDP_RETURN_IF_ERROR(check_output_path(page).with_prefix("--report"));
    }
    return check_log_target("--trace", files.trace);
  }

  Status execute(const ModelSetup& setup, const CompiledRun& plan) {
    const bool done = options_.command == Command::kTrain && finished(plan);
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
            metrics.add_log(log, names, resumed ? Mode::kAppend : Mode::kTruncate, logged_run()));
      }
      if (options_.command == Command::kTrain && options_.pictures.any()) metrics.keep_curves();
    }
    OFSDP_ASSIGN_OR_RETURN(const auto state,
                           RankState::make(plan, setup, communicator_, ledger_,
                                           run_->executor_options(), run_->checkpoint()));
    Status status = use(*state, plan, done, metrics, trace);
    if (!status.ok()) on_failure_(status);
    return status;
  }

  Status use(RankState& state, const CompiledRun& plan, bool done, MetricsWriter& metrics,
             TraceFile& trace) {
    bool stopped = options_.command == Command::kEval;  // eval writes no output
    int64_t updates = total_updates(options_, *plan.train_sampler);
    if (stopped) {
      OFSDP_RETURN_IF_ERROR(evaluate(state, metrics));
    } else if (!done) {
      OFSDP_ASSIGN_OR_RETURN(stopped, train(state, metrics, updates));
    }
    if (!done && state.trace() != nullptr) {
      OFSDP_RETURN_IF_ERROR(trace.write(*state.trace(), plan.shards, communicator_));
    }
    if (!stopped && writes_trained(options_)) {
      OFSDP_RETURN_IF_ERROR(write_trained(state, communicator_, options_.files.output,
                                          trained_state(settings(), updates)));
    }
    OFSDP_RETURN_IF_ERROR(draw_pictures(metrics, stopped));
    const bool trains = options_.command == Command::kTrain;
    if (trains && communicator_.rank() == 0) print_closing(state, done);
    return {};
  }

  // Returns true if a signal ended training early, with a checkpoint. `updates`: how many were
  // made.
  Result<bool> train(RankState& state, MetricsWriter& metrics, int64_t& updates) {
    std::unique_ptr<Checkpointing> checkpoints;
    if (!options_.checkpoint.dir.empty()) {
      OFSDP_ASSIGN_OR_RETURN(checkpoints,
                             Checkpointing::make(settings(), state, communicator_, run_->store()));
    }
    Trainer trainer(settings(), state, communicator_, ledger_, *state.plan().train_sampler, metrics,
                    checkpoints.get());
    OFSDP_RETURN_IF_ERROR(trainer.run());
    updates = trainer.updates();
    closing_ = trainer.closing();
    if (trainer.evaluated() != nullptr) evaluated_ = *trainer.evaluated();
    return trainer.stopped();
  }

  Status evaluate(RankState& state, MetricsWriter& metrics) {
    Progress progress(evaluation_progress());
    const Sampler& sampler = *state.plan().eval_sampler;
    Evaluator evaluator(state, communicator_, sampler);
    OFSDP_ASSIGN_OR_RETURN(const EvalRow row, evaluator.run(settings().start.update,
                                                            settings().start.epoch, &progress));
    if (communicator_.rank() != 0) return {};
    progress.eval(row);
    warn_of_undefined(evaluator, row);
    if (options_.json) {
      print_result(evaluation_json(options_.model, row, sampler.options().samples));
    }
    return metrics.eval(row);
  }

  // The run as other tools name it, for --log.
  LoggedRun logged_run() const {
    LoggedRun run{.name = model_name(),
                  .settings = flat_settings(settings().configuration),
                  .checkpoints = options_.checkpoint.dir};
    if (run_->checkpoint() != nullptr) run.resumed = parent_folder(run_->checkpoint()->folder());
    return run;
  }

  std::string model_name() const {
    const std::string file = base_filename(options_.model);
    return file.substr(0, file.rfind(".onnx"));
  }

  // --plot and --report, also if a signal has stopped the run.
  Status draw_pictures(const MetricsWriter& metrics, bool stopped) const {
    const RunCurves* const curves = metrics.curves();
    if (curves == nullptr) return {};
    if (options_.pictures.plot && !options_.json) {
      print_lines(stdout, loss_plot(*curves, stdout_plot()));
      std::fflush(stdout);
    }
    if (options_.pictures.report.empty()) return {};
    RunReport report{.title = model_name(),
                     .model = options_.model,
                     .state = stopped ? format_text("stopped at update {}", curves->steps) : "",
                     .command = own_command(),
                     .configuration = settings().configuration,
                     .files = written_files(/*resumed=*/false)};
    if (!run_->plan().warning.empty()) report.warnings.push_back(run_->plan().warning);
    return write_run_report(options_.pictures.report, report, *curves);
  }

  // The line of the evaluation is the result, so --quiet prints it.
  ProgressOptions evaluation_progress() const {
    OutputOptions files = options_.files;
    files.quiet = options_.json || communicator_.rank() != 0;
    ProgressOptions progress = stdout_progress(files, 0, 0);
    if (options_.files.quiet) progress.terminal = progress.colours = false;
    return progress;
  }

  static void print_result(const std::string& text) {
    print_lines(stdout, text);
    std::fflush(stdout);
  }

  // The files that the run has written. `resumed`: as print_closing's.
  std::vector<WrittenFile> written_files(bool resumed) const {
    std::vector<WrittenFile> files;
    if (!closing_.stopped) files = trained_files(options_);
    if (!resumed) std::ranges::copy(record_files(options_), std::back_inserter(files));
    return files;
  }

  // `resumed`: a finished run that only writes the output again. A run that a signal stopped has a
  // result, but no block.
  void print_closing(const RankState& state, bool resumed) const {
    const std::vector<WrittenFile> files = written_files(resumed);
    if (options_.json) print_result(training_json(options_.model, closing_, files));
    if (closing_.stopped) return;
    const bool plain = !options_.json && !options_.files.quiet;
    if (plain) {
      const std::string closing = resumed ? "" : closing_text(closing_);
      print_result(folded_lines(closing, terminal_columns()) + written_text(files));
    } else if (!options_.json) {
      print_result(quiet_text(closing_) + written_text(files));
    }
    print_answer(state, plain);
  }

  // Says how the written model answers; training artifacts, a folder, are left out. A warning
  // comes whether the text is shown or not.
  void print_answer(const RankState& state, bool shown) const {
    const std::string& path = options_.files.output;
    if (!is_file(path)) return;
    const FileAnswer answer =
        compare_with_file(state, settings(), &evaluated_, {path, options_.output_form});
    if (shown) print_result(answer.text);
    if (answer.warning.empty()) return;
    print_lines(stderr, format_text("fsdp-run: warning: {}\n", answer.warning));
  }

  const RunSettings& settings() const { return run_->settings(); }

  const Options& options_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
  const std::function<void(const Status&)>& on_failure_;
  std::unique_ptr<PreparedRun> run_;
  ClosingFacts closing_;      // rank 0, after training
  EvaluatedBatch evaluated_;  // this rank's, in the last evaluation
};

}  // namespace

Status run_session(const RunContext& context, const RunTexts& texts,
                   const std::function<void(const Status&)>& on_failure) {
  return Session(context, on_failure).run(context, texts);
}

}  // namespace ofsdp::runtime
