#include "runtime/plan/run_plan.h"

#include <algorithm>

#include "importer/graph/verify.h"
#include "importer/pipeline.h"
#include "kernels/base/hash.h"
#include "kernels/base/reject.h"
#include "runtime/data/loader.h"
#include "runtime/engine/optimizer_step.h"
#include "runtime/engine/watch.h"
#include "runtime/log/trace.h"
#include "runtime/plan/run_optimizer.h"
#include "runtime/plan/saved_slices.h"
#include "runtime/program/device_memory.h"
#include "runtime/program/lower.h"

namespace ofsdp::runtime {

namespace {

// A graph with a fixed batch axis cannot take a short last batch.
Status check_fixed_batch(const Graph& graph, const RunPlan& plan) {
  const int64_t fixed = fixed_batch(graph);
  if (fixed < 0) return {};
  auto check = [&](const Sampler& sampler, const char* what) -> Status {
    for (int64_t size : sampler.micro_batch_sizes_of_all_ranks()) {
      if (size == 0 || size == fixed) continue;
      return input_error(
          "{}: {} samples in batches of {} leave one of {}, but the batch axis of {} is fixed "
          "at {} (--drop-last leaves it out)",
          what, sampler.options().samples, fixed, size, graph.file, fixed);
    }
    return {};
  };
  OFSDP_RETURN_IF_ERROR(check(*plan.train_sampler, "training data"));
  return plan.eval_sampler ? check(*plan.eval_sampler, "evaluation data") : Status{};
}

class RunPlanner {
 public:
  RunPlanner(const RunSettings& settings, const ModelSetup& setup, const Communicator& communicator,
             const std::vector<OptimizerDef>& optimizers, std::shared_ptr<KernelCache> kernels)
      : settings_(settings),
        options_(settings.options),
        setup_(setup),
        communicator_(communicator),
        optimizers_(optimizers),
        run_(std::make_unique<RunPlan>()) {
    run_->kernels = kernels != nullptr ? std::move(kernels) : std::make_shared<KernelCache>();
    run_->device = run_->kernels->device();
  }

  Result<std::unique_ptr<RunPlan>> make() {
    OFSDP_RETURN_IF_ERROR(choose_optimizer(settings_, setup_, optimizers_, *run_));
    OFSDP_RETURN_IF_ERROR(check_shard_size());
    OFSDP_RETURN_IF_ERROR(check_across_ranks());
    OFSDP_RETURN_IF_ERROR(make_samplers());
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup_.training_graph(settings_.batch.batch_size));
    OFSDP_ASSIGN_OR_RETURN(run_->plan, make_plan(graph, plan_options()));
    if (run_->keeps_gradients) {
      OFSDP_ASSIGN_OR_RETURN(
          run_->orthogonal,
          plan_orthogonal(run_->updates, run_->plan, *setup_.graph.registry, *run_->kernels));
    }
    OFSDP_RETURN_IF_ERROR(plan_evaluation_metrics());
    OFSDP_RETURN_IF_ERROR(plan_device_rules(setup_, communicator_.rank(), *run_));
    OFSDP_RETURN_IF_ERROR(choose_recomputation(max_recomputation(segments(graph, run_->plan))));
    return std::move(run_);
  }

 private:
  Status make_samplers() {
    const RunOptions& run = options_.run;
    const BatchSizes& batch = settings_.batch;
    const DataSetup& data = setup_.data;
    OFSDP_ASSIGN_OR_RETURN(
        run_->train_sampler,
        Sampler::make({.samples = has_an_end() ? data.train->samples() : kEndless,
                       .seed = run.seed,
                       .shuffle = run.shuffle,
                       .drop_last = run.drop_last,
                       .batch_size = batch.batch_size,
                       .grad_accum = batch.grad_accum,
                       .ranks = communicator_.size(),
                       .rank = communicator_.rank(),
                       .start = settings_.start,
                       .slices = batch.slices,
                       .sliced_samples = batch.global_batch_size}));
    if (data.eval) {
      // Rows of a group meet on one rank where no number of ranks may change them.
      const bool alone = batch.slices > 0 && options_.loss.kind == LossKind::kContrastive;
      OFSDP_ASSIGN_OR_RETURN(
          run_->eval_sampler,
          Sampler::make_evaluation(evaluation_samples(), batch.batch_size, communicator_.size(),
                                   communicator_.rank(), alone));
    }
    return check_fixed_batch(setup_.graph, *run_);
  }

