#include <onnx/shape_inference/attribute_binder.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "importer/normalize/graph_rewriter.h"
#include "importer/normalize/onnx_import.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/status.h"

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

// Returns whether an operator in the body has another meaning in the model's opset.
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
  // A model builder's function claims the version of its own domain for ONNX's domain, too.
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

namespace {

constexpr const char* kUnknownCount = "its number of iterations is not known before the run";
constexpr const char* kUnknownCondition = "its condition is not known before the run";

}  // namespace

bool lacks_known_numbers(const Status& error) {
  return !error.ok() && (error.message().find(kUnknownCount) != std::string::npos ||
                         error.message().find(kUnknownCondition) != std::string::npos);
}

Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const auto condition = rewriter.known().scalar(input_or_none(node, 0));
  if (!condition) return rewriter.refuse(node, kUnknownCondition);
  const auto* branch = find_attribute(node, *condition != 0 ? "then_branch" : "else_branch");
  if (branch == nullptr) return input_error("expected a branch, found none");
  OFSDP_ASSIGN_OR_RETURN(const auto outputs, rewriter.process_body(branch->g(), {}));
  OFSDP_REJECT_IF(outputs.size() < static_cast<size_t>(node.output_size()),
                  "has {} outputs, its branch {}", node.output_size(), outputs.size());
  for (int i = 0; i < node.output_size(); ++i) {
    OFSDP_RETURN_IF_ERROR(rewriter.alias(outputs[static_cast<size_t>(i)], node.output(i)));
  }
  return {};
}

