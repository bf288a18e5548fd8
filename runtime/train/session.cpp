#include "runtime/train/session.h"

#include <array>
#include <cstdio>

#include "importer/passes/decoder_past.h"
#include "kernels/base/escaped.h"
#include "kernels/base/reject.h"
#include "kernels/cpu/parallel.h"
#include "runtime/log/log_target.h"
#include "runtime/plan/agreement.h"
#include "runtime/plan/device_choice.h"
#include "runtime/plan/predict/plan_choice.h"
#include "runtime/report/explain.h"
#include "runtime/report/plan_report.h"
#include "runtime/state/resume.h"
#include "runtime/state/trained_writer.h"
#include "runtime/train/run_lines.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {
namespace {

class Session {
 public:
  Session(const Options& options, const Registry& registry,
          const std::vector<OptimizerDef>& optimizers, Communicator& communicator,
          MemoryLedger& ledger, const std::function<void(const Status&)>& on_failure)
      : options_(options),
        registry_(registry),
        communicator_(communicator),
        optimizers_(optimizers),
        ledger_(ledger),
        on_failure_(on_failure) {}

  Status run(ModelOrigin origin, const std::string& configuration) {
    if (communicator_.size() > kMostRanks) {
      return input_error("{} ranks: at most {} are supported", communicator_.size(), kMostRanks);
    }
    OFSDP_ASSIGN_OR_RETURN(origin.weights, weights_to_start_from(options_));
    OFSDP_ASSIGN_OR_RETURN(const ModelSetup setup,
                           ModelSetup::make(options_, origin, registry_, communicator_, ledger_));
    settings_ = resolve_settings(options_, origin, setup, configuration);
    OFSDP_RETURN_IF_ERROR(check_before_planning(setup));
    OFSDP_RETURN_IF_ERROR(open_checkpoints(origin));
    settings_.start = resume_point(checkpoint_.get());
    OFSDP_ASSIGN_OR_RETURN(chosen_, choose_device(options_, communicator_));
    OFSDP_ASSIGN_OR_RETURN(const auto plan, plan_for_device(setup));
    if (checkpoint_ != nullptr) {
      OFSDP_RETURN_IF_ERROR(check_resumable(checkpoint_->manifest(), *plan, setup)
                                .with_prefix("--resume: " + checkpoint_->folder()));
    }
    if (options_.command == Command::kPlan) return report_plan(setup, *plan);
    const std::string lack = memory_lack(*plan, communicator_, machine_memory());
    OFSDP_REJECT_IF(!lack.empty(), "{}; `fsdp-run plan` with --memory-limit says what would fit",
                    lack);
    print_plan(setup, *plan);
    OFSDP_RETURN_IF_ERROR(agree(*plan));
    return execute(setup, *plan);
  }

 private:
  // With --device auto a model that has no plan on the GPU is the CPU's.
  Result<std::unique_ptr<RunPlan>> plan_for_device(const ModelSetup& setup) {
    auto plan = choose_plan(settings_, setup, communicator_, optimizers_, chosen_.device.get());
    if (plan.ok() || chosen_.device == nullptr || options_.launch.device == DeviceChoice::kCuda) {
      return plan;
    }
    chosen_ = {nullptr, "device: the CPU, since " + plan.error().message()};
    return choose_plan(settings_, setup, communicator_, optimizers_);
  }

  // Checks what would otherwise fail only after hours of training.
  Status check_before_planning(const ModelSetup& setup) const {
    if (options_.command == Command::kEval && !setup.data.eval) {
      return input_error("eval: the data have no evaluation part; name one with --eval-data");
    }
    if (options_.checkpoint.keep_best != KeepBest::kNone && !setup.data.eval) {
      return input_error(
          "--keep-best: the data have no evaluation part; name one with --eval-data");
    }
    if (!options_.files.output.empty()) OFSDP_RETURN_IF_ERROR(check_output(setup));
    if (!setup.count.by_label) return {};
    const LabelRange range{setup.count.classes, setup.count.ignore_index};
    if (setup.data.train) {
      OFSDP_RETURN_IF_ERROR(setup.data.train->check_labels(setup.count.labels, range));
    }
    return setup.data.eval ? setup.data.eval->check_labels(setup.count.labels, range) : Status{};
  }

  Status check_output(const ModelSetup& setup) const {
    const std::string& path = options_.files.output;
    return setup.source->check_output(path, trained_state(settings_, 0));
  }

