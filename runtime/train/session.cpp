#include "runtime/train/session.h"

#include <algorithm>
#include <cstdio>

#include "importer/passes/decoder_past.h"
#include "kernels/base/escaped.h"
#include "kernels/cpu/parallel.h"
#include "runtime/log/log_target.h"
#include "runtime/report/explain.h"
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

  Status run(const RunContext& context, const std::string& configuration) {
    OFSDP_ASSIGN_OR_RETURN(run_, PreparedRun::make(context, configuration));
    const ModelSetup& setup = run_->setup();
    const RunPlan& plan = run_->plan();
    if (options_.command == Command::kPlan) return report_plan(setup, plan);
    OFSDP_RETURN_IF_ERROR(run_->check_executable());
    print_plan(setup, plan);
    return execute(setup, plan);
  }

 private:
  // A finished run that is resumed only writes its output.
  bool finished(const RunPlan& plan) const {
    return run_->checkpoint() != nullptr &&
           settings().start.update >= total_updates(options_, *plan.train_sampler);
  }

  void print_plan(const ModelSetup& setup, const RunPlan& plan) const {
    if (communicator_.rank() != 0) return;
    if (!plan.warning.empty()) {
      print_lines(stderr, format_text("fsdp-run: warning: {}\n", escaped(plan.warning)));
    }
    const auto print = [](const std::string& text) { print_lines(stdout, text); };
    if (options_.command != Command::kPlan) print(settings().configuration);
    print(trained_table(setup.graph));
    print(past_line(setup.fed_empty));
    if (!plan.plan.notice.empty()) print(plan.plan.notice + "\n");
    const char* mean =
        options_.loss.mean == LossMean::kGlobal ? "the mean" : "the ranks' mean of means";
    print(setup.count.by_label
              ? format_text("loss: {} over the labels of '{}'\n", mean, escaped(setup.count.labels))
              : format_text("loss: {} over samples\n", mean));
    print(fused_line(plan));
    if (!run_->device_notice().empty()) print(run_->device_notice() + "\n");
    print(offload_line(plan, settings()));
    print(dtypes_lines(options_, plan.device != nullptr));
    print(slices_line(settings().batch));
    print(plan.choice);
    if (options_.command == Command::kPlan && !options_.report.world &&
        options_.report.topology.empty()) {
      const std::string lack = memory_lack(plan, communicator_, machine_memory());
      if (!lack.empty()) print("a run would be refused: " + lack + "\n");
    }
    if (options_.command != Command::kPlan) {
      print(format_text("{}, {} rank{}, {} thread{} each, {} units, {} bytes a rank\n",
                        strategy_name(plan.plan.strategy), communicator_.size(),
                        communicator_.size() == 1 ? "" : "s", pool_threads(),
                        pool_threads() == 1 ? "" : "s", plan.plan.units.size(),
                        plan.memory.planned_bytes()));
    }
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
    print_plan(setup, plan);
    print_lines(stdout, "\n" + text(report));
    if (options_.report.explain) print_lines(stdout, "\n" + explain(plan));
    return {};
  }

  Status check_log_targets() const {
    const OutputOptions& files = options_.files;
    OFSDP_RETURN_IF_ERROR(check_log_target("--metrics", files.metrics, options_.model));
    for (const std::string& log : files.log) {
      const std::string path = log.substr(log.find(':') + 1);
      if (log.starts_with("csv:"))
        OFSDP_RETURN_IF_ERROR(check_log_target("--log", path, options_.model));
    }
    return check_log_target("--trace", files.trace, options_.model);
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
    if (stopped || !writes_trained(options_)) return {};
    OFSDP_RETURN_IF_ERROR(write_trained(state, communicator_, options_.files.output,
                                        trained_state(settings(), updates)));
    if (communicator_.rank() == 0) print_output(setup.graph);
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
    return trainer.stopped();
  }

  Status evaluate(RankState& state, MetricsWriter& metrics) {
    Evaluator evaluator(state, communicator_, *state.plan().eval_sampler);
    OFSDP_ASSIGN_OR_RETURN(const EvalRow row,
                           evaluator.run(settings().start.update, settings().start.epoch));
    if (communicator_.rank() != 0) return {};
    Progress(stdout_progress(options_.files.log_interval, 0, 0)).eval(row);
    return metrics.eval(row);
  }

  void print_output(const Graph& graph) const {
    if (!options_.edit.adapter.empty()) {
      print_lines(stdout, format_text("wrote {}\n", options_.edit.adapter));
    }
    if (options_.files.output.empty()) return;
    int active = 0;
    for (const Node& node : graph.nodes) {
      active += node.op->full_name() == "Dropout" && !node.name.ends_with(".lora_dropout");
    }
    print_lines(stdout, format_text("wrote {}\n", options_.files.output));
    if (active > 0) {
      print_lines(
          stdout,
          format_text("its {} Dropout nodes keep the training_mode of the input file\n", active));
    }
    std::fflush(stdout);
  }

  const RunSettings& settings() const { return run_->settings(); }

  const Options& options_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
  const std::function<void(const Status&)>& on_failure_;
  std::unique_ptr<PreparedRun> run_;
};

}  // namespace

Status run_session(const RunContext& context, const std::string& configuration,
                   const std::function<void(const Status&)>& on_failure) {
  return Session(context, on_failure).run(context, configuration);
}

}  // namespace ofsdp::runtime
