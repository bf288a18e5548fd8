#include "importer/graph/verify.h"

#include <algorithm>
#include <cstdlib>

#include "importer/graph/graph.h"

namespace ofsdp::importer {
namespace {

class Verifier {
 public:
  Verifier(const Graph& graph, bool symbolic)
      : graph_(graph), symbolic_(symbolic), there_(graph.values.size(), false) {}

  Status run() {
    if (!symbolic_) OFSDP_RETURN_IF_ERROR(check_inputs());
    for (size_t id = 1; id < there_.size(); ++id) {
      there_[id] = graph_.values[id].kind != ValueKind::kActivation;
    }
    bool backward = false;
    for (const Node& node : graph_.nodes) {
      OFSDP_RETURN_IF_ERROR(check_node(node));
      if (backward && !node.backward) return wrong(node, "a forward node after a backward one");
      backward = node.backward;
    }
    OFSDP_RETURN_IF_ERROR(check_gradients());
    return check_results();
  }

 private:
  Status wrong(const Node& node, const std::string& what) const {
    const std::string subject = node.op != nullptr
                                    ? graph_.describe(node)
                                    : format_text("{}: node '{}'", graph_.file, node.name);
    return fault("{}: {}", subject, what);
  }

  bool exists(ValueId id) const { return id > 0 && static_cast<size_t>(id) < there_.size(); }
  bool is_there(ValueId id) const { return exists(id) && there_[static_cast<size_t>(id)]; }
  std::string name(ValueId id) const { return exists(id) ? graph_.value(id).name : "?"; }

  // Checks the axes that the file fixes.
  Status check_inputs() const {
    for (const ValueId id : graph_.inputs) {
      if (!exists(id)) return fault("{}: input {} of the graph has no value", graph_.file, id);
      const Value& input = graph_.value(id);
      const auto rank = static_cast<size_t>(input.desc.shape.rank());
      bool same = input.declared.empty() || input.declared.size() == rank;
      for (size_t i = 0; same && i < input.declared.size(); ++i) {
        const int64_t size = input.declared[i].size;
        same = size < 0 || size == input.desc.shape[static_cast<int>(i)];
      }
      if (same) continue;
      return input_error("{}: input '{}': expected the axes that the file fixes, found {}",
                         graph_.file, input.name, input.desc.text());
    }
    return {};
  }

  Status check_node(const Node& node) {
    if (node.op == nullptr) return wrong(node, "expected an operator, found none");
    for (const ValueId id : node.inputs) {
      if (id != 0 && !is_there(id)) {
        return wrong(node,
                     format_text("reads '{}' ({}), which no node before makes", name(id), id));
      }
      const Value& value = graph_.value(id);
      if (value.kind != ValueKind::kConstant || value.constant != nullptr) continue;
      return wrong(node,
                   format_text("reads the constant '{}' ({}), which is unknown", name(id), id));
    }
    for (const ValueId id : node.outputs) {
      if (id != 0 && !exists(id)) return wrong(node, format_text("output {} has no value", id));
      if (id != 0 && is_there(id)) {
        return wrong(node, format_text("makes '{}' ({}), which is there already", name(id), id));
      }
    }
    for (const ValueId id : node.outputs) there_[static_cast<size_t>(id)] = id != 0;
    if (symbolic_ || fits(node)) return {};
    Status asked = check_outputs(graph_, node);
    return asked.ok() ? Status{} : Status(ErrorKind::kFault, asked.message());
  }

  // Asks the operator in memory that all nodes share, which halves the time. If it returns false,
  // check_outputs asks again and describes the error, if there is one.
  bool fits(const Node& node) {
    const auto needed = static_cast<size_t>(node.op->min_inputs);
    if (node.inputs.size() < needed) return false;
    if (std::count(node.inputs.begin(), node.inputs.begin() + node.op->min_inputs, 0) > 0) {
      return false;
    }
    asked_.attributes = node.attributes;
    asked_.inputs.resize(node.inputs.size());
    asked_.constants.resize(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Value& value = graph_.value(node.inputs[i]);  // value 0 is absent
      asked_.inputs[i] = value.desc;
      asked_.constants[i] = value.constant;
    }
    const bool known = std::ranges::all_of(node.op->constant_inputs, [&](int i) {
      const auto input = static_cast<size_t>(i);
      return !asked_.has(input) || asked_.constant(input) != nullptr;
    });
    if (!known) return false;
    asked_.wanted.clear();
    for (const ValueId id : node.outputs) asked_.wanted.push_back(id != 0);
    const auto descs = node.op->infer(asked_);
    if (!descs.ok() || descs->size() < node.outputs.size()) return false;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const TensorDesc& stands = graph_.value(node.outputs[i]).desc;
      const TensorDesc& given = (*descs)[i];
      const bool same = given.dtype == stands.dtype && given.shape == stands.shape;
      if (node.outputs[i] != 0 && !same) return false;
    }
    return true;
  }

  Status check_gradients() const {
    for (const Parameter& p : graph_.parameters) {
      if (p.gradient == 0) continue;
      if (!is_there(p.gradient)) {
        return fault("{}: parameter '{}': no node makes its gradient", graph_.file, p.name);
      }
      const TensorDesc& expected = graph_.value(p.value).desc;
      const TensorDesc& found = graph_.value(p.gradient).desc;
      const bool alike = found.dtype == expected.dtype || found.dtype == DType::kFloat32;
      if (symbolic_ || (alike && found.shape == expected.shape)) continue;
      return fault("{}: the gradient of parameter '{}': expected {}, found {}", graph_.file, p.name,
                   expected.text(), found.text());
    }
    return {};
  }

  // Training and evaluation prune the file's outputs.
  Status check_results() const {
    std::vector<ValueId> wanted = graph_.outputs;
    if (graph_.has_loss()) {
      wanted = trained_values(graph_);
      if (graph_.matches != 0) wanted.push_back(graph_.matches);
      for (const Measured& m : graph_.measured) wanted.push_back(m.rows);
    }
    for (const ValueId id : wanted) {
      if (is_there(id)) continue;
      return fault("{}: no node makes '{}', a result of the graph", graph_.file, name(id));
    }
    return {};
  }

  const Graph& graph_;
  const bool symbolic_;
  std::vector<bool> there_;  // per value: a node before has made it
  InferContext asked_{};     // for the current node
};

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

}  // namespace

Status verify(const Graph& graph, std::string_view pass) {
  return Verifier(graph, false).run().with_prefix(format_text("after the pass '{}'", pass));
}

Status verify_symbolic(const Graph& graph, std::string_view pass) {
  return Verifier(graph, true).run().with_prefix(format_text("after the pass '{}'", pass));
}

bool verifies_each_pass() {
  const char* const asked = std::getenv("OFSDP_VERIFY_PASSES");
  return kSanitized || (asked != nullptr && *asked != 0 && *asked != '0');
}

Result<Graph> checked(std::string_view pass, Result<Graph> graph) {
  if (!graph.ok() || !verifies_each_pass()) return graph;
  OFSDP_RETURN_IF_ERROR(verify(*graph, pass));
  return graph;
}

Status checked(std::string_view pass, Status done, const Graph& graph) {
  return done.ok() && verifies_each_pass() ? verify(graph, pass) : std::move(done);
}

Status checked_symbolic(std::string_view pass, Status done, const Graph& graph) {
  return done.ok() && verifies_each_pass() ? verify_symbolic(graph, pass) : std::move(done);
}

}  // namespace ofsdp::importer
