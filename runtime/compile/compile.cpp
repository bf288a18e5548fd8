// compile_candidate. RunCompiler makes one plan: RunSettings (options, batch sizes), the model and
// one strategy give a CompiledRun. compile() lists the stages in order: optimizer, checks,
// samplers, units and shards, metrics, then programs and memory, which are made again for each
// recomputation level that is tried. choice.cpp decides which plans are made.
//
// A plan has one step program per ProgramKey: each micro-batch size, training or evaluation, and
// for training the first and last micro-batch of an update. A step program is a graph, its kernels,
// the schedule of steps and the arena (memory for activations).
//
// All ranks run this code with the same settings and reach the same decisions without asking each
// other; only the prediction is exchanged. CompiledRun::hash lets the ranks verify afterwards that
// their programs agree. The caller owns the result; candidates share one KernelCache.
#include "runtime/compile/compile.h"

#include <algorithm>

#include "importer/graph/verify.h"
#include "importer/pipeline.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "runtime/compile/program/lower.h"
#include "runtime/compile/saved_slices.h"
#include "runtime/data/loader.h"
#include "runtime/engine/memory.h"
#include "runtime/engine/watch.h"
#include "runtime/log/trace.h"

namespace ofsdp::runtime {

namespace {

size_t wide_bytes(const Graph& graph, ValueId id) {
  return align_up(graph.value(id).desc.bytes(), kTensorAlignment);
}

// Returns kInput if a short last batch meets a graph with a fixed batch axis. --drop-last is for
// training data alone: an evaluation takes all rows. fsdp-run eval has them in both samplers.
Status check_fixed_batch(const Graph& graph, const CompiledRun& plan, Command command) {
  const int64_t fixed = fixed_batch(graph);
  if (fixed < 0) return {};
  auto check = [&](const Sampler& sampler, const char* what, const char* remedy) -> Status {
    for (int64_t size : sampler.micro_batch_sizes_of_all_ranks()) {
      if (size == 0 || size == fixed) continue;
      return input_error(
          "{}: {} samples in batches of {} leave one of {}, but the batch axis of {} is fixed "
          "at {} ({}--free-batch takes any batch)",
          what, sampler.options().samples, fixed, size, graph.file, fixed, remedy);
    }
    return {};
  };
  if (command != Command::kEval) {
    OFSDP_RETURN_IF_ERROR(
        check(*plan.train_sampler, "training data", "--drop-last leaves it out, "));
  }
  return plan.eval_sampler ? check(*plan.eval_sampler, "evaluation data", "") : Status{};
}

// Makes the plan of one run with a fixed strategy. `run_` collects the result; compile() moves it
// out, so an object serves once.
class RunCompiler {
 public:
  RunCompiler(const RunSettings& settings, const CandidateParts& parts)
      : settings_(settings),
        options_(settings.options),
        setup_(parts.setup),
        communicator_(parts.communicator),
        optimizers_(parts.optimizers),
        run_(std::make_unique<CompiledRun>()) {
    run_->kernels = parts.kernels;
    run_->device = run_->kernels->device();
  }

  Result<std::unique_ptr<CompiledRun>> compile() {
    OFSDP_RETURN_IF_ERROR(choose_optimizer(settings_, setup_, optimizers_, *run_));
    OFSDP_RETURN_IF_ERROR(check_shard_size());
    OFSDP_RETURN_IF_ERROR(check_shard_weights());
    OFSDP_RETURN_IF_ERROR(check_across_ranks());
    OFSDP_ASSIGN_OR_RETURN(parts_, batch_parts(settings_.batch, communicator_.size()));
    rows_ = parts_.empty() ? settings_.batch.batch_size : std::ranges::max(parts_);
    OFSDP_RETURN_IF_ERROR(make_samplers());
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup_.training_graph(rows_));
    OFSDP_ASSIGN_OR_RETURN(run_->shards, make_plan(graph, plan_options()));
    if (run_->keeps_gradients) {
      OFSDP_ASSIGN_OR_RETURN(
          run_->orthogonal,
          plan_orthogonal(run_->updates, run_->shards, *setup_.graph.registry, *run_->kernels));
    }
    OFSDP_RETURN_IF_ERROR(plan_evaluation_metrics());
    OFSDP_RETURN_IF_ERROR(plan_device_rules(setup_, communicator_.rank(), *run_));
    OFSDP_RETURN_IF_ERROR(choose_recomputation(max_recomputation(segments(graph, run_->shards))));
    return std::move(run_);
  }

