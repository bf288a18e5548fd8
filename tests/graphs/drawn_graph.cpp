#include "tests/graphs/drawn_graph.h"

#include <onnx/defs/schema.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "importer/proto/onnx_protos.h"
#include "kernels/base/hash.h"
#include "kernels/core/op_def.h"
#include "kernels/core/philox.h"

namespace ofsdp::graphs {
namespace {

using Ints = std::vector<int64_t>;

constexpr const char* kTrue = "control_true";

ConstantPtr constant_of(const RefTensor& tensor) {
  Constant constant{tensor.desc, std::vector<std::byte>(tensor.desc.bytes())};
  from_doubles(tensor.values, tensor.desc, constant.bytes.data());
  return std::make_shared<const Constant>(std::move(constant));
}

Ints ints_of(const DrawnGraph& graph, const std::string& name) {
  const DrawnValue& value = graph.values.at(name);
  if (value.kind != Kind::kConstant) throw Refused("no constant: " + name);
  return Ints(value.tensor.values.begin(), value.tensor.values.end());
}

// Writes a node of the newest opset as a node of `opset`.
class OldForm {
 public:
  OldForm(const DrawnGraph& graph, const DrawnNode& node)
      : graph_(graph), node_(node), made_(node), opset_(graph.opset) {}

  DrawnNode run() {
    const std::string& op = node_.op->name;
    if (!node_.op->domain.empty()) return made_;
    const auto* schema = onnx::OpSchemaRegistry::Schema(op, opset_, "");
    if (schema == nullptr || schema->Deprecated()) refuse("is not there");
    if (op == "GroupNormalization" && opset_ < 21) refuse("means another thing");
    if (op.starts_with("Reduce")) axes_before(op == "ReduceSum" ? 13 : 18);
    if (op == "Squeeze" || op == "Unsqueeze") axes_before(13);
    if (op == "Clip") numbers_before(11, {"min", "max"});
    if (op == "Pad") pad();
    if (op == "Slice") slice();
    if (op == "Split") split();
    if (op == "TopK") top_k();
    if (op == "DFT") dft();
    if (op == "RoiAlign") roi_align();
    if (op == "Softmax" || op == "LogSoftmax" || op == "Hardmax") softmax();
    if (op == "Dropout" && opset_ < 12) refuse("has no switch");
    if (op == "Resize" && opset_ < 11) refuse("is a known fault before 11");
    if (op == "BatchNormalization" && opset_ < 14 && made_.attributes.i("training_mode", 0) != 0) {
      refuse("has no training_mode");
    }
    if (op == "BatchNormalization" && opset_ < 14) drop("training_mode");
    if (op == "Gemm" && opset_ < 11 && made_.inputs.size() < 3) refuse("needs C");
    if (opset_ < 11) positive_axes();
    // Attributes younger than the opset.
    for (const auto& [name, value] : node_.attributes.all()) {
      const auto& known = schema->attributes();
      if (made_.attributes.has(name) && known.find(name) == known.end()) younger(name);
    }
    for (size_t i = 0; i < made_.inputs.size() && i < schema->inputs().size(); ++i) {
      const bool optional = schema->inputs()[i].GetOption() == onnx::OpSchema::Optional;
      const bool last = i + 1 == made_.inputs.size();
      if (made_.inputs[i].empty() && !optional && !last) refuse("has no absent operand there");
    }
    if (static_cast<int>(made_.inputs.size()) > schema->max_input()) refuse("has fewer inputs");
    if (static_cast<int>(made_.inputs.size()) < schema->min_input()) refuse("has more inputs");
    if (static_cast<int>(made_.outputs.size()) > schema->max_output()) refuse("has fewer outputs");
    if (static_cast<int>(made_.outputs.size()) < schema->min_output()) refuse("has more outputs");
    return made_;
  }

 private:
  [[noreturn]] void refuse(const char* why) const {
    throw Refused(node_.op->name + " of opset " + std::to_string(opset_) + " " + why);
  }

