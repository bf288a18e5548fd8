#include "tests/support/run_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <span>

#include "kernels/core/memory.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {
namespace {

class GraphRun {
 public:
  explicit GraphRun(const Graph& graph) : graph_(graph), bytes_(graph.values.size()) {}

  Status feed(const std::map<std::string, Floats>& feeds) {
    for (size_t id = 1; id < graph_.values.size(); ++id) {
      const Value& value = graph_.values[id];
      if (value.kind == ValueKind::kConstant) bytes_[id] = value.constant->bytes;
      if (value.kind == ValueKind::kConstant || value.kind == ValueKind::kActivation) continue;
      const auto it = feeds.find(value.name);
      if (it == feeds.end()) continue;
      OFSDP_CHECK(it->second.size() * sizeof(float) == value.desc.bytes(), "{}", value.name);
      const auto fed = std::as_bytes(std::span(it->second));
      bytes_[id].assign(fed.begin(), fed.end());
    }
    return {};
  }

  Status run(const Node& node) {
    if (node.op->view) {
      at(node.outputs[0]) = at(node.inputs[0]);
      return {};
    }
    Problem problem{node.attributes, {}, {}, {}};
    std::vector<TensorView> inputs, outputs;
    for (ValueId id : node.inputs) {
      problem.inputs.push_back(id == 0 ? TensorDesc{} : graph_.value(id).desc);
      problem.constants.push_back(id == 0 ? nullptr : graph_.value(id).constant);
      inputs.push_back({id == 0 ? nullptr : at(id).data(), problem.inputs.back()});
    }
    for (ValueId id : node.outputs) {
      problem.outputs.push_back(id == 0 ? TensorDesc{} : graph_.value(id).desc);
      if (id != 0) at(id).resize(problem.outputs.back().bytes());
      outputs.push_back({id == 0 ? nullptr : at(id).data(), problem.outputs.back()});
    }
    OFSDP_ASSIGN_OR_RETURN(const auto kernel, create_kernel(*node.op, problem));
    std::vector<std::byte> workspace(kernel->workspace_bytes() + kTensorAlignment);
    void* aligned = workspace.data();
    size_t room = workspace.size();
    std::align(kTensorAlignment, kernel->workspace_bytes(), aligned, room);
    const StepContext context;
    return kernel->run({inputs, outputs, static_cast<std::byte*>(aligned), &context});
  }

  std::map<ValueId, Floats> floats() const {
    std::map<ValueId, Floats> result;
    for (size_t id = 1; id < bytes_.size(); ++id) {
      if (graph_.values[id].desc.dtype != DType::kFloat32 || bytes_[id].empty()) continue;
      Floats& values = result[static_cast<ValueId>(id)];
      values.resize(bytes_[id].size() / sizeof(float));
      std::ranges::copy(bytes_[id], std::as_writable_bytes(std::span(values)).begin());
    }
    return result;
  }

 private:
  std::vector<std::byte>& at(ValueId id) { return bytes_[static_cast<size_t>(id)]; }

  const Graph& graph_;
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace

Result<std::map<ValueId, Floats>> run_graph(const Graph& graph,
                                            const std::map<std::string, Floats>& feeds) {
  GraphRun run(graph);
  OFSDP_RETURN_IF_ERROR(run.feed(feeds));
  for (const Node& node : graph.nodes) {
    Status status = run.run(node);
    if (!status.ok()) return std::move(status).with_prefix(graph.describe(node));
  }
  return run.floats();
}

std::map<std::string, Floats> random_feeds(const Graph& graph) {
  std::map<std::string, Floats> feeds;
  for (const Value& value : graph.values) {
    if (value.kind == ValueKind::kLossWeight) feeds[value.name] = {1.0f};
    const bool fed = value.kind == ValueKind::kInput || value.kind == ValueKind::kParameter;
    if (!fed || value.desc.dtype != DType::kFloat32) continue;
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>{}(value.name)));
    std::normal_distribution<float> normal;
    Floats& values = feeds[value.name];
    values.resize(static_cast<size_t>(value.desc.numel()));
    for (float& v : values) v = normal(random);
  }
  return feeds;
}

}  // namespace ofsdp::testing
