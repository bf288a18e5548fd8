#include <onnx/common/interned_strings.h>
#include <onnx/common/ir.h>
#include <onnx/common/ir_pb_converter.h>
#include <onnx/defs/schema.h>
#include <onnx/shape_inference/implementation.h>
#include <onnx/version_converter/convert.h>

#include <algorithm>
#include <set>

#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "importer/normalize/opset_rules.h"
#include "importer/proto/onnx_protos.h"

namespace ofsdp::importer {
namespace {

using GraphPtr = std::shared_ptr<onnx::Graph>;

// Returns "node 'up' (Upsample) of opset 9", or an output's name if the node has none.
std::string described(onnx::Node* node, int opset) {
  std::string name = node->name();
  if (name.empty() && !node->outputs().empty()) name = node->outputs()[0]->uniqueName();
  return format_text("node '{}' ({}) of opset {}", printable(name), node->kind().toString(), opset);
}

// Tables in ONNX's converter: versions at which operators change, and adapters across changes.
class Tables : public onnx::version_conversion::DefaultVersionConverter {
 public:
  int oldest(const std::string& op) const {
    const auto domains = all_schemas.find(op);
    if (domains == all_schemas.end() || !domains->second.contains("")) return 1;
    const auto& versions = domains->second.at("");
    for (int version = kOpset; version > 1; --version) {
      if (!versions.contains(version)) continue;
      const bool introduced = versions.begin()->first == version;
      const bool crossed =
          find_opset_rule(op, version - 1) != nullptr || adapter(op, version - 1) != nullptr;
      if (introduced || !crossed) return version;
    }
    return 1;
  }

  // Raises every node, also in subgraphs, from `opset` to the next.
  Status raise(const GraphPtr& graph, int opset, const FloatsOf& floats_of) const {
    for (auto it = graph->begin(); it != graph->end(); ++it) {
      OFSDP_ASSIGN_OR_RETURN(onnx::Node * node, raise(graph, *it, opset, floats_of));
      it = onnx::graph_node_list_iterator(node, onnx::kNextDirection);
      for (const onnx::Symbol name : node->attributeNames()) {
        std::vector<GraphPtr> inner;
        if (node->kindOf(name) == onnx::AttributeKind::g) inner = {node->g(name)};
        if (node->kindOf(name) == onnx::AttributeKind::gs) inner = node->gs(name);
        for (const GraphPtr& one : inner) OFSDP_RETURN_IF_ERROR(raise(one, opset, floats_of));
      }
    }
    return ok_status();
  }

 private:
  const onnx::version_conversion::Adapter* adapter(const std::string& op, int from) const {
    const auto of_op = adapters.find(op);
    if (of_op == adapters.end()) return nullptr;
    const auto of_version = of_op->second.find(onnx::OpSetID(from).toString());
    if (of_version == of_op->second.end()) return nullptr;
    const auto found = of_version->second.find(onnx::OpSetID(from + 1).toString());
    return found == of_version->second.end() ? nullptr : found->second.get();
  }

  bool changes(onnx::Node* node, int to) const {
    if (!short_domain(node->domain()).empty()) return false;
    const auto domains = all_schemas.find(node->kind().toString());
    if (domains == all_schemas.end()) return false;  // Undefined, Captured
    const auto versions = domains->second.find("");
    return versions != domains->second.end() && versions->second.contains(to);
  }

