// MaxPool(Relu(x)) -> MaxPool(x) with ofsdp_activation="relu", when nobody else reads the Relu: the
// largest of what is clamped is what is largest, clamped; the gradient of a window that is clamped
// stops either way. Four times less is clamped.
#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {

bool fuse_max_pool_relu(Rewriter& r, const Node& node) {
  const bool indices = node.outputs.size() > 1 && node.outputs[1] != 0;
  if (node.op->full_name() != "MaxPool" || indices || !r.read_once(node.inputs[0])) return false;
  const Node* relu = r.made_by(node.inputs[0], "Relu");
  if (relu == nullptr || r.desc(node.inputs[0]).dtype != DType::kFloat32) return false;
  Attributes attributes = node.attributes;
  attributes.set("ofsdp_activation", std::string("relu"));
  return r.replace(node, "MaxPool", {relu->inputs[0]}, attributes);
}

}  // namespace ofsdp::importer