 private:
  Status make_samplers() {
    const RunOptions& run = options_.run;
    const BatchSizes& batch = settings_.batch;
    const DataSetup& data = setup_.data;
    SamplerOptions sampled{run};
    sampled.samples = is_finite() ? data.train_rows().samples() : kEndless;
    sampled.batch_size = rows_;
    sampled.parts = parts_;
    sampled.grad_accum = batch.grad_accum;
    sampled.ranks = communicator_.size();
    sampled.rank = communicator_.rank();
    sampled.start = settings_.start;
    if (data.train && setup_.cuts) sampled.order = setup_.cuts->order;
    sampled.slices = batch.slices;
    sampled.sliced_samples = batch.global_batch_size;
    OFSDP_ASSIGN_OR_RETURN(run_->train_sampler, Sampler::make(sampled));
    if (data.eval) {
      // --deterministic across_ranks: the result must not depend on the rank count. A loss that
      // compares rows with each other (joins_rows) sees the rows of one batch of all ranks, so rank
      // 0 evaluates all batches.
      const bool on_rank0 = batch.slices > 0 && loss_traits(options_.losses[0].kind).joins_rows;
      OFSDP_ASSIGN_OR_RETURN(
          run_->eval_sampler,
          Sampler::make_evaluation(evaluation_samples(), rows_, communicator_.size(),
                                   communicator_.rank(), on_rank0, parts_));
    }
    return check_fixed_batch(setup_.graph, *run_, options_.command);
  }

  // With a data set: the samples in it. If the caller of the library brings the batches, `given`
  // says how many rows one rank gets, and every rank gets as many.
  int64_t evaluation_samples() const {
    if (settings_.given) return settings_.given->eval_rows * communicator_.size();
    return setup_.data.eval_rows().samples();
  }

  bool is_finite() const { return setup_.data.train != nullptr && !settings_.given; }

  // Returns true if an update must wait for the norm of all gradients: to clip by it, or, with
  // float16, to skip the update if it is not finite.
  bool needs_norm() const {
    return options_.optimizer.clip_grad_norm.has_value() ||
           options_.sharding.param_dtype == DType::kFloat16;
  }

  // The fields that follow from the machine and not from flags; plan.h explains each.
  PlanOptions plan_options() const {
    const bool on_device = run_->device != nullptr;
    PlanOptions options = options_.sharding;
    options.updates_round = on_device && options.cpu_offload == CpuOffload::kNone;
    if (!on_device) options.cpu_offload = CpuOffload::kNone;
    options.shard_size = shard_size();
    options.shard_weights.of_ranks.resize(
        std::min(options.shard_weights.of_ranks.size(), static_cast<size_t>(sharing_ranks())));
    options.world = communicator_.size();
    options.across_ranks = settings_.batch.slices > 0;
    options.wide_slots = sums_in_slots();
    options.divides_root = on_device && options.world > 1;
    options.common_ranks = on_device ? 1 : communicator_.ranks_in_common();
    options.alignment = run_->updates.alignment();
    return options;
  }

