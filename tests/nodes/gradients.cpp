#include "tests/nodes/gradients.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/core/op_def.h"
#include "tests/support/op_check.h"

namespace ofsdp::nodes {
namespace {

constexpr double kMoved = 1e-3;

bool is_float(const Graph& graph, ValueId id) {
  return id != 0 && is_floating(graph.value(id).desc.dtype);
}

// The node as a sample of the operator, with the values of the run.
testing::SampleCase sample_of(const Graph& graph, Interpreter& values, const Node& node) {
  testing::SampleCase sample{.name = node.name, .attributes = node.attributes};
  std::vector<std::vector<double>> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    sample.inputs.push_back(id == 0 ? TensorDesc{} : graph.value(id).desc);
    const Constant value = id == 0 ? Constant{} : values.take(id);
    inputs.push_back(id == 0 ? std::vector<double>{} : to_doubles(value.desc, value.bytes.data()));
    const bool known = id != 0 && graph.value(id).constant != nullptr;
    if (known) sample.constant_inputs.push_back(i);
  }
  sample.fill = [inputs](size_t i, std::vector<double>& to) { to = inputs[i]; };
  sample.num_outputs = node.outputs.size();
  return sample;
}

bool finite(const testing::SampleCase& sample) {
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    std::vector<double> values;
    sample.fill(i, values);
    if (!std::ranges::all_of(values, [](double v) { return std::isfinite(v); })) return false;
  }
  return true;
}

testing::SampleCase moved(const testing::SampleCase& sample) {
  testing::SampleCase made = sample;
  made.fill = [sample](size_t i, std::vector<double>& to) {
    sample.fill(i, to);
    if (!is_floating(sample.inputs[i].dtype)) return;
    std::mt19937 random(static_cast<unsigned>(i));
    std::uniform_real_distribution<double> draw(-kMoved, kMoved);
    for (double& value : to) value += draw(random);
  };
  return made;
}

GradientVerdict check_node(const Graph& graph, Interpreter& values, const Node& node,
                           std::string& why) {
  const auto floats = [&](ValueId id) { return is_float(graph, id); };
  const auto differentiable = [&](ValueId id) {
    return floats(id) && graph.value(id).constant == nullptr;
  };
  if (!std::ranges::any_of(node.inputs, differentiable) ||
      !std::ranges::any_of(node.outputs, floats)) {
    return GradientVerdict::kNothing;
  }
  if (node.op->grad == nullptr && !is_composite(*node.op)) {
    why = node.op->full_name() + " has no gradient";
    return GradientVerdict::kNoGradient;
  }
  const testing::SampleCase sample = sample_of(graph, values, node);
  if (!finite(sample)) return GradientVerdict::kNothing;  // no differences to take
  why = testing::check_gradient(*graph.registry, *node.op, sample);
  if (why.empty()) return GradientVerdict::kAgrees;
  for (const char* none : {"got no gradient", "expected no gradient"}) {
    if (why.find(none) != std::string::npos) return GradientVerdict::kNoGradient;
  }
  if (testing::check_gradient(*graph.registry, *node.op, moved(sample)).empty()) {
    return GradientVerdict::kAgrees;
  }
  return GradientVerdict::kDiffers;
}

}  // namespace

GradientVerdict check_gradients(const Graph& graph, Interpreter& values, std::string& why) {
  GradientVerdict worst = GradientVerdict::kNothing;
  for (const Node& node : graph.nodes) {
    std::string reason;
    const GradientVerdict verdict = check_node(graph, values, node, reason);
    if (verdict <= worst) continue;
    worst = verdict;
    why = verdict == GradientVerdict::kAgrees ? "" : reason;
  }
  return worst;
}

}  // namespace ofsdp::nodes
