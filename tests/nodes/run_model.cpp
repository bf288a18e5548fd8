#include "tests/nodes/run_model.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "importer/proto/onnx_protos.h"
#include "tests/nodes/interpreter.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {
namespace {

// Messages contain the path, so it is short.
Result<OnnxFile> opened(const onnx::ModelProto& model) {
  const std::string path =
      (std::filesystem::temp_directory_path() / format_text("node{}.onnx", getpid())).string();
  {
    std::ofstream stream(path, std::ios::binary);
    if (!model.SerializeToOstream(&stream)) return fault("{}: cannot be written", path);
  }
  auto file = OnnxFile::open(path);  // stays open
  std::filesystem::remove(path);
  return file;
}

// The graph's inputs that an operator must know.
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

}  // namespace

Result<std::vector<Constant>> run_model(const BoundModel& bound, const Registry& registry,
                                        Known known, bool& planned, const Visit& visit) {
  planned = false;
  OFSDP_ASSIGN_OR_RETURN(const Named inputs, constants(bound.inputs));
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, opened(bound.model));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, import_onnx(file, registry));
  OFSDP_ASSIGN_OR_RETURN(graph, specialized(std::move(graph), inputs, known));
  Interpreter interpreter(graph);
  OFSDP_RETURN_IF_ERROR(interpreter.plan());
  planned = true;
  OFSDP_RETURN_IF_ERROR(interpreter.set_parameters(file));
  for (ValueId id : graph.inputs) {
    interpreter.set(id, *inputs.at(graph.value(id).name));
  }
  OFSDP_RETURN_IF_ERROR(interpreter.run());
  if (visit) visit(graph, interpreter);
  std::vector<Constant> outputs;
  for (ValueId id : graph.outputs) outputs.push_back(interpreter.take(id));
  return outputs;
}

}  // namespace ofsdp::nodes