  // A caller's rows are each rank's own.
  int64_t evaluation_samples() const {
    if (settings_.given) return settings_.given->eval_rows * communicator_.size();
    return setup_.data.eval->samples();
  }

  bool has_an_end() const { return setup_.data.train != nullptr && !settings_.given; }

  // Before the update: to clip, or to see that float16 gradients are finite.
  bool needs_norm() const {
    return options_.optimizer.clip_grad_norm.has_value() ||
           options_.sharding.param_dtype == DType::kFloat16;
  }

  PlanOptions plan_options() const {
    const ShardingOptions& s = options_.sharding;
    return {.strategy = s.strategy,
            .wrap = s.wrap,
            .min_params = s.min_params,
            .bucket_mb = s.bucket_mb,
            .world = communicator_.size(),
            .wrap_layers = s.wrap_layers,
            .ignore = s.ignore,
            .shard_size = static_cast<int>(shard_size()),
            .param_dtype = s.param_dtype,
            .reduce_dtype = s.reduce_dtype,
            .across_ranks = settings_.batch.slices > 0,
            .wide_slots = sums_in_slots(),
            .updates_round = run_->device != nullptr && s.cpu_offload == CpuOffload::kNone,
            .offload = run_->device != nullptr ? s.cpu_offload : CpuOffload::kNone,
            .common_ranks = run_->device == nullptr ? communicator_.ranks_in_common() : 1,
            .alignment = run_->updates.alignment()};
  }

  // Ranks on devices sum in the type of the slot; one of fewer bits is right only where the sum is
  // to be rounded to it anyway.
  bool sums_in_slots() const {
    const ShardingOptions& s = options_.sharding;
    const bool narrow = s.param_dtype != DType::kFloat32 && s.param_dtype != s.reduce_dtype;
    return run_->device != nullptr && communicator_.size() > 1 && narrow;
  }

  int64_t shard_size() const {
    return options_.sharding.shard_size.value_or(communicator_.ranks_on_each_host());
  }

  Status check_shard_size() const {
    if (!is_hybrid(options_.sharding.strategy)) return {};
    const int64_t size = shard_size();
    if (size == 0) {
      return input_error(
          "--strategy {}: expected --shard-size, or as many ranks on every host, host by host",
          strategy_name(options_.sharding.strategy));
    }
    if (communicator_.size() % size == 0) return {};
    return input_error("--shard-size {}: must divide the number of ranks, which is {}", size,
                       communicator_.size());
  }

  // Several hosts add partial sums, whose number depends on the hosts.
  Status check_across_ranks() const {
    const bool one_host = communicator_.ranks_in_common() == communicator_.size();
    if (settings_.batch.slices == 0 || one_host) return {};
    return input_error("--deterministic across_ranks: all ranks must share one host, found '{}'",
                       communicator_.name());
  }

  // They are checked also where nothing is evaluated.
  Status plan_evaluation_metrics() {
    const auto& metrics = options_.run.eval_metrics;
    const bool measured = !measures_of(metrics).empty();
    if (!run_->eval_sampler && !measured) return {};
    OFSDP_REJECT_IF(measured && run_->device != nullptr,
                    "--eval-metrics {}: has no CUDA kernel; --device cpu has them",
                    measures_of(metrics)[0].metrics);
    const int64_t batch = settings_.batch.batch_size;
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup_.evaluation_graph(batch));
    const int64_t samples = run_->eval_sampler ? run_->eval_sampler->options().samples : 0;
    OFSDP_ASSIGN_OR_RETURN(run_->metrics,
                           plan_metrics(metrics, graph, batch, samples, communicator_.size()));
    return {};
  }

  bool watches() const { return options_.files.watch > 0 && options_.command != Command::kEval; }

  Status check_channels() const {
    const size_t units = run_->plan.units.size();
    const size_t others = size_t{Channels::kOfAll} + run_->memory.joins.size();
    const size_t most = static_cast<size_t>(kMaxChannels) - std::min<size_t>(others, kMaxChannels);
    if (Channels::kOfUnit * units <= most) return {};
    return input_error("{} units: at most {} are supported; a larger --min-params makes fewer",
                       units, most / Channels::kOfUnit);
  }

