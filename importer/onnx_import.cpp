#include "importer/onnx_import.h"

#include <onnx/checker.h>
#include <onnx/defs/schema.h>
#include <onnx/version_converter/convert.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "importer/compute_types.h"
#include "importer/graph_rewriter.h"
#include "importer/inline_functions.h"
#include "importer/module_scopes.h"
#include "importer/old_batch_normalization.h"
#include "importer/onnx_tensor.h"
#include "importer/ort_operators.h"
#include "importer/training_info.h"

namespace ofsdp {
namespace {

// One line of what an ONNX exception says.
std::string first_line(const std::exception& error) {
  std::string text = error.what();
  std::ranges::replace(text, '\n', ' ');
  return text.substr(0, 300);
}

// Opset of each domain but ONNX's own, which is converted.
std::map<std::string, int64_t> foreign_opsets(const onnx::ModelProto& model) {
  std::map<std::string, int64_t> opsets;
  for (const auto& import : model.opset_import()) opsets[import.domain()] = import.version();
  return opsets;
}

int64_t default_opset(const onnx::ModelProto& model) {
  for (const auto& import : model.opset_import()) {
    if (import.domain().empty() || import.domain() == "ai.onnx") return import.version();
  }
  return 0;
}

// The model ready to be read, and the names of its initializers before any conversion.
struct NormalizedModel {
  onnx::ModelProto proto;
  std::vector<std::string> initializers;
  ModuleScopes scopes;
  Reasons reasons;  // of operators that could not be resolved
};

// ONNX Runtime writes some operators of its own into ONNX's domain: LayerNormalization before opset
// 17, gradients such as MaxPoolGrad. The checker would not know them there.
void move_to_microsoft(onnx::ModelProto& model, const Registry& registry, int64_t opset) {
  constexpr const char* kMicrosoft = "com.microsoft";
  bool moved = false;
  for (auto& node : *model.mutable_graph()->mutable_node()) {
    if (!node.domain().empty() && node.domain() != "ai.onnx") continue;
    const std::string& op = node.op_type();
    if (registry.find(kMicrosoft, op) == nullptr && ort_operator(kMicrosoft, op) == nullptr)
      continue;
    if (onnx::OpSchemaRegistry::Schema(op, static_cast<int>(opset), "") != nullptr) continue;
    node.set_domain(kMicrosoft);
    moved = true;
  }
  const auto is_there = [](const auto& import) { return import.domain() == kMicrosoft; };
  if (!moved || std::ranges::any_of(model.opset_import(), is_there)) return;
  auto& import = *model.add_opset_import();
  import.set_domain(kMicrosoft);
  import.set_version(1);
}

// Training's BatchNormalization, whose two more outputs (what backward needs) are those of ours.
void rename_batch_normalization(onnx::ModelProto& model) {
  for (auto& node : *model.mutable_graph()->mutable_node()) {
    if (node.domain() != "com.microsoft" || node.op_type() != "BatchNormInternal") continue;
    node.clear_domain();
    node.set_op_type("BatchNormalization");
    if (find_attribute(node, "training_mode") != nullptr) continue;
    auto& attribute = *node.add_attribute();
    attribute.set_name("training_mode");
    attribute.set_type(onnx::AttributeProto::INT);
    attribute.set_i(1);
  }
}

// The converter takes Scan from opset 8 to 9 as if it had no batch axis.
bool has_batched_scan(const onnx::GraphProto& graph) {
  return std::ranges::any_of(graph.node(),
                             [](const auto& node) { return node.op_type() == "Scan"; });
}

Result<NormalizedModel> normalized(const OnnxFile& file, const Registry& registry,
                                   ImportedPart part) {
  onnx::ModelProto model;
  if (!model.ParseFromString(file.skeleton())) {
    return input_error("{}: is no ONNX model: it does not parse", file.path());
  }
  std::vector<std::string> names;
  for (const auto& tensor : model.graph().initializer()) names.push_back(tensor.name());
  for (const auto& source : file.initializers()) names.push_back(source.name);
  ModuleScopes scopes = module_scopes(model, names);
  if (part == ImportedPart::kWithLoss && has_training_info(model)) {
    OFSDP_ASSIGN_OR_RETURN(SplitTraining split, split_training_info(file, model));
    model = std::move(split.forward);
  }
  model.clear_training_info();
  const int64_t opset = default_opset(model);
  if (opset > kOpset) {
    return input_error("{}: opset {} is newer than {}, the newest known", file.path(), opset,
                       kOpset);
  }
  if (opset == 8 && has_batched_scan(model.graph())) {
    return input_error("{}: Scan of opset 8 has a batch axis: expected opset 9 or newer",
                       file.path());
  }
  move_to_microsoft(model, registry, opset);
  try {
    onnx::checker::check_model(model);
    OFSDP_RETURN_IF_ERROR(inline_local_functions(model).with_prefix(file.path()));
    if (opset < 14) mark_training(*model.mutable_graph());
    if (opset > 0 && opset < kOpset) {
      model = onnx::version_conversion::ConvertVersion(model, kOpset);
    }
  } catch (const std::exception& error) {
    return input_error("{}: {}", file.path(), first_line(error));
  }
  OFSDP_RETURN_IF_ERROR(compute_in_float32(model, file.initializers()).with_prefix(file.path()));
  rename_batch_normalization(model);
  auto reasons = rewrite_graph(model, registry);
  if (!reasons.ok()) return std::move(reasons).status().with_prefix(file.path());
  return NormalizedModel{std::move(model), std::move(names), std::move(scopes),
                         *std::move(reasons)};
}

class Importer {
 public:
  Importer(const OnnxFile& file, const Registry& registry, Reasons reasons,
           std::map<std::string, int64_t> opsets)
      : file_(file), reasons_(std::move(reasons)), opsets_(std::move(opsets)) {
    graph_.file = file.path();
    graph_.registry = &registry;
  }

