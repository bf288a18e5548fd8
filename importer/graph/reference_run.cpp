#include "importer/graph/reference_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/base/status.h"
#include "kernels/core/memory.h"

namespace ofsdp::importer {
namespace {

double mean_square(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// A tensor's memory, aligned for kernels.
struct Operand {
  explicit Operand(const TensorDesc& desc) : bytes(desc.bytes() + kTensorAlignment), view{} {
    void* at = bytes.data();
    size_t room = bytes.size();
    view = {static_cast<std::byte*>(std::align(kTensorAlignment, desc.bytes(), at, room)), desc};
  }
  std::vector<std::byte> bytes;
  TensorView view;
};

}  // namespace

ReferenceRun::ReferenceRun(const Graph& graph, const StepContext& step)
    : graph_(graph),
      step_(step),
      values_(graph.values.size()),
      present_(graph.values.size(), false),
      lasted_(graph.nodes.size()) {
  for (size_t id = 1; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.kind != ValueKind::kConstant) continue;
    set(static_cast<ValueId>(id), to_doubles(value.desc, value.constant->bytes.data()));
  }
}

void ReferenceRun::set(ValueId id, std::vector<double> values) {
  const auto at = static_cast<size_t>(id);
  values_[at] = {graph_.value(id).desc, std::move(values)};
  values_[at].desc.layout = Layout::kPlain;
  present_[at] = true;
}

void ReferenceRun::set_sides(ValueId output, std::vector<double> made) {
  sides_[output] = std::move(made);
}

void ReferenceRun::choose_sides(const Node& node, RefTensor& output) {
  constexpr double kNear = 0.05;  // of a step; a number far from the border keeps its side
  const auto made = sides_.find(node.outputs[0]);
  if (made == sides_.end()) return;
  const std::vector<double>& from = value(node.inputs[0]).values;
  std::vector<OtherSide>& others = other_sides_[node.outputs[0]];
  others.clear();
  for (size_t i = 0; i < output.values.size(); ++i) {
    const double change = made->second[i] - output.values[i];
    const double border = output.values[i] + change / 2;
    if (!(std::abs(from[i] - border) <= kNear * std::abs(change))) continue;
    others.push_back({i, change});
    output.values[i] += change;
  }
}

// The moved numbers keep the rounding that they had in `run`.
void ReferenceRun::keep_sides(const Node& node, RefTensor& output) const {
  const auto others = other_sides_.find(node.outputs[0]);
  if (others == other_sides_.end()) return;
  for (const OtherSide& other : others->second) output.values[other.element] += other.change;
}

double ReferenceRun::bytes_of(const Graph& graph) {
  double bytes = 0;
  for (const Node& node : graph.nodes) {
    for (const ValueId id : node.outputs) {
      if (id != 0) bytes += 8.0 * static_cast<double>(graph.value(id).desc.numel());
    }
  }
  for (const Parameter& p : graph.parameters) {
    bytes += 8.0 * static_cast<double>(graph.value(p.value).desc.numel());
  }
  return bytes;
}

double ReferenceRun::seconds_of(const Graph& graph) {
  constexpr double kSpeed = 2e8;  // operations a second in plain loops
  double work = 0;
  for (const Node& node : graph.nodes) {
    if (node.outputs.empty() || node.outputs[0] == 0) continue;
    const double out = static_cast<double>(graph.value(node.outputs[0]).desc.numel());
    double each = 20;  // for an element
    if (node.inputs.size() > 1 && node.inputs[1] != 0) {
      const Shape& w = graph.value(node.inputs[1]).desc.shape;
      const std::string& op = node.op->name;
      const bool product =
          op.find("MatMul") != std::string::npos || op.find("Gemm") != std::string::npos;
      if (product && w.rank() > 0)
        each += static_cast<double>(graph.value(node.inputs[0]).desc.row());
      if (op.find("Conv") != std::string::npos && w.rank() > 1 && w[0] > 0) {
        each += static_cast<double>(w.numel() / w[0]);
      }
    }
    work += out * each;
  }
  return work / kSpeed;
}

Status ReferenceRun::in_time(const Node& node) const {
  const auto index = static_cast<size_t>(&node - graph_.nodes.data());
  if (!deadline_ || Clock::now() + lasted_[index] < *deadline_) return {};
  return input_error("{}: out of time", graph_.file);
}

const RefTensor& ReferenceRun::at(ValueId id, const Changed& changed) const {
  const auto found = changed.find(id);
  return found != changed.end() ? found->second : value(id);
}

Status ReferenceRun::run() {
  for (size_t index = 0; index < graph_.nodes.size(); ++index) {
    const Node& node = graph_.nodes[index];
    if (node.backward) continue;
    std::vector<RefTensor> outputs;
    const auto began = Clock::now();
    OFSDP_RETURN_IF_ERROR(take(node, nullptr, outputs));
    if (node.op->fake_quantizes) choose_sides(node, outputs[0]);
    lasted_[index] = Clock::now() - began;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == 0 || i >= outputs.size()) continue;
      values_[static_cast<size_t>(id)] = std::move(outputs[i]);
      present_[static_cast<size_t>(id)] = true;
    }
  }
  return {};
}

