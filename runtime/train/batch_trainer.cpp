#include "runtime/train/batch_trainer.h"

#include <algorithm>

#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/train/rank_state.h"
#include "runtime/train/setup/run_files.h"

namespace ofsdp::runtime {
namespace {

Status check_options(const Options& options, int ranks) {
  OFSDP_REJECT_IF(
      options.launch.deterministic == Determinism::kAcrossRanks,
      "--deterministic across_ranks: expected on or off, since the caller cuts batches");
  OFSDP_REJECT_IF(ranks > 1 && joins_rows(options),
                  "--sync-batch-norm, --loss contrastive: expected one rank, since callers of "
                  "several bring different rows, found {}",
                  ranks);
  const ScheduleOptions& schedule = options.schedule;
  const bool needs_total = schedule.kind == ScheduleKind::kLinear ||
                           schedule.kind == ScheduleKind::kCosine ||
                           schedule.kind == ScheduleKind::kPolynomial;
  OFSDP_REJECT_IF(needs_total && !schedule.total_steps && !options.run.steps,
                  "--lr-schedule {}: expected --total-steps beside it, since only the caller knows "
                  "when training ends",
                  name_of(schedule.kind));
  return {};
}

}  // namespace

// Everything that depends on one plan, each after its dependencies.
struct BatchTrainer::Live {
  Live(const PreparedRun& run, Communicator& communicator, const MemoryLedger& ledger,
       std::unique_ptr<RankState> ranks_state)
      : plan(run.shared_plan()),
        settings(run.settings()),
        state(std::move(ranks_state)),
        sampler(*plan->train_sampler),
        trainer(settings, *state, communicator, ledger, sampler, metrics),
        eval_sampler(*plan->eval_sampler),
        evaluator(*state, communicator, eval_sampler, AtNan::kGoesOn) {}