  // Returns true if gradient slots (where gradients wait for the reduction) must be float32.
  // Usually a slot has the dtype of the parameters. A device's reduction sums in the slot's dtype,
  // so a 16-bit slot is right only if 16 bits of the same kind are also the reduction's dtype.
  bool sums_in_slots() const {
    const ShardingOptions& s = options_.sharding;
    const bool narrow = s.param_dtype != DType::kFloat32 && s.param_dtype != s.reduce_dtype;
    return run_->device != nullptr && communicator_.size() > 1 && narrow;
  }

  // Returns the ranks per shard group of a hybrid strategy: --shard-size, or the ranks per host; 0
  // if hosts have different rank counts.
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

  // Returns how many ranks share a copy of a unit.
  int64_t sharing_ranks() const {
    return is_hybrid(options_.sharding.strategy) ? shard_size() : communicator_.size();
  }

  // A hybrid strategy takes one weight for each rank of a group, or one for each rank, as long as
  // all groups have the same.
  Status check_shard_weights() const {
    const std::vector<double>& weights = options_.sharding.shard_weights.of_ranks;
    if (weights.empty()) return {};
    const auto each = static_cast<size_t>(sharing_ranks());
    const auto all = static_cast<size_t>(communicator_.size());
    OFSDP_REJECT_IF(weights.size() != each && weights.size() != all,
                    "--shard-weights: expected {} weights, one for each rank{}, found {}", each,
                    each < all ? " that shares a copy" : "", weights.size());
    for (size_t i = each; i < weights.size(); ++i) {
      OFSDP_REJECT_IF(weights[i] != weights[i % each],
                      "--shard-weights: expected the same weights in each group of {} ranks that "
                      "share a copy, found {} for rank {} and {} for rank {}",
                      each, weights[i % each], i % each, weights[i], i);
    }
    if (options_.sharding.strategy == Strategy::kNoShard) return {};
    OFSDP_REJECT_IF(run_->device != nullptr,
                    "--shard-weights: --device cuda does not have it; --device cpu does");
    for (const Parameter& p : setup_.graph.parameters) OFSDP_RETURN_IF_ERROR(check_weighted(p));
    return {};
  }

  // Sums over a whole parameter would be rounded otherwise with other parts.
  Status check_weighted(const Parameter& p) const {
    if (!p.trained) return {};
    const auto index = static_cast<int>(&p - setup_.graph.parameters.data());
    const OptimizerDef& optimizer = run_->updates.optimizer_of(index);
    const bool sums = optimizer.needs_norms() || run_->updates.of(index).factored;
    OFSDP_REJECT_IF(sums,
                    "--shard-weights: --optimizer {} adds numbers of whole parameters over ranks; "
                    "expected one that does not, such as adamw",
                    optimizer.name);
    return {};
  }

  // Several hosts add partial sums, so the result would depend on the number of hosts.
  Status check_across_ranks() const {
    const bool one_host = communicator_.ranks_in_common() == communicator_.size();
    if (settings_.batch.slices == 0 || one_host) return {};
    return input_error("--deterministic across_ranks: all ranks must share one host, found '{}'",
                       communicator_.name());
  }

  // Lays out the memory of --eval-metrics. Also runs without evaluation data, so that a wrong
  // --eval-metrics is an error in any case.
  Status plan_evaluation_metrics() {
    const auto& metrics = options_.run.eval_metrics;
    const bool measured = !measures_of(metrics).empty();
    if (!run_->eval_sampler && !measured) return {};
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup_.evaluation_graph(rows_));
    const int64_t samples = run_->eval_sampler ? run_->eval_sampler->most_in_epoch() : 0;
    OFSDP_ASSIGN_OR_RETURN(run_->metrics,
                           lay_out_metrics(metrics, graph, rows_, samples, communicator_.size()));
    return {};
  }

  bool watches() const { return options_.files.watch > 0 && options_.command != Command::kEval; }