  void drop(const std::string& name) {
    Attributes kept;
    for (const auto& [key, value] : made_.attributes.all()) {
      if (key != name) kept.set(key, value);
    }
    made_.attributes = kept;
  }

  // An attribute that is missing in the opset may have the value it was fixed to then.
  void younger(const std::string& name) {
    static const std::map<std::string, int64_t> kThen = {{"ceil_mode", 0},
                                                         {"allowzero", 0},
                                                         {"keep_aspect_ratio_policy", 0},
                                                         {"antialias", 0},
                                                         {"layout", 0},
                                                         {"batch_dims", 0},
                                                         {"noop_with_empty_axes", 0},
                                                         {"storage_order", 0},
                                                         {"largest", 1},
                                                         {"sorted", 1},
                                                         {"num_outputs", -1},
                                                         {"training_mode", 0},
                                                         {"exclude_outside", 0},
                                                         {"softmax_precision", -1},
                                                         {"saturate", 1}};
    const auto then = kThen.find(name);
    const auto* number = std::get_if<int64_t>(&made_.attributes.all().at(name));
    const auto* text = std::get_if<std::string>(&made_.attributes.all().at(name));
    const auto* list = std::get_if<Ints>(&made_.attributes.all().at(name));
    const bool ones =
        list != nullptr && std::ranges::all_of(*list, [](int64_t v) { return v == 1; });
    const bool same = (number != nullptr && then != kThen.end() && *number == then->second) ||
                      (text != nullptr && *text == "none") || (ones && name == "dilations");
    if (!same) refuse(name.c_str());
    drop(name);
  }

  void axes_before(int opset) {
    if (opset_ >= opset || made_.inputs.size() < 2) return;
    if (!made_.inputs[1].empty()) made_.attributes.set("axes", ints_of(graph_, made_.inputs[1]));
    made_.inputs.resize(1);
    if (made_.attributes.i("noop_with_empty_axes", 0) != 0) refuse("has no noop");
    drop("noop_with_empty_axes");
  }

  void numbers_before(int opset, const std::vector<std::string>& names) {
    if (opset_ >= opset) return;
    for (size_t i = 0; i < names.size() && i + 1 < made_.inputs.size(); ++i) {
      const std::string& name = made_.inputs[i + 1];
      if (name.empty()) continue;
      if (graph_.values.at(name).kind != Kind::kConstant) refuse("takes no values");
      made_.attributes.set(names[i], static_cast<float>(graph_.tensor(name).values[0]));
    }
    made_.inputs.resize(1);
  }

  void pad() {
    if (made_.attributes.s("mode", "constant") == "wrap" && opset_ < 19) refuse("has no wrap");
    if (opset_ >= 18) return;
    if (made_.inputs.size() > 3) refuse("has no axes");
    if (opset_ >= 11) return;
    made_.attributes.set("pads", ints_of(graph_, made_.inputs[1]));
    if (made_.inputs.size() > 2 && !made_.inputs[2].empty()) {
      if (graph_.values.at(made_.inputs[2]).kind != Kind::kConstant) refuse("takes no values");
      made_.attributes.set("value", static_cast<float>(graph_.tensor(made_.inputs[2]).values[0]));
    }
    made_.inputs.resize(1);
  }

  void slice() {
    if (opset_ >= 10) return;
    const std::vector<std::string> names = {"starts", "ends", "axes", "steps"};
    for (size_t i = 1; i < made_.inputs.size(); ++i) {
      if (made_.inputs[i].empty()) continue;
      const Ints values = ints_of(graph_, made_.inputs[i]);
      if (i == 4 && std::ranges::any_of(values, [](int64_t v) { return v != 1; })) {
        refuse("has no steps");
      }
      if (i < 4) made_.attributes.set(names[i - 1], values);
    }
    made_.inputs.resize(1);
  }