  // Rank 0 takes the folder for this run; all find the checkpoint to go on from.
  Status open_checkpoints(const ModelOrigin& origin) {
    if (options_.command == Command::kPlan) return {};
    const CheckpointOptions& c = options_.checkpoint;
    warn_of_no_folder();
    if (options_.command == Command::kTrain && !c.dir.empty() && communicator_.rank() == 0) {
      OFSDP_ASSIGN_OR_RETURN(CheckpointStore store,
                             CheckpointStore::open(c.dir, {c.keep, c.keep_best}));
      OFSDP_REJECT_IF(c.resume.empty() && !c.overwrite && !store.newest().empty(),
                      "--checkpoint-dir {}: has checkpoints of another run ({}): expected --resume "
                      "latest, --overwrite-checkpoints on or another folder",
                      c.dir, store.newest());
      store_ = std::make_unique<CheckpointStore>(std::move(store));
    }
    if (!origin.weights.empty()) return {};
    OFSDP_ASSIGN_OR_RETURN(checkpoint_, find_checkpoint(options_, communicator_, store_.get()));
    return {};
  }

  void warn_of_no_folder() const {
    const CheckpointOptions& c = options_.checkpoint;
    const CheckpointOptions plain;
    const bool said = !(c.interval == plain.interval) || c.keep != plain.keep ||
                      c.keep_best != plain.keep_best || c.type != plain.type || c.sync;
    if (!c.dir.empty() || !said || communicator_.rank() != 0) return;
    print_lines(stderr,
                "fsdp-run: warning: without --checkpoint-dir nothing is saved, so the other "
                "options about checkpoints have no effect\n");
  }

  // A finished run that is resumed only writes its output.
  bool finished(const RunPlan& plan) const {
    return checkpoint_ != nullptr &&
           settings_.start.update >= total_updates(options_, *plan.train_sampler);
  }

  void print_plan(const ModelSetup& setup, const RunPlan& plan) const {
    if (communicator_.rank() != 0) return;
    const auto print = [](const std::string& text) { print_lines(stdout, text); };
    if (options_.command != Command::kPlan) print(settings_.configuration);
    print(trained_table(setup.graph));
    print(past_line(setup.fed_empty));
    if (!plan.plan.notice.empty()) print(plan.plan.notice + "\n");
    const char* mean =
        options_.loss.mean == LossMean::kGlobal ? "the mean" : "the ranks' mean of means";
    print(setup.count.by_label
              ? format_text("loss: {} over the labels of '{}'\n", mean, escaped(setup.count.labels))
              : format_text("loss: {} over samples\n", mean));
    print(fused_line(plan));
    if (!chosen_.notice.empty()) print(chosen_.notice + "\n");
    print(offload_line(plan, settings_));
    print(dtypes_lines(options_, plan.device != nullptr));
    print(slices_line(settings_.batch));
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
    OFSDP_ASSIGN_OR_RETURN(const PlanReport report, make_report(plan, settings_));
    if (!options_.report.html.empty()) {
      OFSDP_RETURN_IF_ERROR(write_page(options_.report.html, page(report, settings_)));
    }
    if (options_.json) {
      print_lines(stdout, escaped_json(to_json(report, settings_)) + "\n");
      return {};
    }
    print_plan(setup, plan);
    print_lines(stdout, "\n" + text(report));
    if (options_.report.explain) print_lines(stdout, "\n" + explain(plan));
    return {};
  }

  // All ranks must have compiled the same order of collectives.
  Status agree(const RunPlan& plan) {
    const uint64_t hash = plan.hash;
    const std::array<double, 2> mine{static_cast<double>(hash >> 32),
                                     static_cast<double>(hash & 0xffffffffu)};
    std::vector<double> all(2 * static_cast<size_t>(communicator_.size()));
    OFSDP_RETURN_IF_ERROR(communicator_.exchange(mine, all, {"schedule exchange", -1, 0}));
    for (size_t r = 0; r < all.size() / 2; ++r) {
      if (all[2 * r] == mine[0] && all[2 * r + 1] == mine[1]) continue;
      return first_difference(plan, communicator_);
    }
    return {};
  }

