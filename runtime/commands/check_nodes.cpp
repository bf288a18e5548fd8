// Finds the first fused graph node that differs from the reference by itself.
#include <algorithm>
#include <cmath>
#include <random>

#include "importer/passes/passes.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/engine/forward.h"

namespace ofsdp::runtime {
namespace {

std::vector<std::byte> encoded(const RefTensor& tensor, const TensorDesc& desc) {
  std::vector<std::byte> bytes(desc.bytes());
  from_doubles(tensor.values, desc, bytes.data());
  return bytes;
}

// Returns true if the lists are equal within a tolerance relative to the largest number. Elements
// that are not finite in `a` are skipped.
bool same_numbers(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  double largest = 1e-6;
  for (const double v : a) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (std::isfinite(a[i]) && !(std::abs(a[i] - b[i]) <= tolerance * largest)) return false;
  }
  return true;
}

std::string label_of(const Node& node) {
  return node.name.empty() ? node.op->full_name() : node.name;
}

// A graph with one node, its operands as parameters, and a loss that weighs each output element.
struct LoneNode {
  Graph graph;
  std::map<ValueId, ValueId> of;  // operands: value in the whole graph -> value here
};

class LoneNodeMaker {
 public:
  LoneNodeMaker(const Graph& whole, const Node& node)
      : whole_(whole), node_(node), editor_(made_.graph) {
    made_.graph.registry = whole.registry;
    made_.graph.file = whole.file;
  }

  Result<LoneNode> run() {
    Node copy = node_;
    for (ValueId& id : copy.inputs) id = id == 0 ? 0 : operand(id);
    copy.outputs.clear();
    for (const ValueId id : node_.outputs) copy.outputs.push_back(id == 0 ? 0 : output(id));
    made_.graph.nodes.push_back(copy);
    OFSDP_RETURN_IF_ERROR(add_loss(copy));
    return std::move(made_);
  }

 private:
  ValueId operand(ValueId id) {
    if (const auto found = made_.of.find(id); found != made_.of.end()) return found->second;
    Value value = whole_.value(id);
    const bool moves = value.kind != ValueKind::kConstant && is_floating(value.desc.dtype);
    if (value.kind != ValueKind::kConstant)
      value.kind = moves ? ValueKind::kParameter : ValueKind::kInput;
    if (moves) value.constant = nullptr;
    const std::string name = value.name;
    const ValueId here = editor_.add_value(std::move(value));
    if (moves) {
      Parameter parameter;
      parameter.name = name;
      parameter.value = here;
      parameter.trained = true;
      made_.graph.parameters.push_back(std::move(parameter));
    }
    return made_.of[id] = here;
  }

  ValueId output(ValueId id) {
    Value value = whole_.value(id);
    value.kind = ValueKind::kActivation;
    return made_.of[id] = editor_.add_value(std::move(value));
  }

  Result<ValueId> term(ValueId id) {
    TensorDesc desc = made_.graph.value(id).desc;
    ValueId value = id;
    if (desc.dtype != DType::kFloat32) {
      OFSDP_ASSIGN_OR_RETURN(value, editor_.add1("Cast", "check.cast", {value},
                                                 {{"to", onnx_number(DType::kFloat32)}}));
      desc.dtype = DType::kFloat32;
    }
    std::normal_distribution<float> normal;
    std::vector<float> weights(static_cast<size_t>(desc.numel()));
    for (float& w : weights) w = normal(random_);
    const ValueId weight = editor_.add_constant(
        "check.weight", make_constant<float>(DType::kFloat32, desc.shape, weights));
    OFSDP_ASSIGN_OR_RETURN(value, editor_.add1("Mul", "check.weigh", {value, weight}));
    return editor_.add1("ReduceSum", "check.sum", {value}, {{"keepdims", int64_t{0}}});
  }

  Status add_loss(const Node& node) {
    ValueId sum = 0;
    for (const ValueId id : node.outputs) {
      if (id == 0 || !is_floating(made_.graph.value(id).desc.dtype)) continue;
      if (made_.graph.value(id).desc.numel() == 0) continue;
      OFSDP_ASSIGN_OR_RETURN(const ValueId one, term(id));
      if (sum == 0) {
        sum = one;
      } else {
        OFSDP_ASSIGN_OR_RETURN(sum, editor_.add1("Add", "check.add", {sum, one}));
      }
    }
    if (sum != 0) made_.graph.terms = {{.value = sum}};
    return {};
  }