  void split() {
    if (opset_ >= 18) return;
    drop("num_outputs");
    if (opset_ >= 13 || made_.inputs.size() < 2) return;
    made_.attributes.set("split", ints_of(graph_, made_.inputs[1]));
    made_.inputs.resize(1);
  }

  void top_k() {
    if (opset_ >= 10) return;
    made_.attributes.set("k", ints_of(graph_, made_.inputs[1])[0]);
    made_.inputs.resize(1);
  }

  // Before opset 20 `axis` is an attribute, by default 1.
  void dft() {
    if (opset_ >= 20) return;
    const bool given = made_.inputs.size() > 2 && !made_.inputs[2].empty();
    const int64_t axis = given ? ints_of(graph_, made_.inputs[2])[0] : -2;
    const int rank = graph_.tensor(node_.inputs[0]).desc.shape.rank();
    made_.attributes.set("axis", axis < 0 ? axis + rank : axis);
    made_.inputs.resize(std::min<size_t>(made_.inputs.size(), 2));
  }

  // Before opset 16 there is one mode, different from the later default.
  void roi_align() {
    if (opset_ >= 16) return;
    const std::string mode = "coordinate_transformation_mode";
    if (made_.attributes.s(mode, "half_pixel") != "output_half_pixel") refuse("has another mode");
    drop(mode);
  }

  // Before opset 13 the axes from `axis` on form one.
  void softmax() {
    if (opset_ >= 13) return;
    const int rank = graph_.tensor(node_.inputs[0]).desc.shape.rank();
    int64_t axis = made_.attributes.i("axis", -1);
    axis = axis < 0 ? axis + rank : axis;
    if (axis != rank - 1) refuse("means another thing");
    made_.attributes.set("axis", axis);
  }

  void positive_axes() {
    const int rank = graph_.tensor(node_.inputs[0]).desc.shape.rank();
    const bool of_output = node_.op->name == "Unsqueeze";
    const int axes = of_output ? graph_.tensor(node_.outputs[0]).desc.shape.rank() : rank;
    if (made_.attributes.has("axis") && made_.attributes.i("axis", 0) < 0) {
      made_.attributes.set("axis", made_.attributes.i("axis", 0) + axes);
    }
    Ints list = made_.attributes.ints("axes");
    if (list.empty()) return;
    for (int64_t& axis : list) axis = axis < 0 ? axis + axes : axis;
    made_.attributes.set("axes", list);
  }