  // A channel carries one collective at a time (program/lower.h): kOfUnit channels per unit, kOfAll
  // for all units, and one per node that joins the ranks' rows.
  Status check_channels() const {
    const size_t units = run_->shards.units.size();
    const size_t others = size_t{Channels::kOfAll} + run_->memory.joins.size();
    const size_t most = static_cast<size_t>(kMaxChannels) - std::min<size_t>(others, kMaxChannels);
    if (Channels::kOfUnit * units <= most) return {};
    return input_error("{} units: at most {} are supported; a larger --min-params makes fewer",
                       units, most / Channels::kOfUnit);
  }

  // Makes all programs and the memory map with this recomputation level (plan.h). May be called
  // again with another level, which replaces the result.
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

  // --activation-checkpointing: level 0 recomputes no activations, `most` recomputes all. `auto`
  // finds by bisection the lowest level that fits --memory-limit; `most` if none fits.
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

  // Runs the graph passes that depend on kernels (a fused node needs a kernel that takes it) and on
  // units (recomputation works per unit).
  Status finish_graph(Graph& graph, bool training) const {
    PassContext c;
    c.settings = &setup_.source->settings();
    c.mode = training ? Mode::kTrain : Mode::kEval;
    c.device = run_->device != nullptr;
    c.wide_gradients = training && writes_wide_gradients();
    c.takes = [this](const Graph& g, const Node& node) {
      return run_->kernels->get(*node.op, problem_of(g, node)).ok();
    };
    if (run_->recompute_level > 0) {
      c.recompute = [this](const Graph& g) {
        const auto parts = segments(g, run_->shards);
        return recompute(g, parts, recompute_choice(parts, run_->recompute_level));
      };
    }
    OFSDP_RETURN_IF_ERROR(run_passes(graph, c, {PassStage::kProgram}));
    return verify(graph, "last");
  }

  // Returns true if nodes may write gradients as slots hold them, in float32: not if gradients stay
  // whole and are added from one micro-batch to the next in the compute dtype, and not under
  // across_ranks, since a rank alone rounds them to that dtype.
  bool writes_wide_gradients() const {
    const Plan& plan = run_->shards;
    const bool reduces = std::ranges::all_of(plan.units, [](const Unit& unit) {
      return unit.params.empty() || unit.plan.shards_gradients;
    });
    return plan.wide_slots && !plan.across_ranks && (reduces || settings_.batch.grad_accum == 1);
  }

  // Compiles the program of `key` unless the plan has it.
  Status add_program(const ProgramKey& key) {
    if (run_->programs.contains(key)) return {};
    OFSDP_ASSIGN_OR_RETURN(Graph graph, key.training ? setup_.training_graph(key.batch, key.length)
                                                     : setup_.evaluation_graph(key.batch));
    OFSDP_RETURN_IF_ERROR(finish_graph(graph, key.training));
    const CompileOptions compile_options{
        .prefetch = options_.sharding,
        .training = key.training,
        .first_micro = key.first_micro,
        .last_micro = key.last_micro,
        .clip = key.training && needs_norm(),
        .parameter_norms = key.training && run_->parameter_norms,
        .matrices = key.training ? matrix_steps() : std::vector<MatrixSteps>(),
        .watch = key.training && watches(),
        .on_device = run_->device != nullptr};
    OFSDP_ASSIGN_OR_RETURN(StepProgram program, compile_program(std::move(graph), run_->shards,
                                                                compile_options, *run_->kernels));
    run_->programs.emplace(key, std::move(program));
    return {};
  }

  // Returns the micro-batch sizes of this rank, and the full batch even if this rank never runs it
  // (that of the rank with the most samples): ranks compare their full-batch programs by
  // CompiledRun::hash, and all plan the same memory.
  std::vector<int64_t> sizes_of(const Sampler& sampler, bool training) const {
    std::vector<int64_t> sizes = sampler.micro_batch_sizes();
    if (settings_.given) sizes = training ? settings_.given->train : settings_.given->eval;
    sizes.push_back(rows_);
    std::erase(sizes, 0);
    return sizes;
  }

