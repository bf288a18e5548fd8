// The numbers of the fields of ModelProto, GraphProto and TrainingInfoProto that we read or write
// without the ONNX library, as onnx.proto gives them; TensorProto's are in tensor_record.h.
#pragma once

#include <cstdint>

namespace ofsdp::importer {

namespace model_field {
enum : uint32_t { kIrVersion = 1, kGraph = 7, kTrainingInfo = 20 };
}  // namespace model_field

namespace graph_field {
enum : uint32_t { kNode = 1, kInitializer = 5, kInput = 11, kSparseInitializer = 15 };
}  // namespace graph_field

namespace training_info_field {
enum : uint32_t { kAlgorithm = 2 };
}  // namespace training_info_field

}  // namespace ofsdp::importer