  const DrawnGraph& graph_;
  const DrawnNode& node_;
  DrawnNode made_;
  int opset_;
};

onnx::ValueInfoProto input_info(const DrawnGraph& graph, const std::string& name) {
  onnx::ValueInfoProto info = value_info(name, graph.tensor(name).desc);
  if (graph.fixed_batch) return info;
  info.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0)->set_dim_param(
      "batch");
  return info;
}

onnx::AttributeProto& add_body(onnx::NodeProto& node, const char* name) {
  onnx::AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(onnx::AttributeProto::GRAPH);
  attribute.mutable_g()->set_name(std::string("body_") + name);
  return attribute;
}

onnx::NodeProto if_around(const onnx::NodeProto& node, const onnx::ValueInfoProto& output,
                          const std::string& condition) {
  onnx::NodeProto made;
  made.set_op_type("If");
  made.add_input(condition);
  made.add_output(node.output(0));
  for (const char* branch : {"then_branch", "else_branch"}) {
    onnx::GraphProto& body = *add_body(made, branch).mutable_g();
    const std::string inside = node.output(0) + "_" + branch;
    onnx::NodeProto& one = *body.add_node();
    one = node;
    one.set_name(node.name() + "_" + branch);
    one.set_output(0, inside);
    if (branch == std::string("else_branch")) {
      one.Clear();
      one = constant_node(inside,
                          tensor_proto("", {DType::kFloat32, {}}, std::vector<float>{7}.data()));
    }
    *body.add_output() = output;
    body.mutable_output(0)->set_name(inside);
    if (branch == std::string("else_branch"))
      body.mutable_output(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  }
  return made;
}

std::string count_name(int64_t rounds) { return "control_rounds" + std::to_string(rounds); }

// The value carried around is the node's first operand.
onnx::NodeProto loop_around(const onnx::NodeProto& node, const onnx::ValueInfoProto& output,
                            const onnx::ValueInfoProto& operand, const std::string& condition,
                            const std::string& count) {
  onnx::NodeProto made;
  made.set_op_type("Loop");
  made.add_input(count);
  made.add_input(condition);
  made.add_input(node.input(0));
  made.add_output(node.output(0));
  onnx::GraphProto& body = *add_body(made, "body").mutable_g();
  const std::string at = node.output(0);
  *body.add_input() = value_info(at + "_round", {DType::kInt64, {}});
  *body.add_input() = value_info(at + "_on", {DType::kBool, {}});
  *body.add_input() = operand;
  body.mutable_input(2)->set_name(at + "_before");
  onnx::NodeProto& one = *body.add_node();
  one = node;
  one.set_output(0, at + "_after");
  one.set_input(0, at + "_before");
  onnx::NodeProto& on = *body.add_node();
  on.set_op_type("Identity");
  on.add_input(at + "_on");
  on.add_output(at + "_still");
  *body.add_output() = value_info(at + "_still", {DType::kBool, {}});
  *body.add_output() = output;
  body.mutable_output(1)->set_name(at + "_after");
  return made;
}

std::string zero_name(const DrawnNode& sum) { return sum.outputs[0] + "_zero"; }

int64_t summed_axis(const DrawnNode& sum, const DrawnGraph& graph) {
  return static_cast<int64_t>(graph.tensor(sum.inputs[1]).values.at(0));
}

// One element along a running sum's axis.
TensorDesc summed(const DrawnNode& sum, const DrawnGraph& graph) {
  TensorDesc desc = graph.tensor(sum.inputs[0]).desc;
  Ints axes = desc.shape.axes();
  axes.erase(axes.begin() + summed_axis(sum, graph));
  return {desc.dtype, Shape(axes)};
}

onnx::NodeProto zero_of(const DrawnNode& sum, const DrawnGraph& graph) {
  const TensorDesc desc = summed(sum, graph);
  const std::vector<std::byte> zeros(desc.bytes());
  return constant_node(zero_name(sum), tensor_proto("", desc, zeros.data()));
}

onnx::NodeProto scan_of(const DrawnNode& sum, const DrawnGraph& graph) {
  const std::string at = sum.outputs[0];
  const int64_t axis = summed_axis(sum, graph), reverse = sum.attributes.i("reverse", 0);
  onnx::NodeProto made;
  made.set_op_type("Scan");
  made.add_input(zero_name(sum));
  made.add_input(sum.inputs[0]);
  made.add_output(at + "_total");
  made.add_output(at);
  add_attribute(made, "num_scan_inputs", int64_t{1});
  add_attribute(made, "scan_input_axes", Ints{axis});
  add_attribute(made, "scan_output_axes", Ints{axis});
  add_attribute(made, "scan_input_directions", Ints{reverse});
  add_attribute(made, "scan_output_directions", Ints{reverse});
  onnx::GraphProto& body = *add_body(made, "body").mutable_g();
  const TensorDesc one = summed(sum, graph);
  *body.add_input() = value_info(at + "_before", one);
  *body.add_input() = value_info(at + "_element", one);
  onnx::NodeProto& add = *body.add_node();
  add.set_op_type("Add");
  add.add_input(at + "_before");
  add.add_input(at + "_element");
  add.add_output(at + "_after");
  onnx::NodeProto& copy = *body.add_node();
  copy.set_op_type("Identity");
  copy.add_input(at + (sum.attributes.i("exclusive", 0) != 0 ? "_before" : "_after"));
  copy.add_output(at + "_row");
  *body.add_output() = value_info(at + "_after", one);
  *body.add_output() = value_info(at + "_row", one);
  return made;
}

void surround(onnx::NodeProto& node, const DrawnNode& drawn, const DrawnGraph& graph) {
  const Around around = drawn.around;
  if (around == Around::kNothing) return;
  if (around == Around::kScan) {
    node = scan_of(drawn, graph);
    return;
  }
  const auto info = [&](const std::string& name) {
    return value_info(name, graph.tensor(name).desc);
  };
  const auto output = info(node.output(0));
  node = around == Around::kIf
             ? if_around(node, output, kTrue)
             : loop_around(node, output, info(node.input(0)), kTrue, count_name(drawn.rounds));
}

bool is_initializer(const DrawnValue& value) {
  return value.kind == Kind::kWeight ||
         (value.kind == Kind::kConstant && !is_floating(value.tensor.desc.dtype));
}

}  // namespace

void drop_unused(DrawnGraph& graph) {
  std::set<std::string> wanted{graph.loss};
  std::vector<DrawnNode> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto is_wanted = [&](const std::string& name) { return wanted.contains(name); };
    if (!std::ranges::any_of(node->outputs, is_wanted)) continue;
    wanted.insert(node->inputs.begin(), node->inputs.end());
    for (const std::string& name : node->outputs) wanted.insert(name);
    kept.push_back(*node);
  }
  graph.nodes.assign(kept.rbegin(), kept.rend());
  std::vector<std::string> inputs;
  for (const std::string& name : graph.inputs) {
    if (wanted.contains(name)) inputs.push_back(name);
  }
  if (inputs.empty() && !graph.inputs.empty()) inputs.push_back(graph.inputs[0]);
  wanted.insert(inputs.begin(), inputs.end());
  graph.inputs = inputs;
  std::erase_if(graph.values, [&](const auto& entry) { return !wanted.contains(entry.first); });
}

