#include "importer/dialects/training_info/initialization.h"

#include <onnx/onnx_pb.h>

namespace ofsdp::importer {
namespace {

// The algorithm's own initializers come first, as in its bindings of updates.
Result<InitialBinding> binding_of(const OnnxFile& file, int index, const std::string& key,
                                  const std::string& value) {
  for (const AlgorithmTensor& tensor : file.contents().algorithm_tensors) {
    if (tensor.training_info == index && tensor.initializer.name == key)
      return InitialBinding{tensor.initializer, index, value};
  }
  for (const Initializer& source : file.initializers()) {
    if (source.name == key) return InitialBinding{source, -1, value};
  }
  return input_error(
      "{}: training_info[{}]: initialization_binding of '{}' to '{}': expected an initializer as "
      "its key, found none",
      file.path(), index, key, value);
}

}  // namespace

Result<std::vector<Initialization>> read_initializations(const OnnxFile& file) {
  std::vector<Initialization> made;
  onnx::ModelProto model;
  if (!model.ParseFromString(file.skeleton())) return made;  // import_onnx says what is wrong
  for (int i = 0; i < model.training_info_size(); ++i) {
    const onnx::TrainingInfoProto& info = model.training_info(i);
    if (info.initialization_binding_size() == 0) continue;
    onnx::ModelProto alone;
    alone.set_ir_version(model.ir_version());
    *alone.mutable_opset_import() = model.opset_import();
    *alone.mutable_functions() = model.functions();
    *alone.mutable_graph() = info.initialization();
    if (alone.graph().name().empty()) alone.mutable_graph()->set_name("initialization");
    const std::string name = format_text("{}: training_info[{}]: initialization", file.path(), i);
    made.push_back({OnnxFile::of_model(name, alone.SerializeAsString()), {}});
    for (const auto& binding : info.initialization_binding()) {
      OFSDP_ASSIGN_OR_RETURN(InitialBinding bound,
                             binding_of(file, i, binding.key(), binding.value()));
      made.back().bindings.push_back(std::move(bound));
    }
  }
  return made;
}

}  // namespace ofsdp::importer
