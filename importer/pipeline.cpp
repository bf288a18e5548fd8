#include "importer/pipeline.h"

#include <algorithm>

#include "importer/graph/graph.h"
#include "importer/graph/verify.h"
#include "importer/passes/joined_nodes.h"
#include "importer/passes/model_inputs.h"
#include "importer/passes/passes.h"
#include "importer/passes/trained_set.h"
#include "kernels/core/quantization.h"

namespace ofsdp::importer {
namespace {

// Replaces `graph`, unless the pass failed.
Status replace(Graph& graph, Result<Graph> made) {
  OFSDP_ASSIGN_OR_RETURN(graph, std::move(made));
  return {};
}

bool trains(const PassContext& c) { return c.mode == Mode::kTrain; }
bool follows(const PassContext& c) { return c.teacher != nullptr && trains(c); }

// --- conditions ---

bool always(const Graph&, const PassContext&) { return true; }
bool holds_frozen(const Graph&, const PassContext& c) { return c.rules->hold_frozen; }
bool has_teacher(const Graph&, const PassContext& c) { return follows(c); }
bool evaluates(const Graph&, const PassContext& c) { return !trains(c); }
bool is_training(const Graph&, const PassContext& c) { return trains(c); }
bool has_backward(const Graph& graph, const PassContext& c) {
  return trains(c) && brings_backward(graph);
}
bool needs_backward(const Graph& graph, const PassContext& c) {
  return trains(c) && !brings_backward(graph);
}
bool lacks_backward(const Graph& graph, const PassContext& c) {
  return c.forward_only || !has_backward(graph, c);
}
bool is_narrow_graph(const Graph& graph, const PassContext& c) {
  return lacks_backward(graph, c) && c.settings->param_dtype != DType::kFloat32;
}
bool synchronizes(const Graph&, const PassContext& c) {
  return trains(c) && c.settings->sync_batch_norm;
}
bool has_layouts(const Graph&, const PassContext& c) { return c.settings->passes.layouts; }
bool recomputes(const Graph&, const PassContext& c) { return trains(c) && c.recompute != nullptr; }
bool joins(const Graph&, const PassContext& c) { return trains(c) && c.settings->passes.joins; }
bool on_device(const Graph&, const PassContext& c) { return c.device; }
bool packs(const Graph& graph, const PassContext& c) {
  return c.settings->packed > 0 && lacks_backward(graph, c);
}
bool widens(const Graph&, const PassContext& c) { return trains(c) && c.wide_gradients; }

// --- passes, with their operands from the context ---

Status run_import(Graph& graph, PassContext& c) {
  return replace(graph, import_onnx(*c.file, *c.operators, "", c.wanted));
}

// Evaluation leaves out a backward part that the file brings.
Status run_specialize(Graph& graph, PassContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(*c.symbolic, c.settings->rows, c.batch));
  const bool forward_alone = !trains(c) && brings_backward(*c.symbolic);
  OFSDP_RETURN_IF_ERROR(
      replace(graph, specialize(forward_alone ? without_backward(*c.symbolic) : *c.symbolic, shapes,
                                c.mode, c.lowering)));
  if (trains(c) || c.teacher == nullptr) return {};
  const auto taught = inputs_of_teacher(*c.symbolic, *c.teacher, c.settings->losses);
  std::erase_if(graph.inputs, [&](ValueId id) { return taught.contains(graph.value(id).name); });
  return {};
}

// A scale's gradient is divided by the root of a count: the weight elements that share the scale,
// or, for an activation, one sample's elements.
Status count_samples(Graph& graph, PassContext& c) {
  for (Node& node : graph.nodes) {
    if (!node.op->fake_quantizes) continue;
    const Value& x = graph.value(node.inputs[0]);
    if (x.kind == ValueKind::kParameter) continue;
    OFSDP_ASSIGN_OR_RETURN(
        const ScaleMap map,
        ScaleMap::make(x.desc.shape, graph.value(node.inputs[1]).desc.shape,
                       node.attributes.i("axis", 1), node.attributes.i("block_size", 0)));
    Node made = node;
    const int64_t batch = std::max<int64_t>(c.batch, 1);
    made.attributes.set("count", std::max<int64_t>(map.shared_by() / batch, 1));
    OFSDP_RETURN_IF_ERROR(GraphEditor(graph).change(node, std::move(made)));
  }
  return ok_status();
}

Status run_join_teacher(Graph& graph, PassContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Graph frozen, specialize_teacher(c));
  return replace(graph, join_teacher(graph, frozen, *c.teacher, c.taught));
}

