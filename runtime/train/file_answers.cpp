#include "runtime/train/file_answers.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>

#include "importer/graph/reference_run.h"
#include "importer/passes/model_inputs.h"
#include "importer/passes/sample_order.h"
#include "importer/passes/trained_set.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/engine/forward.h"
#include "runtime/train/setup/opened_model.h"

namespace ofsdp::runtime {
namespace {

constexpr double kMaxSeconds = 2;         // of a reference
constexpr double kKernelsAreFaster = 20;  // times, than the reference's loops
constexpr double kMaxReferenceBytes = 512.0 * (1 << 20);
constexpr int64_t kOwnRows = 8;  // without an evaluation

using ReferenceClock = ReferenceRun::Clock;

struct RowColumn {
  std::string name;
  TensorDesc desc;
  std::vector<std::byte> bytes;
};

// Reads whole rows of every column.
Result<std::vector<RowColumn>> read_columns(RowSource& rows, std::span<const int64_t> samples) {
  std::vector<RowColumn> columns;
  for (size_t i = 0; i < rows.columns().size(); ++i) {
    const BoundColumn& bound = rows.columns()[i];
    std::vector<int64_t> axes{std::ssize(samples)};
    axes.insert(axes.end(), bound.row.axes().begin(), bound.row.axes().end());
    RowColumn column{bound.name, {bound.dtype, Shape(std::move(axes))}, {}};
    column.bytes.resize(column.desc.bytes());
    OFSDP_RETURN_IF_ERROR(rows.read_rows(static_cast<int>(i), samples, column.bytes.data()));
    columns.push_back(std::move(column));
  }
  return columns;
}

// A file's graph as the file has it, with the run's losses.
struct PlainModel {
  std::unique_ptr<TrainingSource> source;
  Graph graph;
};

std::vector<ValueId> term_values(const Graph& graph) {
  std::vector<ValueId> values;
  for (const LossTerm& term : graph.terms) values.push_back(term.value);
  return values;
}

Result<PlainModel> open_plain(const std::string& path, const ModelSetup& setup,
                              const Options& options, int64_t rows, Mode mode) {
  OFSDP_ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::open(path, named_weights(options)));
  const OnnxContents& input = setup.file.contents();
  file.fix_inputs(input.input_sizes, input.input_numbers);
  PlainModel made;
  const Operators operators(*setup.graph.registry, setup.source->lowering());
  OFSDP_ASSIGN_OR_RETURN(made.source,
                         open_plain_source(std::move(file), operators, {},
                                           wanted_of(setup.source->settings().losses)));
  TrainingSource& source = *made.source;
  if (options.free_batch) {
    OFSDP_ASSIGN_OR_RETURN(OpenBatch open, with_open_batch(source.symbolic(), options.batch_axes));
    source.set_symbolic(std::move(open.graph));
  }
  OFSDP_ASSIGN_OR_RETURN(Graph fed, with_values(source.symbolic(), setup.inputs));
  source.set_symbolic(std::move(fed));
  const DataSpec& spec = setup.data.spec;
  OFSDP_ASSIGN_OR_RETURN(PastFree past_free,
                         without_past(source.symbolic(), spec.synthetic ? std::vector<std::string>()
                                                                        : spec.train.names()));
  OFSDP_ASSIGN_OR_RETURN(Graph symbolic,
                         setup.whole_inputs.empty()
                             ? with_samples_first(past_free.graph, options.batch_axes)
                             : with_whole_samples(past_free.graph, setup.whole_inputs));
  source.set_symbolic(std::move(symbolic));
  GraphSettings settings = setup.source->settings();
  settings.param_dtype = DType::kFloat32;
  settings.measures.clear();
  settings.ranks = {};
  settings.sync_batch_norm = false;
  for (LossSpec& loss : settings.losses) loss.ranks = {};
  source.configure(std::move(settings));
  if (lacks_nhwc_order(source.symbolic())) {
    NhwcOrder order{options.nhwc_weights};
    if (order.order == NhwcWeights::kAuto) {
      OFSDP_ASSIGN_OR_RETURN(order, source.nhwc_order(rows));
    }
    source.set_symbolic(with_nhwc_order(source.symbolic(), order.order));
  }
  if (options.free_batch) OFSDP_RETURN_IF_ERROR(source.free_reshapes(setup.opened_batch));
  OFSDP_ASSIGN_OR_RETURN(made.graph, source.forward_graph(rows, mode));
  for (const LossTerm& term : made.graph.terms) {  // a training_info may have it
    const bool computed = term.value != 0 && maker_of(made.graph, term.value) != nullptr;
    OFSDP_REJECT_IF(!computed, "its graph does not compute the loss");
  }
  prune(made.graph, term_values(made.graph));
  return made;
}

// Sums the terms of each loss.
template <typename ValueOf>
std::vector<double> losses_of(const Graph& graph, size_t count, const ValueOf& value_of) {
  std::vector<double> losses(count);
  for (const LossTerm& term : graph.terms) {
    const auto loss = static_cast<size_t>(term.loss);
    if (loss < count) losses[loss] += value_of(term.value);
  }
  return losses;
}

// Runs a graph with the CPU's kernels. Several losses may have one name, so ids find them.
Result<std::vector<double>> losses_by_kernels(Graph graph, size_t count, const Feeds& feeds) {
  graph.outputs = term_values(graph);
  ForwardPass pass(graph);
  for (const auto& [id, bytes] : feeds) pass.feed(id, bytes);
  OFSDP_RETURN_IF_ERROR(pass.run());
  return losses_of(graph, count, [&](ValueId id) {
    const std::span<const std::byte> bytes = pass.output(id);
    return bytes.empty() ? std::nan("") : to_doubles(graph.value(id).desc, bytes.data())[0];
  });
}

// Writes a column's rows, or a parameter's values, in the type that the graph reads.
std::vector<std::byte> as_type(std::span<const double> values, const TensorDesc& desc) {
  std::vector<std::byte> bytes(desc.bytes());
  from_doubles(values, desc, bytes.data());
  return bytes;
}

void feed_columns(const Graph& graph, const std::vector<RowColumn>& columns, Feeds& feeds) {
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const auto column = std::ranges::find(columns, input.name, &RowColumn::name);
    if (column == columns.end()) continue;
    feeds[id] = column->desc.dtype == input.desc.dtype
                    ? column->bytes
                    : as_type(to_doubles(column->desc, column->bytes.data()), input.desc);
  }
}

