#include "runtime/engine/forward.h"

#include <cstring>
#include <set>

#include "kernels/core/memory.h"
#include "runtime/compile/program/step_program.h"

namespace ofsdp::runtime {

// Memory for tensors: vectors of bytes are aligned to 16 at most.
struct ForwardPass::Buffer {
  std::vector<std::byte> bytes;
  std::byte* data = nullptr;
  size_t size = 0;

  void resize(size_t wanted) {
    size = wanted;
    bytes.resize(size + kTensorAlignment);
    void* at = bytes.data();
    size_t room = bytes.size();
    data = static_cast<std::byte*>(std::align(kTensorAlignment, size, at, room));
  }
  void assign(std::span<const std::byte> from) {
    resize(from.size());
    if (!from.empty()) std::memcpy(data, from.data(), from.size());
  }
  void release() { *this = {}; }
};

ForwardPass::ForwardPass(const Graph& graph)
    : graph_(graph),
      values_(graph.values.size()),
      kernels_(graph.nodes.size()),
      last_read_(graph.nodes.size()) {
  for (size_t id = 1; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.kind == ValueKind::kConstant) values_[id].assign(value.constant->bytes);
  }
  std::set<ValueId> kept(graph.outputs.begin(), graph.outputs.end());
  for (size_t index = graph.nodes.size(); index-- > 0;) {
    const Node& node = graph.nodes[index];
    for (const auto* ids : {&node.inputs, &node.outputs}) {
      for (const ValueId id : *ids) {
        const bool activation = id != 0 && graph.value(id).kind == ValueKind::kActivation;
        if (activation && kept.insert(id).second) last_read_[index].push_back(id);
      }
    }
  }
}

ForwardPass::~ForwardPass() = default;

void ForwardPass::feed(ValueId id, std::span<const std::byte> bytes) {
  values_[static_cast<size_t>(id)].assign(bytes);
}

Status ForwardPass::run(const StepContext& context) {
  for (size_t index = 0; index < graph_.nodes.size(); ++index) {
    Status status = run(index, context);
    if (!status.ok()) return std::move(status).with_prefix(graph_.describe(graph_.nodes[index]));
    release_after(index);
  }
  return ok_status();
}

Status ForwardPass::run(size_t index, const StepContext& context) {
  const Node& node = graph_.nodes[index];
  const auto at = [this](ValueId id) -> Buffer& { return values_[static_cast<size_t>(id)]; };
  for (const ValueId id : node.inputs) {
    OFSDP_REJECT_IF(id != 0 && at(id).data == nullptr, "'{}' has no value", graph_.value(id).name);
  }
  if (node.op->view) {
    const auto bytes = graph_.value(node.outputs[0]).desc.bytes();
    at(node.outputs[0]).assign({at(node.inputs[0]).data, bytes});
    return ok_status();
  }
  const Problem problem = problem_of(graph_, node);
  std::vector<TensorView> inputs, outputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    inputs.push_back({id == 0 ? nullptr : at(id).data, problem.inputs[i]});
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId id = node.outputs[i];
    if (id != 0) at(id).resize(problem.outputs[i].bytes());
    outputs.push_back({id == 0 ? nullptr : at(id).data, problem.outputs[i]});
  }
  if (kernels_[index] == nullptr) {
    OFSDP_ASSIGN_OR_RETURN(kernels_[index], create_kernel(*node.op, problem));
  }
  Buffer workspace;
  workspace.resize(kernels_[index]->workspace_bytes());
  Status status = kernels_[index]->run({inputs, outputs, workspace.data, &context});
  if (!status.ok()) refused_ = {&graph_, &node};
  return status;
}

void ForwardPass::release_after(size_t index) {
  for (const ValueId id : last_read_[index]) values_[static_cast<size_t>(id)].release();
}

std::span<const std::byte> ForwardPass::output(ValueId id) const {
  const Buffer& buffer = values_[static_cast<size_t>(id)];
  if (buffer.data == nullptr) return {};
  return {buffer.data, buffer.size};
}

Result<std::map<std::string, std::vector<float>>> run_forward(const Graph& graph, Feeds feeds,
                                                              const StepContext& context) {
  ForwardPass pass(graph);
  for (const auto& [id, bytes] : feeds) pass.feed(id, bytes);
  OFSDP_RETURN_IF_ERROR(pass.run(context));
  std::map<std::string, std::vector<float>> result;
  for (const ValueId id : graph.outputs) {
    const Value& value = graph.value(id);
    const std::span<const std::byte> bytes = pass.output(id);
    if (value.desc.dtype != DType::kFloat32 || bytes.data() == nullptr) continue;
    std::vector<float>& values = result[value.name];
    values.resize(static_cast<size_t>(value.desc.numel()));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  }
  return result;
}

}  // namespace ofsdp::runtime
