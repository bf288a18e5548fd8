#include "importer/training_source.h"

#include <algorithm>

#include "importer/normalize/onnx_import.h"
#include "importer/passes/fusion/fusion.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

void TrainingSource::configure(GraphSettings settings) {
  settings_ = std::move(settings);
  graphs_.clear();
}

void TrainingSource::set_symbolic(Graph symbolic) {
  symbolic_ = std::move(symbolic);
  graphs_.clear();
}

Status TrainingSource::follow(Teacher teacher) {
  PassContext c;
  c.teacher = &teacher;
  Graph joined = symbolic_;
  OFSDP_RETURN_IF_ERROR(run_passes(joined, c, {PassStage::kTeacher}));
  teacher_.emplace(std::move(teacher));
  set_symbolic(std::move(joined));
  return {};
}

PassContext TrainingSource::context(int64_t batch, Mode mode) const {
  PassContext c;
  c.symbolic = &symbolic_;
  c.lowering = lowering_;
  c.teacher = teacher();
  c.settings = &settings_;
  c.batch = batch;
  c.mode = mode;
  return c;
}

Result<Graph> TrainingSource::passed(int64_t batch, Mode mode,
                                     std::initializer_list<PassStage> stages) const {
  PassContext c = context(batch, mode);
  Graph graph;
  OFSDP_RETURN_IF_ERROR(run_passes(graph, c, stages));
  return graph;
}

Result<Graph> TrainingSource::specialized(int64_t batch, Mode mode) const {
  return passed(batch, mode, {PassStage::kSpecialize});
}

Result<Graph> TrainingSource::forward_graph(int64_t batch, Mode mode) const {
  OFSDP_ASSIGN_OR_RETURN(Graph graph,
                         passed(batch, mode, {PassStage::kSpecialize, PassStage::kLoss}));
  if (settings_.packed == 0) return graph;
  return separate_documents(graph, batch, settings_.packed);
}

Result<Graph> TrainingSource::fused_graph(int64_t batch) const {
  PassContext c = context(batch, Mode::kTrain);
  c.forward_only = true;
  Graph graph;
  OFSDP_RETURN_IF_ERROR(
      run_passes(graph, c, {PassStage::kSpecialize, PassStage::kLoss, PassStage::kFuse}));
  return graph;
}

Result<Graph> TrainingSource::gradient_graph(int64_t batch) const {
  return passed(batch, Mode::kTrain,
                {PassStage::kSpecialize, PassStage::kLoss, PassStage::kBackward});
}

Status TrainingSource::free_reshapes(int64_t fixed) {
  OFSDP_ASSIGN_OR_RETURN(const Graph made, specialized(fixed, Mode::kTrain));
  set_symbolic(with_free_reshapes(symbolic_, made, fixed));
  return {};
}

Result<NhwcOrder> TrainingSource::nhwc_order(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(symbolic_, settings_.rows, batch));
  return find_nhwc_order(symbolic_, shapes, Mode::kTrain, lowering_);
}

namespace {

void add_output(Graph& graph, ValueId id) {
  const bool has = std::ranges::find(graph.outputs, id) != graph.outputs.end();
  if (!has) graph.outputs.push_back(id);
}

// Adds [0, logit] over the last axis to a graph whose shapes are not known yet.
void add_two_scores(Graph& symbolic, ValueId logit, const std::string& name) {
  const Registry& registry = *symbolic.registry;
  GraphEditor editor(symbolic);
  const auto value = [&](const std::string& of) {
    return editor.add_value({of, ValueKind::kActivation, {}});
  };
  const ValueId shape = value(name + ".shape"), zeros = value(name + ".zeros"), both = value(name);
  symbolic.nodes.push_back({&registry.get("Shape"), name + ".shape", {}, {logit}, {shape}});
  symbolic.nodes.push_back(
      {&registry.get("ConstantOfShape"), name + ".zeros", {}, {shape}, {zeros}});
  symbolic.nodes.push_back(
      {&registry.get("Concat"), name, {{"axis", int64_t{-1}}}, {zeros, logit}, {both}});
}

// The same where they are known.
Result<ValueId> add_two_known_scores(Graph& graph, ValueId logit, const std::string& name) {
  GraphEditor editor(graph);
  const Shape shape = graph.value(logit).desc.shape;
  const std::vector<float> zeros(static_cast<size_t>(shape.numel()));
  const ValueId zero =
      editor.add_constant(name + ".zeros", make_constant<float>(DType::kFloat32, shape, zeros));
  return editor.add1("Concat", name, {zero, logit}, {{"axis", int64_t{-1}}});
}

// Returns scores that `symbolic`, whose names outlast a specialization, has as well.
ScoresBefore lasting_scores(const Graph& symbolic, const Graph& graph, const LossSpec& loss) {
  const ValueId prediction = find_output(graph, loss.prediction);
  ScoresBefore found = prediction == 0 ? ScoresBefore{} : scores_before(graph, loss, prediction);
  if (found.value == 0) return found;
  const ValueId same = symbolic.find(graph.value(found.value).name);
  const bool lasts = same != 0 && symbolic.value(same).kind == ValueKind::kActivation;
  return lasts ? found : ScoresBefore{};
}

}  // namespace

