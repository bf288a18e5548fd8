#include "importer/normalize/normalized_model.h"

#include <onnx/checker.h>
#include <onnx/defs/schema.h>
#include <onnx/version_converter/convert.h>

#include <algorithm>

#include "importer/dialects/onnxruntime/ort_operators.h"
#include "importer/dialects/training_info/training_info.h"
#include "importer/normalize/compute_types.h"
#include "importer/normalize/inline_functions.h"
#include "importer/normalize/old_batch_normalization.h"
#include "importer/proto/onnx_tensor.h"

namespace ofsdp::importer {
namespace {

// One line of what an ONNX exception says.
std::string first_line(const std::exception& error) {
  std::string text = error.what();
  std::ranges::replace(text, '\n', ' ');
  return text.substr(0, 300);
}

int64_t default_opset(const onnx::ModelProto& model) {
  for (const auto& import : model.opset_import()) {
    if (import.domain().empty() || import.domain() == "ai.onnx") return import.version();
  }
  return 0;
}

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

}  // namespace

Result<NormalizedModel> normalized_model(const OnnxFile& file, const Registry& registry,
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

}  // namespace ofsdp::importer
