#include <onnx/inliner/inliner.h>
#include <onnx/shape_inference/attribute_binder.h>

#include <algorithm>

#include "importer/normalize/opset_range.h"
#include "importer/normalize/resolvers.h"

namespace ofsdp::importer {
namespace {

const onnx::OpSchema* schema_of(const onnx::NodeProto& node, int version) {
  return onnx::OpSchemaRegistry::Schema(node.op_type(), version, short_domain(node.domain()));
}

void add_defaults(const onnx::OpSchema& schema, onnx::NodeProto& node) {
  for (const auto& [name, attribute] : schema.attributes()) {
    if (find_attribute(node, name) != nullptr || !attribute.default_value.has_type()) continue;
    *node.add_attribute() = attribute.default_value;
  }
}

bool build(GraphRewriter& rewriter, const onnx::OpSchema& schema, const onnx::NodeProto& node,
           int version, onnx::FunctionProto& function) {
  if (schema.HasFunction()) {
    const onnx::FunctionProto* body = schema.GetFunction(version);
    if (body == nullptr) return false;
    function = *body;
    return true;
  }
  if (!schema.HasContextDependentFunction()) return false;
  std::vector<onnx::TypeProto> types;
  for (const std::string& name : node.input()) {
    const onnx::TypeProto* type = name.empty() ? nullptr : rewriter.types().find(name);
    types.push_back(type == nullptr ? onnx::TypeProto() : *type);
  }
  const onnx::FunctionBodyBuildContextImpl context(node, types);
  return schema.BuildContextDependentFunction(context, function, version);
}

// Returns whether an operator of the body means something else in the model's opset.
bool outdated(const onnx::FunctionProto& function, int from, int to) {
  return from < to && std::ranges::any_of(function.node(), [&](const auto& node) {
           if (!short_domain(node.domain()).empty()) return false;
           const onnx::OpSchema* schema = schema_of(node, to);
           return schema != nullptr && schema->since_version() > from;
         });
}

Status convert(GraphRewriter& rewriter, const onnx::NodeProto& call, onnx::FunctionProto& function,
               int from, int to) {
  onnx::ModelProto model;
  model.set_ir_version(rewriter.model().ir_version());
  model.add_opset_import()->set_version(from);
  auto& graph = *model.mutable_graph();
  graph.set_name("body");
  for (int i = 0; i < function.input_size(); ++i) {
    const std::string actual = input_or_none(call, i);
    const onnx::TypeProto* type = actual.empty() ? nullptr : rewriter.types().find(actual);
    auto& input = *graph.add_input();
    input.set_name(function.input(i));
    if (type != nullptr) *input.mutable_type() = *type;
  }
  for (const std::string& name : function.output()) graph.add_output()->set_name(name);
  *graph.mutable_node() = function.node();
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto converted, convert_version(model, from, to));
  function.clear_node();
  for (const auto& tensor : converted.graph().initializer()) {
    *function.add_node() = constant_node(tensor.name(), tensor);
  }
  function.mutable_node()->MergeFrom(converted.graph().node());
  return ok_status();
}

NameMap bindings(GraphRewriter& rewriter, const onnx::NodeProto& call,
                 const onnx::FunctionProto& function) {
  NameMap bound;
  for (int i = 0; i < function.input_size(); ++i) bound[function.input(i)] = input_or_none(call, i);
  for (int i = 0; i < function.output_size(); ++i) {
    const std::string& name = function.output(i);
    const bool wanted = i < call.output_size() && !call.output(i).empty();
    bound[name] = wanted ? call.output(i) : rewriter.names().fresh(name);
  }
  return bound;
}

std::optional<std::vector<onnx::NodeProto>> expanded(GraphRewriter& rewriter,
                                                     onnx::NodeProto node) {
  const auto& imports = rewriter.model().opset_import();
  const int version = version_of(imports, short_domain(node.domain()));
  const onnx::OpSchema* schema = schema_of(node, version);
  if (schema == nullptr) return {};
  add_defaults(*schema, node);
  onnx::FunctionProto function;
  if (!build(rewriter, *schema, node, version, function)) return {};
  onnx::internal::AttributeBinder::BindAttributes(node, function);
  // A builder's function claims the version of its own domain for ONNX's, too.
  const bool own_import = schema->HasFunction() || schema->domain().empty();
  const int from = own_import ? version_of(function.opset_import(), "") : 0;
  const int to = version_of(imports, "");
  if (from > 0 && outdated(function, from, to) &&
      !convert(rewriter, node, function, from, to).ok()) {
    return {};
  }
  NameMap bound = bindings(rewriter, node, function);
  std::vector<onnx::NodeProto> nodes;
  for (auto& inner : *function.mutable_node()) {
    rewriter.names().rename(inner, bound);
    if (inner.name().empty() && !node.name().empty()) {
      inner.set_name(rewriter.names().fresh(node.name() + "/" + inner.op_type()));
    }
    nodes.push_back(std::move(inner));
  }
  return nodes;
}

}  // namespace

std::optional<std::vector<onnx::NodeProto>> function_body(GraphRewriter& rewriter,
                                                          const onnx::NodeProto& node) {
  try {
    return expanded(rewriter, node);
  } catch (const std::exception&) {
    return {};
  }
}

Status inline_local_functions(onnx::ModelProto& model) {
  if (model.functions_size() == 0) return {};
  // The inliner knows the types of inputs and values, but not of initializers.
  for (const auto& tensor : model.graph().initializer()) {
    auto& info = *model.mutable_graph()->add_value_info();
    info.set_name(tensor.name());
    set_tensor_type(*info.mutable_type(), tensor.data_type(), tensor.dims());
  }
  try {
    onnx::inliner::InlineLocalFunctions(model, true);
  } catch (const std::exception& error) {
    return input_error("its functions cannot be inlined: {}", onnx_message(error));
  }
  return {};
}

}  // namespace ofsdp::importer
