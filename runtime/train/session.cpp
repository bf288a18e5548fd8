#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "fsdp/checkpoint/disk.h"
#include "importer/edit/model_edits.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/compile/compile.h"
#include "runtime/engine/shared_text.h"
#include "runtime/log/log_parts.h"
#include "runtime/log/row_log.h"
#include "runtime/log/run_curves.h"
#include "runtime/report/fit_report.h"
#include "runtime/report/plan_report.h"
#include "runtime/report/run_report.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/file_answers.h"
#include "runtime/train/prepared_run.h"
#include "runtime/train/rank_state.h"
#include "runtime/train/setup/prediction_values.h"
#include "runtime/train/setup/run_files.h"
#include "runtime/train/setup/run_folder.h"
#include "runtime/train/setup/text_lengths.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {

namespace {

class Session {
 public:
  Session(const RunContext& context, const std::function<void(const Status&)>& on_failure)
      : context_(context),
        options_(context.options),
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
    for (const std::string& warning : {plan.warning, batch_warning(plan)}) {
      if (warning.empty()) continue;
      print_lines(stderr, format_text("fsdp-run: warning: {}\n", escaped(warning)));
    }
  }

  // A checkpoint's run has told it before.
  void warn_of_prediction(const ModelSetup& setup) const {
    if (communicator_.rank() != 0 || run_->checkpoint() != nullptr) return;
    for (const UnfitPrediction& unfit : unfit_predictions(setup)) {
      print_lines(stderr, format_text("fsdp-run: warning: {}: {}\n", unfit.problem, unfit.option));
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
    const PlannedRun run = planned(setup, plan);
    const OpeningFacts facts = opening_facts(run, texts.settings);
    show(options_.files.verbose
             ? opening_tables(run) + "\n" + candidates_text(plan) + "units\n" + text(plan.shards) +
                   "\nmemory of this rank, bytes\n" + text(plan.memory) + orthogonal_table(plan) +
                   "\n" + after_tables_text(facts)
             : opening_text(facts, terminal_columns()));
  }

  void print_done(const CompiledRun& plan) const {
    if (communicator_.rank() != 0) return;
    const RunOptions& run = options_.run;
    const int64_t total = total_updates(options_, *plan.train_sampler);
    const bool by_steps = run.steps && total == *run.steps;
    show(format_text("step {} of {}: nothing left to do; raise --{}\n", settings().start.update,
                     total, by_steps ? "steps" : "epochs"));
  }

  // Writes lines on the screen, unless --quiet or --json forbids it, and into the log of the run's
  // folder.
  void show(const std::string& lines) const { show(lines, prints_screen(options_)); }
  void show(const std::string& lines, bool on_screen) const {
    if (on_screen) print_lines(stdout, lines);
    std::fflush(stdout);
    if (folder_ != nullptr) folder_->log(escaped_lines(lines));
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

  // plan --fit
  Status report_fit(const ModelSetup& setup, const CompiledRun& plan) const {
    const auto open = [this](const Options& options) {
      return ModelSetup::make(options, context_.origin, context_.registry, communicator_, ledger_);
    };
    const CandidateParts parts{setup, communicator_, context_.optimizers, plan.kernels};
    OFSDP_ASSIGN_OR_RETURN(const FitAnswer answer,
                           find_fits({settings(), parts, plan, *options_.report.fit, open}));
    if (options_.json) {
      print_lines(stdout, escaped_json(fit_json(answer, options_.report, texts_->command)) + "\n");
    } else {
      warn(plan);
      print_lines(stdout, fit_text(answer, options_.report, texts_->command));
    }
    return {};
  }

  // Only rank 0 measures and prints.
  Status report_plan(const ModelSetup& setup, const CompiledRun& plan) const {
    if (communicator_.rank() != 0) return {};
    if (options_.report.fit) return report_fit(setup, plan);
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
    if (options_.report.explain) {
      const bool shown = options_.files.verbose;
      print_lines(stdout, "\n" + (shown ? "" : candidates_text(plan)) + explain(plan));
    }
    return {};
  }

  Status execute(const ModelSetup& setup, const CompiledRun& plan, bool done) {
    if (!done) OFSDP_RETURN_IF_ERROR(check_log_targets(options_));
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
    if (!done) warn_of_prediction(setup);
    OFSDP_ASSIGN_OR_RETURN(const auto state,
                           RankState::make(plan, setup, communicator_, ledger_,
                                           run_->executor_options(), run_->checkpoint()));
    Status status = use(*state, plan, done, metrics, trace);
    if (!status.ok()) on_failure_(status);
    return status;
  }

  Status use(RankState& state, const CompiledRun& plan, bool done, MetricsWriter& metrics,
             TraceFile& trace) {
    const bool trains = options_.command == Command::kTrain;
    Ending ending;
    ending.updates = ending.total = total_updates(options_, *plan.train_sampler);
    if (!trains) {
      OFSDP_RETURN_IF_ERROR(evaluate(state, metrics));
    } else if (!done) {
      OFSDP_ASSIGN_OR_RETURN(ending, train(state, metrics));
    }
    if (!done && state.trace() != nullptr) {
      OFSDP_RETURN_IF_ERROR(trace.write(*state.trace(), plan.shards, communicator_));
    }
    if (trains && writes_trained(settings().options)) {
      OFSDP_RETURN_IF_ERROR(write_trained(state, communicator_, settings().options.files.output,
                                          trained_state(settings(), ending.updates)));
      OFSDP_RETURN_IF_ERROR(renew_folder(state, ending.updates));
      if (communicator_.rank() == 0) OFSDP_RETURN_IF_ERROR(renew_adapter());
    }
    if (communicator_.rank() == 0) {
      if (trains) OFSDP_RETURN_IF_ERROR(write_inference());
      OFSDP_RETURN_IF_ERROR(draw_pictures(metrics));
      if (trains) stopped_by_ == 0 ? print_closing(state, done) : print_stopped(ending);
      OFSDP_RETURN_IF_ERROR(report_folder());
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
    Status trained = trainer.run();
    OFSDP_RETURN_IF_ERROR(
        about_positions(std::move(trained), state.executor().refused(), run_->setup().data));
    closing_ = trainer.closing();
    if (trainer.evaluated() != nullptr) evaluated_ = *trainer.evaluated();
    stopped_by_ = trainer.stopped_by();
    const bool made_any = trainer.updates() > settings().start.update;
    return Ending{.updates = trainer.updates(),
                  .total = trainer.total(),
                  .saved = checkpoints != nullptr && made_any};
  }

  Status evaluate(RankState& state, MetricsWriter& metrics) {
    Progress progress(evaluation_progress());
    const Sampler& sampler = *state.plan().eval_sampler;
    Evaluator evaluator(state, communicator_, sampler, AtNan::kEnds);
    Result<EvalRow> made =
        evaluator.run(settings().start.update, settings().start.epoch, &progress);
    if (!made.ok()) {
      return about_positions(std::move(made).status(), state.executor().refused(),
                             run_->setup().data);
    }
    const EvalRow row = *std::move(made);
    if (communicator_.rank() != 0) return {};
    progress.eval(row);
    warn_of_undefined(evaluator, row);
    warn_of_not_finite(evaluator, row);
    if (options_.json) {
      print_lines(stdout, evaluation_json(options_.model, row, sampler.options().samples));
    }
    return metrics.eval(row);
  }

  // The run as other tools name it, for --log.
  LoggedRun logged_run() const {
    LoggedRun run{.name = name(),
                  .settings = flat_settings(settings().configuration),
                  .checkpoints = options_.checkpoint.dir};
    if (run_->checkpoint() != nullptr) run.resumed = parent_folder(run_->checkpoint()->folder());
    return run;
  }

  // The folder's name, or the model's.
  std::string name() const {
    if (!options_.folder.path.empty()) return base_filename(options_.folder.path);
    const std::string file = base_filename(options_.model);
    return file.substr(0, file.rfind(".onnx"));
  }

  RunReport report_facts() const {
    RunReport report{
        .title = name(),
        .model = options_.model,
        .state = closing_.stopped ? format_text("stopped at update {}", closing_.step) : "",
        .command = own_command(),
        .configuration = settings().configuration,
        .files = written_files(/*resumed=*/false)};
    if (!run_->plan().warning.empty()) report.warnings.push_back(run_->plan().warning);
    return report;
  }

  // --plot and --report, also if a signal has stopped the run.
  Status draw_pictures(const MetricsWriter& metrics) const {
    const RunCurves* const curves = metrics.curves();
    if (curves == nullptr) return {};
    if (options_.pictures.plot && !options_.json) show(loss_plot(*curves, stdout_plot()), true);
    if (options_.pictures.report.empty()) return {};
    return write_run_report(options_.pictures.report, report_facts(), *curves);
  }

  // The page in the run's folder.
  Status report_folder() const {
    if (options_.folder.path.empty() || options_.command != Command::kTrain) return {};
    RunReport known = report_facts();
    known.command.clear();  // command.txt has that of the first start
    known.warnings.clear();
    return write_run_report(options_.folder.path, std::move(known), options_.files.metrics);
  }

  // The line of the evaluation is the result, so --quiet prints it.
  ProgressOptions evaluation_progress() const {
    OutputOptions files = options_.files;
    files.quiet = options_.json || communicator_.rank() != 0;
    ProgressOptions progress = stdout_progress(files, 0, 0);
    if (options_.files.quiet) progress.terminal = progress.colours = false;
    return progress;
  }

  // A folder also has the form that is deployed, if it differs.
  Status write_inference() {
    const Options& options = settings().options;
    const bool other = options.folder.keeps_model && is_file(options.files.output) &&
                       options.output_form == OutputForm::kSame &&
                       inference_form_differs(run_->setup());
    if (!other) return {};
    inference_ = join_path(options.folder.path, kInferenceModel);
    return write_inference_form(options.files.output, inference_);
  }

  // A run that `resume` continues with another --output must not leave its old model in its folder.
  Status renew_folder(RankState& state, int64_t updates) const {
    const RunFolderOptions& folder = options_.folder;
    const bool elsewhere = !folder.taken.empty() && !options_.files.output.empty();
    if (!elsewhere || folder.keeps_model) return {};
    const std::string place =
        join_path(folder.taken, context_.origin.artifacts.empty() ? "model.onnx" : "model");
    const bool there = !is_absent(place);
    OFSDP_ASSIGN_OR_RETURN(const std::string path,
                           text_of_rank0(communicator_, there ? place : std::string()));
    if (path.empty()) return {};
    TrainedState trained = trained_state(settings(), updates);
    trained.inference = false;
    OFSDP_RETURN_IF_ERROR(write_trained(state, communicator_, path, trained));
    const std::string deployed = join_path(folder.taken, kInferenceModel);
    if (communicator_.rank() != 0 || !is_file(deployed)) return {};
    return write_inference_form(path, deployed);
  }

  // The same for the adapter of a model that it cannot be merged into. Rank 0.
  Status renew_adapter() const {
    const std::string written = adapter_file_in(settings().options.edit.adapter);
    const std::string old = join_path(options_.folder.taken, kRunAdapter);
    std::error_code error;
    const bool stale = !options_.folder.taken.empty() && !written.empty() && is_file(old) &&
                       !std::filesystem::equivalent(written, old, error);
    if (!stale) return {};
    if (!written.ends_with(".safetensors")) return remove_all(old);
    return write_whole(old, [&](const std::string& temporary) -> Status {
      std::filesystem::copy_file(written, temporary,
                                 std::filesystem::copy_options::overwrite_existing, error);
      OFSDP_FAULT_IF(error, "{}: cannot be copied to {}: {}", written, old, error.message());
      return {};
    });
  }

  // The files that the run has written. `resumed`: as print_closing's.
  std::vector<WrittenFile> written_files(bool resumed) const {
    std::vector<WrittenFile> files = trained_files(settings().options);
    if (!inference_.empty()) files.push_back({inference_, "inference form"});
    if (!resumed) std::ranges::copy(record_files(options_), std::back_inserter(files));
    return files;
  }

  // The trained file so far, and on stderr how to go on.
  void print_stopped(const Ending& ending) const {
    std::vector<WrittenFile> files = trained_files(settings().options);
    for (WrittenFile& file : files) file.what = "so far";
    if (options_.json) {
      print_lines(stdout, training_json(options_.model, closing_, written_files(false)));
    }
    show(written_text(files), !options_.json);
    const std::string line =
        stopped_line(*texts_, settings().options, ending.updates, ending.total, ending.saved);
    print_lines(stderr, line);
    if (folder_ != nullptr) folder_->log(escaped_lines(line));
  }

  // `resumed`: a finished run that only writes the output again.
  void print_closing(const RankState& state, bool resumed) const {
    const std::vector<WrittenFile> files = written_files(resumed);
    const std::string written = written_text(by_folder(files, options_));
    if (options_.json) print_lines(stdout, training_json(options_.model, closing_, files));
    if (options_.files.quiet && !options_.json) {
      show(quiet_text(closing_) + written, true);
    } else {
      const std::string closing = resumed ? "" : closing_text(closing_);
      show(folded_lines(closing, terminal_columns()) + written);
    }
    print_answer(state);
  }

  // Says how the written model answers; training artifacts, a folder, are left out. A warning
  // comes whether the text is shown or not.
  void print_answer(const RankState& state) const {
    const std::string& path = settings().options.files.output;
    if (!is_file(path)) return;
    const FileAnswer answer =
        compare_with_file(state, settings(), &evaluated_, {path, options_.output_form, inference_});
    show(answer.text);
    if (answer.warning.empty()) return;
    print_lines(stderr, format_text("fsdp-run: warning: {}\n", answer.warning));
  }

  const RunSettings& settings() const { return run_->settings(); }

  const RunContext& context_;
  const Options& options_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
  const std::function<void(const Status&)>& on_failure_;
  const StopSignal* signal_ = nullptr;
  RunFolder* folder_ = nullptr;
  const RunTexts* texts_ = nullptr;
  std::unique_ptr<PreparedRun> run_;
  ClosingFacts closing_;      // rank 0, after training
  EvaluatedBatch evaluated_;  // this rank's, in the last evaluation
  int stopped_by_ = 0;        // the signal; 0: none
  std::string inference_;     // the written inference form; empty: none
};

}  // namespace

Result<int> run_session(const RunContext& context, const RunTexts& texts,
                        const std::function<void(const Status&)>& on_failure) {
  return Session(context, on_failure).run(context, texts);
}

}  // namespace ofsdp::runtime
