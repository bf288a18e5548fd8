#include "importer/normalize/normalized_model.h"

#include <onnx/checker.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <set>

#include "importer/file/wire.h"
#include "importer/normalize/compute_types.h"
#include "importer/normalize/expansion.h"
#include "importer/normalize/node_order.h"
#include "importer/normalize/opset_range.h"
#include "importer/normalize/quantized_graph.h"
#include "importer/normalize/resolvers.h"
#include "importer/proto/onnx_protos.h"
#include "importer/proto/opset.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

// ONNX Runtime writes some operators of its own into ONNX's domain: LayerNormalization before opset
// 17, gradients such as MaxPoolGrad. The checker would not know them there.
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

// Training's BatchNormalization has two more outputs for backward, the same two that ours has.
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

// Prepares BatchNormalization of a file before opset 14 for the version converter, which takes it
// for inference. Such a node trains when it has more than one output. Outputs 3 and 4, for a
// backward pass, are gone since opset 14; the converter refuses the node when something reads them.
// https://onnx.ai/onnx/operators/text_diff_BatchNormalization_9_14.html
void mark_training(onnx::GraphProto& graph) {
  const std::set<std::string> read = names_read(graph);
  for (auto& node : *graph.mutable_node()) {
    if (trains(node)) mark(node, read);
  }
}

// Some exporters write 0 for a batch axis of any size. No column has rows of no sample, so such an
// axis is open, here and in the types of all values that they took from it.
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

// Operators and attributes of our own are made by passes, which keep what their kernels rely on (an
// `ofsdp.GatherGrad` writes where its attribute says); a file could say anything.
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

// Moves nodes of that operator between two domains. Returns how many there were.
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

// As onnx::checker::check_model, which throws. ONNX has marked GroupNormalization of opset 18 as
// deprecated, since scale and bias of a group were a mistake, and its checker refuses such a node.
// opset_rules.cpp has its meaning, so the checker finds it in a domain that it does not look into.
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

constexpr int64_t kMostScales = 64;

// Floating-point initializers by name, as far as a rule of an older opset may need them: scales.
FloatsOf floats_of(const OnnxFile& file) {
  return [&file](const std::string& name) -> std::optional<std::vector<float>> {
    for (const Initializer& source : file.initializers()) {
      if (source.name != name || source.shape.numel() > kMostScales) continue;
      std::vector<float> values(static_cast<size_t>(source.shape.numel()));
      if (file.read(source, 0, values).ok()) return values;
    }
    return {};
  };
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
  open_batch_axis(*model.mutable_graph());
  const int opset = version_of(model.opset_import(), "");
  OFSDP_REJECT_IF(opset > kOpset, "{}: opset {} is newer than {}, the newest known", file.path(),
                  opset, kOpset);
  move_to_microsoft(model, operators, opset);
  try {
    if (model.functions_size() > 0) {
      OFSDP_RETURN_IF_ERROR(check_expansion(model).with_prefix(file.path()));
    }
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
  OFSDP_ASSIGN_OR_RETURN(Reasons reasons,
                         prefixed(file.path(), rewrite_graph(model, operators.registry)));
  return NormalizedModel{std::move(model), std::move(names), std::move(scopes), std::move(reasons)};
}

}  // namespace ofsdp::importer
