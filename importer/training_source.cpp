#include "importer/training_source.h"

#include <algorithm>

#include "importer/graph/verify.h"
#include "importer/onnx_import.h"
#include "importer/passes/frozen_weights.h"
#include "importer/passes/fusion/fusion.h"
#include "importer/passes/passes.h"
#include "importer/write/output_files.h"
#include "kernels/base/reject.h"
#include "kernels/core/scale_map.h"

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
  OFSDP_ASSIGN_OR_RETURN(Graph joined,
                         checked_symbolic("with_teacher", with_teacher(symbolic_, teacher)));
  teacher_.emplace(std::move(teacher));
  set_symbolic(std::move(joined));
  return {};
}

namespace {

// The gradient of a scale is divided by the root of the elements that share it: of a weight all, of
// an activation those of one sample.
Status count_samples(Graph& graph, int64_t batch) {
  for (Node& node : graph.nodes) {
    if (node.op->full_name() != "ofsdp.FakeQuantize") continue;
    const Value& x = graph.value(node.inputs[0]);
    if (x.kind == ValueKind::kParameter) continue;
    OFSDP_ASSIGN_OR_RETURN(
        const ScaleMap map,
        ScaleMap::make(x.desc.shape, graph.value(node.inputs[1]).desc.shape,
                       node.attributes.i("axis", 1), node.attributes.i("block_size", 0)));
    Node made = node;
    made.attributes.set("count", std::max<int64_t>(map.shared_by() / batch, 1));
    OFSDP_RETURN_IF_ERROR(GraphEditor(graph).change(node, std::move(made)));
  }
  return ok_status();
}

std::vector<ValueId> values_of(const std::vector<LossTerm>& terms) {
  std::vector<ValueId> values;
  for (const LossTerm& term : terms) values.push_back(term.value);
  return values;
}

}  // namespace

Result<Graph> TrainingSource::specialized(int64_t batch, Mode mode) const {
  OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(symbolic_, settings_.rows, batch));
  const bool forward_alone = mode == Mode::kEval && brings_backward(symbolic_);
  OFSDP_ASSIGN_OR_RETURN(
      Graph graph,
      checked("specialize", specialize(forward_alone ? without_backward(symbolic_) : symbolic_,
                                       shapes, mode, lowering_)));
  Status counted = count_samples(graph, std::max<int64_t>(batch, 1));
  OFSDP_RETURN_IF_ERROR(checked("count_samples", std::move(counted), graph));
  return graph;
}

// In evaluation mode.
Result<Graph> TrainingSource::specialized_teacher(int64_t batch) const {
  const Graph& symbolic = teacher_->symbolic;
  OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(symbolic, settings_.rows, batch));
  return checked("specialize of the teacher", specialize(symbolic, shapes, Mode::kEval, lowering_));
}

Result<NhwcOrder> TrainingSource::nhwc_order(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(symbolic_, settings_.rows, batch));
  return find_nhwc_order(symbolic_, shapes, Mode::kTrain, lowering_);
}

Status TrainingSource::check_teacher(int64_t batch, std::span<const LossSpec> losses,
                                     const BatchAxes& axes) const {
  const std::string flag = "--teacher " + teacher_->file.path();
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, specialized_teacher(batch));
  SampleOrder order(graph, batch, axes, [&] { return specialized_teacher(2 * batch); });
  for (const LossSpec& loss : losses) {
    OFSDP_ASSIGN_OR_RETURN(const int64_t outer, outer_of(order, graph, loss, flag));
    OFSDP_REJECT_IF(outer != loss.outer,
                    "{}: output '{}': expected its samples where the trained model has them, found "
                    "them on another axis",
                    flag, loss.prediction);
  }
  return {};
}

Result<Graph> TrainingSource::with_loss(int64_t batch, Mode mode) const {
  OFSDP_ASSIGN_OR_RETURN(Graph graph, specialized(batch, mode));
  const bool follows = teacher_.has_value() && mode == Mode::kTrain;
  std::map<std::string, ValueId> taught;
  if (follows) {
    OFSDP_ASSIGN_OR_RETURN(const Graph frozen, specialized_teacher(batch));
    OFSDP_ASSIGN_OR_RETURN(graph,
                           checked("join_teacher", join_teacher(graph, frozen, *teacher_, taught)));
  }
  std::map<std::string, Shape> labels;
  for (const LossSpec& loss : settings_.losses) {
    const std::string column = label_column(graph, loss);
    if (column.empty()) continue;
    std::vector<int64_t> axes{batch};
    const auto& row = settings_.rows.at(column).axes();
    axes.insert(axes.end(), row.begin(), row.end());
    labels[column] = Shape(std::move(axes));
  }
  std::vector<LossSpec> losses = settings_.losses;
  for (LossSpec& loss : losses) loss.batch = batch;
  OFSDP_ASSIGN_OR_RETURN(Graph made, checked("attach_losses", attach_losses(graph, losses, labels,
                                                                            mode == Mode::kEval)));
  if (follows) {
    Status added = add_distillation(made, losses, *teacher_, taught);
    OFSDP_RETURN_IF_ERROR(checked("add_distillation", std::move(added), made));
  }
  if (mode == Mode::kEval) {
    Status measured = measure(made, losses, settings_.measures);
    OFSDP_RETURN_IF_ERROR(checked("measure", std::move(measured), made));
  }
  return made;
}

