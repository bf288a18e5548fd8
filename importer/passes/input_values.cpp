#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "importer/graph/graph.h"
#include "importer/passes/model_inputs.h"
#include "kernels/base/names.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

template <typename T>
ConstantPtr filled(DType dtype, const Shape& shape, double number) {
  const std::vector<T> values(static_cast<size_t>(shape.numel()), static_cast<T>(number));
  return make_constant<T>(dtype, shape, values);
}

}  // namespace

ConstantPtr filled_constant(DType dtype, const Shape& shape, double number) {
  constexpr double kExact = 0x1p53;  // larger whole numbers may have been rounded
  const bool whole = number == std::floor(number) && std::abs(number) <= kExact;
  const auto within = [&](auto zero) {
    using Limits = std::numeric_limits<decltype(zero)>;
    return whole && number >= static_cast<double>(Limits::min()) &&
           number <= static_cast<double>(Limits::max());
  };
  if (dtype == DType::kFloat32) return filled<float>(dtype, shape, number);
  if (dtype == DType::kFloat64) return filled<double>(dtype, shape, number);
  if (dtype == DType::kInt64 && whole) return filled<int64_t>(dtype, shape, number);
  if (dtype == DType::kInt32 && within(int32_t{})) return filled<int32_t>(dtype, shape, number);
  if (dtype == DType::kUInt8 && within(uint8_t{})) return filled<uint8_t>(dtype, shape, number);
  const bool bit = number == 0 || number == 1;
  return dtype == DType::kBool && bit ? filled<uint8_t>(dtype, shape, number) : nullptr;
}

namespace {

class ConstantInputs {
 public:
  explicit ConstantInputs(const Graph& graph) : graph_(graph) {}

  Status replace(const std::string& name, const InputValue& value) {
    const auto found = std::ranges::find_if(
        graph_.inputs, [&](ValueId id) { return graph_.value(id).name == name; });
    if (found == graph_.inputs.end()) return no_input(name);
    const ValueId id = *found;
    graph_.inputs.erase(found);
    return value.tensor != nullptr ? put_tensor(id, value.tensor) : put_number(id, value.number);
  }

  Graph take() {
    for (Node& node : graph_.nodes) made_.push_back(std::move(node));
    graph_.nodes = std::move(made_);
    return std::move(graph_);
  }

 private:
  Status no_input(const std::string& name) const {
    std::vector<std::string> names;
    for (const ValueId id : graph_.inputs) names.push_back(graph_.value(id).name);
    return input_error("--input {}: {} has no such input; it has {}{}", name, graph_.file,
                       joined(names, ", "), did_you_mean(name, names));
  }

  Status put_tensor(ValueId id, const ConstantPtr& tensor) {
    const Value& input = graph_.value(id);
    const Shape& shape = tensor->desc.shape;
    bool fits = std::ssize(input.declared) == shape.rank();
    for (int i = 0; fits && i < shape.rank(); ++i) {
      const int64_t size = input.declared[static_cast<size_t>(i)].size;
      fits = size < 0 || size == shape[i];
    }
    OFSDP_REJECT_IF(!fits, "--input {}: expected {} axes as {} has them, found {}", input.name,
                    input.declared.size(), graph_.file, shape.text());
    OFSDP_REJECT_IF(tensor->desc.dtype != input.desc.dtype, "--input {}: expected {}, found {}",
                    input.name, dtype_name(input.desc.dtype), dtype_name(tensor->desc.dtype));
    become(id, tensor);
    return {};
  }

  void become(ValueId id, const ConstantPtr& constant) {
    Value& value = graph_.value(id);
    value.kind = ValueKind::kConstant;
    value.desc = constant->desc;
    value.constant = constant;
    value.declared.clear();
  }

  Status put_number(ValueId id, double number) {
    const Value& input = graph_.value(id);
    std::vector<int64_t> axes;
    int open = -1;
    for (size_t i = 0; i < input.declared.size(); ++i) {
      const int64_t size = input.declared[i].size;
      OFSDP_REJECT_IF(size < 0 && open >= 0,
                      "--input {}: axes {} and {} have no fixed size: expected a .npy", input.name,
                      open, i);
      if (size < 0) open = static_cast<int>(i);
      axes.push_back(std::max<int64_t>(size, 1));
    }
    const ConstantPtr constant = filled_constant(input.desc.dtype, Shape(axes), number);
    OFSDP_REJECT_IF(constant == nullptr, "--input {}: expected {}, found {}", input.name,
                    dtype_name(input.desc.dtype), number);
    if (open < 0) {
      become(id, constant);
      return {};
    }
    return expand(id, constant, axes, static_cast<size_t>(open));
  }

  // The open axis has the length of another input's first axis, the samples.
  Status expand(ValueId id, const ConstantPtr& constant, const std::vector<int64_t>& axes,
                size_t open) {
    const std::string name = graph_.value(id).name;
    const auto batch = std::ranges::find_if(graph_.inputs, [&](ValueId other) {
      const auto& declared = graph_.value(other).declared;
      return !declared.empty() && declared[0].size < 0;
    });
    OFSDP_REJECT_IF(batch == graph_.inputs.end(),
                    "--input {}: axis {} has no fixed size, nor has the batch another input: "
                    "expected a .npy",
                    name, open);
    GraphEditor editor(graph_);
    const ValueId length = editor.add_value({name + ".batch", ValueKind::kActivation, {}});
    const ValueId shape = editor.add_value({name + ".shape", ValueKind::kActivation, {}});
    const ValueId one = editor.add_constant(name + ".value", constant);
    Node join{
        &graph_.registry->get("Concat"), name + ".shape", {{"axis", int64_t{0}}}, {}, {shape}};
    for (size_t i = 0; i < axes.size(); ++i) {
      join.inputs.push_back(i == open ? length : add_ints(graph_, name + ".axis", {axes[i]}));
    }
    const Attributes first{{"start", int64_t{0}}, {"end", int64_t{1}}};
    made_.push_back({&graph_.registry->get("Shape"), name + ".batch", first, {*batch}, {length}});
    made_.push_back(std::move(join));
    made_.push_back({&graph_.registry->get("Expand"), name, {}, {one, shape}, {id}});
    Value& value = graph_.value(id);
    value.kind = ValueKind::kActivation;
    value.declared.clear();
    return {};
  }

  Graph graph_;
  std::vector<Node> made_;  // before the others
};

}  // namespace

Result<Graph> with_values(const Graph& graph, const InputValues& values, bool some) {
  ConstantInputs inputs(graph);
  for (const auto& [name, value] : values) {
    const bool there =
        std::ranges::any_of(graph.inputs, [&](ValueId id) { return graph.value(id).name == name; });
    if (there || !some) OFSDP_RETURN_IF_ERROR(inputs.replace(name, value));
  }
  return inputs.take();
}

}  // namespace ofsdp::importer