// One comparison's outcome; without `difference` there was none, for `reason`.
struct Outcome {
  std::optional<double> difference;  // largest, of a loss
  double allowed = 0;
  std::string reason;

  bool wrong() const { return difference && !(*difference <= allowed); }
};

class FileCheck {
 public:
  FileCheck(const RankState& state, const RunSettings& settings, const EvaluatedBatch* evaluated,
            const WrittenModel& written)
      : state_(state),
        setup_(state.setup()),
        options_(settings.options),
        evaluated_(evaluated),
        written_(written) {}

  FileAnswer run() {
    const Result<TrainingSwitches> found = switches_of(setup_);
    const TrainingSwitches switches = found.ok() ? *found : TrainingSwitches{};
    const Status ready = prepare();
    if (!ready.ok()) reason_ = ready.message();
    if (written_.form == OutputForm::kInference || !switches.any()) {
      say_plain(written_.path, compare(written_.path, Mode::kTrain));
    } else {
      say_training_form(switches);
    }
    return std::move(answer_);
  }

 private:
  // --- rows, and the run's own losses

  Status prepare() {
    const bool joins = joins_rows(options_) && state_.plan().train_sampler->options().ranks > 1;
    OFSDP_REJECT_IF(joins, "the loss joins the rows of all ranks");
    OFSDP_REJECT_IF(options_.run.pack.has_value(), "documents share rows");
    double weights = 0;
    for (const Parameter& p : setup_.graph.parameters) {
      weights += static_cast<double>(sizeof(double) * setup_.graph.value(p.value).desc.numel());
    }
    OFSDP_RETURN_IF_ERROR(fits(weights));
    const DataSetup& data = setup_.data;
    const bool evaluated = was_evaluated();
    RowSource& rows = data.eval != nullptr ? data.eval_rows() : data.train_rows();
    if (evaluated) {
      samples_ = evaluated_->samples;
      own_ = evaluated_->losses;
    } else {
      const int64_t fixed = fixed_batch(setup_.graph);
      samples_.resize(static_cast<size_t>(fixed > 0 ? fixed : std::min(kOwnRows, rows.samples())));
      OFSDP_REJECT_IF(std::ssize(samples_) > rows.samples(), "there are too few rows");
      std::iota(samples_.begin(), samples_.end(), 0);
    }
    OFSDP_ASSIGN_OR_RETURN(columns_, read_columns(rows, samples_));
    if (!evaluated) OFSDP_RETURN_IF_ERROR(compute_own());
    const bool any = std::ranges::any_of(own_, [](double loss) { return std::isfinite(loss); });
    OFSDP_REJECT_IF(!any, "no label of its first rows counts, or their loss is not finite");
    return {};
  }