// Fused, and in the type that nodes compute in.
Result<Graph> TrainingSource::fused(const Graph& graph, const std::vector<ValueId>& wanted) const {
  OFSDP_ASSIGN_OR_RETURN(Graph made,
                         checked("fuse", fuse(graph, wanted, settings_.passes.fusions)));
  if (settings_.param_dtype == DType::kFloat32) return made;
  return checked("lower_precision", lower_precision(made, settings_.param_dtype));
}

Result<Graph> TrainingSource::placed(const Graph& graph) const {
  if (!settings_.passes.layouts) return graph;
  return checked("assign_layouts", assign_layouts(graph));
}

Result<Graph> TrainingSource::training_graph(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(Graph forward, with_loss(batch, Mode::kTrain));
  Status carried = carry_statistics(forward);
  OFSDP_RETURN_IF_ERROR(checked("carry_statistics", std::move(carried), forward));
  if (brings_backward(forward)) {
    OFSDP_ASSIGN_OR_RETURN(Graph ordered, checked("order_backward", order_backward(forward)));
    OFSDP_RETURN_IF_ERROR(synchronized(ordered));
    return placed(ordered);
  }
  std::vector<ValueId> wanted = values_of(forward.terms());
  for (const Carried& c : forward.carried) wanted.push_back(c.next);
  OFSDP_ASSIGN_OR_RETURN(const Graph lean, fused(forward, wanted));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, checked("autodiff", autodiff(lean)));
  OFSDP_RETURN_IF_ERROR(synchronized(graph));
  return placed(graph);
}

Status TrainingSource::synchronized(Graph& graph) const {
  if (!settings_.sync_batch_norm) return {};
  Status synchronous = synchronize_batch_norm(graph, settings_.ranks);
  return checked("synchronize_batch_norm", std::move(synchronous), graph);
}

Result<Graph> TrainingSource::evaluation_graph(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, with_loss(batch, Mode::kEval));
  std::vector<ValueId> wanted = values_of(graph.terms());
  if (graph.matches != 0) wanted.push_back(graph.matches);
  for (const Measured& m : graph.measured) wanted.push_back(m.rows);
  OFSDP_ASSIGN_OR_RETURN(const Graph lean, fused(graph, wanted));
  return placed(lean);
}

Result<Graph> TrainingSource::gradient_graph(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(const Graph forward, with_loss(batch, Mode::kTrain));
  return checked("autodiff", autodiff(forward));
}

Result<Graph> TrainingSource::fused_graph(int64_t batch) const {
  OFSDP_ASSIGN_OR_RETURN(const Graph forward, with_loss(batch, Mode::kTrain));
  return fused(forward, values_of(forward.terms()));
}

// Planning asks for the same few graphs for each recompute level and each strategy it tries.
Result<Graph> TrainingSource::graph(int64_t batch, Mode mode) const {
  const std::pair key{batch, mode};
  if (const auto built = graphs_.find(key); built != graphs_.end()) return built->second;
  ++graphs_built_;
  OFSDP_ASSIGN_OR_RETURN(Graph made,
                         mode == Mode::kTrain ? training_graph(batch) : evaluation_graph(batch));
  return graphs_.emplace(key, std::move(made)).first->second;
}

Status TrainingSource::check_output(const std::string& path, const TrainedState&) const {
  return check_output_path(path, file_);
}

Result<std::unique_ptr<TrainedOutput>> TrainingSource::begin_output(const std::string& path,
                                                                    const TrainedState&) const {
  OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::begin(file_, path));
  return std::unique_ptr<TrainedOutput>(std::make_unique<FileOutput>(std::move(output)));
}

Result<std::unique_ptr<TrainedOutput>> TrainingSource::join_output(const std::string& ticket,
                                                                   const TrainedState&) const {
  OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::join(file_, ticket));
  return std::unique_ptr<TrainedOutput>(std::make_unique<FileOutput>(std::move(output)));
}

Result<std::unique_ptr<TrainingSource>> open_plain_source(OnnxFile file, const Operators& operators,
                                                          const TrainedRules& rules) {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph,
                         checked_symbolic("import", import_onnx(file, operators)));
  OFSDP_ASSIGN_OR_RETURN(Graph chosen,
                         checked_symbolic("choose_candidates", choose_candidates(graph, rules)));
  if (rules.hold_frozen) {
    OFSDP_ASSIGN_OR_RETURN(chosen, checked_symbolic("hold_frozen", hold_frozen(chosen, file)));
  }
  return std::make_unique<TrainingSource>(std::move(file), std::move(chosen), operators.lowering);
}

}  // namespace ofsdp::importer
