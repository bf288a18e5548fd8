#include <onnx/checker.h>
#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/file/wire.h"
#include "importer/normalize/graph_rewriter.h"
#include "importer/normalize/onnx_import.h"
#include "importer/normalize/quantized_graph.h"
#include "importer/passes/specialize.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/namespaces.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// Node order. Some tools append nodes out of order (onnxconverter's float16 puts input casts last),
// and ONNX Runtime, which sorts nodes itself, loads such files.

using Makers = std::unordered_map<std::string_view, int>;

// Adds the nodes that make inputs of `node` and of graphs inside it.
void add_makers(const onnx::NodeProto& node, const Makers& makers, std::set<int>& found);

void add_makers(const onnx::GraphProto& inner, const Makers& makers, std::set<int>& found) {
  for (const auto& node : inner.node()) add_makers(node, makers, found);
  for (const auto& output : inner.output()) {
    if (const auto it = makers.find(output.name()); it != makers.end()) found.insert(it->second);
  }
}

void add_makers(const onnx::NodeProto& node, const Makers& makers, std::set<int>& found) {
  for (const auto& name : node.input()) {
    if (const auto it = makers.find(name); it != makers.end()) found.insert(it->second);
  }
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) add_makers(attribute.g(), makers, found);
    for (const auto& inner : attribute.graphs()) add_makers(inner, makers, found);
  }
}

// Returns the nodes in a runnable order, the earliest ready node first; fewer if there is a cycle.
std::vector<int> runnable_order(const std::vector<std::set<int>>& waits) {
  std::vector<std::vector<int>> readers(waits.size());
  std::vector<size_t> missing;
  std::set<int> ready;
  for (size_t i = 0; i < waits.size(); ++i) {
    missing.push_back(waits[i].size());
    if (waits[i].empty()) ready.insert(static_cast<int>(i));
    for (const int maker : waits[i]) readers[maker].push_back(static_cast<int>(i));
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int next = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(next);
    for (const int reader : readers[next]) {
      if (--missing[reader] == 0) ready.insert(reader);
    }
  }
  return order;
}

// Puts every node, also in graphs inside attributes, after the makers of the inputs. Nodes in order
// keep their places. A graph with a cycle stays as it is, and ONNX's checker reports it.
void sort_nodes(onnx::GraphProto& graph) {
  Makers makers;
  for (int i = 0; i < graph.node_size(); ++i) {
    for (auto& attribute : *graph.mutable_node(i)->mutable_attribute()) {
      if (attribute.has_g()) sort_nodes(*attribute.mutable_g());
      for (auto& inner : *attribute.mutable_graphs()) sort_nodes(inner);
    }
    for (const auto& name : graph.node(i).output()) {
      if (!name.empty()) makers[name] = i;
    }
  }
  std::vector<std::set<int>> waits(graph.node_size());
  bool sorted = true;
  for (int i = 0; i < graph.node_size(); ++i) {
    add_makers(graph.node(i), makers, waits[i]);
    sorted = sorted && (waits[i].empty() || *waits[i].rbegin() < i);
  }
  if (sorted) return;
  const std::vector<int> order = runnable_order(waits);
  if (static_cast<int>(order.size()) < graph.node_size()) return;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
  for (const int i : order) nodes.Add()->Swap(graph.mutable_node(i));
  graph.mutable_node()->Swap(&nodes);
}

// compute_in_float32 converts a model with weights in other types (float16, bfloat16, float64) to
// float32 in all types, casts, constants and subgraphs. Parameters are float32 here
// (importer/file/onnx_file.h reads and rounds them), so the graph around them must be, too;
// --param-dtype selects a type with fewer bits. Types that no weight has stay, and so does a model
// with only float32 weights.
//
// Errors: kInput naming a tensor if the bytes do not match the shape.

// Attributes with a type as their value.
constexpr std::array kTypeAttributes = {"to",         "dtype",           "output_dtype",
                                        "stash_type", "output_datatype", "softmax_precision"};

class Float32Model {
 public:
  explicit Float32Model(std::set<int> types) : types_(std::move(types)) {}