  // Without an evaluation: computes the losses with the evaluation graph and the CPU's kernels.
  Status compute_own() {
    OFSDP_ASSIGN_OR_RETURN(Graph graph, setup_.evaluation_graph(std::ssize(samples_)));
    OFSDP_RETURN_IF_ERROR(affordable(graph, kKernelsAreFaster));
    prune(graph, term_values(graph));
    Feeds feeds;
    feed_columns(graph, columns_, feeds);
    const auto weights = whole_weights();
    const GraphUses uses(graph);
    for (const Parameter& p : graph.parameters) {
      const Value& value = graph.value(p.value);
      if (value.kind != ValueKind::kParameter || uses.readers(p.value).empty()) continue;
      const OnnxFile& file = setup_.source->file_of(p);
      const Initializer& initializer = file.initializers()[static_cast<size_t>(p.initializer)];
      if (p.raw) {
        feeds[p.value].resize(value.desc.bytes());
        OFSDP_RETURN_IF_ERROR(file.read_raw(initializer, 0, feeds[p.value]));
        continue;
      }
      std::vector<float> numbers(static_cast<size_t>(value.desc.numel()));
      const auto known = weights.find(p.name);
      if (known != weights.end() && known->second.size() == numbers.size()) {
        numbers = known->second;
      } else if (!changes(p)) {
        OFSDP_RETURN_IF_ERROR(file.read(initializer, 0, numbers));
      } else {
        OFSDP_RETURN_IF_ERROR(read_written(p, numbers));
      }
      feeds[p.value] = as_type(std::vector<double>(numbers.begin(), numbers.end()), value.desc);
    }
    const size_t losses = setup_.source->settings().losses.size();
    OFSDP_ASSIGN_OR_RETURN(own_, losses_by_kernels(graph, losses, feeds));
    return {};
  }

  static bool changes(const Parameter& p) { return p.trained || p.reason == kRunningStatistics; }

  // Returns the parameters, or their average, that this rank holds whole, and the running
  // statistics.
  std::map<std::string, std::vector<float>> whole_weights() const {
    std::map<std::string, std::vector<float>> found;
    std::map<std::string, size_t> held;
    const CompiledRun& plan = state_.plan();
    const int weights = plan.uses_average ? plan.updates.average_state() : -1;
    for (const Unit& unit : plan.shards.units) {
      (void)state_.held(unit, weights).for_each_part([&](const ShardPart& part) -> Status {
        const Parameter& p = state_.parameter(part.param.parameter);
        std::vector<float>& values = found[p.name];
        values.resize(static_cast<size_t>(setup_.graph.value(p.value).desc.numel()));
        std::ranges::copy(part.values, values.begin() + part.first);
        held[p.name] += part.values.size();
        return {};
      });
    }
    std::erase_if(found, [&](const auto& one) { return held[one.first] != one.second.size(); });
    for (const KeptValues::Entry* entry : carried_entries(plan)) {
      const std::span<float> values = state_.statistic(*entry);
      found[state_.parameter(entry->parameter).name].assign(values.begin(), values.end());
    }
    return found;
  }

