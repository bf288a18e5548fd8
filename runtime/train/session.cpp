#include "runtime/train/session.h"

#include <algorithm>
#include <cstdio>

#include "kernels/base/escaped.h"
#include "runtime/log/log_target.h"
#include "runtime/report/explain.h"
#include "runtime/report/orthogonal_table.h"
#include "runtime/report/plan_report.h"
#include "runtime/state/trained_writer.h"
#include "runtime/train/run_lines.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {
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
    const RunPlan& plan = run_->plan();
    if (options_.command == Command::kPlan) return report_plan(setup, plan);
    OFSDP_RETURN_IF_ERROR(run_->check_executable());
    print_opening(setup, plan, texts);
    return execute(setup, plan);
  }

 private:
  // A finished run that is resumed only writes its output.
  bool finished(const RunPlan& plan) const {
    return run_->checkpoint() != nullptr &&
           settings().start.update >= total_updates(options_, *plan.train_sampler);
  }

  PlannedRun planned(const ModelSetup& setup, const RunPlan& plan) const {
    return {setup, plan, settings(), communicator_, run_->device_notice()};
  }

  void warn(const RunPlan& plan) const {
    if (plan.warning.empty()) return;
    print_lines(stderr, format_text("fsdp-run: warning: {}\n", escaped(plan.warning)));
  }

  void print_opening(const ModelSetup& setup, const RunPlan& plan, const RunTexts& texts) const {
    if (communicator_.rank() != 0) return;
    warn(plan);
    const PlannedRun run = planned(setup, plan);
    const OpeningFacts facts = opening_facts(run, texts.settings);
    print_lines(stdout, options_.files.verbose
                            ? opening_tables(run) + "\nunits\n" + text(plan.plan) +
                                  "\nmemory of this rank, bytes\n" + text(plan.memory) +
                                  orthogonal_table(plan) + "\n" + ranks_line(facts)
                            : opening_text(facts));
    std::fflush(stdout);
  }

  // Rank 0 measures and prints; no other has anything to do.
  Status report_plan(const ModelSetup& setup, const RunPlan& plan) const {
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

  Status execute(const ModelSetup& setup, const RunPlan& plan) {
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
        std::ranges::copy(watched_columns(watched_units(plan.plan)), std::back_inserter(names));
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

  Status use(RankState& state, const ModelSetup& setup, const RunPlan& plan, bool done,
             MetricsWriter& metrics, TraceFile& trace) {
    bool stopped = options_.command == Command::kEval;  // which writes no output
    int64_t updates = total_updates(options_, *plan.train_sampler);
    if (stopped) {
      OFSDP_RETURN_IF_ERROR(evaluate(state, metrics));
    } else if (!done) {
      OFSDP_ASSIGN_OR_RETURN(stopped, train(state, metrics, updates));
    }
    if (!done && state.trace() != nullptr) {
      OFSDP_RETURN_IF_ERROR(trace.write(*state.trace(), plan.plan, communicator_));
    }
    if (stopped) return {};
    if (writes_trained(options_)) {
      OFSDP_RETURN_IF_ERROR(write_trained(state, communicator_, options_.files.output,
                                          trained_state(settings(), updates)));
    }
    if (communicator_.rank() == 0) print_closing(setup.graph, done);
    return {};
  }

  // True when a signal has ended it early, with a checkpoint. `updates`: how many were made.
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
    return trainer.stopped();
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

  // `resumed`: a finished run, which only writes its output again.
  void print_closing(const Graph& graph, bool resumed) const {
    std::string text = resumed ? "" : closing_text(closing_);
    std::vector<WrittenFile> files;
    const auto add = [&files](const std::string& path, const char* what) {
      if (!path.empty()) files.push_back({escaped(path), what});
    };
    add(options_.edit.adapter, "adapter");
    add(options_.files.output, "");
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
    if (!options_.files.output.empty() && active > 0) {
      text +=
          format_text("its {} Dropout nodes keep the training_mode of the input file\n", active);
    }
    print_lines(stdout, text);
    std::fflush(stdout);
  }

  const RunSettings& settings() const { return run_->settings(); }

  const Options& options_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
  const std::function<void(const Status&)>& on_failure_;
  std::unique_ptr<PreparedRun> run_;
  ClosingFacts closing_;  // of rank 0, after training
};

}  // namespace

Status run_session(const RunContext& context, const RunTexts& texts,
                   const std::function<void(const Status&)>& on_failure) {
  return Session(context, on_failure).run(context, texts);
}

}  // namespace ofsdp::runtime
