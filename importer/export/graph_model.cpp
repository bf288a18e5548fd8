#include "importer/export/graph_model.h"

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <set>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"
#include "kernels/core/op_def.h"

namespace ofsdp::importer {
namespace {

constexpr int kIrVersion = 10;
constexpr size_t kMaxModelSize = (size_t{1} << 31) - 1;

// Unique names for one graph's values.
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

// Returns a standard node, checked against ONNX's own definition.
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
    OFSDP_REJECT_IF(model_.ByteSizeLong() > kMaxModelSize,
                    "{}: the gradient graph has {} bytes: expected at most {}", file_.path(),
                    model_.ByteSizeLong(), kMaxModelSize);
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

  // A body contains shapes, so a function serves one problem; equal problems share it.
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

namespace {

class GraphBodyBuilder final : public BodyBuilder {
 public:
  GraphBodyBuilder(Graph& graph, const Attributes& attributes, std::vector<Ref> inputs,
                   std::vector<TensorDesc> outputs, Status& status)
      : graph_(graph),
        attributes_(attributes),
        inputs_(std::move(inputs)),
        descs_(std::move(outputs)),
        outputs_(descs_.size()),
        status_(status) {}

  Attributes attributes() const override { return attributes_; }
  Ref input(size_t i) const override { return i < inputs_.size() ? inputs_[i] : Ref{}; }
  TensorDesc desc(Ref ref) const override { return graph_.value(ref.id).desc; }
  ConstantPtr constant_value(Ref ref) const override { return graph_.value(ref.id).constant; }
  TensorDesc output_desc(size_t i) const override {
    return i < descs_.size() ? descs_[i] : TensorDesc{};
  }
  Ref constant(ConstantPtr value) override {
    return {GraphEditor(graph_).add_constant("constant", std::move(value))};
  }
  void set_output(size_t i, Ref ref) override {
    if (i < outputs_.size()) outputs_[i] = ref;
  }
  void fail(Status status) override {
    if (status_.ok()) status_ = std::move(status);
  }
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override {
    if (op.starts_with(std::string(kOwnDomain) + ".")) {
      return expand(op, inputs, attributes, num_outputs);
    }
    std::vector<ValueId> ids;
    for (const Ref ref : inputs) ids.push_back(ref.id);
    const std::string name = format_text("{}{}", op, graph_.nodes.size());
    auto made = GraphEditor(graph_).add(op, name, ids, attributes, num_outputs);
    if (!made.ok()) return nothing(std::move(made).status(), num_outputs);
    std::vector<Ref> refs;
    for (const ValueId id : *made) refs.push_back({id});
    return refs;
  }

  const std::vector<Ref>& outputs() const { return outputs_; }

 private:
  // After an error, the rest gets placeholders; only the error counts.
  std::vector<Ref> nothing(Status status, size_t count) {
    fail(std::move(status));
    std::vector<Ref> refs;
    for (size_t i = 0; i < count; ++i) refs.push_back(scalar(DType::kFloat32, 0));
    return refs;
  }

  // Replaces an operator of ours within a body by the operator's body.
  std::vector<Ref> expand(const std::string& op, const std::vector<Ref>& inputs,
                          const Attributes& attributes, size_t num_outputs) {
    Node node{&graph_.registry->get(op), op, attributes, {}, {}};
    const StandardBody body = node.op->body;
    for (const Ref ref : inputs) node.inputs.push_back(ref.id);
    node.outputs.assign(num_outputs, 1);  // all wanted
    auto descs = infer_outputs(graph_, node);
    if (body == nullptr) return nothing(input_error("{} has no standard body", op), num_outputs);
    if (!descs.ok()) return nothing(std::move(descs).status(), num_outputs);
    descs->resize(num_outputs);
    GraphBodyBuilder inner(graph_, attributes, inputs, *descs, status_);
    body(inner);
    return inner.outputs();
  }

  Graph& graph_;
  Attributes attributes_;
  std::vector<Ref> inputs_;
  std::vector<TensorDesc> descs_;
  std::vector<Ref> outputs_;
  Status& status_;
};

}  // namespace

Result<Graph> standard_body_graph(const Graph& graph, const Node& node) {
  const StandardBody body = node.op->body;
  OFSDP_REJECT_IF(body == nullptr, "{}: the operator has no form in standard operators",
                  graph.describe(node));
  Graph made;
  made.file = graph.file;
  made.registry = graph.registry;
  GraphEditor editor(made);
  std::vector<Ref> inputs;
  for (const ValueId id : node.inputs) {
    if (id == 0) {
      inputs.push_back({});
      continue;
    }
    const std::string name = format_text("x{}", made.inputs.size());
    made.inputs.push_back(editor.add_value({name, ValueKind::kInput, graph.value(id).desc}));
    made.value(made.inputs.back()).constant = graph.value(id).constant;
    inputs.push_back({made.inputs.back()});
  }
  std::vector<TensorDesc> outputs;
  for (const ValueId id : node.outputs)
    outputs.push_back(id == 0 ? TensorDesc{} : graph.value(id).desc);
  Status status;
  GraphBodyBuilder builder(made, node.attributes, inputs, outputs, status);
  body(builder);
  if (!status.ok()) return std::move(status).with_prefix(graph.describe(node));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == 0) continue;
    const Ref ref = builder.outputs()[i];
    OFSDP_CHECK(ref.id != 0, "{}: its body gives no output {}", graph.describe(node), i);
    // Each output gets a separate node, even if it is an input.
    OFSDP_ASSIGN_OR_RETURN(const ValueId id,
                           editor.add1("Identity", format_text("y{}", i), {ref.id}));
    OFSDP_CHECK(made.value(id).desc.shape == outputs[i].shape, "{}: its body gives {}, not {}",
                graph.describe(node), made.value(id).desc.text(), outputs[i].text());
    made.outputs.push_back(id);
  }
  prune(made, made.outputs);
  return made;
}

