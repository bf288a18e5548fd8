// The doctor's checks of the model.
#include <algorithm>
#include <set>

#include "importer/edit/model_edits.h"
#include "kernels/base/escaped.h"
#include "runtime/commands/doctor_findings.h"

namespace ofsdp::runtime {
namespace {

const Node* maker_of(const Graph& graph, ValueId value) {
  for (const Node& node : graph.nodes) {
    if (std::ranges::count(node.outputs, value) > 0) return &node;
  }
  return nullptr;
}

// The node that a value comes from, seen through those that only move it.
const Node* source_of(const Graph& graph, ValueId value) {
  static const std::set<std::string> kMoves = {"Identity", "Reshape",   "Squeeze", "Unsqueeze",
                                               "Cast",     "Transpose", "Flatten"};
  const Node* node = maker_of(graph, value);
  while (node != nullptr && kMoves.contains(node->op->full_name())) {
    node = maker_of(graph, node->inputs[0]);
  }
  return node;
}

void check_merged(const std::string& warning, Findings& findings) {
  if (warning.empty()) return;
  const size_t advice = warning.rfind(" (--untie");
  findings.add("merged copies: " + warning.substr(0, advice),
               "--untie auto gives each reader its own");
}

void check_statistics(const Graph& graph, Findings& findings) {
  std::vector<std::string> frozen;
  for (const Node& node : graph.nodes) {
    const bool norm = node.op->full_name() == "BatchNormalization";
    if (norm && node.attributes.i("training_mode", 0) == 0) frozen.push_back(node.name);
  }
  if (frozen.empty()) return;
  findings.add(format_text("frozen statistics: BatchNormalization {} normalizes with the file's "
                           "mean and variance, which training does not change (training_mode 0)",
                           some_names(frozen)),
               "--freeze their scales as well if that is meant, else export the model in training "
               "mode (--sync-batch-norm on then joins the ranks)");
}

void check_reached(const Graph& graph, const Options& options, Findings& findings) {
  std::vector<std::string> unreached;
  for (const Parameter& p : graph.parameters) {
    if (!p.trained && p.reason == kUnreached) unreached.push_back(p.name);
  }
  if (unreached.empty()) return;
  findings.add(format_text("the loss does not reach {} initializer{} {}: {}", unreached.size(),
                           unreached.size() == 1 ? "" : "s",
                           options.train.empty() ? "that could be trained" : "that --train names",
                           some_names(unreached)),
               "--loss output:NAME or --prediction NAME of an output that needs them, or --freeze "
               "them");
}

void check_prediction(const ModelSetup& setup, const LossSpec& loss, Findings& findings) {
  const ValueId prediction = loss.prediction.empty() ? 0 : setup.graph.find(loss.prediction);
  const Node* node = prediction == 0 ? nullptr : source_of(setup.graph, prediction);
  if (node == nullptr) return;
  const std::string op = node->op->full_name();
  static const std::set<std::string> kScores = {"Gemm", "MatMul", "Add", "Conv", "Relu"};
  const std::string name = escaped(loss.prediction);
  if (loss.kind == LossKind::kCrossEntropy && op == "Softmax") {
    findings.add(format_text("the prediction '{}' is a Softmax, and cross_entropy takes the "
                             "softmax of it once more",
                             name),
                 "--prediction NAME of the scores before it, exported as an output");
  } else if (loss.kind == LossKind::kCrossEntropy && op == "Sigmoid") {
    findings.add(format_text("the prediction '{}' is a Sigmoid, which cross_entropy takes for "
                             "scores",
                             name),
                 "--prediction NAME of the scores before it, exported as an output");
  } else if (loss.kind == LossKind::kBceWithLogits && (op == "Sigmoid" || op == "Softmax")) {
    findings.add(format_text("the prediction '{}' is a {}, and bce_with_logits takes the sigmoid "
                             "of it once more",
                             name, op),
                 "--prediction NAME of the scores before it, exported as an output");
  } else if (loss.kind == LossKind::kNll && op == "Softmax") {
    findings.add(format_text("the prediction '{}' is a Softmax, and nll takes logarithms of "
                             "probabilities",
                             name),
                 "--loss cross_entropy with the scores before it as --prediction");
  } else if (loss.kind == LossKind::kNll && kScores.contains(op)) {
    findings.add(format_text("the prediction '{}' comes from {}, and nll takes logarithms of "
                             "probabilities",
                             name, op),
                 "--loss cross_entropy");
  }
}

}  // namespace

Status check_model(const ModelSetup& setup, const Options& options, Findings& findings) {
  if (options.edit.untie.empty()) {
    OFSDP_ASSIGN_OR_RETURN(const std::string merged, merged_copies_warning(setup.file));
    check_merged(merged, findings);
  }
  check_statistics(setup.graph, findings);
  check_reached(setup.graph, options, findings);
  for (const LossSpec& loss : setup.source->settings().losses) {
    check_prediction(setup, loss, findings);
  }
  return {};
}

}  // namespace ofsdp::runtime
