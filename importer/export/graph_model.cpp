#include "importer/export/graph_model.h"

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include <set>

#include "importer/proto/onnx_protos.h"
#include "importer/proto/opset.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr int kIrVersion = 10;
constexpr size_t kMostBytes = (size_t{1} << 31) - 1;

// Names of the values of one graph, all different.
class ValueNames {
 public:
  ValueNames(const Graph& graph, const std::map<ValueId, std::string>& given)
      : graph_(graph), names_(given) {
    for (const auto& [id, name] : given) taken_.insert(name);
  }

  const std::string& of(ValueId id) {
    const auto found = names_.find(id);
    if (found != names_.end()) return found->second;
    const std::string& wished = graph_.value(id).name;
    std::string name = wished.empty() ? "value" : wished;
    for (int i = 1; !taken_.insert(name).second; ++i)
      name = format_text("{}.{}", wished.empty() ? "value" : wished, i);
    return names_[id] = name;
  }

 private:
  const Graph& graph_;
  std::map<ValueId, std::string> names_;
  std::set<std::string> taken_{""};
};

// A standard node, checked against ONNX's own definition.
Result<onnx::NodeProto> standard_node(const Graph& graph, const Node& node, ValueNames& names) {
  const auto* schema = onnx::OpSchemaRegistry::Schema(node.op->name, kOpset, node.op->domain);
  onnx::NodeProto made;
  made.set_op_type(node.op->name);
  made.set_domain(node.op->domain);
  made.set_name(node.name);
  for (const ValueId id : node.inputs) made.add_input(id == 0 ? "" : names.of(id));
  for (const ValueId id : node.outputs) made.add_output(id == 0 ? "" : names.of(id));
  while (made.input_size() > 0 && made.input(made.input_size() - 1).empty())
    made.mutable_input()->RemoveLast();
  while (made.output_size() > 0 && made.output(made.output_size() - 1).empty())
    made.mutable_output()->RemoveLast();
  OFSDP_REJECT_IF(schema != nullptr && made.output_size() > schema->max_output(),
                  "{}: output {} is none of ONNX's", graph.describe(node), made.output_size() - 1);
  for (const auto& [name, value] : node.attributes.all()) {
    OFSDP_REJECT_IF(schema != nullptr && !schema->attributes().contains(name),
                    "{}: attribute {} has no form in ONNX", graph.describe(node), name);
    add_attribute(made, name, value);
  }
  return made;
}

class ModelWriter {
 public:
  ModelWriter(const Graph& graph, const OnnxFile& file, const std::map<ValueId, std::string>& names)
      : graph_(graph), file_(file), names_(graph, names) {}

  Result<std::string> write() {
    model_.set_ir_version(kIrVersion);
    model_.set_producer_name("fsdp-run");
    proto().set_name("gradients");
    for (const ValueId id : graph_.inputs)
      *proto().add_input() = value_info(names_.of(id), graph_.value(id).desc);
    for (const Node& node : graph_.nodes) OFSDP_RETURN_IF_ERROR(add(node));
    for (const ValueId id : graph_.outputs) {
      use(id);
      *proto().add_output() = value_info(names_.of(id), graph_.value(id).desc);
    }
    OFSDP_RETURN_IF_ERROR(add_initializers());
    domains_.insert("");
    for (const std::string& domain : domains_) {
      auto& import = *model_.add_opset_import();
      import.set_domain(domain);
      import.set_version(domain.empty() ? kOpset : 1);
    }
    OFSDP_REJECT_IF(model_.ByteSizeLong() > kMostBytes,
                    "{}: the gradient graph has {} bytes: expected at most {}", file_.path(),
                    model_.ByteSizeLong(), kMostBytes);
    return model_.SerializeAsString();
  }

 private:
  onnx::GraphProto& proto() { return *model_.mutable_graph(); }
  void use(ValueId id) {
    if (id != 0) used_.insert(id);
  }

  Status add(const Node& node) {
    for (const ValueId id : node.inputs) use(id);
    domains_.insert(node.op->domain);
    if (node.op->domain == kOwnDomain) return add_call(node);
    OFSDP_ASSIGN_OR_RETURN(*proto().add_node(), standard_node(graph_, node, names_));
    return {};
  }