  Status convert(onnx::GraphProto& graph) {
    for (auto* infos :
         {graph.mutable_input(), graph.mutable_output(), graph.mutable_value_info()}) {
      for (auto& info : *infos) convert(*info.mutable_type());
    }
    for (auto& tensor : *graph.mutable_initializer()) OFSDP_RETURN_IF_ERROR(convert(tensor));
    for (auto& node : *graph.mutable_node()) {
      for (auto& attribute : *node.mutable_attribute()) OFSDP_RETURN_IF_ERROR(convert(attribute));
    }
    return {};
  }

 private:
  bool concerns(int64_t type) const { return types_.contains(static_cast<int>(type)); }

  void convert(onnx::TypeProto& type) const {
    if (type.has_sequence_type()) convert(*type.mutable_sequence_type()->mutable_elem_type());
    if (type.has_optional_type()) convert(*type.mutable_optional_type()->mutable_elem_type());
    if (!type.has_tensor_type() || !concerns(type.tensor_type().elem_type())) return;
    type.mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  }

  Status convert(onnx::TensorProto& tensor) const {
    if (!concerns(tensor.data_type())) return {};
    OFSDP_ASSIGN_OR_RETURN(const ConstantPtr constant, constant_from_onnx(tensor));
    const auto values = to_doubles(constant->desc, constant->bytes.data());
    const std::vector<float> floats(values.begin(), values.end());
    onnx::TensorProto converted;
    converted.set_name(tensor.name());
    converted.set_data_type(onnx::TensorProto::FLOAT);
    *converted.mutable_dims() = tensor.dims();
    converted.set_raw_data(floats.data(), floats.size() * sizeof(float));
    tensor = std::move(converted);
    return {};
  }

  Status convert(onnx::AttributeProto& attribute) {
    if (attribute.has_t()) OFSDP_RETURN_IF_ERROR(convert(*attribute.mutable_t()));
    if (attribute.has_g()) OFSDP_RETURN_IF_ERROR(convert(*attribute.mutable_g()));
    if (attribute.has_tp()) convert(*attribute.mutable_tp());
    if (attribute.type() != onnx::AttributeProto::INT || !concerns(attribute.i())) return {};
    if (std::ranges::find(kTypeAttributes, attribute.name()) == kTypeAttributes.end()) return {};
    attribute.set_i(onnx::TensorProto::FLOAT);
    return {};
  }

  std::set<int> types_;  // ONNX types
};

Status compute_in_float32(onnx::ModelProto& model, const std::vector<Initializer>& weights) {
  std::set<int> types;
  for (const Initializer& weight : weights) {
    if (weight.dtype == DType::kFloat64) types.insert(onnx::TensorProto::DOUBLE);
    if (is_16_bit_float(weight.dtype)) {
      types.insert({onnx::TensorProto::FLOAT16, onnx::TensorProto::BFLOAT16});
    }
  }
  return types.empty() ? ok_status() : Float32Model(types).convert(*model.mutable_graph());
}

// ONNX Runtime writes some own operators into ONNX's domain, where the checker would not know them:
// LayerNormalization before opset 17, gradients such as MaxPoolGrad.
void move_to_microsoft(onnx::ModelProto& model, const Operators& operators, int opset) {
  bool moved = false;
  for (auto& node : *model.mutable_graph()->mutable_node()) {
    const std::string& op = node.op_type();
    if (!short_domain(node.domain()).empty() || operators.find(kMicrosoft, op) == nullptr) continue;
    if (onnx::OpSchemaRegistry::Schema(op, opset, "") != nullptr) continue;
    node.set_domain(kMicrosoft);
    moved = true;
  }
  const auto is_there = [](const auto& import) { return import.domain() == kMicrosoft; };
  if (!moved || std::ranges::any_of(model.opset_import(), is_there)) return;
  auto& import = *model.add_opset_import();
  import.set_domain(kMicrosoft);
  import.set_version(1);
}

