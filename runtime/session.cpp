#include "runtime/session.h"

#include <array>
#include <cstdio>

#include "importer/output_files.h"
#include "kernels/cpu/parallel.h"
#include "runtime/plan_choice.h"
#include "runtime/trainer.h"

namespace ofsdp {
namespace {

class Session {
 public:
  Session(Options options, const Registry& registry, Communicator& communicator,
          MemoryLedger& ledger)
      : options_(std::move(options)),
        registry_(registry),
        communicator_(communicator),
        optimizers_(optimizer_list()),
        ledger_(ledger) {}

  Status run() {
    if (communicator_.size() > kMostRanks) {
      return input_error("{} ranks: at most {} are supported", communicator_.size(), kMostRanks);
    }
    OFSDP_ASSIGN_OR_RETURN(const ModelSetup setup,
                           ModelSetup::make(options_, registry_, communicator_, ledger_));
    OFSDP_RETURN_IF_ERROR(check_before_planning(setup));
    OFSDP_ASSIGN_OR_RETURN(const auto plan,
                           choose_plan(options_, setup, communicator_, optimizers_));
    print_plan(setup, *plan);
    if (options_.command == Command::kPlan) return {};
    OFSDP_RETURN_IF_ERROR(agree(plan->hash));
    return execute(setup, *plan);
  }

 private:
  // What would otherwise be found only after hours of training.
  Status check_before_planning(const ModelSetup& setup) const {
    if (options_.command == Command::kEval && !setup.data.eval) {
      return input_error("eval: the data have no evaluation part; name one with --eval-data");
    }
    if (!options_.files.output.empty()) {
      OFSDP_RETURN_IF_ERROR(check_output_path(options_.files.output, setup.file));
    }
    if (!setup.count.by_label) return {};
    const LabelRange range{setup.count.classes, setup.count.ignore_index};
    if (setup.data.train) {
      OFSDP_RETURN_IF_ERROR(setup.data.train->check_labels(setup.count.labels, range));
    }
    return setup.data.eval ? setup.data.eval->check_labels(setup.count.labels, range) : Status{};
  }

  void print_plan(const ModelSetup& setup, const RunPlan& plan) const {
    if (communicator_.rank() != 0) return;
    const auto print = [](const std::string& text) { std::fputs(text.c_str(), stdout); };
    print(trained_table(setup.graph));
    if (!plan.plan.notice.empty()) print(plan.plan.notice + "\n");
    print(setup.count.by_label
              ? fmt::format("loss: the mean over the labels of '{}'\n", setup.count.labels)
              : std::string("loss: the mean over samples\n"));
    print(fused_line(plan));
    print(dtypes_line());
    if (options_.command == Command::kPlan) {
      print("\n" + text(plan));
    } else {
      print(fmt::format("{}, {} rank{}, {} thread{} each, {} units, {} bytes a rank\n",
                        strategy_name(plan.plan.strategy), communicator_.size(),
                        communicator_.size() == 1 ? "" : "s", pool_threads(),
                        pool_threads() == 1 ? "" : "s", plan.plan.units.size(),
                        plan.memory.planned_bytes()));
    }
    std::fflush(stdout);
  }

  std::string dtypes_line() const {
    const ShardingOptions& s = options_.sharding;
    return fmt::format(
        "parameters and computation {}, reduction {}, buffers {}; masters, optimizer state, loss "
        "float32{}\n",
        dtype_name(s.param_dtype), dtype_name(s.reduce_dtype), dtype_name(s.buffer_dtype),
        s.param_dtype == DType::kFloat16 ? "; dynamic loss scale" : "");
  }

  // All ranks must have compiled the same order of collectives.
  Status agree(uint64_t hash) {
    const std::array<double, 2> mine{static_cast<double>(hash >> 32),
                                     static_cast<double>(hash & 0xffffffffu)};
    std::vector<double> all(2 * static_cast<size_t>(communicator_.size()));
    OFSDP_RETURN_IF_ERROR(communicator_.exchange(mine, all, {"schedule exchange", -1, 0}));
    for (size_t r = 0; r < all.size() / 2; ++r) {
      if (all[2 * r] == mine[0] && all[2 * r + 1] == mine[1]) continue;
      return fault(
          "ranks {} and {} have compiled different schedules; are options and files the same?",
          communicator_.rank(), r);
    }
    return {};
  }

  Status execute(const ModelSetup& setup, const RunPlan& plan) {
    MetricsWriter metrics;
    if (communicator_.rank() == 0) {
      OFSDP_ASSIGN_OR_RETURN(
          metrics, MetricsWriter::open(options_.files.metrics, MetricsWriter::Mode::kTruncate));
    }
    const ShardingOptions& sharding = options_.sharding;
    const ExecutorOptions executor{options_.run.seed, options_.optimizer.clip_grad_norm.value_or(0),
                                   sharding.param_dtype == DType::kFloat16, sharding.buffer_dtype};
    OFSDP_ASSIGN_OR_RETURN(const auto state,
                           RunState::make(plan, setup, communicator_, ledger_, executor));
    if (options_.command == Command::kEval) return evaluate(setup, plan, *state, metrics);
    {
      Trainer trainer(options_, plan, setup, *state, communicator_, ledger_, metrics);
      OFSDP_RETURN_IF_ERROR(trainer.run());
    }
    if (options_.files.output.empty()) return {};
    OFSDP_RETURN_IF_ERROR(state->write_output(options_.files.output));
    if (communicator_.rank() == 0) print_output(setup.graph);
    return {};
  }

  Status evaluate(const ModelSetup& setup, const RunPlan& plan, RunState& state,
                  MetricsWriter& metrics) {
    Evaluator evaluator(plan, setup, state, communicator_);
    OFSDP_ASSIGN_OR_RETURN(const EvalRow row, evaluator.run(0, 0));
    if (communicator_.rank() != 0) return {};
    Progress(stdout_progress(options_.files.log_interval, 0, 0)).eval(row);
    return metrics.eval(row);
  }

  void print_output(const Graph& graph) const {
    int active = 0;
    for (const Node& node : graph.nodes) active += node.op->full_name() == "Dropout";
    std::printf("wrote %s\n", options_.files.output.c_str());
    if (active > 0) {
      std::printf("its %d Dropout nodes keep the training_mode of the input file\n", active);
    }
    std::fflush(stdout);
  }

  Options options_;
  const Registry& registry_;
  Communicator& communicator_;
  std::vector<OptimizerDef> optimizers_;
  MemoryLedger& ledger_;
};

}  // namespace

Status run_session(Options options, const Registry& registry, Communicator& communicator,
                   MemoryLedger& ledger) {
  return Session(std::move(options), registry, communicator, ledger).run();
}

}  // namespace ofsdp