  Status plan_programs(int recompute_level) {
    run_->recompute_level = recompute_level;
    run_->programs.clear();
    run_->kept = {};
    run_->hash = 0;
    OFSDP_RETURN_IF_ERROR(plan_training());
    OFSDP_RETURN_IF_ERROR(plan_evaluation());
    plan_bytes();
    return check_channels();
  }

  // `auto`: the lowest level that fits.
  Status choose_recomputation(int most) {
    const Recompute how = options_.sharding.activation_checkpointing;
    if (how != Recompute::kAuto) return plan_programs(how == Recompute::kNone ? 0 : most);
    int low = 0, high = most;
    while (low < high) {
      const int middle = (low + high) / 2;
      OFSDP_RETURN_IF_ERROR(plan_programs(middle));
      if (run_->memory.fits(options_.sharding.memory_limit)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return plan_programs(low);
  }

  // Runs the last passes, which ask for kernels and units of this run.
  Status finish_graph(Graph& graph, bool training) const {
    PassContext c;
    c.settings = &setup_.source->settings();
    c.mode = training ? Mode::kTrain : Mode::kEval;
    c.device = run_->device != nullptr;
    c.takes = [this](const Graph& g, const Node& node) {
      return run_->kernels->get(*node.op, problem_of(g, node)).ok();
    };
    if (run_->recompute_level > 0) {
      c.recompute = [this](const Graph& g) {
        const auto parts = segments(g, run_->plan);
        return recompute(g, parts, recompute_choice(parts, run_->recompute_level));
      };
    }
    OFSDP_RETURN_IF_ERROR(run_passes(graph, c, {PassStage::kProgram}));
    return verify(graph, "last");
  }

  Status add_program(const ProgramKey& key) {
    if (run_->programs.contains(key)) return {};
    OFSDP_ASSIGN_OR_RETURN(Graph graph, key.training ? setup_.training_graph(key.batch)
                                                     : setup_.evaluation_graph(key.batch));
    OFSDP_RETURN_IF_ERROR(finish_graph(graph, key.training));
    const ShardingOptions& s = options_.sharding;
    const CompileOptions compile_options{
        .training = key.training,
        .first_micro = key.first_micro,
        .last_micro = key.last_micro,
        .clip = key.training && needs_norm(),
        .forward_prefetch = s.forward_prefetch,
        .backward_prefetch = s.backward_prefetch,
        .prefetch_depth = static_cast<int>(s.prefetch_depth.value_or(1)),
        .parameter_norms = key.training && run_->parameter_norms,
        .matrices = key.training ? matrix_steps() : std::vector<MatrixSteps>(),
        .watch = key.training && watches()};
    OFSDP_ASSIGN_OR_RETURN(ProgramPlan program, plan_program(std::move(graph), run_->plan,
                                                             compile_options, *run_->kernels));
    run_->programs.emplace(key, std::move(program));
    return {};
  }

  // The full batch is planned on every rank, whatever sizes it gets: ranks compare its collectives.
  std::vector<int64_t> sizes_of(const Sampler& sampler, bool training) const {
    std::vector<int64_t> sizes = sampler.micro_batch_sizes();
    if (settings_.given) sizes = training ? settings_.given->train : settings_.given->eval;
    sizes.push_back(settings_.batch.batch_size);
    std::erase(sizes, 0);
    return sizes;
  }

  std::vector<MatrixSteps> matrix_steps() const {
    std::vector<MatrixSteps> steps;
    if (!run_->keeps_gradients) return steps;
    for (const Unit& unit : run_->plan.units) {
      const OrthogonalUnit& orthogonal = run_->orthogonal[static_cast<size_t>(unit.id)];
      steps.push_back({.factors = factor_sums(run_->updates, unit) > 0,
                       .orthogonalizes = !orthogonal.empty(),
                       .work_bytes = work_bytes(orthogonal)});
    }
    return steps;
  }

  // Ranks divide sums evenly.
  std::vector<MatrixRoom> matrix_rooms() const {
    std::vector<MatrixRoom> rooms;
    if (!run_->keeps_gradients) return rooms;
    const int64_t even = kParamAlignment * run_->plan.world;
    for (const Unit& unit : run_->plan.units) {
      MatrixRoom& room = rooms.emplace_back();
      room.sums = (factor_sums(run_->updates, unit) + even - 1) / even * even;
      const bool gathers = run_->plan.across_ranks && unit.plan.shards > 1 && room.sums > 0;
      const bool deals =
          run_->plan.world > 1 && !run_->orthogonal[static_cast<size_t>(unit.id)].empty();
      if (gathers || deals) room.gathered = unit.padded_numel;
    }
    return rooms;
  }

  Status plan_training() {
    const int64_t accum = settings_.batch.grad_accum;
    for (const int64_t size : sizes_of(*run_->train_sampler, true)) {
      OFSDP_RETURN_IF_ERROR(add_program({size, true, true, accum == 1}));
      if (accum > 2) OFSDP_RETURN_IF_ERROR(add_program({size, true, false, false}));
      if (accum > 1) OFSDP_RETURN_IF_ERROR(add_program({size, true, false, true}));
    }
    const ProgramPlan& reference =
        run_->programs.at({settings_.batch.batch_size, true, accum == 1, true});
    run_->slots = plan_gradient_slots(run_->plan, reference.schedule);
    return {};
  }

  Status plan_evaluation() {
    if (!run_->eval_sampler) return {};
    for (const int64_t size : sizes_of(*run_->eval_sampler, false)) {
      OFSDP_RETURN_IF_ERROR(add_program({size, false, true, true}));
    }
    return {};
  }

  void plan_bytes() {
    RankMemoryNeeds needs;
    needs.states = state_numels(run_->updates, run_->plan);
    needs.forms = run_->updates.forms;
    needs.accumulate = settings_.batch.grad_accum > 1;
    needs.keep = needs_norm() || run_->keeps_gradients;
    needs.matrices = matrix_rooms();
    for (const MatrixRoom& room : needs.matrices) needs.share = needs.share || room.gathered > 0;
    needs.prefetch_depth = static_cast<int>(options_.sharding.prefetch_depth.value_or(1));
    for (auto& [key, program] : run_->programs) {
      needs.arena = std::max(needs.arena, program.memory.arena_bytes);
      run_->kept.add(program, run_->plan);
      if (key.batch == settings_.batch.batch_size) {
        run_->hash = collective_hash(program.schedule, run_->plan, run_->hash);
      }
    }
    std::vector<const Graph*> graphs;
    for (const auto& [key, program] : run_->programs) graphs.push_back(&program.graph);
    needs.joins = plan_join_slots(graphs);
    if (needs.joins.bytes > 0) run_->hash = Fnv1a(run_->hash).add(needs.joins.bytes).value();
    needs.kept = run_->kept.bytes() + kTensorAlignment;  // and the loss weights
    const int64_t batch = settings_.batch.batch_size;
    needs.staging =
        align_up(Loader::staging_bytes(setup_.data.train_rows(), batch), kTensorAlignment);
    if (setup_.data.eval) needs.staging += Loader::staging_bytes(*setup_.data.eval, batch);
    size_t unpacked = 0;  // by the first rank of each host, for its ranks
    if (setup_.data.train) unpacked += setup_.data.train->shared_bytes();
    if (setup_.data.eval) unpacked += setup_.data.eval->shared_bytes();
    needs.data = communicator_.is_first_on_host() ? unpacked : 0;
    if (run_->device == nullptr) needs.link = communicator_.staging_bytes();
    needs.data_elsewhere = unpacked - needs.data;
    const bool saves = options_.command != Command::kEval && !options_.checkpoint.dir.empty();
    if (saves) {
      const auto slices =
          saved_slices(*run_, setup_.graph, communicator_.rank(), options_.checkpoint.type);
      needs.checkpoint = decoding_bytes(slices);
      if (!options_.checkpoint.sync) needs.checkpoint += staged_bytes(slices);
    }
    if (!options_.files.trace.empty()) needs.trace = kTraceBytes;
    if (run_->eval_sampler) needs.metrics = run_->metrics.bytes();
    run_->watch_interval = watches() ? options_.files.watch : 0;
    if (watches()) needs.watch = NormHistory::bytes(watched_units(run_->plan).size());
    if (watches()) needs.watch_slot = Watch::slot_bytes(run_->plan);
    if (run_->device != nullptr) {
      run_->device_io = plan_io();
      needs.device_io = run_->device_io.device_bytes;
      needs.pinned_io = run_->device_io.pinned_bytes;
    }
    run_->memory = plan_rank_memory(run_->plan, run_->slots, needs);
  }

  DeviceIoPlan plan_io() const {
    size_t most = 0;
    for (const auto& [key, program] : run_->programs) {
      size_t inputs = 0;
      for (ValueId id : program.graph.inputs) {
        inputs += align_up(program.graph.value(id).desc.bytes(), kTensorAlignment);
      }
      most = std::max(most, inputs);
    }
    int64_t owned = 0;
    for (const Unit& unit : run_->plan.units) owned = std::max(owned, run_->plan.owned_numel(unit));
    DeviceNormsPlan norms;
    const bool steps = run_->parameter_norms || run_->keeps_gradients;
    if (steps && options_.sharding.cpu_offload == CpuOffload::kNone) {
      norms = plan_device_norms(run_->plan);
    }
    for (const ParameterUpdate& update : run_->updates.parameters) {
      if (update.factored) norms.matrices += update.shape.matrices;
    }
    DeviceIoPlan io = plan_device_io(most, settings_.batch.batch_size, owned, norms);
    if (run_->device_rules) run_->device_rules->add_to(io);
    if (run_->plan.across_ranks) add_slices(io, run_->plan);
    return io;
  }

  const RunSettings& settings_;
  const Options& options_;
  const ModelSetup& setup_;
  const Communicator& communicator_;
  const std::vector<OptimizerDef>& optimizers_;
  std::unique_ptr<RunPlan> run_;
};

}  // namespace

RunSettings resolve_settings(const Options& options, const ModelOrigin& origin,
                             const ModelSetup& setup, const std::string& configuration) {
  return {.options = options,
          .batch = setup.batch,
          .start = {},
          .configuration = configuration,
          .transformers_adamw = origin.transformers_adamw,
          .bias_correction = origin.bias_correction,
          .optimizer_steps = setup.source->steps_done(),
          .evaluated = {},
          .given = {}};
}

TrainedState trained_state(const RunSettings& settings, int64_t updates) {
  const OptimizerOptions& o = settings.options.optimizer;
  return {.step = settings.optimizer_steps + updates,
          .learning_rate = static_cast<float>(o.lr),
          .states = o.kind == OptimizerKind::kSgd ? size_t{1} : size_t{2}};
}

bool falls_due(const Interval& interval, const Sampler& sampler, int64_t step) {
  if (interval.unit == StepUnit::kStep) return step % interval.count == 0;
  return sampler.ends_epochs(step, interval.count);
}

Result<std::unique_ptr<RunPlan>> RunPlan::make(const RunSettings& settings, const ModelSetup& setup,
                                               const Communicator& communicator,
                                               const std::vector<OptimizerDef>& optimizers,
                                               std::shared_ptr<KernelCache> kernels) {
  return RunPlanner(settings, setup, communicator, optimizers, std::move(kernels)).make();
}

LoweringContext lowering(const RunPlan& plan, int rank) {
  return {plan.plan, rank, plan.memory, plan.slots, plan.kept, plan.device != nullptr};
}

bool is_carried(const RunPlan& plan, int parameter) {
  for (const auto& [key, program] : plan.programs) {
    for (const Carried& c : program.graph.carried) {
      if (c.parameter == parameter) return true;
    }
  }
  return false;
}

std::vector<const KeptPlan::Entry*> carried_entries(const RunPlan& plan) {
  std::vector<const KeptPlan::Entry*> list;
  for (const KeptPlan::Entry& entry : plan.kept.entries()) {
    if (entry.parameter >= 0 && is_carried(plan, entry.parameter)) list.push_back(&entry);
  }
  return list;
}

std::string fused_line(const RunPlan& run) {
  std::string out;
  for (const auto& [rule, count] : run.programs.rbegin()->second.graph.fused) {
    out += format_text("{}{} {}", out.empty() ? "fused: " : ", ", rule, count);
  }
  return out.empty() ? out : out + "\n";
}

}  // namespace ofsdp::runtime
