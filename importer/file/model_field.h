// The numbers of the fields of ONNX's messages that we read or write without the ONNX library, as
// onnx.proto gives them; TensorProto's are in tensor_record.h.
#pragma once

#include <cstdint>

namespace ofsdp::importer {

namespace model_field {
enum : uint32_t {
  kIrVersion = 1,
  kProducerName = 2,
  kProducerVersion = 3,
  kDomain = 4,
  kModelVersion = 5,
  kDocString = 6,
  kGraph = 7,
  kOpsetImport = 8,
  kMetadataProps = 14,
  kTrainingInfo = 20,
  kFunctions = 25,
  kConfiguration = 26,  // the last
};
}  // namespace model_field

namespace graph_field {
enum : uint32_t { kNode = 1, kInitializer = 5, kInput = 11, kSparseInitializer = 15 };
}  // namespace graph_field

namespace training_info_field {
enum : uint32_t { kAlgorithm = 2 };
}  // namespace training_info_field

namespace sparse_tensor_field {
enum : uint32_t { kValues = 1 };
}  // namespace sparse_tensor_field

// StringStringEntryProto, of which external_data consists.
namespace entry_field {
enum : uint32_t { kKey = 1, kValue = 2 };
}  // namespace entry_field

namespace value_info_field {
enum : uint32_t { kName = 1, kType = 2 };
}  // namespace value_info_field

// TypeProto, its Tensor, that one's TensorShapeProto, and a Dimension of it.
namespace type_field {
enum : uint32_t { kTensorType = 1 };
}  // namespace type_field

namespace tensor_type_field {
enum : uint32_t { kElementType = 1, kShape = 2 };
}  // namespace tensor_type_field

namespace shape_field {
enum : uint32_t { kDimension = 1 };
}  // namespace shape_field

namespace dimension_field {
enum : uint32_t { kValue = 1 };
}  // namespace dimension_field

}  // namespace ofsdp::importer
