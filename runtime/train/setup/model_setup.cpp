#include "runtime/train/setup/model_setup.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/edit/model_edits.h"
#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/model_inputs.h"
#include "importer/passes/passes.h"
#include "importer/passes/sample_order.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "importer/training_source.h"
#include "kernels/base/text.h"
#include "runtime/data/column_file.h"
#include "runtime/train/setup/class_names.h"
#include "runtime/train/setup/free_batch.h"
#include "runtime/train/setup/like_lengths.h"
#include "runtime/train/setup/metric_layout.h"
#include "runtime/train/setup/opened_model.h"
#include "runtime/train/setup/packing.h"
#include "runtime/train/setup/text_lengths.h"

namespace ofsdp::runtime {

namespace {

// --batch-weights: refuses what makes another loss of ranks' unequal parts, or needs equal ones.
Status check_batch_weights(const Options& options, const BatchSizes& sizes, const Graph& graph,
                           int world) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> parts, batch_parts(sizes, world));
  if (parts.empty()) return {};
  OFSDP_REJECT_IF(sizes.slices > 0,
                  "--batch-weights: --deterministic across_ranks cuts a batch into equal slices: "
                  "expected one of the two");
  OFSDP_REJECT_IF(options.loss_mean == LossMean::kPerRank,
                  "--batch-weights: --loss-mean per_rank weighs ranks equally, whatever their "
                  "samples: expected --loss-mean global");
  OFSDP_REJECT_IF(!options.run.bucket_by.empty(),
                  "--batch-weights: --bucket-by cuts rows for batches of one size: expected one of "
                  "the two");
  const int64_t fixed = fixed_batch(graph);
  OFSDP_REJECT_IF(fixed >= 0,
                  "--batch-weights: the batch axis of {} is fixed at {}: expected equal parts, or "
                  "--free-batch",
                  graph.file, fixed);
  return {};
}

// A fixed leading axis determines the batch; any other --batch-size is an error.
Result<BatchSizes> batch_of(const Options& options, const Graph& graph, int world) {
  const int64_t fixed = fixed_batch(graph);
  BatchOptions given = options.batch;
  const bool slices = options.launch.deterministic == Determinism::kAcrossRanks;
  const bool open = !given.global_batch_size.value || (!given.grad_accum.value && !slices);
  if (fixed >= 0 && !given.batch_size.value && open) {
    given.batch_size = {fixed, given.global_batch_size.source};
  }
  OFSDP_ASSIGN_OR_RETURN(BatchSizes sizes, resolve_batch(given, options.launch.deterministic, world,
                                                         joins_rows(options)));
  sizes.weights = options.batch.weights;
  OFSDP_RETURN_IF_ERROR(check_batch_weights(options, sizes, graph, world));
  if (fixed < 0 || sizes.batch_size == fixed) return sizes;
  return input_error("--batch-size {}: the batch axis of {} is fixed at {}", sizes.batch_size,
                     graph.file, fixed);
}