std::vector<double> column_values(const std::string& name, const TensorDesc& desc) {
  std::mt19937_64 random(Fnv1a().add(name).value());
  std::vector<double> values(static_cast<size_t>(desc.numel()));
  const size_t at = name.find("_classes");
  std::normal_distribution<double> normal;
  const int64_t classes = at == std::string::npos ? 0 : std::stoll(name.substr(at + 8));
  for (double& v : values) {
    if (classes == 0) {
      v = static_cast<double>(static_cast<float>(normal(random)));
    } else {
      v = static_cast<double>(random() % static_cast<uint64_t>(classes));
      if (name.ends_with("_ignore") && random() % 5 == 0) v = -100;
    }
  }
  return values;
}

bool DrawnGraph::has_random() const {
  return std::ranges::any_of(nodes, [](const DrawnNode& node) { return node.op->random; });
}

std::vector<RefTensor> evaluated(const DrawnGraph& graph, const DrawnNode& node) {
  InferContext infer{node.attributes, {}, {}, {}};
  std::vector<RefTensor> inputs;
  for (const std::string& name : node.inputs) {
    const bool known = !name.empty() && graph.values.at(name).known;
    inputs.push_back(name.empty() ? RefTensor{} : graph.tensor(name));
    infer.inputs.push_back(inputs.back().desc);
    infer.constants.push_back(known ? constant_of(inputs.back()) : nullptr);
  }
  for (const std::string& name : node.outputs) infer.wanted.push_back(!name.empty());
  auto descs = node.op->infer(infer);
  if (!descs.ok()) throw Refused(node.op->name + ": " + descs.error().message());
  descs->resize(std::max(descs->size(), node.outputs.size()));
  for (size_t i = 0; i < descs->size(); ++i) {
    if (i >= node.outputs.size() || node.outputs[i].empty()) (*descs)[i] = {};
  }
  descs->resize(node.outputs.size());
  auto outputs = node.op->reference({node.attributes, inputs, *descs, 0, {}});
  for (int64_t round = 1; round < node.rounds; ++round) {
    if (descs->at(0) != inputs.at(0).desc) throw Refused(node.op->name + ": another shape");
    inputs[0].values = outputs.at(0).values;
    outputs = node.op->reference({node.attributes, inputs, *descs, 0, {}});
  }
  for (size_t i = 0; i < node.outputs.size() && i < outputs.size(); ++i) {
    outputs[i].desc = (*descs)[i];
  }
  return outputs;
}

