// NegativeLogLikelihoodLoss(LogSoftmax(x)) over the class axis -> SoftmaxCrossEntropyLoss(x): the
// gradient of both is softmax minus one-hot, made in place.
#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {

bool fuse_log_softmax_loss(Rewriter& r, const Node& node) {
  if (node.op->full_name() != "NegativeLogLikelihoodLoss") return false;
  const Node* collapse = r.made_by(node.inputs[0], "ofsdp.CollapseLeading");
  const ValueId rows = collapse != nullptr ? collapse->inputs[0] : node.inputs[0];
  const Node* softmax = r.made_by(rows, "LogSoftmax");
  if (softmax == nullptr || !r.read_once(rows) || !r.read_once(node.inputs[0])) return false;
  const int rank = r.shape(rows).rank();
  const int64_t axis = softmax->attributes.i("axis", -1);
  if (axis != -1 && axis != rank - 1) return false;
  if (r.shape(node.inputs[0]).rank() != 2 || r.shape(node.outputs[0]).rank() != 0) return false;
  std::vector<ValueId> inputs = node.inputs;
  inputs[0] = softmax->inputs[0];
  if (collapse != nullptr) {
    inputs[0] = r.emit("ofsdp.CollapseLeading", node.name + ".rows", {softmax->inputs[0]});
  }
  return r.replace(node, "SoftmaxCrossEntropyLoss", inputs, node.attributes);
}

}  // namespace ofsdp::importer