namespace {

using Names = std::vector<std::string>;

Names part(const Names& names, size_t begin, size_t count) {
  const auto first = names.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

std::vector<int64_t> int_list(const onnx::NodeProto& node, const char* name, size_t count) {
  std::vector<int64_t> list(count, 0);
  const auto* attribute = find_attribute(node, name);
  if (attribute == nullptr) return list;
  for (int i = 0; i < attribute->ints_size() && static_cast<size_t>(i) < count; ++i) {
    list[static_cast<size_t>(i)] = attribute->ints(i);
  }
  return list;
}

// An unrolled node's outputs: the state after the last iteration, then for each stacked output the
// pieces from all iterations.
struct Unrolled {
  Names state;
  std::vector<Names> pieces;
};

bool has_empty_stack(const onnx::NodeProto& node, const Unrolled& unrolled) {
  for (size_t i = 0; i < unrolled.pieces.size(); ++i) {
    const auto output = static_cast<int>(unrolled.state.size() + i);
    if (output >= node.output_size() || node.output(output).empty()) continue;
    if (unrolled.pieces[i].empty()) return true;
  }
  return false;
}

Status finish(GraphRewriter& rewriter, const onnx::NodeProto& node, const Unrolled& unrolled,
              const std::vector<int64_t>& axes) {
  if (has_empty_stack(node, unrolled)) {
    return rewriter.refuse(node, "it has no iteration, so what it stacks has no shape");
  }
  for (int i = 0; i < node.output_size(); ++i) {
    const auto output = static_cast<size_t>(i);
    const size_t states = unrolled.state.size();
    if (node.output(i).empty()) continue;
    if (output < states) {
      OFSDP_RETURN_IF_ERROR(rewriter.alias(unrolled.state[output], node.output(i)));
    } else if (output - states < unrolled.pieces.size()) {
      const size_t stacked = output - states;
      OFSDP_RETURN_IF_ERROR(
          rewriter.stack(unrolled.pieces[stacked], axes[stacked], node.output(i)));
    }
  }
  return {};
}

// An iteration reads two constants: the number and the condition.
std::string scalar(GraphRewriter& rewriter, int type, int64_t value) {
  const std::string name = rewriter.names().fresh("iteration");
  rewriter.scalar(name, type, value);
  return name;
}

// Adds one iteration. Returns all results; the first `skipped` are not state.
Result<Names> iterate(GraphRewriter& rewriter, const onnx::GraphProto& body, const Names& inputs,
                      size_t skipped, Unrolled& unrolled) {
  OFSDP_ASSIGN_OR_RETURN(Names results, rewriter.process_body(body, inputs));
  const size_t states = unrolled.state.size();
  unrolled.state = part(results, skipped, states);
  for (size_t k = 0; k < unrolled.pieces.size(); ++k) {
    unrolled.pieces[k].push_back(results[skipped + states + k]);
  }
  return results;
}

}  // namespace

Status resolve_loop(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const auto* body = find_attribute(node, "body");
  if (body == nullptr) return input_error("expected a body, found none");
  const std::string limit_name = input_or_none(node, 0);
  const std::string condition_name = input_or_none(node, 1);
  const auto limit = rewriter.known().scalar(limit_name);
  std::optional<int64_t> condition = 1;
  if (!condition_name.empty()) condition = rewriter.known().scalar(condition_name);
  if ((!limit_name.empty() && !limit) || !condition) {
    return rewriter.refuse(node, kUnknownCount);
  }
  Unrolled unrolled;
  for (int i = 2; i < node.input_size(); ++i) unrolled.state.push_back(node.input(i));
  const size_t states = unrolled.state.size();
  const auto outputs = static_cast<size_t>(body->g().output_size());
  if (outputs < states + 1) return input_error("its body has {} outputs", outputs);
  unrolled.pieces.resize(outputs - states - 1);
  for (int64_t i = 0; *condition != 0 && (!limit || i < *limit); ++i) {
    if (i == kMaxIterations) {
      return rewriter.refuse(node, format_text("it has more than {} iterations", i));
    }
    Names inputs = {scalar(rewriter, onnx::TensorProto::INT64, i),
                    scalar(rewriter, onnx::TensorProto::BOOL, 1)};
    inputs.insert(inputs.end(), unrolled.state.begin(), unrolled.state.end());
    OFSDP_ASSIGN_OR_RETURN(const Names results, iterate(rewriter, body->g(), inputs, 1, unrolled));
    if (condition_name.empty()) continue;  // a for loop
    condition = rewriter.known().scalar(results[0]);
    if (!condition) return rewriter.refuse(node, kUnknownCondition);
  }
  return finish(rewriter, node, unrolled, std::vector<int64_t>(unrolled.pieces.size(), 0));
}

namespace {

// Returns each scan input's pieces in iteration order, or nothing if the count is unknown. All
// inputs must have equally many.
Result<std::optional<std::vector<Names>>> scan_columns(GraphRewriter& rewriter,
                                                       const onnx::NodeProto& node, size_t states) {
  const auto scanned = static_cast<size_t>(node.input_size()) - states;
  const auto axes = int_list(node, "scan_input_axes", scanned);
  const auto backwards = int_list(node, "scan_input_directions", scanned);
  std::vector<Names> columns;
  for (size_t i = 0; i < scanned; ++i) {
    const std::string& name = node.input(static_cast<int>(states + i));
    const auto shape = rewriter.types().axes(name);
    if (!shape) return std::optional<std::vector<Names>>();
    OFSDP_ASSIGN_OR_RETURN(const int axis,
                           normalize_axis(axes[i], static_cast<int>(shape->size())));
    const int64_t count = (*shape)[static_cast<size_t>(axis)];
    if (count < 0 || count > kMaxIterations) return std::optional<std::vector<Names>>();
    OFSDP_ASSIGN_OR_RETURN(Names pieces, rewriter.unstack(name, axis, count));
    if (backwards[i] != 0) std::ranges::reverse(pieces);
    columns.push_back(std::move(pieces));
    if (columns[i].size() == columns[0].size()) continue;
    return input_error("expected scan inputs of one length, found {} and {}", columns[0].size(),
                       columns[i].size());
  }
  return std::optional(std::move(columns));
}

}  // namespace

Status resolve_scan(GraphRewriter& rewriter, const onnx::NodeProto& node) {
  const auto* body = find_attribute(node, "body");
  const int64_t scanned = int_attribute(node, "num_scan_inputs", 0);
  const int64_t carried = node.input_size() - scanned;
  OFSDP_REJECT_IF(
      body == nullptr || scanned < 1 || carried < 0 || body->g().output_size() < carried,
      "expected a body and scan inputs, found {} inputs", node.input_size());
  const auto states = static_cast<size_t>(carried);
  OFSDP_ASSIGN_OR_RETURN(const auto columns, scan_columns(rewriter, node, states));
  if (!columns) {
    return rewriter.refuse(node, kUnknownCount);
  }
  Unrolled unrolled;
  for (int i = 0; i < carried; ++i) unrolled.state.push_back(node.input(i));
  unrolled.pieces.resize(static_cast<size_t>(body->g().output_size()) - states);
  for (size_t step = 0; step < columns->front().size(); ++step) {
    Names inputs = unrolled.state;
    for (const Names& column : *columns) inputs.push_back(column[step]);
    OFSDP_RETURN_IF_ERROR(iterate(rewriter, body->g(), inputs, 0, unrolled).status());
  }
  const auto reversed = int_list(node, "scan_output_directions", unrolled.pieces.size());
  for (size_t k = 0; k < unrolled.pieces.size(); ++k) {
    if (reversed[k] != 0) std::ranges::reverse(unrolled.pieces[k]);
  }
  return finish(rewriter, node, unrolled,
                int_list(node, "scan_output_axes", unrolled.pieces.size()));
}

}  // namespace ofsdp::importer
