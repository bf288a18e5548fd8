#include "runtime/plan/model_setup.h"

#include <algorithm>

#include "importer/onnx_import.h"
#include "importer/passes/autodiff.h"
#include "importer/passes/fusion/fusion.h"
#include "importer/passes/given_backward.h"
#include "importer/passes/layouts.h"
#include "importer/passes/precision.h"
#include "importer/passes/running_statistics.h"
#include "runtime/plan/initial_values.h"

namespace ofsdp::runtime {
namespace {

// The batch of a graph with a fixed leading axis is that number; another one that was asked for is
// wrong.
Status settle_batch(Options& options, const Graph& graph, int world) {
  const int64_t fixed = fixed_batch(graph);
  auto& given = options.batch.given;
  if (fixed >= 0 && !given.batch_size.value && !given.global_batch_size.value) {
    given.batch_size.value = fixed;
  }
  OFSDP_RETURN_IF_ERROR(reconcile_batch(options, world));
  if (fixed < 0 || options.batch.batch_size == fixed) return {};
  return input_error("--batch-size {}: the batch axis of {} is fixed at {}",
                     options.batch.batch_size, graph.file, fixed);
}

// Of synthetic labels: what the prediction asks for.
Shape label_row_of(const Graph& specialized, const LossSpec& loss, int64_t batch) {
  const Value& prediction = specialized.value(specialized.find(loss.prediction));
  std::vector<int64_t> axes = prediction.desc.shape.axes();
  const bool classes = loss.kind == LossKind::kCrossEntropy || loss.kind == LossKind::kNll;
  if (classes) axes.pop_back();
  if (!axes.empty() && axes[0] == batch) {
    axes.erase(axes.begin());
  } else if (!axes.empty()) {
    axes[0] /= batch;  // flattened leading axes: k * batch rows
  }
  return Shape(std::move(axes));
}

class SetupMaker {
 public:
  SetupMaker(Options& options, const Registry& registry, Communicator& communicator,
             MemoryLedger& ledger)
      : options_(options), registry_(registry), communicator_(communicator), ledger_(ledger) {}

  Result<ModelSetup> run() {
    OFSDP_ASSIGN_OR_RETURN(ModelSetup setup,
                           options_.artifacts.empty() ? open_model() : open_artifacts());
    setup.param_dtype = options_.sharding.param_dtype;
    OFSDP_RETURN_IF_ERROR(settle_batch(options_, setup.graph, communicator_.size()));
    OFSDP_RETURN_IF_ERROR(open_columns(setup));
    OFSDP_RETURN_IF_ERROR(settle_loss(setup));
    OFSDP_RETURN_IF_ERROR(settle_trained(setup));
    return setup;
  }

 private:
  Result<ModelSetup> open_model() {
    const std::string& path = options_.weights.empty() ? options_.model : options_.weights;
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::open(path));
    std::optional<UpdateRules> rules;
    if (options_.training_info) {
      OFSDP_ASSIGN_OR_RETURN(rules, read_update_rules(file, registry_));
    }
    if (rules) OFSDP_RETURN_IF_ERROR(follow(*rules));
    if (options_.initialize) OFSDP_RETURN_IF_ERROR(start_anew(file, rules));
    OFSDP_ASSIGN_OR_RETURN(
        const Graph graph,
        import_onnx(file, registry_, rules ? ImportedPart::kWithLoss : ImportedPart::kModel));
    OFSDP_ASSIGN_OR_RETURN(Graph chosen,
                           choose_candidates(graph, {options_.freeze, options_.train}));
    ModelSetup setup{std::move(file), std::move(chosen), {}, {}, {}, {}, {}};
    setup.rules = std::move(rules);
    return setup;
  }

  // Their training model brings its own backward; the optimizer goes on from their state.
  Result<ModelSetup> open_artifacts() {
    OFSDP_ASSIGN_OR_RETURN(OrtArtifacts artifacts, OrtArtifacts::open(options_.artifacts));
    OFSDP_ASSIGN_OR_RETURN(Graph graph, import_onnx(artifacts.training, registry_));
    OFSDP_RETURN_IF_ERROR(take_backward(artifacts, graph));
    std::set<std::string> trained;
    for (const OrtTensor& tensor : artifacts.checkpoint.trained) trained.insert(tensor.name);
    OnnxFile file = std::move(artifacts.training);
    ModelSetup setup{std::move(file), choose_given(graph, trained), {}, {}, {}, {}, {}};
    if (artifacts.checkpoint.optimizer) {
      options_.optimizer.steps_done = artifacts.checkpoint.optimizer->step;
    }
    setup.artifacts = std::make_shared<const OrtArtifacts>(std::move(artifacts));
    return setup;
  }

  // The file says itself what is trained, and how.
  Status follow(const UpdateRules& rules) {
    if (!options_.of_training.empty()) {
      return input_error(
          "{}: {} has a training_info that says how it is trained (--training-info off leaves it "
          "aside)",
          options_.of_training, options_.model);
    }
    options_.loss.kind = LossKind::kOutput;
    options_.loss.output = rules.loss;
    options_.train = rules.trained;
    return {};
  }

  Status start_anew(OnnxFile& file, std::optional<UpdateRules>& rules) const {
    if (rules) return initialize(file, &*rules, registry_, options_.run.seed);
    return input_error("--initialize: {} has no training_info to follow", options_.model);
  }