  // Returns per unit which steps an optimizer of matrices adds (Adafactor: factors; Muon:
  // orthogonalizes); empty if no optimizer keeps gradients until the step.
  std::vector<MatrixSteps> matrix_steps() const {
    std::vector<MatrixSteps> steps;
    if (!run_->keeps_gradients) return steps;
    for (const Unit& unit : run_->shards.units) {
      const OrthogonalUnit& orthogonal = run_->orthogonal[static_cast<size_t>(unit.id)];
      steps.push_back({.factors = factor_sums(run_->updates, unit) > 0,
                       .orthogonalizes = !orthogonal.empty(),
                       .work_bytes = work_bytes(orthogonal)});
    }
    return steps;
  }

  // Returns per unit the floats that these steps need in memory that peers read: the factors' sums,
  // rounded up so that all ranks reduce equal parts of them, and a whole gradient if a rank needs
  // more than the rank's own shard. That is so if factors are summed in slice order (across_ranks)
  // over a sharded unit, and if Muon's matrices are divided among several ranks.
  std::vector<MatrixRoom> matrix_rooms() const {
    std::vector<MatrixRoom> rooms;
    if (!run_->keeps_gradients) return rooms;
    const int64_t even = kParamAlignment * run_->shards.world;
    for (const Unit& unit : run_->shards.units) {
      MatrixRoom& room = rooms.emplace_back();
      room.sums = (factor_sums(run_->updates, unit) + even - 1) / even * even;
      const bool gathers = run_->shards.across_ranks && unit.plan.shards > 1 && room.sums > 0;
      const bool deals =
          run_->shards.world > 1 && !run_->orthogonal[static_cast<size_t>(unit.id)].empty();
      if (gathers || deals) room.gathered = unit.padded_numel;
    }
    return rooms;
  }

  // Adds the first, middle and last micro-batch of an update, and the gradient slots for all.
  Status plan_training() {
    const int64_t accum = settings_.batch.grad_accum;
    const auto add = [&](int64_t size, int64_t length) -> Status {
      OFSDP_RETURN_IF_ERROR(add_program({size, true, true, accum == 1, length}));
      if (accum > 2) OFSDP_RETURN_IF_ERROR(add_program({size, true, false, false, length}));
      return accum > 1 ? add_program({size, true, false, true, length}) : Status();
    };
    for (const int64_t size : sizes_of(*run_->train_sampler, true)) {
      OFSDP_RETURN_IF_ERROR(add(size, 0));
    }
    for (const RowCuts::Cut& cut : setup_.cuts ? setup_.cuts->cuts : std::vector<RowCuts::Cut>()) {
      OFSDP_RETURN_IF_ERROR(add(rows_, cut.length));
    }
    std::vector<const Schedule*> schedules;
    for (const auto& [key, program] : run_->programs) schedules.push_back(&program.schedule);
    run_->slots = map_gradient_slots(run_->shards, schedules, run_->device != nullptr);
    return {};
  }

  Status plan_evaluation() {
    if (!run_->eval_sampler) return {};
    for (const int64_t size : sizes_of(*run_->eval_sampler, false)) {
      OFSDP_RETURN_IF_ERROR(add_program({size, false, true, true}));
    }
    return {};
  }