  // Other ranks hold parts of the parameter, so its values come from the file.
  Status read_written(const Parameter& p, std::span<float> numbers) {
    if (!written_file_) {
      OFSDP_ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::open(written_.path, named_weights(options_)));
      written_file_.emplace(std::move(file));
    }
    const auto& all = written_file_->initializers();
    const auto found = std::ranges::find(all, p.name, &Initializer::name);
    const bool fits = found != all.end() && found->shape.numel() == std::ssize(numbers);
    OFSDP_REJECT_IF(!fits, "there was no evaluation, and the ranks share '{}'", escaped(p.name));
    return written_file_->read(*found, 0, numbers);
  }

  static Status affordable(const Graph& graph, double faster) {
    const double seconds = ReferenceRun::seconds_of(graph);
    OFSDP_REJECT_IF(seconds > kMaxSeconds * faster, "it would take about {}",
                    readable_seconds(seconds / faster));
    return fits(ReferenceRun::bytes_of(graph));
  }

  static Status fits(double bytes) {
    OFSDP_REJECT_IF(bytes > kMaxReferenceBytes, "it would take {} of memory",
                    readable_bytes(static_cast<uint64_t>(bytes)));
    return {};
  }

  // --- the file's losses

  Outcome compare(const std::string& path, Mode mode) {
    if (!reason_.empty()) return {.difference = {}, .reason = reason_};
    Outcome outcome;
    const Status status = compare_into(path, mode, outcome);
    if (!status.ok()) outcome = {.difference = {}, .reason = status.message()};
    return outcome;
  }

  Status compare_into(const std::string& path, Mode mode, Outcome& outcome) {
    OFSDP_ASSIGN_OR_RETURN(const PlainModel plain,
                           open_plain(path, setup_, options_, std::ssize(samples_), mode));
    OFSDP_REJECT_IF(draws(plain.graph), "it draws at random");
    OFSDP_RETURN_IF_ERROR(affordable(plain.graph, kKernelsAreFaster));
    OFSDP_ASSIGN_OR_RETURN(const auto weights, read_weights(plain));
    const TypeTolerance limits = limits_of(plain);
    if (ReferenceRun::seconds_of(plain.graph) > kMaxSeconds) {
      OFSDP_ASSIGN_OR_RETURN(const auto theirs, by_kernels(plain.graph, weights));
      judge(theirs, limits.loss, outcome);
      if (outcome.wrong()) outcome.allowed = HUGE_VAL;  // without a reference no verdict
      return {};
    }
    const StepContext step{options_.run.seed, 0, samples_};
    ReferenceRun reference(plain.graph, step);
    const auto end = ReferenceClock::now() + std::chrono::duration_cast<ReferenceClock::duration>(
                                                 std::chrono::duration<double>(2 * kMaxSeconds));
    reference.set_deadline(end);
    OFSDP_ASSIGN_OR_RETURN(const auto theirs, by_reference(plain.graph, weights, reference));
    judge(theirs, limits.loss, outcome);
    if (outcome.wrong())
      allow_rounding(plain.graph, weights, limits.rounding, theirs, reference, outcome);
    return {};
  }

  // Returns whether nodes draw random numbers, which depend on the update; dropout is off here.
  static bool draws(const Graph& graph) {
    return std::ranges::any_of(graph.nodes, [](const Node& node) {
      return node.op->random && node.op->full_name() != "Dropout";
    });
  }

  using Weights = std::map<ValueId, std::vector<double>>;

  static Result<Weights> read_weights(const PlainModel& plain) {
    Weights weights;
    const OnnxFile& file = plain.source->file();
    const GraphUses uses(plain.graph);
    for (const Parameter& p : plain.graph.parameters) {
      const Value& value = plain.graph.value(p.value);
      if (value.kind != ValueKind::kParameter || uses.readers(p.value).empty()) continue;
      const Initializer& initializer = file.initializers()[static_cast<size_t>(p.initializer)];
      if (p.raw) {
        std::vector<std::byte> bytes(value.desc.bytes());
        OFSDP_RETURN_IF_ERROR(file.read_raw(initializer, 0, bytes));
        weights[p.value] = to_doubles(value.desc, bytes.data());
        continue;
      }
      std::vector<float> numbers(static_cast<size_t>(value.desc.numel()));
      OFSDP_RETURN_IF_ERROR(file.read(initializer, 0, numbers));
      weights[p.value].assign(numbers.begin(), numbers.end());
    }
    return weights;
  }

  // The file may store weights, or compute, in a type with fewer digits than the run computes in.
  TypeTolerance limits_of(const PlainModel& plain) const {
    TypeTolerance limits = tolerance_of(options_.sharding.param_dtype);
    const bool tf32 = options_.sharding.matmul_precision == MatmulPrecision::kHigh;
    const auto allow = [&](DType dtype) {
      const TypeTolerance other = tolerance_of(dtype);
      limits.loss = std::max(limits.loss, other.loss);
      limits.rounding = std::max(limits.rounding, other.rounding);
    };
    if (tf32) allow(DType::kFloat16);
    for (const Initializer& weight : plain.source->file().initializers()) {
      if (weight.dtype == DType::kFloat16) allow(DType::kFloat16);
      if (weight.quantization != nullptr || weight.dtype == DType::kBFloat16) {
        allow(DType::kBFloat16);
      }
    }
    for (const Value& value : plain.graph.values) {
      if (is_16_bit_float(value.desc.dtype)) allow(value.desc.dtype);
    }
    return limits;
  }

  void judge(const std::vector<double>& theirs, double tolerance, Outcome& outcome) const {
    outcome.difference = outcome.allowed = 0;
    for (size_t i = 0; i < own_.size(); ++i) {
      if (!std::isfinite(own_[i])) continue;
      const double apart = std::abs(own_[i] - theirs[i]);
      const double most = std::isnan(apart) ? HUGE_VAL : apart;
      outcome.difference = std::max(*outcome.difference, most);
      outcome.allowed = std::max(outcome.allowed, tolerance * std::max(std::abs(theirs[i]), 1e-6));
    }
  }

  // As `fsdp-run check` does: the losses again with all numbers changed by the type's rounding.
  void allow_rounding(const Graph& graph, const Weights& weights, double rounding,
                      const std::vector<double>& theirs, ReferenceRun& reference,
                      Outcome& outcome) const {
    constexpr uint32_t kDraws = 4;
    constexpr double kSafety = 4;
    for (uint32_t draw = 0; draw < kDraws && outcome.wrong(); ++draw) {
      reference.disturb(rounding, draw);
      const auto moved = by_reference(graph, weights, reference, rounding, draw + 1);
      if (!moved.ok()) {
        outcome.allowed = HUGE_VAL;  // no time for a verdict
        return;
      }
      for (size_t i = 0; i < theirs.size(); ++i) {
        const double change = std::abs((*moved)[i] - theirs[i]);
        if (std::isfinite(change)) outcome.allowed = std::max(outcome.allowed, kSafety * change);
      }
    }
  }

  // `rounding` changes the rows and weights, too.
  Result<std::vector<double>> by_reference(const Graph& graph, const Weights& weights,
                                           ReferenceRun& reference, double rounding = 0,
                                           uint32_t draw = 0) const {
    std::minstd_rand random(draw + 1);
    std::uniform_real_distribution<double> share(-rounding, rounding);
    const auto set = [&](ValueId id, std::vector<double> numbers) {
      const bool moves = rounding > 0 && is_floating(graph.value(id).desc.dtype);
      for (double& number : numbers) number *= moves ? 1 + share(random) : 1;
      reference.set(id, std::move(numbers));
    };
    for (const ValueId id : graph.inputs) {
      const auto column = std::ranges::find(columns_, graph.value(id).name, &RowColumn::name);
      if (column != columns_.end()) set(id, to_doubles(column->desc, column->bytes.data()));
    }
    for (const auto& [id, numbers] : weights) set(id, numbers);
    OFSDP_RETURN_IF_ERROR(reference.run());
    return losses_of(graph, own_.size(), [&](ValueId id) { return reference.value(id)[0]; });
  }

  Result<std::vector<double>> by_kernels(const Graph& graph, const Weights& weights) const {
    Feeds feeds;
    feed_columns(graph, columns_, feeds);
    for (const auto& [id, numbers] : weights) feeds[id] = as_type(numbers, graph.value(id).desc);
    return losses_by_kernels(graph, own_.size(), feeds);
  }

  // --- text

  bool was_evaluated() const { return evaluated_ != nullptr && !evaluated_->samples.empty(); }
  // The other side of the comparison.
  const char* own_side() const { return was_evaluated() ? "evaluation" : "trained weights"; }
  const char* own_answers() const {
    return was_evaluated() ? "evaluation did" : "trained weights do";
  }

  std::string rows_text() const { return plural(std::ssize(samples_), "row"); }

  std::string agreement(const Outcome& outcome) const {
    return format_text("answers as the {}: largest difference {:.2g} in the loss over {}",
                       own_answers(), *outcome.difference, rows_text());
  }

  void warn(const std::string& path, const Outcome& outcome) {
    answer_.warning = format_text(
        "{} answers otherwise than the {}: its loss is {:.3g} away over {}, expected "
        "at most {:.3g}",
        escaped(path), own_answers(), *outcome.difference, rows_text(), outcome.allowed);
  }

  void say_plain(const std::string& path, const Outcome& outcome) {
    if (outcome.wrong()) return warn(path, outcome);
    answer_.text += outcome.difference
                        ? format_text("{} {}\n", escaped(path), agreement(outcome))
                        : format_text("{}: not compared with the {}: {}\n", escaped(path),
                                      own_side(), escaped(outcome.reason));
  }

  // The written model normalizes by its batch or drops at random, as the input file does.
  void say_training_form(const TrainingSwitches& switches) {
    std::vector<std::string> what;
    if (switches.batch_norms > 0) {
      what.push_back(format_text("{} BatchNormalization with the statistics of the batch",
                                 switches.batch_norms));
    }
    if (switches.dropouts > 0) {
      what.push_back(format_text("{} Dropout that drop at random", switches.dropouts));
    }
    answer_.text +=
        format_text("{} keeps the training form: {}", escaped(written_.path), joined(what, ", "));
    if (switches.dropouts == 0) {
      const Outcome as_it_is = compare(written_.path, Mode::kTrain);
      if (as_it_is.difference) {
        answer_.text += format_text("; its loss is {:.2g} away from that of the {} over {}",
                                    *as_it_is.difference, own_side(), rows_text());
      }
    }
    answer_.text += "\n";
    if (!written_.inference_path.empty()) {
      return say_plain(written_.inference_path, compare(written_.inference_path, Mode::kTrain));
    }
    const Outcome inference = compare(written_.path, Mode::kEval);
    if (inference.wrong()) return warn(written_.path + " in its inference form", inference);
    answer_.text +=
        inference.difference
            ? format_text("its inference form (--output-form inference) {}\n", agreement(inference))
            : "--output-form inference writes the form that answers as an evaluation "
              "does\n";
  }

  const RankState& state_;
  const ModelSetup& setup_;
  const Options& options_;
  const EvaluatedBatch* evaluated_;
  const WrittenModel& written_;
  std::vector<int64_t> samples_;
  std::vector<RowColumn> columns_;
  std::vector<double> own_;  // losses
  std::optional<OnnxFile> written_file_;
  std::string reason_;  // why nothing is compared; empty: it is
  FileAnswer answer_;
};

}  // namespace