// Training's BatchNormalization has two more outputs for backward, as ours has.
void rename_batch_normalization(onnx::ModelProto& model) {
  for (auto& node : *model.mutable_graph()->mutable_node()) {
    if (node.domain() != kMicrosoft || node.op_type() != "BatchNormInternal") continue;
    node.clear_domain();
    node.set_op_type("BatchNormalization");
    if (find_attribute(node, "training_mode") == nullptr)
      add_attribute(node, "training_mode", int64_t{1});
  }
}

constexpr int kKeptOutputs = 3;  // Y and the next running statistics

std::set<std::string> names_read(const onnx::GraphProto& graph) {
  std::set<std::string> names;
  for (const auto& node : graph.node()) names.insert(node.input().begin(), node.input().end());
  for (const auto& output : graph.output()) names.insert(output.name());
  return names;
}

bool trains(const onnx::NodeProto& node) {
  if (node.op_type() != "BatchNormalization" || !short_domain(node.domain()).empty()) return false;
  if (int_attribute(node, "is_test", 0) != 0) return false;
  for (int i = 1; i < node.output_size(); ++i) {
    if (!node.output(i).empty()) return true;
  }
  return false;
}

void mark(onnx::NodeProto& node, const std::set<std::string>& read) {
  while (node.output_size() > kKeptOutputs && !read.contains(*node.output().rbegin())) {
    node.mutable_output()->RemoveLast();
  }
  add_attribute(node, "training_mode", int64_t{1});
}

// Prepares BatchNormalization before opset 14 for the version converter, which takes it for
// inference. Such a node trains if it has more than one output. Outputs 3 and 4, for a backward
// part, do not exist since opset 14; if something reads them, the converter refuses the node.
// https://onnx.ai/onnx/operators/text_diff_BatchNormalization_9_14.html
void mark_training(onnx::GraphProto& graph) {
  const std::set<std::string> read = names_read(graph);
  for (auto& node : *graph.mutable_node()) {
    if (trains(node)) mark(node, read);
  }
}

// Some exporters write 0 for an open batch axis. No column has rows without samples, so such an
// axis is open, here and in all types that inherited it.
void open_batch_axis(onnx::GraphProto& graph) {
  const auto first = [](onnx::ValueInfoProto& info) -> onnx::TensorShapeProto::Dimension* {
    auto& type = *info.mutable_type();
    if (!type.has_tensor_type() || type.tensor_type().shape().dim_size() == 0) return nullptr;
    auto* dim = type.mutable_tensor_type()->mutable_shape()->mutable_dim(0);
    return dim->has_dim_value() && dim->dim_value() == 0 ? dim : nullptr;
  };
  std::set<std::string> stored;
  for (const auto& tensor : graph.initializer()) stored.insert(tensor.name());
  const bool open = std::ranges::any_of(*graph.mutable_input(), [&](onnx::ValueInfoProto& info) {
    return !stored.contains(info.name()) && first(info) != nullptr;
  });
  if (!open) return;
  for (auto* infos : {graph.mutable_input(), graph.mutable_output(), graph.mutable_value_info()}) {
    for (auto& info : *infos) {
      auto* dim = stored.contains(info.name()) ? nullptr : first(info);
      if (dim != nullptr) dim->clear_dim_value();
    }
  }
}

// Passes make our own operators and attributes and keep the kernels' invariants (an
// `ofsdp.GatherGrad` writes where its attribute says); a file could contain anything.
Status refuse_own(const onnx::GraphProto& graph) {
  const std::string own = kOwnDomain;
  for (const auto& node : graph.node()) {
    OFSDP_REJECT_IF(node.domain() == own,
                    "node '{}' ({}): expected an operator of ONNX or of a plug-in, found one of "
                    "the program's own",
                    printable(node.name()), printable(operator_name(node)));
    for (const auto& attribute : node.attribute()) {
      OFSDP_REJECT_IF(attribute.name().starts_with(own + "_"),
                      "node '{}' ({}): expected attributes of the operator, found '{}'",
                      printable(node.name()), printable(operator_name(node)),
                      printable(attribute.name()));
      if (attribute.has_g()) OFSDP_RETURN_IF_ERROR(refuse_own(attribute.g()));
      for (const auto& inner : attribute.graphs()) OFSDP_RETURN_IF_ERROR(refuse_own(inner));
    }
  }
  return ok_status();
}