  const Graph& whole_;
  const Node& node_;
  LoneNode made_;
  GraphEditor editor_;
  std::mt19937 random_{5};
};

class Search {
 public:
  explicit Search(const NodeSearch& search) : search_(search) {}

  Result<std::string> run() {
    OFSDP_ASSIGN_OR_RETURN(const Graph plain, reference_graph());
    OFSDP_ASSIGN_OR_RETURN(const Graph fused, search_.source.fused_graph(search_.batch));
    ReferenceRun as_written(plain, search_.step), as_fused(fused, search_.step);
    for (auto [graph, run] : {std::pair{&plain, &as_written}, std::pair{&fused, &as_fused}}) {
      run->set_deadline(search_.deadline);
      OFSDP_RETURN_IF_ERROR(set_numbers(*graph, *run));
      OFSDP_RETURN_IF_ERROR(run->run());
    }
    const std::string rewritten = first_rewritten(plain, as_written, fused, as_fused);
    if (!rewritten.empty()) return rewritten;
    for (const Node& node : fused.nodes) {
      if (late()) return std::string();
      OFSDP_ASSIGN_OR_RETURN(const bool same, kernel_agrees(fused, node, as_fused));
      if (!same) return label_of(node);
    }
    for (const Node& node : fused.nodes) {
      if (late()) return std::string();
      OFSDP_ASSIGN_OR_RETURN(const bool same, gradient_agrees(fused, node, as_fused));
      if (!same) return label_of(node);
    }
    return std::string();
  }

 private:
  bool late() const { return ReferenceRun::Clock::now() > search_.deadline; }

  Result<Graph> reference_graph() const {
    OFSDP_ASSIGN_OR_RETURN(Graph graph, search_.source.forward_graph(search_.batch));
    std::vector<ValueId> losses;
    for (const LossTerm& term : graph.terms) losses.push_back(term.value);
    prune(graph, losses);
    return graph;
  }

  Status set_numbers(const Graph& graph, ReferenceRun& run) const {
    for (size_t id = 1; id < graph.values.size(); ++id) {
      const auto found = search_.numbers.find(graph.values[id].name);
      const ValueKind kind = graph.values[id].kind;
      const bool given = kind == ValueKind::kInput || kind == ValueKind::kParameter;
      if (given && found != search_.numbers.end()) run.set(static_cast<ValueId>(id), found->second);
    }
    return {};
  }

  // Values have the same name in both graphs; a rewriting must not change a value.
  std::string first_rewritten(const Graph& plain, const ReferenceRun& as_written,
                              const Graph& fused, const ReferenceRun& as_fused) const {
    std::map<std::string, ValueId> written;
    for (const Node& node : plain.nodes) {
      for (const ValueId id : node.outputs) {
        if (id != 0) written[plain.value(id).name] = id;
      }
    }
    for (const Node& node : fused.nodes) {
      for (const ValueId id : node.outputs) {
        const auto found = id == 0 ? written.end() : written.find(fused.value(id).name);
        if (found == written.end() || !as_fused.has(id)) continue;
        const auto& before = as_written.value(found->second);
        const auto& after = as_fused.value(id);
        const bool comparable = before.desc.shape == after.desc.shape;
        if (comparable && !same_numbers(before.values, after.values, search_.tolerance)) {
          return label_of(node);
        }
      }
    }
    return "";
  }

  Result<Feeds> feeds_of(const LoneNode& lone, const ReferenceRun& run) const {
    Feeds feeds;
    for (const auto& [whole, here] : lone.of) {
      if (lone.graph.value(here).kind == ValueKind::kActivation) continue;
      feeds[here] = encoded(run.value(whole), lone.graph.value(here).desc);
    }
    return feeds;
  }

  Result<bool> kernel_agrees(const Graph& graph, const Node& node, const ReferenceRun& run) const {
    if (node.op->reference == nullptr || node.op->view) return true;
    OFSDP_ASSIGN_OR_RETURN(LoneNode lone, LoneNodeMaker(graph, node).run());
    std::vector<ValueId> outputs;
    for (const ValueId id : node.outputs) {
      const bool shown = id != 0 && graph.value(id).desc.dtype == DType::kFloat32;
      if (shown) outputs.push_back(id);
    }
    lone.graph.nodes.resize(1);
    for (const ValueId id : outputs) lone.graph.outputs.push_back(lone.of.at(id));
    OFSDP_ASSIGN_OR_RETURN(const Feeds feeds, feeds_of(lone, run));
    OFSDP_ASSIGN_OR_RETURN(const auto found, run_forward(lone.graph, feeds, search_.step));
    for (const ValueId id : outputs) {
      const auto& values = found.at(lone.graph.value(lone.of.at(id)).name);
      const std::vector<double> wide(values.begin(), values.end());
      if (!same_numbers(run.value(id).values, wide, search_.tolerance)) return false;
    }
    return true;
  }