  // Collects what each feature needs (bytes unless MemoryNeeds says otherwise), and maps the
  // memory.
  void plan_bytes() {
    MemoryNeeds needs;
    needs.states = state_numels(run_->updates, run_->shards, communicator_.rank());
    needs.forms = run_->updates.forms;
    needs.accumulate = settings_.batch.grad_accum > 1;
    needs.keep = needs_norm() || run_->keeps_gradients;
    needs.matrices = matrix_rooms();
    for (const MatrixRoom& room : needs.matrices) needs.share = needs.share || room.gathered > 0;
    needs.prefetch_depth = options_.sharding.depth();
    for (auto& [key, program] : run_->programs) {
      needs.arena = std::max(needs.arena, program.memory.arena_bytes);
      run_->kept.add(program, run_->shards);
      if (key.batch == rows_) {
        run_->hash = collective_hash(program.schedule, run_->shards, run_->hash);
      }
    }
    std::vector<const Graph*> graphs;
    for (const auto& [key, program] : run_->programs) graphs.push_back(&program.graph);
    needs.joins = map_join_slots(graphs);
    if (needs.joins.bytes > 0) run_->hash = Fnv1a(run_->hash).add(needs.joins.bytes).value();
    for (const Unit& unit : run_->shards.units) {
      for (const int64_t bound : unit.plan.bounds) {
        run_->hash = Fnv1a(run_->hash).add(bound).value();
      }
    }
    // One alignment unit (64 bytes) holds the loss weights: one float per loss, at most 8 losses.
    needs.kept = run_->kept.bytes() + kTensorAlignment;
    needs.staging =
        align_up(Loader::staging_bytes(setup_.data.train_rows(), rows_), kTensorAlignment);
    if (setup_.data.eval) needs.staging += Loader::staging_bytes(setup_.data.eval_rows(), rows_);
    // Bytes of decoded data columns. The first rank on a host decodes them for all ranks on it, and
    // its memory holds them. The other ranks count them in data_elsewhere, so that all ranks
    // compare the same number with --memory-limit.
    size_t unpacked = 0;
    if (setup_.data.train) unpacked += setup_.data.train->shared_bytes();
    if (setup_.data.eval) unpacked += setup_.data.eval->shared_bytes();
    needs.data = communicator_.is_first_on_host() ? unpacked : 0;
    needs.data_elsewhere = unpacked - needs.data;
    for (const Dataset* const rows : {setup_.data.train.get(), setup_.data.eval.get()}) {
      if (rows != nullptr) needs.data += rows->decoding_bytes();
    }
    if (run_->device == nullptr) needs.link = communicator_.staging_bytes();
    needs.checkpoint = checkpoint_bytes(communicator_.rank());
    if (!options_.files.trace.empty()) needs.trace = kTraceBytes;
    if (run_->eval_sampler) needs.metrics = run_->metrics.bytes();
    run_->watch_interval = watches() ? options_.files.watch : 0;
    if (watches()) needs.watch = NormHistory::bytes(watched_units(run_->shards).size());
    if (watches()) needs.watch_slot = Watch::slot_bytes(run_->shards);
    if (run_->device != nullptr) {
      run_->device_io = plan_io();
      needs.device_io = run_->device_io.device_bytes;
      needs.pinned_io = run_->device_io.pinned_bytes;
    }
    run_->memory = map_memory(run_->shards, communicator_.rank(), run_->slots, needs);
    if (run_->shards.weighted()) map_places(needs);
  }

  size_t checkpoint_bytes(int rank) const {
    if (options_.command == Command::kEval || !saves_checkpoints(options_)) return 0;
    const auto slices = saved_slices(*run_, setup_.graph, rank, options_.checkpoint.type);
    return decoding_bytes(slices) + (saves_in_step(options_) ? 0 : staged_bytes(slices));
  }

  // Maps the memory of each rank that shares a copy, as if it were the first on its host.
  void map_places(const MemoryNeeds& needs) {
    MemoryNeeds of_place = needs;
    of_place.data += std::exchange(of_place.data_elsewhere, 0);
    for (int place = 0; place < run_->shards.shard_size; ++place) {
      of_place.states = state_numels(run_->updates, run_->shards, place);
      of_place.checkpoint = checkpoint_bytes(place);
      const MemoryMap map = map_memory(run_->shards, place, run_->slots, of_place);
      run_->memory.of_places.push_back(map.units);
      run_->memory.bytes_of_places.push_back(map.planned_bytes());
    }
  }

