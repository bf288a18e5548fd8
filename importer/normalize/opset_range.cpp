// convert_version: raises a model's ai.onnx nodes, opset by opset, to a newer opset. At each step a
// node changes only if its operator has a new version there: by a rule of ours (opset_rules.h),
// else by an adapter of ONNX's version converter. If neither exists, the
// error names the oldest opset from which the operator can be converted (oldest_opset). The
// converter's header defines all adapters, so no other source includes it.
//
// The rules from opset kRankedOpset (6) to the next need to know the ranks of a node's inputs, to
// replace broadcasting by an axis. ONNX infers the shapes of few operators in versions before 6. So
// if a node needs such a rule, the model is raised to opset 6, its shapes are inferred, and then it
// is raised further; at the end the inferred shapes are removed again.
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
std::string node_text(onnx::Node* node, int opset) {
  std::string name = node->name();
  if (name.empty() && !node->outputs().empty()) name = node->outputs()[0]->uniqueName();
  return format_text("node '{}' ({}) of opset {}", printable(name), node->kind().toString(), opset);
}

// Gives access to two tables of ONNX's converter: in which opsets each operator has a new version
// (all_schemas), and the adapters that raise a node to a new version (adapters).
class Tables : public onnx::version_conversion::DefaultVersionConverter {
 public:
  // Returns the oldest opset from which every later version of `op` can be reached.
  int oldest(const std::string& op) const {
    const auto domains = all_schemas.find(op);
    if (domains == all_schemas.end() || !domains->second.contains("")) return 1;
    const auto& versions = domains->second.at("");
    for (int version = kOpset; version > 1; --version) {
      if (!versions.contains(version)) continue;
      const bool is_first = versions.begin()->first == version;
      const bool can_raise =
          find_opset_rule(op, version - 1) != nullptr || adapter(op, version - 1) != nullptr;
      if (is_first || !can_raise) return version;
    }
    return 1;
  }