TypeTolerance tolerance_of(DType dtype) {
  if (dtype == DType::kFloat32) return {2e-4, 2e-3, 0x1p-23};
  return {5e-3, 5e-2, dtype == DType::kFloat16 ? 0x1p-10 : 0x1p-7};
}

Result<TrainingSwitches> switches_of(const ModelSetup& setup) {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph,
                         setup.source->specialized(setup.batch.batch_size, Mode::kTrain));
  return training_switches(graph);
}

bool inference_form_differs(const ModelSetup& setup) {
  const Result<TrainingSwitches> switches = switches_of(setup);
  return switches.ok() && switches->any();
}

Status write_inference_form(const std::string& written, const std::string& path) {
  return write_whole(path, [&](const std::string& temporary) -> Status {
    std::error_code error;
    std::filesystem::copy_file(written, temporary,
                               std::filesystem::copy_options::overwrite_existing, error);
    OFSDP_FAULT_IF(static_cast<bool>(error), "{}: cannot be copied: {}", written, error.message());
    return make_inference_model(temporary).with_prefix(path);
  });
}

FileAnswer compare_with_file(const RankState& state, const RunSettings& settings,
                             const EvaluatedBatch* evaluated, const WrittenModel& written) {
  return FileCheck(state, settings, evaluated, written).run();
}

}  // namespace ofsdp::runtime