  // Compares how the weighted outputs change along one direction in all operands.
  Result<bool> gradient_agrees(const Graph& graph, const Node& node,
                               const ReferenceRun& run) const {
    OFSDP_ASSIGN_OR_RETURN(LoneNode lone, LoneNodeMaker(graph, node).run());
    const bool differentiable = node.op->grad != nullptr || (node.op->view && node.op->body);
    if (!lone.graph.has_loss() || lone.graph.parameters.empty() || !differentiable) return true;
    OFSDP_ASSIGN_OR_RETURN(Graph whole, autodiff(lone.graph));
    ReferenceRun alone(lone.graph, search_.step);
    alone.set_deadline(search_.deadline);
    for (const auto& [from, here] : lone.of) {
      if (lone.graph.value(here).kind != ValueKind::kActivation)
        alone.set(here, run.value(from).values);
    }
    OFSDP_RETURN_IF_ERROR(alone.run());
    for (const Parameter& p : whole.parameters) {
      if (p.gradient != 0) whole.outputs.push_back(p.gradient);
    }
    OFSDP_ASSIGN_OR_RETURN(Feeds feeds, feeds_of(lone, run));
    for (const LossTerm& term : whole.terms) {
      if (term.weight != 0)
        feeds[term.weight] = encoded({{DType::kFloat32, {}}, {1.0}}, {DType::kFloat32, {}});
    }
    OFSDP_ASSIGN_OR_RETURN(const auto gradients, run_forward(whole, feeds, search_.step));
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal;
    double largest = 0, farthest = 0;
    for (const Parameter& p : whole.parameters) {
      const auto gradient =
          p.gradient == 0 ? gradients.end() : gradients.find(whole.value(p.gradient).name);
      if (gradient == gradients.end()) continue;
      std::vector<double> direction(static_cast<size_t>(whole.value(p.value).desc.numel()));
      for (double& v : direction) v = normal(random);
      OFSDP_ASSIGN_OR_RETURN(const Slope slope, alone.slope({{p.value, direction}}));
      if (slope.kink) continue;
      double here = 0;
      for (size_t i = 0; i < direction.size(); ++i)
        here += direction[i] * static_cast<double>(gradient->second[i]);
      largest = std::max({largest, std::abs(slope.value), std::abs(here)});
      farthest = std::max(farthest, std::abs(slope.value - here));
    }
    return farthest <= std::max(search_.tolerance, 2e-3) * std::max(largest, 1e-6);
  }

  const NodeSearch& search_;
};

Result<std::map<std::string, std::vector<float>>> quantized_by_kernels(const NodeSearch& search) {
  OFSDP_ASSIGN_OR_RETURN(Graph fused, search.source.fused_graph(search.batch));
  fused.outputs.clear();
  for (const Node& node : fused.nodes) {
    const bool float32 = fused.value(node.outputs[0]).desc.dtype == DType::kFloat32;
    if (node.op->fake_quantizes && float32) fused.outputs.push_back(node.outputs[0]);
  }
  Feeds feeds;
  for (size_t id = 1; id < fused.values.size(); ++id) {
    const Value& value = fused.values[id];
    const auto found = search.numbers.find(value.name);
    const bool given = value.kind == ValueKind::kInput || value.kind == ValueKind::kParameter;
    if (given && found != search.numbers.end())
      feeds[static_cast<ValueId>(id)] = encoded({value.desc, found->second}, value.desc);
  }
  if (fused.outputs.empty()) return std::map<std::string, std::vector<float>>();
  return run_forward(fused, std::move(feeds), search.step);
}

}  // namespace

Status take_sides(const NodeSearch& search, const Graph& plain, ReferenceRun& reference) {
  OFSDP_ASSIGN_OR_RETURN(const auto made, quantized_by_kernels(search));
  for (const Node& node : plain.nodes) {
    const auto found = made.find(plain.value(node.outputs[0]).name);
    if (!node.op->fake_quantizes || found == made.end()) continue;
    if (std::ssize(found->second) != plain.value(node.outputs[0]).desc.numel()) continue;
    reference.set_sides(node.outputs[0], {found->second.begin(), found->second.end()});
  }
  return {};
}

Result<std::string> first_parting_node(const NodeSearch& search) { return Search(search).run(); }

}  // namespace ofsdp::runtime
