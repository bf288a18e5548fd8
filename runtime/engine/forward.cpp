#include "runtime/engine/forward.h"

#include <cstring>

#include "kernels/core/memory.h"
#include "runtime/compile/program/step_program.h"

namespace ofsdp::runtime {
namespace {

// Memory for tensors: vectors of bytes are aligned to 16 at most.
struct Buffer {
  std::vector<std::byte> bytes;
  std::byte* data = nullptr;

  void resize(size_t size) {
    bytes.resize(size + kTensorAlignment);
    void* at = bytes.data();
    size_t room = bytes.size();
    data = static_cast<std::byte*>(std::align(kTensorAlignment, size, at, room));
  }
  void assign(std::span<const std::byte> from) {
    resize(from.size());
    std::memcpy(data, from.data(), from.size());
  }
};

class Forward {
 public:
  Forward(const Graph& graph, const StepContext& context)
      : graph_(graph), context_(context), values_(graph.values.size()) {}

  Status feed(Feeds& feeds) {
    for (size_t id = 1; id < graph_.values.size(); ++id) {
      const Value& value = graph_.values[id];
      if (value.kind == ValueKind::kConstant) values_[id].assign(value.constant->bytes);
      const auto found = feeds.find(static_cast<ValueId>(id));
      if (found != feeds.end()) values_[id].assign(found->second);
    }
    return ok_status();
  }

  Status run(const Node& node) {
    if (node.op->view) {
      const auto bytes = graph_.value(node.outputs[0]).desc.bytes();
      at(node.outputs[0]).assign({at(node.inputs[0]).data, bytes});
      return ok_status();
    }
    const Problem problem = problem_of(graph_, node);
    std::vector<TensorView> inputs, outputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id != 0 && at(id).data == nullptr) {
        return input_error("'{}' has no value", graph_.value(id).name);
      }
      inputs.push_back({id == 0 ? nullptr : at(id).data, problem.inputs[i]});
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id != 0) at(id).resize(problem.outputs[i].bytes());
      outputs.push_back({id == 0 ? nullptr : at(id).data, problem.outputs[i]});
    }
    OFSDP_ASSIGN_OR_RETURN(const auto kernel, create_kernel(*node.op, problem));
    Buffer workspace;
    workspace.resize(kernel->workspace_bytes());
    return kernel->run({inputs, outputs, workspace.data, &context_});
  }

  std::map<std::string, std::vector<float>> outputs() const {
    std::map<std::string, std::vector<float>> result;
    for (const ValueId id : graph_.outputs) {
      const Value& value = graph_.value(id);
      const Buffer& buffer = values_[static_cast<size_t>(id)];
      if (value.desc.dtype != DType::kFloat32 || buffer.data == nullptr) continue;
      std::vector<float>& values = result[value.name];
      values.resize(static_cast<size_t>(value.desc.numel()));
      std::memcpy(values.data(), buffer.data, values.size() * sizeof(float));
    }
    return result;
  }

 private:
  Buffer& at(ValueId id) { return values_[static_cast<size_t>(id)]; }

  const Graph& graph_;
  const StepContext& context_;
  std::vector<Buffer> values_;
};

}  // namespace

Result<std::map<std::string, std::vector<float>>> run_forward(const Graph& graph, Feeds feeds,
                                                              const StepContext& context) {
  Forward forward(graph, context);
  OFSDP_RETURN_IF_ERROR(forward.feed(feeds));
  for (const Node& node : graph.nodes) {
    Status status = forward.run(node);
    if (!status.ok()) return std::move(status).with_prefix(graph.describe(node));
  }
  return forward.outputs();
}

}  // namespace ofsdp::runtime