// Computes a node's outputs. `before`: values that differ from `run`'s.
Status ReferenceRun::take(const Node& node, const Changed* before,
                          std::vector<RefTensor>& outputs) const {
  OFSDP_RETURN_IF_ERROR(in_time(node));
  std::vector<RefTensor> inputs;
  for (const ValueId id : node.inputs) {
    OFSDP_REJECT_IF(id != 0 && !has(id), "{}: '{}' has no value", graph_.describe(node),
                    graph_.value(id).name);
    inputs.push_back(id == 0 ? RefTensor{} : before == nullptr ? value(id) : at(id, *before));
  }
  // The gradient belongs to another function. If the inputs have moved, the reference also takes
  // the unmoved ones, after as many as it has.
  const auto taken = static_cast<size_t>(node.op->fake_quantizes ? 3 : node.op->rounding_inputs);
  if (before != nullptr && taken > 0) {
    inputs.resize(taken);
    for (const ValueId id : node.inputs) inputs.push_back(id == 0 ? RefTensor{} : value(id));
    inputs.resize(2 * taken);
  }
  const bool widened = before != nullptr && node.op->reference == nullptr && !node.op->view;
  auto made = widened ? by_widened_kernel(node, inputs) : evaluate(node, std::move(inputs));
  if (!made.ok()) return std::move(made).status().with_prefix(graph_.describe(node));
  outputs = *std::move(made);
  if (before != nullptr && node.op->fake_quantizes) keep_sides(node, outputs[0]);
  if (disturbance_ > 0) add_disturbance(node, outputs);
  return {};
}

void ReferenceRun::add_disturbance(const Node& node, std::vector<RefTensor>& outputs) const {
  for (size_t i = 0; i < std::min(outputs.size(), node.outputs.size()); ++i) {
    if (node.outputs[i] == 0 || !is_floating(outputs[i].desc.dtype)) continue;
    std::minstd_rand random(static_cast<uint32_t>(node.outputs[i]) + 7919 * draw_);
    std::uniform_real_distribution<double> share(-disturbance_, disturbance_);
    for (double& v : outputs[i].values) v *= 1 + share(random);
  }
}

Result<std::vector<RefTensor>> ReferenceRun::evaluate(const Node& node,
                                                      std::vector<RefTensor> inputs) const {
  std::vector<TensorDesc> descs;
  for (const ValueId id : node.outputs) {
    descs.push_back(id == 0 ? TensorDesc{} : graph_.value(id).desc);
    descs.back().layout = Layout::kPlain;
  }
  if (node.op->reference == nullptr) {
    if (node.op->view) return std::vector{RefTensor{descs[0], std::move(inputs[0].values)}};
    return by_kernel(node, inputs);
  }
  auto outputs =
      node.op->reference({node.attributes, std::move(inputs), descs, node_seed(node), step_});
  for (size_t i = 0; i < outputs.size() && i < descs.size(); ++i) {
    if (!descs[i].present()) continue;
    OFSDP_CHECK(static_cast<int64_t>(outputs[i].values.size()) == descs[i].numel(),
                "the reference of {} gives {} elements of {}", node.op->full_name(),
                outputs[i].values.size(), descs[i].text());
    outputs[i].desc = descs[i];
  }
  return outputs;
}

