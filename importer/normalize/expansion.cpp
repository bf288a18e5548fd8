#include "importer/normalize/expansion.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "importer/file/wire.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

// Sums and products end at a value above every budget, so none wraps.
constexpr int64_t kBeyond = int64_t{1} << 40;

int64_t added(int64_t a, int64_t b) { return std::min(a + b, kBeyond); }
int64_t times(int64_t a, int64_t b) {
  return a != 0 && b > kBeyond / a ? kBeyond : std::min(a * b, kBeyond);
}

struct Size {
  int64_t nodes = 0, bytes = 0;

  Size operator+(const Size& other) const {
    return {added(nodes, other.nodes), added(bytes, other.bytes)};
  }
  Size operator*(int64_t count) const { return {times(nodes, count), times(bytes, count)}; }
};

// The size of a list of nodes once inlined. A graph that is an attribute of the call is put
// wherever the body names it.
struct Expansion {
  Size own;
  int64_t graphs = 0;  // places where the body names an attribute of its caller that is a graph
  int depth = 0;       // of functions

  void add(const Expansion& other) {
    own = own + other.own;
    graphs = added(graphs, other.graphs);
    depth = std::max(depth, other.depth);
  }
};

class ExpansionCounter {
 public:
  explicit ExpansionCounter(const onnx::ModelProto& model) {
    for (const auto& function : model.functions()) {
      functions_[key(function.domain(), function.name(), function.overload())].proto = &function;
    }
  }

  Result<Expansion> count(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes,
                          int depth) {
    Expansion sum;
    for (const auto& node : nodes) {
      OFSDP_ASSIGN_OR_RETURN(const Expansion one, count(node, depth));
      sum.add(one);
    }
    return sum;
  }

 private:
  struct Function {
    const onnx::FunctionProto* proto = nullptr;
    bool open = false, known = false;
    Expansion expansion = {};
  };

  static std::string key(const std::string& domain, const std::string& name,
                         const std::string& overload) {
    return short_domain(domain) + "\n" + name + "\n" + overload;
  }

  Result<Expansion> count(const onnx::NodeProto& node, int depth) {
    Expansion one;
    int64_t named = 0;
    for (const auto& attribute : node.attribute()) {
      const bool graph = attribute.type() == onnx::AttributeProto::GRAPH ||
                         attribute.type() == onnx::AttributeProto::GRAPHS;
      if (graph && !attribute.ref_attr_name().empty()) ++named;
      if (attribute.has_g()) OFSDP_RETURN_IF_ERROR(add(attribute.g(), depth, one));
      for (const auto& inner : attribute.graphs()) OFSDP_RETURN_IF_ERROR(add(inner, depth, one));
    }
    const auto found = functions_.find(key(node.domain(), node.op_type(), node.overload()));
    if (found == functions_.end()) {
      one.own = one.own + Size{1, static_cast<int64_t>(node.ByteSizeLong())};
      one.graphs = added(one.graphs, named);
      return one;
    }
    OFSDP_ASSIGN_OR_RETURN(const Expansion body, count(found->second, depth + 1));
    one.own = body.own + one.own * body.graphs;
    one.graphs = times(added(one.graphs, named), body.graphs);
    one.depth = std::max(one.depth, body.depth + 1);
    return one;
  }

  Status add(const onnx::GraphProto& graph, int depth, Expansion& sum) {
    OFSDP_ASSIGN_OR_RETURN(const Expansion inner, count(graph.node(), depth));
    sum.add(inner);
    return ok_status();
  }

  Result<Expansion> count(Function& function, int depth) {
    const std::string name = printable(function.proto->name());
    OFSDP_REJECT_IF(function.open, "function '{}': expected calls of others, found one of itself",
                    name);
    if (!function.known) {
      OFSDP_REJECT_IF(depth > kMostDepth, "function '{}': expected calls at most {} deep", name,
                      kMostDepth);
      function.open = true;
      OFSDP_ASSIGN_OR_RETURN(function.expansion, count(function.proto->node(), depth));
      function.open = false;
      function.known = true;
    }
    OFSDP_REJECT_IF(function.expansion.depth > kMostDepth,
                    "function '{}': expected calls at most {} deep", name, kMostDepth);
    return function.expansion;
  }

  std::unordered_map<std::string, Function> functions_;  // nodes stay where they are
};

}  // namespace

Status check_expansion(const onnx::ModelProto& model) {
  OFSDP_ASSIGN_OR_RETURN(const Expansion all,
                         ExpansionCounter(model).count(model.graph().node(), 0));
  OFSDP_REJECT_IF(all.own.nodes > kMostNodes,
                  "expected functions that make at most {} nodes, found {}{}", kMostNodes,
                  all.own.nodes == kBeyond ? "more than " : "",
                  all.own.nodes == kBeyond ? kBeyond - 1 : all.own.nodes);
  OFSDP_REJECT_IF(all.own.bytes > kMostModelBytes,
                  "expected functions that make at most {} bytes of nodes, found more",
                  kMostModelBytes);
  return ok_status();
}

}  // namespace ofsdp::importer