  Result<Graph> run(const onnx::GraphProto& proto) {
    OFSDP_RETURN_IF_ERROR(add_parameters());
    OFSDP_RETURN_IF_ERROR(add_constants(proto));
    for (const auto& input : proto.input()) OFSDP_RETURN_IF_ERROR(add_input(input));
    for (const auto& node : proto.node()) OFSDP_RETURN_IF_ERROR(add_node(node));
    if (!unknown_.empty()) return unknown_operators();
    for (const auto& output : proto.output()) {
      const ValueId id = lookup(output.name());
      if (!output.type().has_tensor_type()) {
        return input_error("{}: output '{}' is no tensor", file_.path(), output.name());
      }
      if (id == 0)
        return input_error("{}: output '{}' is made by no node", file_.path(), output.name());
      graph_.outputs.push_back(id);
    }
    return std::move(graph_);
  }

 private:
  ValueId lookup(const std::string& name) const {
    const auto it = ids_.find(name);
    return it == ids_.end() ? 0 : it->second;
  }

  ValueId define(Value value) {
    const std::string name = value.name;
    return ids_[name] = GraphEditor(graph_).add_value(std::move(value));
  }

  Status add_parameters() {
    const auto& initializers = file_.initializers();
    for (size_t i = 0; i < initializers.size(); ++i) {
      const auto& source = initializers[i];
      // Parameters compute in float32 whatever the file stores.
      const TensorDesc desc{DType::kFloat32, source.shape};
      Value value{source.name, ValueKind::kParameter, desc};
      if (desc.numel() <= 16) {
        Constant constant{desc, std::vector<std::byte>(desc.bytes())};
        auto* floats = reinterpret_cast<float*>(constant.bytes.data());
        OFSDP_RETURN_IF_ERROR(file_.read(source, 0, {floats, static_cast<size_t>(desc.numel())}));
        value.constant = std::make_shared<const Constant>(std::move(constant));
      }
      Parameter parameter{source.name, define(std::move(value)), static_cast<int>(i), false, {}};
      graph_.parameters.push_back(std::move(parameter));
    }
    return {};
  }

  Status add_constants(const onnx::GraphProto& proto) {
    for (const auto& tensor : proto.initializer()) {
      if (lookup(tensor.name()) != 0) continue;  // a small parameter
      if (dtype_from_onnx(tensor.data_type()) == DType::kUndefined) {
        unsupported_[tensor.name()] = tensor.data_type();
        continue;
      }
      auto constant = constant_from_onnx(tensor);
      if (!constant.ok()) return std::move(constant).status().with_prefix(file_.path());
      define({tensor.name(), ValueKind::kConstant, (*constant)->desc, {}, *constant});
    }
    return {};
  }

  Status add_input(const onnx::ValueInfoProto& input) {
    if (lookup(input.name()) != 0) return {};  // an initializer: no column
    const auto& type = input.type().tensor_type();
    const DType dtype = dtype_from_onnx(type.elem_type());
    if (!input.type().has_tensor_type() || dtype == DType::kUndefined) {
      return input_error("{}: input '{}' is no tensor of a supported type", file_.path(),
                         input.name());
    }
    Value value{input.name(), ValueKind::kInput, {dtype, {}}};
    for (const auto& dim : type.shape().dim()) {
      if (dim.has_dim_value()) {
        value.declared.push_back({dim.dim_value(), {}});
      } else {
        value.declared.push_back({-1, dim.dim_param()});
      }
    }
    graph_.inputs.push_back(define(std::move(value)));
    return {};
  }