  Status open_columns(ModelSetup& setup) {
    OFSDP_ASSIGN_OR_RETURN(DataSpec spec, find_data(options_));
    const LossOptions& loss = options_.loss;
    setup.loss = {loss.kind,   loss.output,       loss.prediction,
                  loss.labels, loss.ignore_index, loss.label_smoothing};
    auto names = spec.train.names();
    if (spec.synthetic) names = {loss.labels.empty() ? "labels" : loss.labels};
    OFSDP_ASSIGN_OR_RETURN(setup.loss, resolve_labels(setup.graph, setup.loss, names));
    const std::string label = label_column(setup.graph, setup.loss);
    OFSDP_ASSIGN_OR_RETURN(setup.data, open_data(std::move(spec), options_, setup.graph, label,
                                                 communicator_, ledger_));
    OFSDP_ASSIGN_OR_RETURN(setup.rows, input_rows(setup.data, setup.graph));
    if (!label.empty() && setup.data.train)
      setup.rows[label] = setup.data.train->stored(label)->row;
    return {};
  }

  Status settle_loss(ModelSetup& setup) {
    const int64_t batch = options_.batch.batch_size;
    OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(setup.graph, setup.rows, batch));
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, specialize(setup.graph, shapes, Mode::kTrain));
    OFSDP_ASSIGN_OR_RETURN(setup.loss, resolve_loss(graph, setup.loss));
    const std::string label = label_column(setup.graph, setup.loss);
    if (!label.empty() && !setup.rows.contains(label)) {
      setup.rows[label] = label_row_of(graph, setup.loss, batch);
    }
    return {};
  }

  Status settle_trained(ModelSetup& setup) {
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup.training_graph(options_.batch.batch_size));
    OFSDP_ASSIGN_OR_RETURN(setup.graph, keep_reached(setup.graph, graph));
    if (setup.rules) OFSDP_RETURN_IF_ERROR(check_all_reached(setup));
    OFSDP_RETURN_IF_ERROR(check_initialized(setup));
    setup.count = loss_count(graph);
    return bind_data(setup.data, graph, options_.run.seed, setup.count);
  }

  // What nothing would write to the trained file.
  static Status check_initialized(const ModelSetup& setup) {
    const auto& weights = setup.file.initializers();
    for (const Parameter& p : setup.graph.parameters) {
      const bool initialized = setup.file.has_initial(weights[static_cast<size_t>(p.initializer)]);
      if (!initialized || p.trained || p.reason == kRunningStatistics) continue;
      const bool state = std::ranges::any_of(setup.rules->rules, [&](const UpdateRule& rule) {
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

  // An update without a gradient would be another one than the file says.
  static Status check_all_reached(const ModelSetup& setup) {
    for (const std::string& name : setup.rules->trained) {
      for (const Parameter& p : setup.graph.parameters) {
        if (p.name != name || p.trained) continue;
        return input_error("{}: training_info: Gradient of '{}': '{}' is not trained: {}",
                           setup.graph.file, setup.rules->loss, name, p.reason);
      }
    }
    return {};
  }

  Options& options_;
  const Registry& registry_;
  Communicator& communicator_;
  MemoryLedger& ledger_;
};

// Specialized, with its loss.
Result<Graph> with_loss(const ModelSetup& setup, int64_t batch, Mode mode) {
  OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(setup.graph, setup.rows, batch));
  const bool forward_alone = mode == Mode::kEval && brings_backward(setup.graph);
  OFSDP_ASSIGN_OR_RETURN(
      const Graph graph,
      specialize(forward_alone ? without_backward(setup.graph) : setup.graph, shapes, mode));
  Shape labels;
  if (const std::string column = label_column(graph, setup.loss); !column.empty()) {
    std::vector<int64_t> axes{batch};
    const auto& row = setup.rows.at(column).axes();
    axes.insert(axes.end(), row.begin(), row.end());
    labels = Shape(std::move(axes));
  }
  return attach_loss(graph, setup.loss, labels, mode == Mode::kEval);
}

}  // namespace

Result<ModelSetup> ModelSetup::make(Options& options, const Registry& registry,
                                    Communicator& communicator, MemoryLedger& ledger) {
  return SetupMaker(options, registry, communicator, ledger).run();
}

// Fused, and in the type that nodes compute in.
Result<Graph> ModelSetup::fused_graph(const Graph& graph,
                                      const std::vector<ValueId>& wanted) const {
  Graph fused = fuse(graph, wanted);
  if (param_dtype == DType::kFloat32) return fused;
  return lower_precision(fused, param_dtype);
}

Result<Graph> ModelSetup::training_graph(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(Graph forward, with_loss(*this, batch, Mode::kTrain));
  OFSDP_RETURN_IF_ERROR(carry_statistics(forward));
  if (brings_backward(forward)) {
    OFSDP_ASSIGN_OR_RETURN(const Graph ordered, order_backward(forward));
    return assign_layouts(ordered);
  }
  std::vector<ValueId> wanted{forward.loss};
  for (const Carried& c : forward.carried) wanted.push_back(c.next);
  OFSDP_ASSIGN_OR_RETURN(const Graph fused, fused_graph(forward, wanted));
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, autodiff(fused));
  return assign_layouts(graph);
}

Result<Graph> ModelSetup::gradient_graph(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(const Graph forward, with_loss(*this, batch, Mode::kTrain));
  return autodiff(forward);
}

Result<Graph> ModelSetup::evaluation_graph(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, with_loss(*this, batch, Mode::kEval));
  std::vector<ValueId> wanted{graph.loss};
  if (graph.matches != 0) wanted.push_back(graph.matches);
  OFSDP_ASSIGN_OR_RETURN(const Graph fused, fused_graph(graph, wanted));
  return assign_layouts(fused);
}

}  // namespace ofsdp::runtime