constexpr const char* kUnchecked = "ofsdp.unchecked";

// Moves that operator's nodes between two domains. Returns how many.
template <typename Nodes>
int move_between(Nodes& nodes, const char* op, const std::string& from, const std::string& to) {
  int moved = 0;
  for (auto& node : nodes) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (!attribute.has_g()) continue;
      moved += move_between(*attribute.mutable_g()->mutable_node(), op, from, to);
    }
    if (node.op_type() != op || short_domain(node.domain()) != from) continue;
    node.set_domain(to);
    ++moved;
  }
  return moved;
}

int move_between(onnx::ModelProto& model, const char* op, const char* from, const char* to) {
  int moved = move_between(*model.mutable_graph()->mutable_node(), op, from, to);
  for (auto& function : *model.mutable_functions()) {
    moved += move_between(*function.mutable_node(), op, from, to);
  }
  return moved;
}

// Calls onnx::checker::check_model, which throws. ONNX deprecated opset 18's GroupNormalization,
// since scale and bias per group were a mistake, and the checker refuses such a node.
// opset_rules.cpp implements it, so the checker must find it in a domain that it does not inspect.
void check(onnx::ModelProto& model, int opset) {
  constexpr const char* kOp = "GroupNormalization";
  constexpr int kPerGroup = 18, kPerChannel = 21;
  const bool old = opset >= kPerGroup && opset < kPerChannel;
  if (!old || move_between(model, kOp, "", kUnchecked) == 0) {
    return onnx::checker::check_model(model);
  }
  auto& import = *model.add_opset_import();
  import.set_domain(kUnchecked);
  import.set_version(1);
  onnx::checker::check_model(model);
  model.mutable_opset_import()->RemoveLast();
  move_between(model, kOp, kUnchecked, "");
}

// ai.onnx.ml.Scaler is (x - offset) * scale in float32: scikit-learn's StandardScaler before a
// network. https://onnx.ai/onnx/operators/onnx_aionnxml_Scaler.html
class ScalerNodes {
 public:
  explicit ScalerNodes(onnx::GraphProto& graph) : graph_(graph) {}

  void expand() {
    google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
    for (auto& node : *graph_.mutable_node()) {
      const bool scaler = node.domain() == "ai.onnx.ml" && node.op_type() == "Scaler";
      if (!scaler || node.input_size() != 1 || node.output_size() != 1) {
        nodes.Add()->Swap(&node);
        continue;
      }
      const std::string name = node.output(0), x = name + ".float", centered = name + ".centered";
      onnx::NodeProto& cast = make(nodes, node, "Cast", {node.input(0)}, x);
      add_attribute(cast, "to", int64_t{onnx::TensorProto::FLOAT});
      make(nodes, node, "Sub", {x, constant(node, "offset")}, centered);
      make(nodes, node, "Mul", {centered, constant(node, "scale")}, name);
    }
    graph_.mutable_node()->Swap(&nodes);
  }

 private:
  static onnx::NodeProto& make(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes,
                               const onnx::NodeProto& scaler, const char* op,
                               const std::vector<std::string>& inputs, const std::string& output) {
    onnx::NodeProto& made = *nodes.Add();
    made.set_op_type(op);
    made.set_name(format_text("{}/{}", scaler.name(), op));
    for (const std::string& input : inputs) made.add_input(input);
    made.add_output(output);
    return made;
  }

  // Returns the name of an initializer with the attribute's numbers.
  std::string constant(const onnx::NodeProto& scaler, const char* name) {
    const onnx::AttributeProto* given = find_attribute(scaler, name);
    std::vector<float> values;
    if (given != nullptr) values.assign(given->floats().begin(), given->floats().end());
    if (values.empty()) values = {std::string_view(name) == "scale" ? 1.f : 0.f};
    const TensorDesc desc{DType::kFloat32, Shape{static_cast<int64_t>(values.size())}};
    const std::string made = format_text("{}.{}", scaler.output(0), name);
    *graph_.add_initializer() = tensor_proto(made, desc, values.data());
    return made;
  }