  Status add_node(const onnx::NodeProto& proto) {
    Node node;
    node.name = !proto.name().empty() || proto.output().empty() ? proto.name() : proto.output(0);
    node.op = graph_.registry->find(proto.domain(), proto.op_type());
    if (node.op == nullptr) node.op = ort_operator(proto.domain(), proto.op_type());
    if (node.op == nullptr) unknown_[operator_name(proto)].push_back(node.name);
    for (const std::string& name : proto.input()) {
      const ValueId id = name.empty() ? 0 : lookup(name);
      if (const auto found = unsupported_.find(name); found != unsupported_.end() && node.op) {
        return input_error("{}: initializer '{}' has ONNX type {}, which is not supported",
                           graph_.describe(node), name, found->second);
      }
      if (!name.empty() && id == 0 && node.op != nullptr) {
        return input_error("{}: node '{}' reads '{}', which nothing makes", file_.path(), node.name,
                           name);
      }
      node.inputs.push_back(id);
    }
    for (const std::string& name : proto.output()) {
      node.outputs.push_back(name.empty() ? 0 : define({name, ValueKind::kActivation, {}}));
    }
    if (node.op == nullptr) return {};
    OFSDP_RETURN_IF_ERROR(check_opset(node));
    for (const auto& attribute : proto.attribute()) {
      auto value = attribute_from_onnx(attribute);
      if (!value.ok()) return std::move(value).status().with_prefix(graph_.describe(node));
      node.attributes.set(attribute.name(), *std::move(value));
    }
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  // Operators of plug-ins say which opsets of their domain they are for.
  Status check_opset(const Node& node) const {
    const auto found = opsets_.find(node.op->domain);
    if (node.op->domain.empty() || found == opsets_.end()) return {};
    const int64_t opset = found->second, last = node.op->last_opset;
    if (opset >= node.op->first_opset && (last == 0 || opset <= last)) return {};
    return input_error("{}: the file has opset {} of domain {}, the operator is for {} to {}",
                       graph_.describe(node), opset, node.op->domain, node.op->first_opset,
                       last == 0 ? "any" : std::to_string(last));
  }

  // Why it could not be resolved, or that it is of a domain that plug-ins are for.
  std::string remark(const std::string& op) const {
    const auto reason = reasons_.find(op);
    if (reason != reasons_.end()) return "; " + reason->second;
    return op.find('.') == std::string::npos ? "" : "; a plug-in may supply it";
  }

  Status unknown_operators() const {
    std::string list;
    for (const auto& [op, nodes] : unknown_) {
      list += fmt::format("{}{} ({} node{}: {}{})", list.empty() ? "" : "; ", op, nodes.size(),
                          nodes.size() == 1 ? "" : "s", fmt::join(nodes, ", "), remark(op));
    }
    return input_error("{}: operators without a kernel: {}", file_.path(), list);
  }

  const OnnxFile& file_;
  Reasons reasons_;
  std::map<std::string, int64_t> opsets_;
  Graph graph_;
  std::unordered_map<std::string, ValueId> ids_;
  std::map<std::string, int> unsupported_;  // initializers by their ONNX type
  std::map<std::string, std::vector<std::string>> unknown_;
};

}  // namespace

Result<std::vector<MissingOperator>> missing_operators(const OnnxFile& file,
                                                       const Registry& registry) {
  OFSDP_ASSIGN_OR_RETURN(const NormalizedModel model,
                         normalized(file, registry, ImportedPart::kModel));
  std::map<std::pair<std::string, std::string>, MissingOperator> missing;
  for (const auto& node : model.proto.graph().node()) {
    if (registry.find(node.domain(), node.op_type()) != nullptr) continue;
    if (ort_operator(node.domain(), node.op_type()) != nullptr) continue;
    MissingOperator& op = missing[{node.domain(), node.op_type()}];
    op.domain = node.domain();
    op.name = node.op_type();
    op.inputs = std::max(op.inputs, static_cast<size_t>(node.input_size()));
    op.outputs = std::max(op.outputs, static_cast<size_t>(node.output_size()));
    for (const auto& attribute : node.attribute()) {
      auto value = attribute_from_onnx(attribute);
      if (value.ok()) op.attributes.set(attribute.name(), *std::move(value));
    }
  }
  std::vector<MissingOperator> list;
  for (auto& [key, op] : missing) list.push_back(std::move(op));
  return list;
}

Result<Graph> import_onnx(const OnnxFile& file, const Registry& registry, ImportedPart part) {
  OFSDP_ASSIGN_OR_RETURN(NormalizedModel model, normalized(file, registry, part));
  OFSDP_ASSIGN_OR_RETURN(
      Graph graph, Importer(file, registry, std::move(model.reasons), foreign_opsets(model.proto))
                       .run(model.proto.graph()));
  graph.initializers = std::move(model.initializers);
  for (Parameter& p : graph.parameters) p.module = model.scopes.initializers.at(p.name);
  graph.classes = std::move(model.scopes.classes);
  return graph;
}

}  // namespace ofsdp