  // Raises every node, also in subgraphs, from `opset` to the next.
  Status raise_graph(const GraphPtr& graph, int opset, const FloatsOf& floats_of) const {
    for (auto it = graph->begin(); it != graph->end(); ++it) {
      OFSDP_ASSIGN_OR_RETURN(onnx::Node * node, raise_node(graph, *it, opset, floats_of));
      it = onnx::graph_node_list_iterator(node, onnx::kNextDirection);
      for (const onnx::Symbol name : node->attributeNames()) {
        std::vector<GraphPtr> inner;
        if (node->kindOf(name) == onnx::AttributeKind::g) inner = {node->g(name)};
        if (node->kindOf(name) == onnx::AttributeKind::gs) inner = node->gs(name);
        for (const GraphPtr& subgraph : inner) {
          OFSDP_RETURN_IF_ERROR(raise_graph(subgraph, opset, floats_of));
        }
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
    // Not in the table: ONNX's own marks for omitted inputs and for values of an outer graph.
    if (domains == all_schemas.end()) return false;
    const auto versions = domains->second.find("");
    return versions != domains->second.end() && versions->second.contains(to);
  }

  // Raises one node from `opset` to the next. Returns the last of the nodes that replace `node`, or
  // `node` itself if it stays.
  Result<onnx::Node*> raise_node(const GraphPtr& graph, onnx::Node* node, int opset,
                                 const FloatsOf& floats_of) const {
    if (!changes(node, opset + 1)) return node;
    const std::string op = node->kind().toString();
    const std::string where = node_text(node, opset);
    try {
      if (const OpsetRule* rule = find_opset_rule(op, opset)) {
        OldNode old(graph, node, floats_of);
        OFSDP_RETURN_IF_ERROR(rule->apply(old).with_prefix(where));
        return old.last();
      }
      if (const auto* found = adapter(op, opset)) return found->adapt(graph, node);
    } catch (const std::exception& error) {
      return input_error("{}: {}", where, onnx_message(error));
    }
    return input_error("{}: expected opset {} or newer, since nothing converts it", where,
                       oldest(op));
  }
};

// The tables are made at the first call and never freed: freeing them would only delay the
// program's end.
const Tables& tables() {
  static const Tables& kTables = *new Tables;
  return kTables;
}

// Returns whether a node, also in a subgraph, will meet a rule that needs ranks.
bool needs_ranks(const onnx::GraphProto& graph, int from) {
  return std::ranges::any_of(graph.node(), [&](const onnx::NodeProto& node) {
    if (short_domain(node.domain()).empty() && rank_matters(node.op_type(), from)) return true;
    return std::ranges::any_of(node.attribute(), [&](const onnx::AttributeProto& attribute) {
      return (attribute.has_g() && needs_ranks(attribute.g(), from)) ||
             std::ranges::any_of(attribute.graphs(),
                                 [&](const auto& inner) { return needs_ranks(inner, from); });
    });
  });
}

// Declares the outputs' ranks of operators whose schemas in kRankedOpset infer nothing: recurrent
// ones give [steps, directions, batch, hidden] and states [directions, batch, hidden], and that
// version of Upsample takes only [N, C, H, W]. The rules read only ranks, so any element type
// does; FLOAT makes the declaration valid.
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

// Adds all shapes that ONNX infers to `model`.
onnx::ModelProto with_shapes(onnx::ModelProto model) {
  declare_ranks(*model.mutable_graph());
  try {
    onnx::shape_inference::InferShapes(model, onnx::OpSchemaRegistry::Instance(),
                                       onnx::ShapeInferenceOptions{false, 0, false});
  } catch (const std::exception&) {
    // ONNX refuses a node; the shapes of the nodes before it stay. If a rule needs a missing one,
    // it reports that.
  }
  return model;
}

// Raises the graph from opset `from` to `to`, and states the new opset in it.
Status raise_versions(const GraphPtr& graph, int from, int to, const FloatsOf& floats_of) {
  for (int opset = from; opset < to; ++opset) {
    OFSDP_RETURN_IF_ERROR(tables().raise_graph(graph, opset, floats_of));
  }
  for (onnx::OpSetID& import : graph->opset_versions_mutable()) {
    if (short_domain(import.domain()).empty()) import.setVersion(to);
  }
  return ok_status();
}

// Returns `model` with its graph replaced.
onnx::ModelProto to_proto(const onnx::ModelProto& model, const GraphPtr& graph) {
  onnx::ModelProto proto = onnx::PrepareOutput(model);
  onnx::ExportModelProto(&proto, graph);
  return proto;
}

// Removes the declarations that shape inference added: keeps those of values that `file` declares,
// and takes the outputs from `file`.
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
  const bool infers_shapes =
      from <= kRankedOpset && to > kRankedOpset && needs_ranks(model.graph(), from);
  if (infers_shapes) {
    OFSDP_RETURN_IF_ERROR(raise_versions(graph, from, kRankedOpset, floats_of));
    graph = onnx::ImportModelProto(with_shapes(to_proto(model, graph)));
  }
  OFSDP_RETURN_IF_ERROR(raise_versions(graph, infers_shapes ? kRankedOpset : from, to, floats_of));
  onnx::ModelProto converted = to_proto(model, graph);
  if (infers_shapes) forget_inferred(model.graph(), *converted.mutable_graph());
  return converted;
}

int oldest_opset(const std::string& op) { return tables().oldest(op); }

std::string onnx_message(const std::exception& error) {
  std::string text = error.what();
  // ONNX's assertions read "FILE:LINE: FUNCTION: Assertion `CONDITION` failed: MESSAGE".
  const std::string mark = "` failed: ";
  if (const size_t at = text.find(mark); at != std::string::npos) text.erase(0, at + mark.size());
  std::ranges::replace(text, '\n', ' ');
  return text.substr(0, 300);
}

}  // namespace ofsdp::importer
