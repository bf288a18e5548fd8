#include "tests/nodes/run_model.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "importer/onnx_import.h"
#include "importer/onnx_tensor.h"
#include "importer/specialize.h"
#include "kernels/core/memory.h"

namespace ofsdp::nodes {
namespace {

// Bytes aligned as tensors are; 0xFF in floats is NaN.
class Bytes {
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

class Interpreter {
 public:
  explicit Interpreter(const Graph& graph) : graph_(graph), bytes_(graph.values.size()) {}

  Status set(ValueId id, const Constant& constant) {
    std::byte* data = make(id);
    if (!constant.bytes.empty()) {
      std::memcpy(data, constant.bytes.data(), constant.bytes.size());
    }
    return {};
  }

  Status plan() {
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

  Status run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Status status = run_node(graph_.nodes[i], kernels_[i].get());
      if (!status.ok()) return std::move(status).with_prefix(graph_.describe(graph_.nodes[i]));
    }
    return {};
  }

  Constant take(ValueId id) {
    const TensorDesc& desc = graph_.value(id).desc;
    const TensorView view = view_of(id);
    return {desc, std::vector<std::byte>(view.data, view.data + desc.bytes())};
  }

 private:
  Problem problem_of(const Node& node) const {
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

  std::byte* make(ValueId id) {
    auto& bytes = bytes_[static_cast<size_t>(id)];
    bytes = std::make_unique<Bytes>(graph_.value(id).desc.bytes());
    return bytes->data();
  }

  TensorView view_of(ValueId id) {
    if (id == 0) return {};
    const Value& value = graph_.value(id);
    auto& bytes = bytes_[static_cast<size_t>(id)];
    if (bytes == nullptr && value.constant != nullptr) (void)set(id, *value.constant);
    OFSDP_CHECK(bytes != nullptr, "{} has no bytes", value.name);
    return {bytes->data(), value.desc};
  }

  Status run_node(const Node& node, Kernel* kernel) {
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
    static const std::vector<int64_t> kSamples = [] {
      std::vector<int64_t> samples(1 << 16);
      for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int64_t>(i);
      return samples;
    }();
    const StepContext step{1, 0, kSamples};
    Bytes workspace(kernel->workspace_bytes());
    return kernel->run({inputs, outputs, workspace.data(), &step});
  }

  const Graph& graph_;
  std::vector<std::unique_ptr<Bytes>> bytes_;  // per value
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

// Messages name it, so it is short.
Result<OnnxFile> opened(const onnx::ModelProto& model) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("node{}.onnx", getpid())).string();
  {
    std::ofstream stream(path, std::ios::binary);
    if (!model.SerializeToOstream(&stream)) return fault("{}: cannot be written", path);
  }
  auto file = OnnxFile::open(path);  // stays open
  std::filesystem::remove(path);
  return file;
}

// Inputs of the graph that an operator has to know.
std::set<ValueId> needed(const Graph& graph) {
  std::set<ValueId> ids;
  for (const Node& node : graph.nodes) {
    for (int index : node.op->constant_inputs) {
      const auto i = static_cast<size_t>(index);
      if (i < node.inputs.size()) ids.insert(node.inputs[i]);
    }
  }
  return ids;
}

using Named = std::map<std::string, ConstantPtr>;

Result<Graph> specialized(Graph graph, const Named& inputs, Known known) {
  std::map<std::string, Shape> shapes;
  const std::set<ValueId> wanted = known == Known::kNeeded ? needed(graph) : std::set<ValueId>{};
  for (ValueId id : graph.inputs) {
    Value& value = graph.value(id);
    const ConstantPtr& given = inputs.at(value.name);
    shapes[value.name] = given->desc.shape;
    if (given->desc.dtype != value.desc.dtype) {
      return input_error("input '{}': expected {}, found {}", value.name,
                         dtype_name(value.desc.dtype), given->desc.text());
    }
    if (!wanted.contains(id)) continue;
    value.kind = ValueKind::kConstant;
    value.constant = given;
  }
  return specialize(graph, shapes, Mode::kTrain);
}

Result<Named> constants(const std::vector<onnx::TensorProto>& tensors) {
  Named named;
  for (const auto& tensor : tensors) {
    OFSDP_ASSIGN_OR_RETURN(named[tensor.name()], constant_from_onnx(tensor));
  }
  return named;
}

Status set_parameters(const Graph& graph, const OnnxFile& file, Interpreter& interpreter) {
  for (const Parameter& parameter : graph.parameters) {
    const TensorDesc& desc = graph.value(parameter.value).desc;
    Constant constant{desc, std::vector<std::byte>(desc.bytes())};
    auto* floats = reinterpret_cast<float*>(constant.bytes.data());
    const auto& source = file.initializers()[static_cast<size_t>(parameter.initializer)];
    OFSDP_RETURN_IF_ERROR(file.read(source, 0, {floats, static_cast<size_t>(desc.numel())}));
    OFSDP_RETURN_IF_ERROR(interpreter.set(parameter.value, constant));
  }
  return {};
}

}  // namespace

Result<std::vector<Constant>> run_model(const BoundModel& bound, const Registry& registry,
                                        Known known, bool& planned) {
  planned = false;
  OFSDP_ASSIGN_OR_RETURN(const Named inputs, constants(bound.inputs));
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, opened(bound.model));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, import_onnx(file, registry));
  OFSDP_ASSIGN_OR_RETURN(graph, specialized(std::move(graph), inputs, known));
  Interpreter interpreter(graph);
  OFSDP_RETURN_IF_ERROR(interpreter.plan());
  planned = true;
  OFSDP_RETURN_IF_ERROR(set_parameters(graph, file, interpreter));
  for (ValueId id : graph.inputs) {
    OFSDP_RETURN_IF_ERROR(interpreter.set(id, *inputs.at(graph.value(id).name)));
  }
  OFSDP_RETURN_IF_ERROR(interpreter.run());
  std::vector<Constant> outputs;
  for (ValueId id : graph.outputs) outputs.push_back(interpreter.take(id));
  return outputs;
}

}  // namespace ofsdp::nodes