  // Maps the device memory for inputs, numbers and results (runtime/engine/device).
  DeviceIoMap plan_io() const {
    size_t inputs = 0, measured = 0;
    for (const auto& [key, program] : run_->programs) {
      size_t columns = 0, rows = 0;
      for (ValueId id : program.graph.inputs) columns += wide_bytes(program.graph, id);
      for (const Measured& m : program.graph.measured) rows += wide_bytes(program.graph, m.rows);
      inputs = std::max(inputs, columns);
      measured = std::max(measured, rows);
    }
    int64_t owned = 0;
    for (const Unit& unit : run_->shards.units)
      owned = std::max(owned, run_->shards.most_owned(unit));
    DeviceNormNeeds norms;
    const bool steps = run_->parameter_norms || run_->keeps_gradients;
    if (steps && options_.sharding.cpu_offload == CpuOffload::kNone) {
      norms = device_norm_needs(run_->shards);
    }
    for (const ParameterUpdate& update : run_->updates.parameters) {
      if (update.factored) norms.matrices += update.shape.matrices;
    }
    DeviceIoMap io = map_device_io(inputs, measured, rows_, owned, norms);
    if (run_->device_rules) run_->device_rules->add_to(io);
    if (run_->shards.across_ranks) add_slices(io, run_->shards);
    return io;
  }

  const RunSettings& settings_;
  const Options& options_;
  const ModelSetup& setup_;
  const Communicator& communicator_;
  const std::vector<OptimizerDef>& optimizers_;
  std::vector<int64_t> parts_;  // --batch-weights: each rank's full batch; empty: all the same
  int64_t rows_ = 0;            // the largest of these
  std::unique_ptr<CompiledRun> run_;
};

}  // namespace

Result<std::unique_ptr<CompiledRun>> compile_candidate(const RunSettings& settings,
                                                       const CandidateParts& parts) {
  return RunCompiler(settings, parts).compile();
}

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

// Only ONNX Runtime's training artifacts record states, and they have only two optimizers: SGD with
// one state (momentum) and AdamW with two (moments).
TrainedState trained_state(const RunSettings& settings, int64_t updates) {
  const OptimizerOptions& o = settings.options.optimizer;
  return {.step = settings.optimizer_steps + updates,
          .learning_rate = static_cast<float>(o.lr),
          .states = o.kind == OptimizerKind::kSgd ? size_t{1} : size_t{2},
          .inference = settings.options.output_form == OutputForm::kInference};
}

bool falls_due(const Interval& interval, const Sampler& sampler, int64_t step) {
  if (interval.unit == StepUnit::kStep) return step % interval.count == 0;
  return sampler.ends_epochs(step, interval.count);
}

LoweringContext lowering(const CompiledRun& plan, int rank) {
  return {plan.shards, rank, plan.memory, plan.slots, plan.kept, plan.device != nullptr};
}

bool is_carried(const CompiledRun& plan, int parameter) {
  for (const auto& [key, program] : plan.programs) {
    for (const Carried& c : program.graph.carried) {
      if (c.parameter == parameter) return true;
    }
  }
  return false;
}

std::vector<const KeptValues::Entry*> carried_entries(const CompiledRun& plan) {
  std::vector<const KeptValues::Entry*> list;
  for (const KeptValues::Entry& entry : plan.kept.entries()) {
    if (entry.parameter >= 0 && is_carried(plan, entry.parameter)) list.push_back(&entry);
  }
  return list;
}

// The last program trains with the largest batch: keys are ordered by batch, then training.
std::string fused_line(const CompiledRun& run) {
  std::string out;
  for (const auto& [rule, count] : run.programs.rbegin()->second.graph.fused) {
    out += format_text("{}{} {}", out.empty() ? "fused: " : ", ", rule, count);
  }
  return out.empty() ? out : out + "\n";
}

}  // namespace ofsdp::runtime
