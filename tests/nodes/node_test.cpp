#include "tests/nodes/node_test.h"

#include <filesystem>
#include <fstream>

#include "tests/support/namespaces.h"

namespace ofsdp::nodes {
namespace {

namespace fs = std::filesystem;

template <typename Message>
Result<Message> read_message(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  Message message;
  if (!message.ParseFromIstream(&stream)) {
    return input_error("{}: expected a {}, found something else", path.string(),
                       message.GetTypeName());
  }
  return message;
}

std::vector<onnx::TensorProto> items_of(const onnx::SequenceProto& sequence) {
  return {sequence.tensor_values().begin(), sequence.tensor_values().end()};
}

TestValue value_of(const onnx::OptionalProto& optional) {
  TestValue value{TestValue::Kind::kNone, true, {}, {}};
  if (optional.has_tensor_value()) {
    value.kind = TestValue::Kind::kTensor;
    value.tensor = optional.tensor_value();
  } else if (optional.has_sequence_value()) {
    value.kind = TestValue::Kind::kSequence;
    value.items = items_of(optional.sequence_value());
  }
  return value;
}

Result<TestValue> read_value(const fs::path& path, const onnx::TypeProto& type) {
  if (type.has_optional_type()) {
    OFSDP_ASSIGN_OR_RETURN(const auto optional, read_message<onnx::OptionalProto>(path));
    return value_of(optional);
  }
  TestValue value;
  if (type.has_sequence_type()) {
    OFSDP_ASSIGN_OR_RETURN(const auto sequence, read_message<onnx::SequenceProto>(path));
    value.kind = TestValue::Kind::kSequence;
    value.items = items_of(sequence);
    return value;
  }
  OFSDP_ASSIGN_OR_RETURN(value.tensor, read_message<onnx::TensorProto>(path));
  return value;
}

template <typename Infos>
Result<std::vector<TestValue>> read_values(const fs::path& folder, const char* stem,
                                           const Infos& infos) {
  std::vector<TestValue> values;
  for (const auto& info : infos) {
    const fs::path path = folder / format_text("{}_{}.pb", stem, values.size());
    if (!fs::exists(path)) break;
    OFSDP_ASSIGN_OR_RETURN(TestValue value, read_value(path, info.type()));
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace

Result<NodeTest> read_node_test(const std::string& folder) {
  const fs::path root = fs::path(folder).lexically_normal();
  NodeTest test{(root.has_filename() ? root : root.parent_path()).filename().string(), {}, {}};
  OFSDP_ASSIGN_OR_RETURN(test.model, read_message<onnx::ModelProto>(root / "model.onnx"));
  for (int i = 0; fs::exists(root / format_text("test_data_set_{}", i)); ++i) {
    const fs::path data = root / format_text("test_data_set_{}", i);
    DataSet set;
    OFSDP_ASSIGN_OR_RETURN(set.inputs, read_values(data, "input", test.model.graph().input()));
    OFSDP_ASSIGN_OR_RETURN(set.outputs, read_values(data, "output", test.model.graph().output()));
    test.data_sets.push_back(std::move(set));
  }
  if (test.data_sets.empty()) return input_error("{}: expected test_data_set_0", root.string());
  return test;
}

}  // namespace ofsdp::nodes
