#include "importer/dialects/training_info/algorithm_builder.h"

#include <onnx/onnx_pb.h>

#include <set>

#include "importer/dialects/training_info/training_info.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr int kLeastIrVersion = 8;

void collect_names(const onnx::GraphProto& graph, std::set<std::string>& names) {
  for (const auto& input : graph.input()) names.insert(input.name());
  for (const auto& tensor : graph.initializer()) names.insert(tensor.name());
  for (const auto& node : graph.node()) {
    names.insert(node.output().begin(), node.output().end());
    for (const auto& attribute : node.attribute()) collect_names(attribute.g(), names);
  }
}

}  // namespace

struct AlgorithmBuilder::State {
  onnx::TrainingInfoProto info;
  std::set<std::string> taken;
  Names inputs;
  bool old_ir = false, has_domain = false;

  onnx::GraphProto& graph() { return *info.mutable_algorithm(); }
};

AlgorithmBuilder::AlgorithmBuilder() : state_(std::make_unique<State>()) {}
AlgorithmBuilder::AlgorithmBuilder(AlgorithmBuilder&&) noexcept = default;
AlgorithmBuilder::~AlgorithmBuilder() = default;

Result<AlgorithmBuilder> AlgorithmBuilder::make(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  OFSDP_REJECT_IF(has_training_info(model), "{}: expected a model without training_info, found {}",
                  file.path(), model.training_info_size());
  if (const int opset = version_of(model.opset_import(), ""); opset < kLeastOpset) {
    return input_error("{}: expected opset {} or newer, found {}", file.path(), kLeastOpset, opset);
  }
  AlgorithmBuilder made;
  State& state = *made.state_;
  collect_names(model.graph(), state.taken);
  std::set<std::string> initializers;
  for (const auto& tensor : model.graph().initializer()) initializers.insert(tensor.name());
  for (const Initializer& source : file.initializers()) initializers.insert(source.name);
  state.taken.insert(initializers.begin(), initializers.end());
  for (const auto& input : model.graph().input()) {
    if (!initializers.contains(input.name())) state.inputs.push_back(input.name());
  }
  state.old_ir = model.ir_version() < kLeastIrVersion;
  state.has_domain = version_of(model.opset_import(), kTrainingDomain) > 0;
  state.graph().set_name("algorithm");
  return made;
}

std::string AlgorithmBuilder::fresh(const std::string& wished) {
  std::string name = wished;
  for (int i = 1; !state_->taken.insert(name).second; ++i) name = format_text("{}.{}", wished, i);
  return name;
}

AlgorithmBuilder::Names AlgorithmBuilder::add(const std::string& op, const Names& inputs,
                                              const Attributes& attributes, const Names& wished,
                                              const std::string& domain) {
  onnx::NodeProto& node = *state_->graph().add_node();
  node.set_op_type(op);
  node.set_domain(domain);
  Names outputs;
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& name : wished) outputs.push_back(fresh(name));
  for (const std::string& output : outputs) node.add_output(output);
  node.set_name(format_text("{}_{}", op, outputs[0]));
  for (const auto& [name, value] : attributes.all()) add_attribute(node, name, value);
  return outputs;
}

std::string AlgorithmBuilder::scalar(const std::string& wished, DType dtype, double value) {
  const std::string name = fresh(wished);
  const TensorDesc desc{dtype, Shape{}};
  std::vector<std::byte> bytes(desc.bytes());
  from_doubles({&value, 1}, desc, bytes.data());
  *state_->graph().add_initializer() = tensor_proto(name, desc, bytes.data());
  return name;
}

std::string AlgorithmBuilder::ints(const std::string& wished, const std::vector<int64_t>& values) {
  const std::string name = fresh(wished);
  const TensorDesc desc{DType::kInt64, Shape{static_cast<int64_t>(values.size())}};
  *state_->graph().add_initializer() = tensor_proto(name, desc, values.data());
  return name;
}

std::string AlgorithmBuilder::zeros(const std::string& wished, const Shape& shape) {
  const std::string name = fresh(wished);
  const TensorDesc desc{DType::kFloat32, shape};
  const std::vector<std::byte> bytes(desc.bytes());
  *state_->graph().add_initializer() = tensor_proto(name, desc, bytes.data());
  return name;
}

void AlgorithmBuilder::input(const std::string& name, DType dtype, const Shape& row) {
  state_->taken.insert(name);
  onnx::ValueInfoProto& info = *state_->graph().add_input();
  info = value_info(name, {dtype, row});
  auto& shape = *info.mutable_type()->mutable_tensor_type()->mutable_shape();
  onnx::TensorShapeProto whole;
  whole.add_dim();  // of any size: the batch
  whole.MergeFrom(shape);
  shape = whole;
  state_->inputs.push_back(name);
}

void AlgorithmBuilder::output(const std::string& name, const TensorDesc& desc) {
  *state_->graph().add_output() = value_info(name, desc);
}

void AlgorithmBuilder::bind(const std::string& initializer, const std::string& value,
                            const TensorDesc& desc) {
  output(value, desc);
  auto& binding = *state_->info.add_update_binding();
  binding.set_key(initializer);
  binding.set_value(value);
}

const AlgorithmBuilder::Names& AlgorithmBuilder::model_inputs() const { return state_->inputs; }

std::string AlgorithmBuilder::finish() const {
  onnx::ModelProto more;
  if (state_->old_ir) more.set_ir_version(kLeastIrVersion);
  if (!state_->has_domain) {
    auto& import = *more.add_opset_import();
    import.set_domain(kTrainingDomain);
    import.set_version(1);
  }
  *more.add_training_info() = state_->info;
  return more.SerializeAsString();
}

}  // namespace ofsdp::importer