namespace {

Status use_indices(Graph& graph, Node& node) {
  OFSDP_REJECT_IF(node.attributes.i("storage_order", 0) != 0 && node.outputs.size() > 1,
                  "{}: storage_order 1 has no gradient graph", graph.describe(node));
  if (node.outputs.size() < 3) return {};
  const ValueId winners = node.outputs[2];
  Node made = node;
  made.outputs.resize(2);
  GraphEditor editor(graph);
  if (made.outputs[1] == 0) {
    made.outputs[1] = winners;
    return editor.change_descs(node, std::move(made));  // int64 instead of output 2's int32
  }
  const ValueId indices = made.outputs[1];
  OFSDP_RETURN_IF_ERROR(editor.change(node, std::move(made)));
  for (Node& reader : graph.nodes) {
    if (std::ranges::count(reader.inputs, winners) == 0) continue;
    Node other = reader;
    std::ranges::replace(other.inputs, winners, indices);
    OFSDP_RETURN_IF_ERROR(editor.change(reader, std::move(other)));
  }
  return {};
}

// Adds the nodes after a normalization.
class StatisticsBuilder {
 public:
  StatisticsBuilder(Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  // Appends nodes that make x in `shape`, and mean and variance over `axes`.
  Status make(const Shape& shape, const std::vector<int64_t>& axes, bool inverse) {
    const ValueId x = add("Reshape", {node_.inputs[0], ints(shape.axes())});
    const ValueId over = ints(axes);
    mean_ = add("ReduceMean", {x, over});
    const ValueId deviation = add("Sub", {x, mean_});
    variance_ = add("ReduceMean", {add("Mul", {deviation, deviation}), over});
    if (!inverse) return std::move(status_);
    const ValueId epsilon = scalar(node_.attributes.f("epsilon", 1e-5f));
    const ValueId root = add("Sqrt", {add("Add", {variance_, epsilon})});
    variance_ = add("Reciprocal", {root});
    return std::move(status_);
  }
  // Lets each become the existing output.
  Status give(size_t first_output) {
    for (const ValueId made : {mean_, variance_}) {
      const ValueId old = node_.outputs[first_output++];
      if (old == 0) continue;
      add("Reshape", {made, ints(graph_.value(old).desc.shape.axes())});
      if (!status_.ok()) return std::move(status_);
      Node giving = graph_.nodes.back();
      giving.outputs = {old};
      OFSDP_RETURN_IF_ERROR(GraphEditor(graph_).change(graph_.nodes.back(), std::move(giving)));
    }
    return {};
  }

 private:
  ValueId add(const char* op, const std::vector<ValueId>& inputs) {
    if (!status_.ok()) return 0;
    const std::string name = format_text("{}.statistics{}", node_.name, count_++);
    auto made = GraphEditor(graph_).add1(op, name, inputs);
    if (!made.ok()) status_ = std::move(made).status();
    return made.ok() ? *made : 0;
  }
  ValueId ints(const std::vector<int64_t>& values) {
    return add_ints(graph_, format_text("{}.ints{}", node_.name, count_++), values);
  }
  ValueId scalar(float value) {
    return GraphEditor(graph_).add_constant(
        format_text("{}.epsilon", node_.name),
        make_constant<float>(DType::kFloat32, Shape{}, {&value, 1}));
  }

  Graph& graph_;
  const Node& node_;
  Status status_;
  ValueId mean_ = 0, variance_ = 0;
  int count_ = 0;
};

// Returns the first statistic among the node's outputs; 0: none.
size_t first_statistic(const Node& node) {
  const std::string op = node.op->full_name();
  const bool groups = op == "GroupNormalization" || op == "InstanceNormalization";
  const size_t first = groups ? 1 : op == "BatchNormalization" ? 3 : 0;
  return first > 0 && node.outputs.size() == first + 2 ? first : 0;
}

Status add_with_statistics(Graph& graph, Node node, size_t first) {
  StatisticsBuilder builder(graph, node);
  const Shape x = graph.value(node.inputs[0]).desc.shape;
  const int64_t channels = x.rank() > 1 ? x[1] : 1;
  const int64_t groups =
      node.op->name == "GroupNormalization" ? node.attributes.i("num_groups", 1) : channels;
  Node plain = node;
  plain.outputs.resize(first);
  OFSDP_RETURN_IF_ERROR(GraphEditor(graph).place(std::move(plain)));
  const int64_t rest = x.numel() / std::max<int64_t>(x[0] * groups, 1);
  const bool batch = first == 3;
  OFSDP_RETURN_IF_ERROR(builder.make({x[0], groups, rest},
                                     batch ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{2},
                                     /*inverse=*/!batch));
  return builder.give(first);
}

}  // namespace

Result<Graph> with_standard_outputs(Graph graph) {
  for (Node& node : graph.nodes) {
    if (node.op->full_name() == "MaxPool") OFSDP_RETURN_IF_ERROR(use_indices(graph, node));
  }
  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (Node& node : nodes) {
    const size_t first = first_statistic(node);
    if (first == 0) {
      graph.nodes.push_back(std::move(node));
    } else {
      OFSDP_RETURN_IF_ERROR(add_with_statistics(graph, std::move(node), first));
    }
  }
  return graph;
}

}  // namespace ofsdp::importer
