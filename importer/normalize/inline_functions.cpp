#include "importer/normalize/inline_functions.h"

#include <onnx/inliner/inliner.h>
#include <onnx/shape_inference/attribute_binder.h>
#include <onnx/version_converter/convert.h>

#include <algorithm>

namespace ofsdp::importer {
namespace {

std::string short_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

template <typename Imports>
int version_of(const Imports& imports, const std::string& domain) {
  for (const auto& import : imports) {
    if (short_domain(import.domain()) == domain) return static_cast<int>(import.version());
  }
  return 0;
}

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

// Whether an operator of the body means something else in the model's opset.
bool outdated(const onnx::FunctionProto& function, int from, int to) {
  return from < to && std::ranges::any_of(function.node(), [&](const auto& node) {
           if (!short_domain(node.domain()).empty()) return false;
           const onnx::OpSchema* schema = schema_of(node, to);
           return schema != nullptr && schema->since_version() > from;
         });
}

void convert(GraphRewriter& rewriter, const onnx::NodeProto& call, onnx::FunctionProto& function,
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
  const onnx::ModelProto converted = onnx::version_conversion::ConvertVersion(model, to);
  function.clear_node();
  for (const auto& tensor : converted.graph().initializer()) {
    auto& constant = *function.add_node();
    constant.set_op_type("Constant");
    constant.add_output(tensor.name());
    auto& value = *constant.add_attribute();
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    *value.mutable_t() = tensor;
  }
  function.mutable_node()->MergeFrom(converted.graph().node());
}

NameMap bindings(GraphRewriter& rewriter, const onnx::NodeProto& call,
                 const onnx::FunctionProto& function) {
  NameMap bound;
  for (int i = 0; i < function.input_size(); ++i) {
    bound[function.input(i)] = input_or_none(call, i);
  }
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
  if (from > 0 && outdated(function, from, to)) convert(rewriter, node, function, from, to);
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
    auto& type = *info.mutable_type()->mutable_tensor_type();
    type.set_elem_type(tensor.data_type());
    auto& shape = *type.mutable_shape();
    for (const int64_t axis : tensor.dims()) shape.add_dim()->set_dim_value(axis);
  }
  try {
    onnx::inliner::InlineLocalFunctions(model, true);
  } catch (const std::exception& error) {
    return input_error("its functions cannot be inlined: {}", error.what());
  }
  return {};
}

}  // namespace ofsdp::importer