  std::shared_ptr<const CompiledRun> plan;
  const RunSettings settings;
  std::unique_ptr<RankState> state;
  Sampler sampler;  // for the present batch
  MetricsWriter metrics;
  Trainer trainer;
  Sampler eval_sampler;  // for the present rows
  Evaluator evaluator;
};

BatchTrainer::BatchTrainer(const RunContext& context)
    : context_(context), options_(context.options) {
  // The calls decide about these, not the options.
  options_.command = Command::kTrain;
  options_.run.epochs.reset();
  options_.run.shuffle = false;
  options_.run.bucket_by.clear();
  options_.run.pack.reset();
  options_.run.eval_data = {};
  options_.batch.global_batch_size = {};
  options_.batch.weights.clear();
  options_.files = {};
  options_.folder = {};
  options_.checkpoint = {};
  options_.checkpoint.resume = context.options.checkpoint.resume;
}

BatchTrainer::~BatchTrainer() = default;

Result<int64_t> BatchTrainer::rows_of(std::span<const ColumnArray> arrays) const {
  OFSDP_REJECT_IF(arrays.empty(), "the batch: expected a column of each graph input, found none");
  const ColumnArray& first = arrays.front();
  OFSDP_REJECT_IF(first.dims.empty() || first.dims[0] < 1,
                  "the batch: '{}': expected a first axis of at least one sample, found {}",
                  first.name, Shape(first.dims).text());
  return first.dims[0];
}

Status BatchTrainer::open(std::span<const ColumnArray> arrays, int64_t rows) {
  OFSDP_RETURN_IF_ERROR(check_options(options_, context_.communicator.size()));
  if (!options_.batch.batch_size.value) {
    const int64_t accum = options_.batch.grad_accum.value.value_or(1);
    options_.batch.batch_size.value = (rows + accum - 1) / accum;
  }
  DataSpec data;
  data.train = column_set(arrays, "the batch");
  data.eval = data.train;
  sizes_.eval_rows = rows;
  const RunContext context{options_,
                           context_.origin,
                           context_.registry,
                           context_.optimizers,
                           context_.communicator,
                           context_.ledger};
  OFSDP_ASSIGN_OR_RETURN(run_, PreparedRun::make(context, data, sizes_));
  steps_ = run_->settings().start.update;
  samples_ = run_->settings().start.sample;
  return {};
}

// Adds the micro-batch sizes that `rows` rows need, and room for the scores that metrics keep.
// Returns true if the plan lacks any.
bool BatchTrainer::add_sizes(int64_t rows, bool training) {
  const int64_t rest = rows % run_->settings().batch.batch_size;
  std::vector<int64_t>& sizes = training ? sizes_.train : sizes_.eval;
  const bool new_size = rest != 0 && std::ranges::count(sizes, rest) == 0;
  if (new_size) sizes.push_back(rest);
  const bool keeps_rows = !training && run_->plan().metrics.own_scores > 0;
  const bool more_rows = keeps_rows && rows > sizes_.eval_rows;
  if (more_rows) sizes_.eval_rows = rows;
  return new_size || more_rows;
}

Status BatchTrainer::make_live() {
  OFSDP_RETURN_IF_ERROR(run_->check_executable());
  if (live_ != nullptr) OFSDP_RETURN_IF_ERROR(live_->state->fetch());
  RankState* before = live_ == nullptr ? nullptr : live_->state.get();
  OFSDP_ASSIGN_OR_RETURN(
      auto state,
      RankState::make(run_->plan(), run_->setup(), context_.communicator, context_.ledger,
                      run_->executor_options(), run_->checkpoint(), before));
  live_ = std::make_shared<Live>(*run_, context_.communicator, context_.ledger, std::move(state));
  return {};
}

// Makes plan and memory for a batch with `rows` rows if needed.
Status BatchTrainer::admit(std::span<const ColumnArray> arrays, int64_t rows, bool training) {
  if (!failure_.ok()) return Status(failure_.kind(), failure_.message());
  const bool first = run_ == nullptr;
  if (first) OFSDP_RETURN_IF_ERROR(open(arrays, rows));
  const BatchSizes& batch = run_->settings().batch;
  OFSDP_REJECT_IF(
      training && rows > batch.batch_size * batch.grad_accum,
      "the batch: expected at most {} rows (--batch-size {} x --grad-accum {}), found {}",
      batch.batch_size * batch.grad_accum, batch.batch_size, batch.grad_accum, rows);
  const bool more = add_sizes(rows, training);
  // Ranks share memory once, and this rank does not know the others' rows.
  const int64_t ranks = context_.communicator.size();
  OFSDP_REJECT_IF(
      more && !first && ranks > 1,
      "{}: on {} ranks expected rows that fill whole micro-batches of {} on each, {} or a multiple "
      "in all, or as many as in the first call, found {} on this rank{}",
      training ? "the batch" : "the evaluation", ranks, batch.batch_size, batch.batch_size * ranks,
      rows, training ? "" : "; fsdp-run eval takes any number");
  if (more) OFSDP_RETURN_IF_ERROR(run_->plan_for(sizes_));
  return more || live_ == nullptr ? make_live() : Status{};
}

Result<StepRow> BatchTrainer::step(std::span<const ColumnArray> batch) {
  OFSDP_ASSIGN_OR_RETURN(const int64_t rows, rows_of(batch));
  OFSDP_RETURN_IF_ERROR(admit(batch, rows, true));
  const Communicator& communicator = context_.communicator;
  Dataset& data = *run_->setup().data.train;
  OFSDP_RETURN_IF_ERROR(data.replace(batch, samples_ + communicator.rank(), communicator.size()));
  OFSDP_RETURN_IF_ERROR(check_labels(run_->setup(), data));
  SamplerOptions cut = live_->plan->train_sampler->options();
  cut.samples = samples_ + rows * communicator.size();
  cut.start = {.update = steps_, .epoch = 0, .sample = samples_};
  OFSDP_ASSIGN_OR_RETURN(live_->sampler, Sampler::make(cut));
  auto row = live_->trainer.run_one(steps_ + 1);
  if (!row.ok()) {
    failure_ = Status(row.error().kind(), row.error().message());
    return row;
  }
  ++steps_;
  samples_ = cut.samples;
  return row;
}

Result<EvalRow> BatchTrainer::evaluate(std::span<const ColumnArray> rows) {
  OFSDP_ASSIGN_OR_RETURN(const int64_t count, rows_of(rows));
  OFSDP_RETURN_IF_ERROR(admit(rows, count, false));
  Dataset& data = *run_->setup().data.eval;
  OFSDP_RETURN_IF_ERROR(data.replace(rows));
  OFSDP_RETURN_IF_ERROR(check_labels(run_->setup(), data));
  OFSDP_ASSIGN_OR_RETURN(live_->eval_sampler,
                         Sampler::make_evaluation(count, run_->settings().batch.batch_size, 1, 0));
  return live_->evaluator.run(steps_, 0);
}

Status BatchTrainer::check_opened(const char* call) const {
  OFSDP_REJECT_IF(live_ == nullptr,
                  "{}: expected a step or an evaluation before it, which open the model", call);
  return {};
}

Status BatchTrainer::save(const std::string& path) {
  OFSDP_RETURN_IF_ERROR(check_opened("save"));
  Options options = context_.options;
  options.files.output = path;
  OFSDP_RETURN_IF_ERROR(check_run_files(options, context_.origin));
  const TrainedState trained = trained_state(run_->settings(), steps_);
  OFSDP_RETURN_IF_ERROR(run_->setup().source->check_output(path, trained));
  return write_trained(*live_->state, context_.communicator, path, trained);
}

Result<BatchTrainer::Parameters> BatchTrainer::parameters() {
  OFSDP_RETURN_IF_ERROR(check_opened("parameters"));
  OFSDP_REJECT_IF(context_.communicator.size() > 1,
                  "parameters: expected one rank, found {}, none of which has them whole; save "
                  "writes the file",
                  context_.communicator.size());
  RankState& state = *live_->state;
  OFSDP_RETURN_IF_ERROR(state.fetch());
  Parameters found{.all = {}, .keep = live_};
  for (const Unit& unit : state.plan().shards.units) {
    OFSDP_RETURN_IF_ERROR(state.held(unit, -1).for_each_part([&](const ShardPart& part) -> Status {
      const Parameter& parameter = state.parameter(part.param.parameter);
      found.all.push_back({parameter.name,
                           state.setup().graph.value(parameter.value).desc.shape.axes(),
                           part.values});
      return {};
    }));
  }
  return found;
}

}  // namespace ofsdp::runtime
