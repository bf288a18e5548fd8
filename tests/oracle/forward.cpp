// forward: the outputs of a model for given inputs, in inference mode, for comparison with another
// program (compare_forward.py).
//
//   forward MODEL.onnx FOLDER
//
// FOLDER holds NAME.npy for each input of the graph; output number i is written there as
// output_i.npy. The graph is compiled as fsdp-run does it for an evaluation - training switches
// off, shapes folded, fused, layouts assigned - and nodes run one by one, each value in separate
// bytes.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "importer/normalize/onnx_import.h"
#include "importer/passes/fusion/fusion.h"
#include "importer/passes/passes.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "runtime/data/column_file.h"
#include "tests/nodes/interpreter.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

using Inputs = std::map<std::string, Constant>;

Result<Constant> read_npy(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto bytes = std::as_bytes(std::span(text));
  OFSDP_ASSIGN_OR_RETURN(const ColumnLayout layout, parse_npy(path, bytes));
  std::vector<int64_t> axes{layout.count};
  axes.insert(axes.end(), layout.row.axes().begin(), layout.row.axes().end());
  const TensorDesc desc{layout.dtype, Shape(axes)};
  if (bytes.size() != layout.first_byte + desc.bytes()) {
    return input_error("{}: expected {} bytes, found {}", path, layout.first_byte + desc.bytes(),
                       bytes.size());
  }
  return Constant{desc, {bytes.begin() + static_cast<int64_t>(layout.first_byte), bytes.end()}};
}

Result<const char*> npy_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat64:
      return "<f8";
    case DType::kFloat16:
      return "<f2";
    case DType::kInt64:
      return "<i8";
    case DType::kInt32:
      return "<i4";
    case DType::kBool:
      return "|b1";
    default:
      return input_error("no .npy is written for {}", dtype_name(dtype));
  }
}

Status write_npy(const std::string& path, const Constant& value) {
  OFSDP_ASSIGN_OR_RETURN(const char* name, npy_name(value.desc.dtype));
  std::string axes;
  for (const int64_t axis : value.desc.shape.axes()) axes += format_text("{},", axis);
  std::string header =
      format_text("{{'descr': '{}', 'fortran_order': False, 'shape': ({})}}", name, axes);
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  const std::string size{static_cast<char>(header.size() % 256),
                         static_cast<char>(header.size() / 256)};
  std::ofstream stream(path, std::ios::binary);
  stream << "\x93NUMPY\x01" << '\0' << size << header;
  stream.write(reinterpret_cast<const char*>(value.bytes.data()),
               static_cast<std::streamsize>(value.bytes.size()));
  return stream ? ok_status() : fault("{}: cannot be written", path);
}

// As in a run's evaluation; the outputs are copies, so that all are plain activations.
Result<Graph> compiled(const OnnxFile& file, const Registry& registry, const std::string& folder,
                       Inputs& inputs) {
  OFSDP_ASSIGN_OR_RETURN(Graph graph, import_onnx(file, registry));
  OFSDP_ASSIGN_OR_RETURN(graph, choose_candidates(graph, {}));
  std::map<std::string, Shape> shapes;
  for (ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    OFSDP_ASSIGN_OR_RETURN(Constant constant, read_npy(folder + "/" + input.name + ".npy"));
    if (constant.desc.dtype != input.desc.dtype) {
      return input_error("input '{}': expected {}, found {}", input.name,
                         dtype_name(input.desc.dtype), constant.desc.text());
    }
    shapes[input.name] = constant.desc.shape;
    inputs.insert_or_assign(input.name, std::move(constant));
  }
  OFSDP_ASSIGN_OR_RETURN(graph, specialize(graph, shapes, Mode::kEval));
  for (ValueId& id : graph.outputs) {
    const std::string name = graph.value(id).name;
    OFSDP_ASSIGN_OR_RETURN(id, GraphEditor(graph).add1("ofsdp.Copy", name + ".out", {id}));
  }
  return assign_layouts(fuse(graph, graph.outputs));
}

Status forward(const std::string& path, const std::string& folder) {
  const Registry registry = make_registry();
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(path));
  Inputs inputs;
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, compiled(file, registry, folder, inputs));
  nodes::Interpreter interpreter(graph);
  OFSDP_RETURN_IF_ERROR(interpreter.plan());
  OFSDP_RETURN_IF_ERROR(interpreter.set_parameters(file));
  for (ValueId id : graph.inputs) interpreter.set(id, inputs.at(graph.value(id).name));
  OFSDP_RETURN_IF_ERROR(interpreter.run());
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const std::string to = format_text("{}/output_{}.npy", folder, i);
    OFSDP_RETURN_IF_ERROR(write_npy(to, interpreter.take(graph.outputs[i])));
  }
  return {};
}

}  // namespace
}  // namespace ofsdp

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: forward MODEL.onnx FOLDER\n");
    return 2;
  }
  const ofsdp::Status status = ofsdp::forward(argv[1], argv[2]);
  if (status.ok()) return 0;
  fmt::print(stderr, "forward: {}\n", status.message());
  return status.kind() == ofsdp::ErrorKind::kInput ? 2 : 1;
}
