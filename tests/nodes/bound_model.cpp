#include "tests/nodes/bound_model.h"

#include "importer/normalize/onnx_import.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {
namespace {

class Binder {
 public:
  Binder(const NodeTest& test, bool constants) : constants_(constants) {
    bound_.model = test.model;
    graph_ = bound_.model.mutable_graph();
    nodes_.Swap(graph_->mutable_node());
    graph_->clear_input();
    graph_->clear_output();
    import_onnx_domain();
  }

  BoundModel run(const NodeTest& test, const DataSet& data) {
    const auto& graph = test.model.graph();
    for (size_t i = 0; i < data.inputs.size(); ++i) {
      add_input(graph.input(static_cast<int>(i)), data.inputs[i]);
    }
    graph_->mutable_node()->MergeFrom(nodes_);
    for (size_t i = 0; i < data.outputs.size(); ++i) {
      add_output(graph.output(static_cast<int>(i)), data.outputs[i]);
    }
    return std::move(bound_);
  }

 private:
  // The nodes added here need it.
  void import_onnx_domain() {
    for (const auto& import : bound_.model.opset_import()) {
      if (import.domain().empty() || import.domain() == "ai.onnx") return;
    }
    bound_.model.add_opset_import()->set_version(kOpset);
  }

  onnx::NodeProto& add_node(const std::string& op, const std::vector<std::string>& inputs,
                            const std::string& output) {
    onnx::NodeProto& node = *graph_->add_node();
    node.set_op_type(op);
    node.set_name(output);
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(output);
    return node;
  }

  void add_constant(const std::string& name, const onnx::TensorProto& tensor) {
    auto& value = *add_node("Constant", {}, name).add_attribute();
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    *value.mutable_t() = tensor;
  }

  static void declare(onnx::ValueInfoProto& info, const onnx::TensorProto& tensor) {
    info.set_name(tensor.name());
    auto& type = *info.mutable_type()->mutable_tensor_type();
    type.set_elem_type(tensor.data_type());
    auto& shape = *type.mutable_shape();
    for (const int64_t axis : tensor.dims()) shape.add_dim()->set_dim_value(axis);
  }

  // Returns the name of an input tensor.
  std::string add_tensor(const std::string& name, onnx::TensorProto tensor) {
    tensor.set_name(name);
    if (constants_) {
      add_constant(name, tensor);
    } else {
      declare(*graph_->add_input(), tensor);
      bound_.inputs.push_back(std::move(tensor));
    }
    return name;
  }

  static const onnx::TypeProto& inside(const onnx::TypeProto& type) {
    return type.has_optional_type() ? type.optional_type().elem_type() : type;
  }

  void add_sequence(const std::string& name, const onnx::TypeProto& type, const TestValue& value) {
    if (value.items.empty()) {
      auto& dtype = *add_node("SequenceEmpty", {}, name).add_attribute();
      dtype.set_name("dtype");
      dtype.set_type(onnx::AttributeProto::INT);
      dtype.set_i(type.sequence_type().elem_type().tensor_type().elem_type());
      return;
    }
    std::vector<std::string> items;
    for (const auto& item : value.items) {
      items.push_back(add_tensor(format_text("{}_{}", name, items.size()), item));
    }
    add_node("SequenceConstruct", items, name);
  }

  void add_input(const onnx::ValueInfoProto& info, const TestValue& value) {
    const std::string& name = info.name();
    if (value.kind == TestValue::Kind::kNone) {
      auto& type = *add_node("Optional", {}, name).add_attribute();
      type.set_name("type");
      type.set_type(onnx::AttributeProto::TYPE_PROTO);
      *type.mutable_tp() = inside(info.type());
      return;
    }
    const std::string element = value.optional ? name + "_element" : name;
    if (value.kind == TestValue::Kind::kSequence) {
      add_sequence(element, inside(info.type()), value);
    } else {
      add_tensor(element, value.tensor);
    }
    if (value.optional) add_node("Optional", {element}, name);
  }

  // Returns the name of an output tensor.
  void expect(const std::string& name, onnx::TensorProto tensor) {
    tensor.set_name(name);
    declare(*graph_->add_output(), tensor);
    bound_.outputs.push_back(std::move(tensor));
  }

  static onnx::TensorProto scalar(int type, int64_t value) {
    onnx::TensorProto tensor;
    tensor.set_data_type(type);
    if (type == onnx::TensorProto::INT64) {
      tensor.add_int64_data(value);
    } else {
      tensor.add_int32_data(static_cast<int32_t>(value));
    }
    return tensor;
  }

  void add_output(const onnx::ValueInfoProto& info, const TestValue& value) {
    std::string name = info.name();
    if (value.kind == TestValue::Kind::kNone) {
      add_node("OptionalHasElement", {name}, name + "_given");
      return expect(name + "_given", scalar(onnx::TensorProto::BOOL, 0));
    }
    if (value.optional) {
      add_node("OptionalGetElement", {name}, name + "_element");
      name += "_element";
    }
    if (value.kind == TestValue::Kind::kTensor) return expect(name, value.tensor);
    add_node("SequenceLength", {name}, name + "_length");
    const auto length = static_cast<int64_t>(value.items.size());
    expect(name + "_length", scalar(onnx::TensorProto::INT64, length));
    for (int64_t i = 0; i < length; ++i) {
      const std::string item = format_text("{}_{}", name, i);
      add_constant(item + "_position", scalar(onnx::TensorProto::INT64, i));
      add_node("SequenceAt", {name, item + "_position"}, item);
      expect(item, value.items[static_cast<size_t>(i)]);
    }
  }

  bool constants_;
  BoundModel bound_;
  onnx::GraphProto* graph_;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes_;
};

}  // namespace

BoundModel bind_model(const NodeTest& test, const DataSet& data, bool constants) {
  return Binder(test, constants).run(test, data);
}

}  // namespace ofsdp::nodes
