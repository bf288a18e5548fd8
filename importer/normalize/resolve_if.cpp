#include "importer/normalize/resolve_if.h"

namespace ofsdp::importer {

Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const auto condition = rewriter.known().scalar(input_or_none(node, 0));
  if (!condition) return rewriter.refuse(node, "its condition is not known before the run");
  const auto* branch = find_attribute(node, *condition != 0 ? "then_branch" : "else_branch");
  if (branch == nullptr) return input_error("expected a branch, found none");
  OFSDP_ASSIGN_OR_RETURN(const auto outputs, rewriter.process_body(branch->g(), {}));
  if (outputs.size() < static_cast<size_t>(node.output_size())) {
    return input_error("has {} outputs, its branch {}", node.output_size(), outputs.size());
  }
  for (int i = 0; i < node.output_size(); ++i) {
    OFSDP_RETURN_IF_ERROR(rewriter.alias(outputs[static_cast<size_t>(i)], node.output(i)));
  }
  return {};
}

}  // namespace ofsdp::importer
