// The functions that a model brings along (FunctionProto): their size once inlined, the defaults of
// their attributes, and inlining by the ONNX library.
// https://github.com/onnx/onnx/blob/main/docs/IR.md#functions
#include <onnx/inliner/inliner.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "importer/normalize/graph_rewriter.h"
#include "importer/normalize/onnx_import.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

std::string function_key(const std::string& domain, const std::string& name,
                         const std::string& overload) {
  return short_domain(domain) + "\n" + name + "\n" + overload;
}
std::string called_key(const onnx::NodeProto& node) {
  return function_key(node.domain(), node.op_type(), node.overload());
}

// --- Size ---
//
// A model's size after inlining: ten calls in each function, level after level, make 10^8 nodes
// from a two-kilobyte file. Each function is counted once, before anything is inlined.
//
// Errors: kInput if nodes, bytes or depth exceed their budgets, or if a function calls itself.

// Sums and products saturate above every budget, so none wraps.
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

// A node list's size once inlined. A graph in the call's attribute goes wherever the body names it.
struct Expansion {
  Size own;
  int64_t graphs = 0;  // places in the body with a graph from the caller's attribute
  int depth = 0;       // nested functions

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
      functions_[function_key(function.domain(), function.name(), function.overload())].proto =
          &function;
    }
  }

  Result<Expansion> count(const Nodes& nodes, int depth) {
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
    const auto found = functions_.find(called_key(node));
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
      OFSDP_REJECT_IF(depth > kMaxDepth, "function '{}': expected calls at most {} deep", name,
                      kMaxDepth);
      function.open = true;
      OFSDP_ASSIGN_OR_RETURN(function.expansion, count(function.proto->node(), depth));
      function.open = false;
      function.known = true;
    }
    OFSDP_REJECT_IF(function.expansion.depth > kMaxDepth,
                    "function '{}': expected calls at most {} deep", name, kMaxDepth);
    return function.expansion;
  }

  std::unordered_map<std::string, Function> functions_;  // nodes stay in the model
};

// --- Defaults ---

// Calls `visit` with each node of `nodes` and of the graphs inside them.
template <typename Visit>
void for_each_node(Nodes& nodes, const Visit& visit) {
  for (auto& node : nodes) {
    visit(node);
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) for_each_node(*attribute.mutable_g()->mutable_node(), visit);
      for (auto& inner : *attribute.mutable_graphs()) {
        for_each_node(*inner.mutable_node(), visit);
      }
    }
  }
}

// Writes the defaults of functions' attributes into the calls that leave them out: the inliner does
// not know them. An attribute without a default, which the body hands on to another function, takes
// that function's.
class FunctionDefaults {
 public:
  explicit FunctionDefaults(onnx::ModelProto& model) : model_(model) {
    for (auto& function : *model.mutable_functions()) {
      functions_[function_key(function.domain(), function.name(), function.overload())].proto =
          &function;
    }
  }

  // REQUIRES: no function calls itself.
  Status write() {
    for (auto& [key, function] : functions_) find_defaults(function);
    Status written = write_into(*model_.mutable_graph()->mutable_node());
    for (auto& function : *model_.mutable_functions()) {
      if (written.ok()) written = write_into(*function.mutable_node());
    }
    return written;
  }

 private:
  using Defaults = std::map<std::string, onnx::AttributeProto>;  // by attribute name
  struct Function {
    onnx::FunctionProto* proto = nullptr;
    bool known = false;
    Defaults defaults{};
    std::set<std::string> undecided{};  // attributes with several defaults
  };

  Function* called(const onnx::NodeProto& node) {
    const auto found = functions_.find(called_key(node));
    return found == functions_.end() ? nullptr : &found->second;
  }

  void find_defaults(Function& function) {
    if (std::exchange(function.known, true)) return;
    for (const auto& one : function.proto->attribute_proto()) function.defaults[one.name()] = one;
    for (const std::string& name : function.proto->attribute()) find_handed_on(function, name);
  }