Result<std::vector<RefTensor>> ReferenceRun::by_kernel(const Node& node,
                                                       const std::vector<RefTensor>& inputs) const {
  Problem problem{node.attributes, {}, {}, {}, node_seed(node)};
  std::vector<Operand> operands;
  std::vector<TensorView> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    problem.inputs.push_back(inputs[i].desc);
    problem.constants.push_back(node.inputs[i] == 0 ? nullptr
                                                    : graph_.value(node.inputs[i]).constant);
    operands.emplace_back(inputs[i].desc);
    in.push_back(inputs[i].desc.present() ? operands.back().view : TensorView{});
    if (in.back().data != nullptr) from_doubles(inputs[i].values, in[i].desc, in[i].data);
  }
  for (const ValueId id : node.outputs) {
    problem.outputs.push_back(id == 0 ? TensorDesc{} : graph_.value(id).desc);
    operands.emplace_back(problem.outputs.back());
    out.push_back(id == 0 ? TensorView{} : operands.back().view);
  }
  OFSDP_ASSIGN_OR_RETURN(const auto kernel, create_kernel(*node.op, problem));
  Operand workspace(TensorDesc{DType::kInt8, {static_cast<int64_t>(kernel->workspace_bytes())}});
  OFSDP_RETURN_IF_ERROR(kernel->run({in, out, workspace.view.data, &step_}));
  std::vector<RefTensor> outputs;
  for (const TensorView& view : out) {
    outputs.push_back(view.data == nullptr
                          ? RefTensor{}
                          : RefTensor{view.desc, to_doubles(view.desc, view.data)});
  }
  return outputs;
}

// Runs the float32 kernel on both sides around the node's inputs, far enough apart for float32.
Result<std::vector<RefTensor>> ReferenceRun::by_widened_kernel(
    const Node& node, const std::vector<RefTensor>& inputs) const {
  constexpr double kShare = 0.01;  // relative to an input's size
  double changes = 0, sizes = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (node.inputs[i] == 0 || !is_floating(inputs[i].desc.dtype)) continue;
    std::vector<double> change = inputs[i].values;
    for (size_t k = 0; k < change.size(); ++k) change[k] -= value(node.inputs[i]).values[k];
    const double moved = mean_square(change);
    changes += moved;
    if (moved > 0) sizes += mean_square(inputs[i].values) + 1e-4;
  }
  const double factor = changes > 0 ? kShare * std::sqrt(sizes / changes) : 1;
  std::vector<std::vector<RefTensor>> sides;
  for (const double side : {factor, -factor}) {
    std::vector<RefTensor> moved = inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (node.inputs[i] == 0 || !is_floating(inputs[i].desc.dtype)) continue;
      const auto& from = value(node.inputs[i]).values;
      for (size_t k = 0; k < from.size(); ++k) {
        moved[i].values[k] = from[k] + side * (inputs[i].values[k] - from[k]);
      }
    }
    OFSDP_ASSIGN_OR_RETURN(auto made, by_kernel(node, moved));
    sides.push_back(std::move(made));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == 0 || !is_floating(sides[0][i].desc.dtype)) continue;
    const auto& middle = value(node.outputs[i]).values;
    for (size_t k = 0; k < middle.size(); ++k) {
      double& v = sides[0][i].values[k];
      v = middle[k] + (v - sides[1][i].values[k]) / (2 * factor);
    }
  }
  return std::move(sides[0]);
}