std::vector<LossSpec> batch_losses(const PassContext& c) {
  std::vector<LossSpec> losses = c.settings->losses;
  for (LossSpec& loss : losses) loss.batch = c.batch;
  return losses;
}

Status run_attach_losses(Graph& graph, PassContext& c) {
  std::map<std::string, Shape> labels;
  for (const LossSpec& loss : c.settings->losses) {
    const std::string column = label_column(graph, loss);
    if (column.empty()) continue;
    std::vector<int64_t> axes{c.batch};
    const auto& row = c.settings->rows.at(column).axes();
    axes.insert(axes.end(), row.begin(), row.end());
    labels[column] = Shape(std::move(axes));
  }
  return replace(graph, attach_losses(graph, batch_losses(c), labels, !trains(c)));
}

// Keeps the loss terms, the buffers' next values, and an evaluation's results.
Status run_fuse(Graph& graph, PassContext& c) {
  std::vector<ValueId> wanted;
  for (const LossTerm& term : graph.terms) wanted.push_back(term.value);
  for (const Carried& carried : graph.carried) wanted.push_back(carried.next);
  if (graph.matches != 0) wanted.push_back(graph.matches);
  for (const Measured& m : graph.measured) wanted.push_back(m.rows);
  graph = fuse(graph, wanted, c.settings->passes.fusions);
  return {};
}

template <Graph (*kPass)(const Graph&, const TakesNode&)>
Status run_join(Graph& graph, PassContext& c) {
  graph = kPass(graph, c.takes);
  return {};
}