// Returns the shape of one synthetic label that fits the prediction.
Shape label_row_of(const Graph& specialized, const LossSpec& loss, int64_t batch) {
  const Value& prediction = specialized.value(specialized.find(loss.prediction));
  std::vector<int64_t> axes = prediction.desc.shape.axes();
  if (loss_traits(loss.kind).of_sequences) return Shape{1};
  if (loss_traits(loss.kind).labels == LabelKind::kClasses) axes.pop_back();
  size_t at = 0;  // the axis with the samples
  for (int64_t before = 1; at + 1 < axes.size() && before < loss.outer; ++at) before *= axes[at];
  if (axes.size() > at && axes[at] == batch) {
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (axes.size() > at) {
    axes[at] /= batch;  // flattened leading axes: k * batch rows
  }
  return Shape(std::move(axes));
}

std::vector<LossSpec> losses_of(std::vector<LossSpec> losses, const RankRows& ranks,
                                bool global_mean) {
  for (LossSpec& loss : losses) {
    loss.ignore_index = losses[0].ignore_index;
    loss.label_smoothing = losses[0].label_smoothing;
    loss.class_weights = losses[0].class_weights;
    loss.positive_weights = losses[0].positive_weights;
    loss.global_mean = global_mean;
    loss.ranks = ranks;
  }
  return losses;
}

// Reads the numbers of --class-weights: a .npy file of one axis, or text with commas or spaces.
Result<std::vector<float>> read_class_weights(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  OFSDP_REJECT_IF(
      !file, "--class-weights {}: expected numbers of at least 0 or a file, found neither", path);
  const std::string bytes = all.str();
  std::vector<float> weights;
  if (bytes.starts_with(kNpyMagic)) {
    const auto data = std::as_bytes(std::span(bytes));
    OFSDP_ASSIGN_OR_RETURN(const ColumnLayout layout, parse_npy(path, data));
    OFSDP_REJECT_IF(layout.row.numel() != 1 || layout.end_byte() > data.size(),
                    "--class-weights {}: expected one axis of numbers", path);
    const TensorDesc desc{layout.dtype, Shape{layout.count}};
    for (const double w : to_doubles(desc, data.data() + layout.first_byte)) {
      weights.push_back(static_cast<float>(w));
    }
  } else {
    std::string text = bytes;
    std::ranges::replace(text, ',', ' ');
    std::istringstream words(text);
    for (float weight = 0; words >> weight;) weights.push_back(weight);
    OFSDP_REJECT_IF(!words.eof(), "--class-weights {}: expected numbers, found other text", path);
  }
  for (const float w : weights) {
    OFSDP_REJECT_IF(!(w >= 0) || std::isinf(w),
                    "--class-weights {}: expected numbers of at least 0, found {}", path, w);
  }
  OFSDP_REJECT_IF(!weights.empty() && std::ranges::max(weights) == 0,
                  "--class-weights {}: expected a weight above 0, found only 0", path);
  return weights;
}

class SetupMaker {
 public:
  SetupMaker(const Options& options, const ModelOrigin& origin, const Registry& registry,
             Communicator& communicator, MemoryLedger& ledger, const DataSpec* library_data,
             const SavedRun* saved)
      : options_(options),
        origin_(origin),
        registry_(registry),
        communicator_(communicator),
        ledger_(ledger),
        library_data_(library_data),
        saved_(saved) {}

  Result<ModelSetup> run() {
    OFSDP_ASSIGN_OR_RETURN(
        OpenedModel model,
        open_model(options_, origin_, registry_, communicator_, ledger_, library_data_, saved_));
    if (communicator_.rank() == 0) print_lines(stderr, model.warnings);
    losses_ = std::move(model.losses);
    ModelSetup setup(std::move(model.source));
    OFSDP_ASSIGN_OR_RETURN(DataSpec spec, library_data_ != nullptr
                                              ? Result<DataSpec>(*library_data_)
                                              : find_data(options_));
    OFSDP_RETURN_IF_ERROR(check_names(setup.graph, options_.batch_axes));
    OFSDP_RETURN_IF_ERROR(open_batch(setup));
    OFSDP_RETURN_IF_ERROR(fix_inputs(setup));
    OFSDP_RETURN_IF_ERROR(fit_data(spec, options_, setup.graph, communicator_));
    OFSDP_RETURN_IF_ERROR(leave_past_out(setup, spec));
    OFSDP_RETURN_IF_ERROR(put_samples_first(setup));
    OFSDP_RETURN_IF_ERROR(follow_teacher(setup, spec));
    OFSDP_ASSIGN_OR_RETURN(setup.batch, batch_of(options_, setup.graph, communicator_.size()));
    OFSDP_RETURN_IF_ERROR(open_columns(setup, std::move(spec)));
    OFSDP_RETURN_IF_ERROR(resolve_setup_loss(setup));
    OFSDP_RETURN_IF_ERROR(resolve_trained(setup));
    OFSDP_RETURN_IF_ERROR(check_open_batch(setup));
    return setup;
  }

 private:
  Status open_batch(ModelSetup& setup) const {
    if (!options_.free_batch) return {};
    OFSDP_ASSIGN_OR_RETURN(OpenBatch made, with_open_batch(setup.graph, options_.batch_axes));
    setup.source->set_symbolic(std::move(made.graph));
    setup.opened_batch = made.fixed;
    return {};
  }

  // REQUIRES: the data are bound.
  Status check_open_batch(const ModelSetup& setup) const {
    if (!options_.free_batch) return {};
    const TrainingSource& source = *setup.source;
    const auto made = [&](int64_t samples) { return source.specialized(samples, Mode::kEval); };
    OFSDP_ASSIGN_OR_RETURN(const FreeBatchGraphs graphs,
                           free_batch_graphs(setup.opened_batch, made));
    return check_free_batch(graphs, setup.data.train_rows(),
                            [&](const Parameter& p, std::vector<std::byte>& bytes) {
                              return read_weight(source.file_of(p), graphs.one, p, bytes);
                            });
  }

  // Makes --input's inputs constants.
  Status fix_inputs(ModelSetup& setup) const {
    if (options_.inputs.empty()) return {};
    OFSDP_ASSIGN_OR_RETURN(setup.inputs,
                           input_values(options_, setup.graph, communicator_, ledger_));
    OFSDP_ASSIGN_OR_RETURN(Graph made, with_values(setup.graph, setup.inputs));
    setup.source->set_symbolic(std::move(made));
    return {};
  }

  static Status leave_past_out(ModelSetup& setup, const DataSpec& spec) {
    const auto columns = spec.synthetic ? std::vector<std::string>() : spec.train.names();
    OFSDP_ASSIGN_OR_RETURN(PastFree made, without_past(setup.graph, columns));
    if (made.fed_empty.empty()) return {};
    setup.fed_empty = std::move(made.fed_empty);
    setup.source->set_symbolic(std::move(made.graph));
    return {};
  }

  Status put_samples_first(ModelSetup& setup) {
    unmoved_ = setup.graph;
    OFSDP_ASSIGN_OR_RETURN(Graph made, with_samples_first(setup.graph, options_.batch_axes));
    setup.source->set_symbolic(std::move(made));
    return {};
  }

  // Sets the weights' order by --nhwc-weights, else by the whole file.
  Status order_weights(ModelSetup& setup) const {
    if (!lacks_nhwc_order(setup.graph)) return {};
    NhwcOrder found{options_.nhwc_weights};
    if (found.order == NhwcWeights::kAuto) {
      OFSDP_ASSIGN_OR_RETURN(found, setup.source->nhwc_order(setup.batch.batch_size));
    }
    if (!found.decided) {
      setup.nhwc_notice =
          "NhwcConv: weights are read channels last, [M, kernel..., C/group], for no node of the "
          "file decides; --nhwc-weights first reads [M, C/group, kernel...]\n";
    }
    setup.source->set_symbolic(with_nhwc_order(setup.graph, found.order));
    return {};
  }

  // A slice lies on one rank, so the number of ranks cannot change it.
  RankRows ranks_of(const ModelSetup& setup) const {
    if (setup.batch.slices > 0) return {};
    const auto parts = batch_parts(setup.batch, communicator_.size());
    const bool equal = !parts.ok() || parts->empty();
    const int64_t most = equal ? setup.batch.batch_size : std::ranges::max(*parts);
    return {communicator_.size(), communicator_.rank(), most};
  }

  // Evaluation ignores the teacher.
  Status follow_teacher(ModelSetup& setup, const DataSpec& spec) const {
    const TeacherOptions& teacher = options_.teacher;
    if (teacher.path.empty() || options_.command == Command::kEval) return {};
    const Operators operators(registry_, &ort_operators());
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file, prefixed("--teacher", OnnxFile::open(teacher.path)));
    OFSDP_ASSIGN_OR_RETURN(
        const Graph imported,
        prefixed("--teacher", import_onnx(file, operators, "", wanted_of(losses_))));
    const auto columns = spec.synthetic ? std::vector<std::string>() : spec.train.names();
    OFSDP_ASSIGN_OR_RETURN(const InputValues values,
                           input_values(options_, imported, communicator_, ledger_));
    OFSDP_ASSIGN_OR_RETURN(const Graph fed, with_values(imported, values, /*some=*/true));
    OFSDP_ASSIGN_OR_RETURN(const PastFree whole, prefixed("--teacher", without_past(fed, columns)));
    OFSDP_ASSIGN_OR_RETURN(
        Graph ready, prefixed("--teacher", with_samples_first(whole.graph, options_.batch_axes)));
    if (options_.nhwc_weights != NhwcWeights::kAuto) {
      ready = with_nhwc_order(ready, options_.nhwc_weights);
    }
    OFSDP_ASSIGN_OR_RETURN(Teacher made,
                           make_teacher(std::move(file), ready, setup.graph, teacher));
    for (const ValueId id : made.symbolic.inputs) {
      const std::string& name = made.symbolic.value(id).name;
      if (spec.synthetic || std::ranges::find(columns, name) != columns.end()) continue;
      return input_error("--teacher {}: input '{}': the data has no such column; it has {}",
                         teacher.path, name, joined(columns, ", "));
    }
    return setup.source->follow(std::move(made));
  }

  Status open_columns(ModelSetup& setup, DataSpec spec) {
    if (!options_.class_weights.empty()) {
      OFSDP_ASSIGN_OR_RETURN(losses_[0].class_weights, read_class_weights(options_.class_weights));
    }
    GraphSettings settings{
        .losses = losses_of(losses_, ranks_of(setup), options_.loss_mean == LossMean::kGlobal),
        .rows = {},
        .param_dtype = options_.sharding.param_dtype,
        .measures = measures_of(options_.run.eval_metrics),
        .ranks = ranks_of(setup),
        .sync_batch_norm = options_.sync_batch_norm,
        .passes = options_.passes};
    std::set<std::string> labels;
    for (LossSpec& loss : settings.losses) {
      auto names = spec.train.names();
      if (spec.synthetic) names = {loss.labels.empty() ? "labels" : loss.labels};
      OFSDP_ASSIGN_OR_RETURN(loss, resolve_labels(setup.graph, loss, names));
      labels.insert(label_column(setup.graph, loss));
    }
    labels.erase("");
    ClassNames known;
    if (saved_ != nullptr && !saved_->classes.empty()) {
      known = {saved_->classes, "of the checkpoint", /*binding=*/true};
    } else {
      OFSDP_ASSIGN_OR_RETURN(known, class_names_of_run(options_, setup.graph));
    }
    if (labels.size() > 1) known.binding = false;  // they are the names of one column
    std::set<std::string> taught;
    if (const Teacher* const teacher = setup.source->teacher(); teacher != nullptr) {
      taught = inputs_of_teacher(setup.graph, *teacher, settings.losses);
    }
    OFSDP_ASSIGN_OR_RETURN(setup.data, open_data(std::move(spec), options_, setup.graph, labels,
                                                 known, std::move(taught), communicator_, ledger_));
    OFSDP_ASSIGN_OR_RETURN(settings.rows, input_rows(setup.data, setup.graph, options_));
    OFSDP_RETURN_IF_ERROR(take_whole_samples(setup, settings));
    for (const std::string& label : labels) {
      if (setup.data.train) settings.rows[label] = setup.data.train->row_shape(label);
    }
    if (options_.run.pack) {
      OFSDP_RETURN_IF_ERROR(plan_packed_rows(*options_.run.pack, setup.graph, settings));
    }
    OFSDP_RETURN_IF_ERROR(check_batch_axes(setup.graph, settings.rows, options_.batch_axes));
    setup.source->configure(std::move(settings));
    OFSDP_RETURN_IF_ERROR(order_weights(setup));
    if (!options_.free_batch) return {};
    OFSDP_RETURN_IF_ERROR(setup.source->free_reshapes(setup.opened_batch));
    const auto made = [&](int64_t samples) {
      return setup.source->specialized(samples, Mode::kEval);
    };
    return free_batch_graphs(setup.opened_batch, made).status();
  }

  // A file may have no batch axis (graphs of nodes and edges): then a sample is a batch.
  Status take_whole_samples(ModelSetup& setup, GraphSettings& settings) const {
    if (setup.data.spec.synthetic || setup.source->teacher() != nullptr) return {};
    setup.whole_inputs = whole_inputs(unmoved_, settings.rows);
    if (setup.whole_inputs.empty()) return {};
    setup.source->set_symbolic(with_whole_samples(unmoved_, setup.whole_inputs));
    OFSDP_ASSIGN_OR_RETURN(setup.batch, batch_of(options_, setup.graph, communicator_.size()));
    settings.ranks = ranks_of(setup);
    for (LossSpec& loss : settings.losses) loss.ranks = settings.ranks;
    return {};
  }

  // Makes the graph for two batches, even if the file fixes the batch size.
  static Result<Graph> twice_as_many(const ModelSetup& setup) {
    const int64_t batch = setup.batch.batch_size;
    const Graph kept = setup.graph;
    Graph open = kept;
    for (const ValueId id : open.inputs) {
      auto& axes = open.value(id).declared;
      if (!axes.empty() && axes[0].size == batch) axes[0].size = -1;
    }
    setup.source->set_symbolic(std::move(open));
    Result<Graph> made = setup.source->specialized(2 * batch, Mode::kTrain);
    setup.source->set_symbolic(kept);
    return made;
  }

  // Specializes the graph. If that fails, tries without the nodes that no wanted value needs.
  Result<Graph> specialized_part(ModelSetup& setup) const {
    const int64_t batch = setup.batch.batch_size;
    Result<Graph> whole = setup.source->specialized(batch, Mode::kTrain);
    const WantedValues wanted = wanted_of(losses_);
    if (whole.ok() || !wanted.complete || brings_backward(setup.graph)) return whole;
    const Graph kept = setup.graph;
    Graph part = kept;
    part.outputs.clear();
    for (const std::string& name : wanted.names) {
      if (kept.find(name) == 0) return whole;
      part.outputs.push_back(kept.find(name));
    }
    for (const ValueId id : kept.outputs) {
      const bool needed = std::ranges::find(part.outputs, id) != part.outputs.end();
      if (!needed) part.left_out.push_back(kept.value(id).name);
    }
    prune(part, part.outputs);
    setup.source->set_symbolic(std::move(part));
    Result<Graph> made = setup.source->specialized(batch, Mode::kTrain);
    if (made.ok()) return made;
    setup.source->set_symbolic(kept);
    return whole;
  }

  Status resolve_setup_loss(ModelSetup& setup) {
    const int64_t batch = setup.batch.batch_size;
    GraphSettings settings = setup.source->settings();
    const RowShapes rows = settings.rows;
    const TextFit texts(setup.graph, setup.data, rows, [&](const RowShapes& of) -> Result<Graph> {
      OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(setup.graph, of, batch));
      return specialize(setup.graph, shapes, Mode::kTrain, setup.source->lowering());
    });
    Result<Graph> made = specialized_part(setup);
    if (!made.ok()) return texts.explained(std::move(made).status());
    Graph graph = *std::move(made);
    std::vector<ValueId> read;
    for (LossSpec& loss : settings.losses) {
      OFSDP_ASSIGN_OR_RETURN(loss, resolve_loss(graph, loss));
      for (const std::string& name : {loss.prediction, loss.output}) {
        if (graph.find(name) != 0) read.push_back(graph.find(name));
      }
    }
    OFSDP_RETURN_IF_ERROR(texts.check_positions(graph, read));
    OFSDP_RETURN_IF_ERROR(setup.source->take_scores(batch, graph, settings.losses));
    SampleOrder order(graph, batch, options_.batch_axes, [&] { return twice_as_many(setup); });
    for (LossSpec& loss : settings.losses) {
      OFSDP_RETURN_IF_ERROR(order_samples(order, graph, loss));
      const std::string label = label_column(setup.graph, loss);
      if (!label.empty() && !settings.rows.contains(label)) {
        settings.rows[label] = label_row_of(graph, loss, batch);
      }
    }
    for (MeasureSpec& measure : settings.measures) {
      OFSDP_RETURN_IF_ERROR(order_samples(order, graph, settings.losses, measure));
    }
    if (setup.source->teacher() != nullptr) {
      OFSDP_RETURN_IF_ERROR(
          setup.source->check_teacher(batch, settings.losses, options_.batch_axes));
    }
    setup.source->configure(std::move(settings));
    return {};
  }

  Status resolve_trained(ModelSetup& setup) {
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup.training_graph(setup.batch.batch_size));
    const bool none = std::ranges::none_of(setup.graph.parameters, &Parameter::trained);
    if (!none || options_.command != Command::kEval) {
      OFSDP_ASSIGN_OR_RETURN(Graph reached, keep_reached(setup.graph, graph));
      setup.source->set_symbolic(std::move(reached));
    }
    if (setup.source->updates() != nullptr) OFSDP_RETURN_IF_ERROR(check_all_reached(setup));
    if (options_.initialize) OFSDP_RETURN_IF_ERROR(check_initialized(setup));
    const std::vector<LossSpec>& losses = setup.source->settings().losses;
    for (size_t t = 0; t < graph.terms.size(); ++t) setup.counts.push_back(loss_count(graph, t));
    OFSDP_RETURN_IF_ERROR(bind_data(setup.data, graph, options_.run.seed, setup.counts, losses));
    if (options_.run.pack) {
      OFSDP_RETURN_IF_ERROR(pack_data(options_, graph, setup));
      return communicator_.rank() == 0 ? check_packed(options_, setup) : ok_status();
    }
    const bool trains = options_.command == Command::kTrain || options_.command == Command::kPlan;
    if (!trains || !setup.data.train) return {};
    OFSDP_RETURN_IF_ERROR(order_by_length(options_, communicator_.size(), setup));
    return setup.data.train->augment(options_.run.seed);
  }

  // Returns kInput if --initialize sets a value that nothing would write to the trained file.
  static Status check_initialized(const ModelSetup& setup) {
    const auto& weights = setup.file.initializers();
    for (const Parameter& p : setup.graph.parameters) {
      if (p.of_teacher) continue;
      const bool initialized = setup.file.has_initial(weights[static_cast<size_t>(p.initializer)]);
      if (!initialized || p.trained || p.reason == kRunningStatistics) continue;
      const bool state =
          std::ranges::any_of(setup.source->updates()->parameters, [&](const UpdateRule& rule) {
            return std::ranges::any_of(rule.states, [&](const UpdateState& s) {
              return s.training_info < 0 && s.initializer == p.name;
            });
          });
      if (!state) {
        return input_error(
            "{}: initialization of '{}': expected an initializer that training "
            "changes: {}",
            setup.graph.file, p.name, p.reason);
      }
    }
    return {};
  }

  // Returns kInput if a parameter of the training_info gets no gradient.
  static Status check_all_reached(const ModelSetup& setup) {
    const UpdateRules& rules = *setup.source->updates();
    for (const std::string& name : rules.trained) {
      for (const Parameter& p : setup.graph.parameters) {
        if (p.name != name || p.trained) continue;
        return input_error("{}: training_info: Gradient of '{}': '{}' is not trained: {}",
                           setup.graph.file, rules.loss, name, p.reason);
      }
    }
    return {};
  }

  const Options& options_;
  const ModelOrigin& origin_;
  const Registry& registry_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
  const DataSpec* library_data_;
  const SavedRun* saved_;
  std::vector<LossSpec> losses_;
  Graph unmoved_;  // with the axes that the file has
};

}  // namespace

Status check_labels(const ModelSetup& setup, Dataset& data) {
  for (const LossCount& count : setup.counts) {
    if (!count.by_label) continue;
    OFSDP_RETURN_IF_ERROR(data.check_labels(count.labels, {count.classes, count.ignore_index}));
  }
  return {};
}

std::vector<std::string> ModelSetup::class_names() const {
  for (const LossSpec& loss : source->settings().losses) {
    if (data.train == nullptr) break;
    auto classes = data.train->classes(loss.labels);
    if (!classes.empty()) return classes;
  }
  return {};
}

Result<ModelSetup> ModelSetup::make(const Options& options, const ModelOrigin& origin,
                                    const Registry& registry, Communicator& communicator,
                                    MemoryLedger& ledger, const DataSpec* library_data,
                                    const SavedRun* saved) {
  return SetupMaker(options, origin, registry, communicator, ledger, library_data, saved).run();
}

}  // namespace ofsdp::runtime