ReferenceRun::Clock::duration ReferenceRun::pass_behind(ValueId id) const {
  Clock::duration sum{};
  std::vector<bool> changed(graph_.values.size(), false);
  changed[static_cast<size_t>(id)] = true;
  for (size_t index = 0; index < graph_.nodes.size(); ++index) {
    const Node& node = graph_.nodes[index];
    const auto differs = [&](ValueId in) { return changed[static_cast<size_t>(in)]; };
    if (node.backward || !std::ranges::any_of(node.inputs, differs)) continue;
    for (const ValueId out : node.outputs) changed[static_cast<size_t>(out)] = out != 0;
    sum += lasted_[index];
  }
  return sum;
}

double ReferenceRun::loss_of(const Changed& changed) const {
  double sum = 0;
  for (const LossTerm& term : graph_.terms) sum += term.factor * at(term.value, changed)[0];
  return sum;
}

// Returns the loss after moving values by `step` along `direction`. Runs only nodes that depend on
// them.
Result<double> ReferenceRun::moved_loss(const Direction& direction, double step) const {
  Changed changed;
  for (const auto& [id, change] : direction) {
    RefTensor moved = value(id);
    for (size_t k = 0; k < change.size(); ++k) moved.values[k] += step * change[k];
    changed[id] = std::move(moved);
  }
  for (const Node& node : graph_.nodes) {
    const auto differs = [&](ValueId id) { return changed.contains(id); };
    if (node.backward || !std::ranges::any_of(node.inputs, differs)) continue;
    std::vector<RefTensor> outputs;
    OFSDP_RETURN_IF_ERROR(take(node, &changed, outputs));
    for (size_t i = 0; i < node.outputs.size() && i < outputs.size(); ++i) {
      if (node.outputs[i] != 0) changed[node.outputs[i]] = std::move(outputs[i]);
    }
  }
  return loss_of(changed);
}

Result<ReferenceRun::Differences> ReferenceRun::differences(const Direction& direction,
                                                            double step) const {
  OFSDP_ASSIGN_OR_RETURN(const double above, moved_loss(direction, step));
  OFSDP_ASSIGN_OR_RETURN(const double below, moved_loss(direction, -step));
  const double here = loss();
  constexpr double kRounding = 1e-14;  // relative to a loss, a sum over many terms
  const double size = std::max({std::abs(above), std::abs(below), 1e-3});
  return Differences{(above - below) / (2 * step), (above - 2 * here + below) / step,
                     kRounding * size / step};
}

// Returns a width at which the direction changes values by one in ten thousand.
double ReferenceRun::width_of(const Direction& direction) const {
  double sizes = 0, changes = 0;
  for (const auto& [id, change] : direction) {
    sizes += std::max(mean_square(value(id).values), 1e-4);
    changes += mean_square(change);
  }
  return changes > 0 ? 1e-4 * std::sqrt(sizes / changes) : 1;
}

// If the loss is smooth, first differences agree and second differences shrink with the width.
Result<Slope> ReferenceRun::slope_of_width(const Direction& direction, double step) const {
  OFSDP_ASSIGN_OR_RETURN(const Differences wide, differences(direction, step));
  OFSDP_ASSIGN_OR_RETURN(const Differences narrow, differences(direction, step / 2));
  const double change = narrow.first - wide.first;
  const double corner = 2 * narrow.second - wide.second;
  Slope slope{narrow.first + change / 3, std::abs(change) / 3 + narrow.noise, false};
  const double allowed = 3e-6 * std::max(std::abs(slope.value), std::abs(wide.first));
  slope.kink = !(std::abs(change) <= allowed + 4 * narrow.noise) ||
               !(std::abs(corner) <= allowed + 16 * narrow.noise);
  return slope;
}

Result<Slope> ReferenceRun::slope(const Direction& direction) {
  const double width = width_of(direction);
  Slope found;
  for (const double share : {1.0, 0.1, 0.01}) {
    OFSDP_ASSIGN_OR_RETURN(found, slope_of_width(direction, share * width));
    if (!found.kink) return found;
  }
  return found;
}

}  // namespace ofsdp::importer