// clang-format off
constexpr Pass kPipeline[] = {
    {"import", PassStage::kImport, "always", always, run_import},
    {"choose_candidates", PassStage::kImport, "always", always,
     [](Graph& g, PassContext& c) { return replace(g, choose_candidates(g, *c.rules)); }},
    {"hold_frozen", PassStage::kImport, "frozen matrices keep the type of the file", holds_frozen,
     [](Graph& g, PassContext& c) { return replace(g, hold_frozen(g, *c.file)); }},
    {"with_teacher", PassStage::kTeacher, "always", always,
     [](Graph& g, PassContext& c) { return replace(g, with_teacher(g, *c.teacher)); }},
    {"specialize", PassStage::kSpecialize, "always", always, run_specialize},
    {"count_samples", PassStage::kSpecialize, "always", always, count_samples},
    {"join_teacher", PassStage::kLoss, "training with a teacher", has_teacher, run_join_teacher},
    {"attach_losses", PassStage::kLoss, "always", always, run_attach_losses},
    {"add_distillation", PassStage::kLoss, "training with a teacher", has_teacher,
     [](Graph& g, PassContext& c) { return add_distillation(g, batch_losses(c), *c.teacher, c.taught); }},
    {"measure", PassStage::kLoss, "evaluation", evaluates,
     [](Graph& g, PassContext& c) { return measure(g, batch_losses(c), c.settings->measures); }},
    {"carry_statistics", PassStage::kStatistics, "training", is_training,
     [](Graph& g, PassContext&) { return carry_statistics(g); }},
    {"fuse", PassStage::kFuse, "unless the file brings a backward part", lacks_backward, run_fuse},
    {"separate_documents", PassStage::kFuse, "--pack", packs,
     [](Graph& g, PassContext& c) { return replace(g, separate_documents(g, c.batch, c.settings->packed)); }},
    {"lower_precision", PassStage::kFuse, "the same, and nodes compute in 16 bits", is_narrow_graph,
     [](Graph& g, PassContext& c) { return replace(g, lower_precision(g, c.settings->param_dtype)); }},
    {"order_backward", PassStage::kBackward, "training, and the file brings a backward part", has_backward,
     [](Graph& g, PassContext&) { return replace(g, order_backward(g)); }},
    {"autodiff", PassStage::kBackward, "training otherwise", needs_backward,
     [](Graph& g, PassContext&) { return replace(g, autodiff(g)); }},
    {"synchronize_batch_norm", PassStage::kFinish, "training with --sync-batch-norm", synchronizes,
     [](Graph& g, PassContext& c) { return synchronize_batch_norm(g, c.settings->ranks); }},
    {"assign_layouts", PassStage::kFinish, "unless a test switches it off", has_layouts,
     [](Graph& g, PassContext&) { return replace(g, assign_layouts(g)); }},
    {"recompute", PassStage::kProgram, "training with activation checkpointing", recomputes,
     [](Graph& g, PassContext& c) { return replace(g, c.recompute(g)); }},
    {"join_loss_gradient", PassStage::kProgram, "training", joins, run_join<join_loss_gradient>},
    {"multiply_kept_rows", PassStage::kProgram, "training", joins, run_join<multiply_kept_rows>},
    {"chunk_losses", PassStage::kProgram, "training", joins,
     [](Graph& g, PassContext& c) { return replace(g, chunk_losses(g, c.takes, c.settings->passes, c.wide_gradients)); }},
    {"join_norm_addends", PassStage::kProgram, "training", joins, run_join<join_norm_addends>},
    {"repeat_chains", PassStage::kProgram, "on a device", on_device, run_join<repeat_chains>},
    {"keep_attention_statistics", PassStage::kProgram, "on a device", on_device, run_join<keep_attention_statistics>},
    {"join_epilogues", PassStage::kProgram, "on a device", on_device, run_join<join_epilogues>},
    {"widen_gradients", PassStage::kProgram, "on a device whose slots are float32", widens,
     [](Graph& g, PassContext& c) { return replace(g, widen_gradients(g, c.takes)); }},
    {"pitch_rows", PassStage::kProgram, "on a device", on_device, run_join<pitch_rows>},
};
// clang-format on

}  // namespace

std::set<std::string> inputs_of_teacher(const Graph& symbolic, const Teacher& teacher,
                                        std::span<const LossSpec> losses) {
  std::set<std::string> names;
  for (const ValueId id : teacher.symbolic.inputs) names.insert(teacher.symbolic.value(id).name);
  for (const Node& node : symbolic.nodes) {
    for (const ValueId id : node.inputs) names.erase(symbolic.value(id).name);
  }
  for (const ValueId id : symbolic.outputs) names.erase(symbolic.value(id).name);
  for (const LossSpec& loss : losses) names.erase(loss.labels);
  return names;
}

std::span<const Pass> pipeline() { return kPipeline; }

Status run_passes(Graph& graph, PassContext& context, std::initializer_list<PassStage> stages) {
  for (const Pass& pass : kPipeline) {
    const bool asked = std::ranges::find(stages, pass.stage) != stages.end();
    if (!asked || !pass.runs(graph, context)) continue;
    Status done = pass.run(graph, context);
    OFSDP_RETURN_IF_ERROR(pass.stage <= PassStage::kTeacher
                              ? checked_symbolic(pass.name, std::move(done), graph)
                              : checked(pass.name, std::move(done), graph));
  }
  return {};
}

Result<Graph> specialize_teacher(const PassContext& c) {
  const Graph& symbolic = c.teacher->symbolic;
  OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(symbolic, c.settings->rows, c.batch));
  return checked("specialize of the teacher",
                 specialize(symbolic, shapes, Mode::kEval, c.lowering));
}

}  // namespace ofsdp::importer
