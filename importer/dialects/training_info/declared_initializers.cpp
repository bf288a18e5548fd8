#include "importer/dialects/training_info/declared_initializers.h"

#include "importer/file/tensor_record.h"

namespace ofsdp::importer {

DeclaredInitializers::DeclaredInitializers(const OnnxFile& file, const onnx::ModelProto& model)
    : model_(model) {
  for (const Initializer& source : file.initializers()) {
    declared_[{-1, source.name}] = {onnx_from_dtype(source.dtype), source.shape.axes(), true,
                                    nullptr};
  }
  for (const auto& tensor : model.graph().initializer()) declare(-1, tensor);
  for (int k = 0; k < model.training_info_size(); ++k) {
    for (const auto& tensor : model.training_info(k).algorithm().initializer()) declare(k, tensor);
  }
}

void DeclaredInitializers::declare(int k, const onnx::TensorProto& tensor) {
  const DType dtype = dtype_from_onnx(static_cast<uint64_t>(tensor.data_type()));
  declared_[{k, tensor.name()}] = {tensor.data_type(),
                                   {tensor.dims().begin(), tensor.dims().end()},
                                   is_floating(dtype),
                                   &tensor};
}

bool DeclaredInitializers::is_initialized(const Key& key) const {
  for (int k = 0; k < model_.training_info_size(); ++k) {
    for (const auto& binding : model_.training_info(k).initialization_binding()) {
      if (key_of(k, binding.key()) == key) return true;
    }
  }
  return false;
}

}  // namespace ofsdp::importer