Status TrainingSource::take_scores(int64_t batch, Graph& graph, std::vector<LossSpec>& losses) {
  if (brings_backward(symbolic_)) return {};
  Graph symbolic = symbolic_, of_teacher;
  if (teacher_) {
    OFSDP_ASSIGN_OR_RETURN(of_teacher, specialize_teacher(context(batch, Mode::kEval)));
  }
  for (LossSpec& loss : losses) {
    const ScoresBefore own = lasting_scores(symbolic, graph, loss);
    if (teacher_ && find_output(of_teacher, loss.prediction) != 0) {
      const ScoresBefore taught = lasting_scores(teacher_->symbolic, of_teacher, loss);
      OFSDP_REJECT_IF((own.value == 0) != (taught.value == 0),
                      "--teacher {}: output '{}': expected it to end as in the trained model, {}, "
                      "found {}",
                      teacher_->file.path(), loss.prediction,
                      own.value == 0 ? "in scores" : "in " + own.node,
                      taught.value == 0 ? "scores" : taught.node);
      if (taught.value != 0) {
        loss.taught = of_teacher.value(taught.value).name;
        add_output(teacher_->symbolic, teacher_->symbolic.find(loss.taught));
      }
    }
    OFSDP_REJECT_IF(own.two_classes && teacher_.has_value(),
                    "--teacher: expected a prediction with scores before a Softmax, found {}",
                    own.node);
    if (own.value == 0) continue;
    if (own.two_classes) {
      loss.logit = graph.value(own.value).name;
      loss.scores = loss.prediction + ".scores";
      loss.before = own.node;
      OFSDP_ASSIGN_OR_RETURN(const ValueId scores,
                             add_two_known_scores(graph, own.value, loss.scores));
      add_output(graph, scores);
      add_two_scores(symbolic, symbolic.find(loss.logit), loss.scores);
      add_output(symbolic, symbolic.find(loss.scores));
      continue;
    }
    loss.scores = graph.value(own.value).name;
    loss.before = own.node;
    add_output(graph, own.value);
    add_output(symbolic, symbolic.find(loss.scores));
  }
  set_symbolic(std::move(symbolic));
  return {};
}

Status TrainingSource::check_teacher(int64_t batch, std::span<const LossSpec> losses,
                                     const BatchAxes& axes) const {
  const std::string flag = "--teacher " + teacher_->file.path();
  const auto specialized = [&](int64_t size) {
    return specialize_teacher(context(size, Mode::kEval));
  };
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, specialized(batch));
  SampleOrder order(graph, batch, axes, [&] { return specialized(2 * batch); });
  for (const LossSpec& loss : losses) {
    OFSDP_ASSIGN_OR_RETURN(const int64_t outer, outer_of(order, graph, loss, flag));
    OFSDP_REJECT_IF(outer != loss.outer,
                    "{}: output '{}': expected its samples where the trained model has them, found "
                    "them on another axis",
                    flag, loss.prediction);
  }
  return {};
}

GraphSettings TrainingSource::cut_settings(int64_t length) const {
  GraphSettings cut = settings_;
  for (const auto& [name, places] : settings_.cut_axes) {
    std::vector<int64_t> axes = cut.rows.at(name).axes();
    for (const int place : places) axes[static_cast<size_t>(place)] = length;
    cut.rows[name] = Shape(std::move(axes));
  }
  return cut;
}

// Planning asks for the same few graphs for each recompute level and strategy that it tries.
Result<Graph> TrainingSource::graph(int64_t batch, Mode mode, int64_t length) const {
  const std::tuple key{batch, mode, length};
  if (const auto built = graphs_.find(key); built != graphs_.end()) return built->second;
  ++graphs_built_;
  const GraphSettings cut = length > 0 ? cut_settings(length) : GraphSettings();
  PassContext c = context(batch, mode);
  if (length > 0) c.settings = &cut;
  Graph made;
  using enum PassStage;
  OFSDP_RETURN_IF_ERROR(
      run_passes(made, c, {kSpecialize, kLoss, kStatistics, kFuse, kBackward, kFinish}));
  return graphs_.emplace(key, std::move(made)).first->second;
}

Result<Graph> TrainingSource::forward_of_documents(int64_t batch, bool together) const {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, specialized(batch, Mode::kEval));
  Graph fused = fuse(graph, graph.outputs, settings_.passes.fusions);
  if (!together) return fused;
  return separate_documents(fused, batch, settings_.packed);
}

Status commit_output(ModelOutput& output, bool inference) {
  if (inference) {
    OFSDP_RETURN_IF_ERROR(make_inference_model(output.model_temporary()));
    OFSDP_RETURN_IF_ERROR(output.finish());
  }
  return output.commit();
}

Status TrainingSource::check_output(const std::string& path, const TrainedState& state) const {
  if (state.inference) OFSDP_RETURN_IF_ERROR(check_inference_model(file_));
  return check_output_path(path, file_);
}

Result<std::unique_ptr<TrainedOutput>> TrainingSource::begin_output(
    const std::string& path, const TrainedState& state) const {
  OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::begin(file_, path));
  return std::unique_ptr<TrainedOutput>(
      std::make_unique<FileOutput>(std::move(output), state.inference));
}

Result<std::unique_ptr<TrainedOutput>> TrainingSource::join_output(
    const std::string& ticket, const TrainedState& state) const {
  OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::join(file_, ticket));
  return std::unique_ptr<TrainedOutput>(
      std::make_unique<FileOutput>(std::move(output), state.inference));
}

Result<std::unique_ptr<TrainingSource>> open_plain_source(OnnxFile file, const Operators& operators,
                                                          const TrainedRules& rules,
                                                          const WantedValues& wanted) {
  PassContext c;
  c.file = &file;
  c.operators = &operators;
  c.rules = &rules;
  c.wanted = wanted;
  Graph chosen;
  OFSDP_RETURN_IF_ERROR(run_passes(chosen, c, {PassStage::kImport}));
  return std::make_unique<TrainingSource>(std::move(file), std::move(chosen), operators.lowering);
}

}  // namespace ofsdp::importer