  onnx::GraphProto& graph_;
};

constexpr int64_t kMaxScales = 64;

// Returns small floating-point initializers by name, which a rule for an older opset may need:
// scales.
FloatsOf floats_of(const OnnxFile& file) {
  return [&file](const std::string& name) -> std::optional<std::vector<float>> {
    for (const Initializer& source : file.initializers()) {
      if (source.name != name || source.shape.numel() > kMaxScales) continue;
      std::vector<float> values(static_cast<size_t>(source.shape.numel()));
      if (file.read(source, 0, values).ok()) return values;
    }
    return {};
  };
}

}  // namespace

namespace {

// Gives free axes of inputs the sizes that the data have.
void fix_inputs(onnx::GraphProto& graph, const InputSizes& sizes) {
  for (auto& input : *graph.mutable_input()) {
    const auto found = sizes.find(input.name());
    if (found == sizes.end() || !input.type().has_tensor_type()) continue;
    auto& shape = *input.mutable_type()->mutable_tensor_type()->mutable_shape();
    // A file without a batch axis has one axis less than its columns.
    const auto extra = static_cast<int>(found->second.size()) - shape.dim_size();
    if (extra != 0 && (extra != 1 || found->second[0] >= 0)) continue;
    for (int i = 0; i < shape.dim_size(); ++i) {
      const int64_t size = found->second[static_cast<size_t>(i + extra)];
      if (size >= 0 && !shape.dim(i).has_dim_value()) shape.mutable_dim(i)->set_dim_value(size);
    }
  }
}

}  // namespace

Result<NormalizedModel> normalized_model(const OnnxFile& file, const Operators& operators,
                                         const std::string& forward) {
  OFSDP_ASSIGN_OR_RETURN(onnx::ModelProto model, parse_model(file));
  std::vector<std::string> names;
  for (const auto& tensor : model.graph().initializer()) names.push_back(tensor.name());
  for (const auto& source : file.initializers()) names.push_back(source.name);
  ModuleScopes scopes = module_scopes(model, names);
  OFSDP_REJECT_IF(!forward.empty() && !model.ParseFromString(forward),
                  "{}: is no ONNX model: it does not parse", file.path());
  model.clear_training_info();
  sort_nodes(*model.mutable_graph());
  fix_inputs(*model.mutable_graph(), file.contents().input_sizes);
  open_batch_axis(*model.mutable_graph());
  const int opset = version_of(model.opset_import(), "");
  OFSDP_REJECT_IF(opset > kOpset, "{}: opset {} is newer than {}, the newest known", file.path(),
                  opset, kOpset);
  move_to_microsoft(model, operators, opset);
  try {
    OFSDP_RETURN_IF_ERROR(check_local_functions(model).with_prefix(file.path()));
    check(model, opset);
    OFSDP_RETURN_IF_ERROR(inline_local_functions(model).with_prefix(file.path()));
    OFSDP_RETURN_IF_ERROR(refuse_own(model.graph()).with_prefix(file.path()));
    OFSDP_RETURN_IF_ERROR(dequantize_graph(model, file).with_prefix(file.path()));
    if (opset < 14) mark_training(*model.mutable_graph());
    if (opset > 0 && opset < kOpset) {
      OFSDP_ASSIGN_OR_RETURN(
          model, prefixed(file.path(), convert_version(model, opset, kOpset, floats_of(file))));
    }
  } catch (const std::exception& error) {
    return input_error("{}: {}", file.path(), onnx_message(error));
  }
  OFSDP_RETURN_IF_ERROR(compute_in_float32(model, file.initializers()).with_prefix(file.path()));
  rename_batch_normalization(model);
  ScalerNodes(*model.mutable_graph()).expand();
  OFSDP_ASSIGN_OR_RETURN(Reasons reasons,
                         prefixed(file.path(), rewrite_graph(model, operators.registry,
                                                             file.contents().input_numbers)));
  return NormalizedModel{std::move(model), std::move(names), std::move(scopes), std::move(reasons)};
}

}  // namespace ofsdp::importer