  Status add_call(const Node& node) {
    OFSDP_ASSIGN_OR_RETURN(const std::string function, function_of(node));
    onnx::NodeProto& call = *proto().add_node();
    call.set_op_type(function);
    call.set_domain(kOwnDomain);
    call.set_name(node.name);
    for (const ValueId id : node.inputs) {
      if (id != 0) call.add_input(names_.of(id));
    }
    for (const ValueId id : node.outputs) {
      if (id != 0) call.add_output(names_.of(id));
    }
    return {};
  }

  // Shapes are in the body, so a function is for one problem; equal problems share it.
  Result<std::string> function_of(const Node& node) {
    std::string key = node.op->name + " " + node.attributes.text();
    for (const ValueId id : node.inputs) key += id == 0 ? " -" : " " + graph_.value(id).desc.text();
    for (const ValueId id : node.outputs) key += id == 0 ? " -" : " +";
    if (const auto found = functions_.find(key); found != functions_.end()) return found->second;
    OFSDP_ASSIGN_OR_RETURN(const Graph body, standard_body_graph(graph_, node));
    std::string name = node.op->name;
    for (int i = 2; !function_names_.insert(name).second; ++i)
      name = format_text("{}_{}", node.op->name, i);
    OFSDP_RETURN_IF_ERROR(add_function(name, node, body));
    return functions_[key] = name;
  }

  Status add_function(const std::string& name, const Node& node, const Graph& body) {
    onnx::FunctionProto& function = *model_.add_functions();
    function.set_name(name);
    function.set_domain(kOwnDomain);
    function.set_doc_string(node.op->full_name() + " " + node.attributes.text());
    auto& import = *function.add_opset_import();
    import.set_domain("");
    import.set_version(kOpset);
    ValueNames names(body, {});
    for (const ValueId id : body.inputs) function.add_input(names.of(id));
    std::set<ValueId> constants;
    for (const Node& inner : body.nodes) {
      for (const ValueId id : inner.inputs) {
        const bool constant = id != 0 && body.value(id).kind == ValueKind::kConstant;
        if (!constant || !constants.insert(id).second) continue;
        onnx::NodeProto& made = *function.add_node();
        made.set_op_type("Constant");
        made.add_output(names.of(id));
        add_attribute(made, "value", body.value(id).constant);
      }
      OFSDP_ASSIGN_OR_RETURN(*function.add_node(), standard_node(body, inner, names));
    }
    for (const ValueId id : body.outputs) function.add_output(names.of(id));
    return {};
  }

  Status add_initializers() {
    std::map<ValueId, const Parameter*> parameters;
    for (const Parameter& p : graph_.parameters) parameters[p.value] = &p;
    for (const ValueId id : used_) {
      const Value& value = graph_.value(id);
      if (value.kind == ValueKind::kConstant) {
        *proto().add_initializer() =
            tensor_proto(names_.of(id), value.desc, value.constant->bytes.data());
      } else if (value.kind == ValueKind::kLossWeight) {
        const float one = 1;
        *proto().add_initializer() = tensor_proto(names_.of(id), value.desc, &one);
      } else if (value.kind == ValueKind::kParameter) {
        const auto index = static_cast<size_t>(parameters.at(id)->initializer);
        std::vector<float> values(static_cast<size_t>(value.desc.numel()));
        OFSDP_RETURN_IF_ERROR(file_.read(file_.initializers()[index], 0, values));
        *proto().add_initializer() = tensor_proto(names_.of(id), value.desc, values.data());
      }
    }
    return {};
  }

  const Graph& graph_;
  const OnnxFile& file_;
  ValueNames names_;
  onnx::ModelProto model_;
  std::set<ValueId> used_;
  std::set<std::string> domains_, function_names_;
  std::map<std::string, std::string> functions_;
};

}  // namespace

Result<std::string> graph_model(const Graph& graph, const OnnxFile& file,
                                const std::map<ValueId, std::string>& names) {
  OFSDP_ASSIGN_OR_RETURN(const Graph standard, with_standard_outputs(graph));
  return ModelWriter(standard, file, names).write();
}

}  // namespace ofsdp::importer