  Status check_log_targets() const {
    const OutputOptions& files = options_.files;
    OFSDP_RETURN_IF_ERROR(check_log_target("--metrics", files.metrics, options_.model));
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
      const bool resumed = options_.command == Command::kTrain && checkpoint_ != nullptr;
      OFSDP_ASSIGN_OR_RETURN(
          metrics,
          MetricsWriter::open(options_.files.metrics, resumed ? Mode::kAppend : Mode::kTruncate));
    }
    const ExecutorOptions executor{.seed = options_.run.seed,
                                   .clip_norm = options_.optimizer.clip_grad_norm.value_or(0),
                                   .scale_loss = options_.sharding.param_dtype == DType::kFloat16,
                                   .steps_done = settings_.optimizer_steps,
                                   .buffer_dtype = options_.sharding.buffer_dtype,
                                   .graphs = options_.launch.cuda_graph,
                                   .timeout_seconds = options_.launch.timeout_seconds};
    OFSDP_ASSIGN_OR_RETURN(const auto state, RankState::make(plan, setup, communicator_, ledger_,
                                                             executor, checkpoint_.get()));
    Status status = use(*state, setup, plan, done, metrics, trace);
    if (!status.ok()) on_failure_(status);
    return status;
  }

  Status use(RankState& state, const ModelSetup& setup, const RunPlan& plan, bool done,
             MetricsWriter& metrics, TraceFile& trace) {
    bool stopped = options_.command == Command::kEval;  // which writes no output
    if (stopped) {
      OFSDP_RETURN_IF_ERROR(evaluate(state, metrics));
    } else if (!done) {
      OFSDP_ASSIGN_OR_RETURN(stopped, train(state, metrics));
    }
    if (!done && state.trace() != nullptr) {
      OFSDP_RETURN_IF_ERROR(trace.write(*state.trace(), plan.plan, communicator_));
    }
    if (stopped || options_.files.output.empty()) return {};
    const int64_t updates = total_updates(options_, *plan.train_sampler);
    OFSDP_RETURN_IF_ERROR(write_trained(state, communicator_, options_.files.output,
                                        trained_state(settings_, updates)));
    if (communicator_.rank() == 0) print_output(setup.graph);
    return {};
  }

  // True when a signal has ended it early, with a checkpoint.
  Result<bool> train(RankState& state, MetricsWriter& metrics) {
    std::unique_ptr<Checkpointing> checkpoints;
    if (!options_.checkpoint.dir.empty()) {
      OFSDP_ASSIGN_OR_RETURN(checkpoints,
                             Checkpointing::make(settings_, state, communicator_, store_.get()));
    }
    Trainer trainer(settings_, state, communicator_, ledger_, metrics, checkpoints.get());
    OFSDP_RETURN_IF_ERROR(trainer.run());
    return trainer.stopped();
  }

  Status evaluate(RankState& state, MetricsWriter& metrics) {
    OFSDP_ASSIGN_OR_RETURN(
        const EvalRow row,
        Evaluator(state, communicator_).run(settings_.start.update, settings_.start.epoch));
    if (communicator_.rank() != 0) return {};
    Progress(stdout_progress(options_.files.log_interval, 0, 0)).eval(row);
    return metrics.eval(row);
  }

  void print_output(const Graph& graph) const {
    int active = 0;
    for (const Node& node : graph.nodes) active += node.op->full_name() == "Dropout";
    print_lines(stdout, format_text("wrote {}\n", options_.files.output));
    if (active > 0) {
      print_lines(
          stdout,
          format_text("its {} Dropout nodes keep the training_mode of the input file\n", active));
    }
    std::fflush(stdout);
  }

  const Options& options_;
  const Registry& registry_;
  Communicator& communicator_;
  const std::vector<OptimizerDef>& optimizers_;
  MemoryLedger& ledger_;
  const std::function<void(const Status&)>& on_failure_;
  RunSettings settings_;
  ChosenDevice chosen_;
  std::unique_ptr<CheckpointStore> store_;        // rank 0, of a run that saves
  std::unique_ptr<CheckpointReader> checkpoint_;  // that the run goes on from
};

}  // namespace

Status run_session(const Options& options, const ModelOrigin& origin,
                   const std::string& configuration, const Registry& registry,
                   const std::vector<OptimizerDef>& optimizers, Communicator& communicator,
                   MemoryLedger& ledger, const std::function<void(const Status&)>& on_failure) {
  return Session(options, registry, optimizers, communicator, ledger, on_failure)
      .run(origin, configuration);
}

}  // namespace ofsdp::runtime