  // Finds the default that the called functions have for attribute `name`. Every other reader must
  // have the same: a call has one value for all.
  void find_handed_on(Function& function, const std::string& name) {
    std::optional<std::string> first;  // serialized; empty: the reader has no default
    for_each_node(*function.proto->mutable_node(), [&](const onnx::NodeProto& node) {
      for (const auto& attribute : node.attribute()) {
        if (attribute.ref_attr_name() != name) continue;
        const onnx::AttributeProto* const given = default_of(node, attribute.name());
        const std::string bytes = given == nullptr ? "" : named(*given, "").SerializeAsString();
        if (first.value_or(bytes) != bytes) function.undecided.insert(name);
        first = bytes;
        if (given != nullptr) function.defaults[name] = named(*given, name);
      }
    });
  }

  // Returns the default that the called function has for an attribute; null if there is none.
  const onnx::AttributeProto* default_of(const onnx::NodeProto& node, const std::string& name) {
    Function* const callee = called(node);
    if (callee == nullptr) return nullptr;
    find_defaults(*callee);
    const auto found = callee->defaults.find(name);
    return found == callee->defaults.end() ? nullptr : &found->second;
  }

  static onnx::AttributeProto named(onnx::AttributeProto attribute, const std::string& name) {
    attribute.set_name(name);
    return attribute;
  }

  Status write_into(Nodes& nodes) {
    Status written;
    for_each_node(nodes, [&](onnx::NodeProto& node) {
      if (const Function* const callee = called(node); callee != nullptr && written.ok()) {
        written = write_into(node, *callee);
      }
    });
    return written;
  }

  static Status write_into(onnx::NodeProto& node, const Function& callee) {
    for (const auto& [name, value] : callee.defaults) {
      if (find_attribute(node, name) != nullptr) continue;
      OFSDP_REJECT_IF(callee.undecided.contains(name),
                      "function '{}': attribute '{}' has no default, and its readers have "
                      "different ones: expected it at node '{}'",
                      printable(callee.proto->name()), printable(name), printable(node.name()));
      *node.add_attribute() = value;
    }
    return {};
  }

  onnx::ModelProto& model_;
  std::unordered_map<std::string, Function> functions_;
};

// A domain of the model's own functions has no operators, so its version means nothing; the inliner
// leaves out functions that import another version than the model does (jax2onnx writes such).
void agree_on_versions(onnx::ModelProto& model) {
  std::map<std::string, int64_t> versions;
  for (const auto& function : model.functions()) {
    const std::string domain = short_domain(function.domain());
    if (!domain.empty()) versions[domain] = 1;
  }
  for (const auto& opset : model.opset_import()) {
    const auto found = versions.find(short_domain(opset.domain()));
    if (found != versions.end()) found->second = opset.version();
  }
  for (auto& function : *model.mutable_functions()) {
    for (auto& opset : *function.mutable_opset_import()) {
      const auto found = versions.find(short_domain(opset.domain()));
      if (found != versions.end()) opset.set_version(found->second);
    }
  }
}

}  // namespace

Status check_local_functions(const onnx::ModelProto& model) {
  if (model.functions_size() == 0) return {};
  OFSDP_ASSIGN_OR_RETURN(const Expansion all,
                         ExpansionCounter(model).count(model.graph().node(), 0));
  OFSDP_REJECT_IF(all.own.nodes > kMaxNodes,
                  "expected functions that make at most {} nodes, found {}{}", kMaxNodes,
                  all.own.nodes == kBeyond ? "more than " : "",
                  all.own.nodes == kBeyond ? kBeyond - 1 : all.own.nodes);
  OFSDP_REJECT_IF(all.own.bytes > kMaxModelBytes,
                  "expected functions that make at most {} bytes of nodes, found more",
                  kMaxModelBytes);
  return ok_status();
}

Status inline_local_functions(onnx::ModelProto& model) {
  if (model.functions_size() == 0) return {};
  agree_on_versions(model);
  OFSDP_RETURN_IF_ERROR(FunctionDefaults(model).write());
  OFSDP_RETURN_IF_ERROR(check_local_functions(model));  // a default may be a graph
  // The inliner knows the types of inputs and values, but not of initializers.
  for (const auto& tensor : model.graph().initializer()) {
    auto& info = *model.mutable_graph()->add_value_info();
    info.set_name(tensor.name());
    set_tensor_type(*info.mutable_type(), tensor.data_type(), tensor.dims());
  }
  try {
    onnx::inliner::InlineLocalFunctions(model, true);
  } catch (const std::exception& error) {
    return input_error("its functions cannot be inlined: {}", onnx_message(error));
  }
  return {};
}

}  // namespace ofsdp::importer