  // Returns the last node that replaces it.
  Result<onnx::Node*> raise(const GraphPtr& graph, onnx::Node* node, int opset,
                            const FloatsOf& floats_of) const {
    if (!changes(node, opset + 1)) return node;
    const std::string op = node->kind().toString();
    const std::string where = described(node, opset);
    try {
      if (const OpsetRule* rule = find_opset_rule(op, opset)) {
        OldNode old(graph, node, floats_of);
        OFSDP_RETURN_IF_ERROR(rule->apply(old).with_prefix(where));
        return old.last();
      }
      if (const auto* known = adapter(op, opset)) return known->adapt(graph, node);
    } catch (const std::exception& error) {
      return input_error("{}: {}", where, onnx_message(error));
    }
    return input_error("{}: expected opset {} or newer, since nothing converts it", where,
                       oldest(op));
  }
};

// Made once and never freed, which would only delay the program's end.
const Tables& tables() {
  static const Tables& kTables = *new Tables;
  return kTables;
}

bool wants_ranks(const onnx::GraphProto& graph, int from) {
  return std::ranges::any_of(graph.node(), [&](const onnx::NodeProto& node) {
    if (short_domain(node.domain()).empty() && rank_matters(node.op_type(), from)) return true;
    return std::ranges::any_of(node.attribute(), [&](const onnx::AttributeProto& attribute) {
      return (attribute.has_g() && wants_ranks(attribute.g(), from)) ||
             std::ranges::any_of(attribute.graphs(),
                                 [&](const auto& inner) { return wants_ranks(inner, from); });
    });
  });
}

// These operators' schemas infer nothing in kRankedOpset.
void declare_ranks(onnx::GraphProto& graph) {
  constexpr int kSequenceRank = 4, kStateRank = 3;
  for (const auto& node : graph.node()) {
    const std::string& op = node.op_type();
    if (op != "RNN" && op != "GRU" && op != "LSTM" && op != "Upsample") continue;
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      auto& info = *graph.add_value_info();
      info.set_name(node.output(i));
      auto& type = *info.mutable_type()->mutable_tensor_type();
      type.set_elem_type(onnx::TensorProto::FLOAT);
      for (int k = 0; k < (i == 0 ? kSequenceRank : kStateRank); ++k) {
        type.mutable_shape()->add_dim();
      }
    }
  }
}

onnx::ModelProto with_shapes(onnx::ModelProto model) {
  declare_ranks(*model.mutable_graph());
  try {
    onnx::shape_inference::InferShapes(model, onnx::OpSchemaRegistry::Instance(),
                                       onnx::ShapeInferenceOptions{false, 0, false});
  } catch (const std::exception&) {
    // Keeps shapes inferred before the refused node.
  }
  return model;
}

Status raise(const GraphPtr& graph, int from, int to, const FloatsOf& floats_of) {
  for (int opset = from; opset < to; ++opset) {
    OFSDP_RETURN_IF_ERROR(tables().raise(graph, opset, floats_of));
  }
  for (onnx::OpSetID& import : graph->opset_versions_mutable()) {
    if (short_domain(import.domain()).empty()) import.setVersion(to);
  }
  return ok_status();
}

onnx::ModelProto exported(const onnx::ModelProto& model, const GraphPtr& graph) {
  onnx::ModelProto made = onnx::PrepareOutput(model);
  onnx::ExportModelProto(&made, graph);
  return made;
}

// Declares again only types that the file declared, and none that was inferred.
void forget_inferred(const onnx::GraphProto& file, onnx::GraphProto& graph) {
  std::set<std::string> declared;
  for (const auto& info : file.value_info()) declared.insert(info.name());
  auto& infos = *graph.mutable_value_info();
  const auto inferred = [&](const auto& info) { return !declared.contains(info.name()); };
  infos.erase(std::remove_if(infos.begin(), infos.end(), inferred), infos.end());
  *graph.mutable_output() = file.output();
}

}  // namespace

Result<onnx::ModelProto> convert_version(const onnx::ModelProto& model, int from, int to,
                                         const FloatsOf& floats_of) {
  GraphPtr graph = onnx::ImportModelProto(model);
  if (graph == nullptr) {
    return input_error("expected ir_version 2 or newer, found {}", model.ir_version());
  }
  const bool infers = from <= kRankedOpset && to > kRankedOpset && wants_ranks(model.graph(), from);
  if (infers) {
    OFSDP_RETURN_IF_ERROR(raise(graph, from, kRankedOpset, floats_of));
    graph = onnx::ImportModelProto(with_shapes(exported(model, graph)));
  }
  OFSDP_RETURN_IF_ERROR(raise(graph, infers ? kRankedOpset : from, to, floats_of));
  onnx::ModelProto converted = exported(model, graph);
  if (infers) forget_inferred(model.graph(), *converted.mutable_graph());
  return converted;
}

int oldest_opset(const std::string& op) { return tables().oldest(op); }

std::string onnx_message(const std::exception& error) {
  std::string text = error.what();
  const std::string mark = "` failed: ";  // ends an assertion's location and condition
  if (const size_t at = text.find(mark); at != std::string::npos) text.erase(0, at + mark.size());
  std::ranges::replace(text, '\n', ' ');
  return text.substr(0, 300);
}

}  // namespace ofsdp::importer