void check_forms(const DrawnGraph& graph, size_t first) {
  for (size_t i = first; i < graph.nodes.size(); ++i) OldForm(graph, graph.nodes[i]).run();
}

onnx::ModelProto model_of(const DrawnGraph& graph) {
  onnx::ModelProto model;
  model.set_ir_version(graph.opset < 9 ? 4 : graph.opset < 21 ? 8 : 10);
  model.add_opset_import()->set_version(graph.opset);
  onnx::GraphProto& proto = *model.mutable_graph();
  proto.set_name("drawn");
  for (const std::string& name : graph.inputs) *proto.add_input() = input_info(graph, name);
  bool microsoft = false;
  std::vector<DrawnNode> nodes;
  for (const DrawnNode& node : graph.nodes) nodes.push_back(OldForm(graph, node).run());
  std::set<std::string> read;
  for (const DrawnNode& node : nodes) read.insert(node.inputs.begin(), node.inputs.end());
  for (const auto& [name, value] : graph.values) {
    if (!read.contains(name)) continue;
    const bool kept = value.kind == Kind::kWeight || value.kind == Kind::kConstant;
    if (!kept) continue;
    std::vector<std::byte> bytes(value.tensor.desc.bytes());
    from_doubles(value.tensor.values, value.tensor.desc, bytes.data());
    onnx::TensorProto tensor = tensor_proto(name, value.tensor.desc, bytes.data());
    if (is_initializer(value)) {
      *proto.add_initializer() = tensor;
    } else {
      onnx::NodeProto& node = *proto.add_node();
      node = constant_node(name, tensor);
      node.set_name("make_" + name);
    }
  }
  const auto surrounded = [](const DrawnNode& node) { return node.around != Around::kNothing; };
  if (std::ranges::any_of(nodes, surrounded)) {
    const bool on = true;
    *proto.add_node() = constant_node(kTrue, tensor_proto("", {DType::kBool, {}}, &on));
    std::set<int64_t> counts;
    for (const DrawnNode& node : nodes) counts.insert(node.rounds);
    for (const int64_t count : counts) {
      *proto.add_node() =
          constant_node(count_name(count), tensor_proto("", {DType::kInt64, {}}, &count));
    }
  }
  for (const DrawnNode& node : nodes) {
    if (node.around == Around::kScan) {
      *proto.add_node() = zero_of(node, graph);
      *proto.add_value_info() = value_info(node.inputs[0], graph.tensor(node.inputs[0]).desc);
    }
    onnx::NodeProto& made = *proto.add_node();
    made.set_op_type(node.op->name);
    made.set_domain(node.op->domain);
    microsoft = microsoft || !node.op->domain.empty();
    made.set_name("n_" + node.outputs[0]);
    for (const std::string& name : node.inputs) made.add_input(name);
    for (const std::string& name : node.outputs) made.add_output(name);
    while (made.input_size() > 0 && made.input(made.input_size() - 1).empty()) {
      made.mutable_input()->RemoveLast();
    }
    for (const auto& [name, value] : node.attributes.all()) add_attribute(made, name, value);
    surround(made, node, graph);
  }
  *proto.add_output() = value_info(graph.loss, graph.tensor(graph.loss).desc);
  if (microsoft) {
    auto& import = *model.add_opset_import();
    import.set_domain("com.microsoft");
    import.set_version(1);
  }
  return model;
}

}  // namespace ofsdp::graphs
