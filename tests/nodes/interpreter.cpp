#include "tests/nodes/interpreter.h"

#include <cstring>
#include <numeric>

#include "kernels/core/memory.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

// Bytes aligned like tensors; 0xFF in floats is NaN.
class Interpreter::Bytes {
 public:
  explicit Bytes(size_t size) : storage_(size + kTensorAlignment, std::byte{0xFF}) {
    void* at = storage_.data();
    size_t room = storage_.size();
    data_ = static_cast<std::byte*>(std::align(kTensorAlignment, size, at, room));
  }
  std::byte* data() { return data_; }

 private:
  std::vector<std::byte> storage_;
  std::byte* data_;
};

Interpreter::Interpreter(const Graph& graph)
    : graph_(graph), bytes_(graph.values.size()), samples_(1 << 16) {
  std::iota(samples_.begin(), samples_.end(), 0);
}

Interpreter::~Interpreter() = default;

Status Interpreter::plan() {
  for (const Node& node : graph_.nodes) {
    if (node.op->view) {
      kernels_.push_back(nullptr);
      continue;
    }
    auto kernel = create_kernel(*node.op, problem_of(node));
    if (!kernel.ok()) return std::move(kernel).status().with_prefix(graph_.describe(node));
    kernels_.push_back(*std::move(kernel));
  }
  return {};
}

void Interpreter::set(ValueId id, const Constant& constant) {
  std::byte* data = make(id);
  if (!constant.bytes.empty()) std::memcpy(data, constant.bytes.data(), constant.bytes.size());
}

Status Interpreter::set_parameters(const OnnxFile& file) {
  for (const Parameter& parameter : graph_.parameters) {
    const TensorDesc& desc = graph_.value(parameter.value).desc;
    Constant constant{desc, std::vector<std::byte>(desc.bytes())};
    auto* floats = reinterpret_cast<float*>(constant.bytes.data());
    const auto& source = file.initializers()[static_cast<size_t>(parameter.initializer)];
    OFSDP_RETURN_IF_ERROR(file.read(source, 0, {floats, static_cast<size_t>(desc.numel())}));
    set(parameter.value, constant);
  }
  return {};
}

Status Interpreter::run() {
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    Status status = run_node(graph_.nodes[i], kernels_[i].get());
    if (!status.ok()) return std::move(status).with_prefix(graph_.describe(graph_.nodes[i]));
  }
  return {};
}

Constant Interpreter::take(ValueId id) {
  const TensorDesc& desc = graph_.value(id).desc;
  const TensorView view = view_of(id);
  return {desc, std::vector<std::byte>(view.data, view.data + desc.bytes())};
}

Problem Interpreter::problem_of(const Node& node) const {
  Problem problem{node.attributes, {}, {}, {}};
  for (ValueId id : node.inputs) {
    problem.inputs.push_back(id == 0 ? TensorDesc{} : graph_.value(id).desc);
    problem.constants.push_back(id == 0 ? nullptr : graph_.value(id).constant);
  }
  for (ValueId id : node.outputs) {
    problem.outputs.push_back(id == 0 ? TensorDesc{} : graph_.value(id).desc);
  }
  problem.node_seed = static_cast<uint64_t>(node.attributes.i("seed", 0));
  return problem;
}

std::byte* Interpreter::make(ValueId id) {
  auto& bytes = bytes_[static_cast<size_t>(id)];
  bytes = std::make_unique<Bytes>(graph_.value(id).desc.bytes());
  return bytes->data();
}

TensorView Interpreter::view_of(ValueId id) {
  if (id == 0) return {};
  const Value& value = graph_.value(id);
  auto& bytes = bytes_[static_cast<size_t>(id)];
  if (bytes == nullptr && value.constant != nullptr) set(id, *value.constant);
  OFSDP_CHECK(bytes != nullptr, "{} has no bytes", value.name);
  return {bytes->data(), value.desc};
}

Status Interpreter::run_node(const Node& node, Kernel* kernel) {
  std::vector<TensorView> inputs, outputs;
  for (ValueId id : node.inputs) inputs.push_back(view_of(id));
  for (ValueId id : node.outputs) {
    outputs.push_back(id == 0 ? TensorView{} : TensorView{make(id), graph_.value(id).desc});
  }
  if (kernel == nullptr) {
    if (inputs[0].desc.bytes() > 0) {
      std::memcpy(outputs[0].data, inputs[0].data, inputs[0].desc.bytes());
    }
    return {};
  }
  const StepContext step{1, 0, samples_};
  Bytes workspace(kernel->workspace_bytes());
  return kernel->run({inputs, outputs, workspace.data(), &step});
}

}  // namespace ofsdp::nodes
