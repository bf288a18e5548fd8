#include "importer/edit/adapter_nodes.h"

#include <algorithm>

#include "importer/proto/onnx_protos.h"

namespace ofsdp::importer {
namespace {

class Builder {
 public:
  Builder(ModelEditor& editor, const onnx::NodeProto& product, const std::string& name)
      : editor_(editor), product_(product), name_(name) {}

  // Returns what the new node makes.
  std::string add(const std::string& op, const std::string& what,
                  const std::vector<std::string>& inputs) {
    onnx::NodeProto& node = nodes_.emplace_back();
    node.set_op_type(op);
    // The module of a node is told by its name or metadata.
    node.set_name((product_.name().empty() ? name_ : product_.name()) + ".lora_" + what);
    *node.mutable_metadata_props() = product_.metadata_props();
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(editor_.free_name(name_ + ".lora." + what));
    return node.output(0);
  }
  onnx::NodeProto& last() { return nodes_.back(); }

  std::string constant(const std::string& what, const TensorDesc& desc, const void* bytes) {
    const std::string name = editor_.free_name(name_ + ".lora." + what);
    nodes_.push_back(constant_node(name, tensor_proto("", desc, bytes)));
    nodes_.back().set_name(name);
    return name;
  }
  std::string number(const std::string& what, double value) {
    const auto number = static_cast<float>(value);
    return constant(what, {DType::kFloat32, Shape()}, &number);
  }

  std::string cast(const std::string& what, const std::string& value, DType to) {
    const std::string made = add("Cast", what, {value});
    add_attribute(last(), "to", number_of_dtype(to));
    return made;
  }
  std::string transposed(const std::string& what, const std::string& value) {
    const std::string made = add("Transpose", what, {value});
    add_attribute(last(), "perm", std::vector<int64_t>{1, 0});
    return made;
  }

  std::vector<onnx::NodeProto> take() { return std::move(nodes_); }

 private:
  ModelEditor& editor_;
  const onnx::NodeProto& product_;
  std::string name_;
  std::vector<onnx::NodeProto> nodes_;
};

class Term {
 public:
  Term(ModelEditor& editor, const onnx::NodeProto& node, const Product& product,
       const Adapter& adapter, double dropout)
      : builder_(editor, node, adapter.name),
        node_(node),
        product_(product),
        adapter_(adapter),
        dropout_(dropout) {}

  // Returns the value alpha/rank * B A x, of the product's type.
  std::string build() {
    const std::string x = operand();
    const std::string term = product_.convolution ? convolved(x) : multiplied(x);
    return is_float() ? term : builder_.cast("narrow", term, product_.dtype);
  }
  Builder& builder() { return builder_; }

 private:
  bool is_float() const { return product_.dtype == DType::kFloat32; }

  std::string operand() {
    std::string x = node_.input(product_.other);
    if (!is_float()) x = builder_.cast("wide", x, DType::kFloat32);
    if (dropout_ > 0) {
      const std::string ratio = builder_.number("ratio", dropout_);
      const bool training = true;
      const std::string mode = builder_.constant("training", {DType::kBool, Shape()}, &training);
      x = builder_.add("Dropout", "dropout", {x, ratio, mode});
    }
    return x;
  }

  // On the narrow side, where it is cheapest.
  std::string scaled(const std::string& value) {
    const double factor = adapter_.scale * product_.factor / product_.join_factor;
    if (factor == 1) return value;
    const std::string number = builder_.number("scale", factor);
    return builder_.add("Mul", "scaled", {value, number});
  }

  std::string multiplied(std::string x) {
    const bool fused = node_.op_type() == "FusedMatMul";  // any number of axes
    if (product_.other_transposed && !fused) x = builder_.transposed("turned", x);
    // One of several products that share a weight may use it the other way round.
    const bool turned = product_.in_by_out != adapter_.in_by_out;
    const std::string first = turned ? adapter_.b() : adapter_.a();
    const std::string second = turned ? adapter_.a() : adapter_.b();
    if (product_.other_transposed && fused) {
      const std::string narrow = scaled(fused_product(x, first, !turned));
      return product(turned ? second : builder_.transposed("second", second), narrow, "up");
    }
    if (product_.is_left() == turned) {  // both matrices transposed
      const std::string one = builder_.transposed("first", first);
      const std::string narrow = scaled(product(one, x, "down"));
      const std::string two = builder_.transposed("second", second);
      return product(two, narrow, "up");
    }
    return product(second, scaled(product(first, x, "down")), "up");
  }

  std::string fused_product(const std::string& x, const std::string& matrix, bool transposed) {
    const std::string made = builder_.add("FusedMatMul", "down", {x, matrix});
    builder_.last().set_domain(node_.domain());
    add_attribute(builder_.last(), "transA", int64_t{1});
    add_attribute(builder_.last(), "transB", int64_t{transposed ? 1 : 0});
    return made;
  }

  std::string product(const std::string& matrix, const std::string& x, const char* what) {
    if (product_.is_left()) return builder_.add("MatMul", what, {matrix, x});
    return builder_.add("MatMul", what, {x, matrix});
  }

  std::string convolved(const std::string& x) {
    const std::string narrow = builder_.add("Conv", "down", {x, adapter_.a()});
    for (const auto& attribute : node_.attribute()) {
      static const std::vector<std::string> kPlaces = {"auto_pad", "dilations", "kernel_shape",
                                                       "pads", "strides"};
      if (std::ranges::find(kPlaces, attribute.name()) == kPlaces.end()) continue;
      *builder_.last().add_attribute() = attribute;
    }
    return builder_.add("Conv", "up", {scaled(narrow), adapter_.b()});
  }

  Builder builder_;
  const onnx::NodeProto& node_;
  const Product& product_;
  const Adapter& adapter_;
  double dropout_;
};

}  // namespace

AdapterNodes adapter_nodes(ModelEditor& editor, onnx::NodeProto& node, const Product& product,
                           const Adapter& adapter, double dropout) {
  Term term(editor, node, product, adapter, dropout);
  const std::string value = term.build();
  if (product.join == Product::Join::kOutput) {
    const std::string base = editor.free_name(adapter.name + ".lora.base");
    const std::string output = node.output(0);
    node.set_output(0, base);
    term.builder().add("Add", "sum", {base, value});
    term.builder().last().set_output(0, output);
    return {{}, term.builder().take()};
  }
  while (node.input_size() <= product.join_input) node.add_input("");
  const std::string before = node.input(product.join_input);
  node.set_input(product.join_input,
                 before.empty() ? value : term.builder().add("Add", "sum", {before, value}));
  return {term.builder().take(), {}};
}

}  // namespace ofsdp::importer
