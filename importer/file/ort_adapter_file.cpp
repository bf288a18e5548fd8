#include "importer/file/ort_adapter_file.h"

#include <array>
#include <cstring>
#include <set>

#include "importer/file/file_mapping.h"
#include "importer/file/flat_buffer.h"
#include "importer/file/wire.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kIdentifier = "TORT";
constexpr int32_t kFormatVersion = 1;
constexpr int32_t kContentVersion = 1;  // of the adapter and of the model; nobody reads them

// The fields of each table; ort_adapter_file.h lists them with their types.
enum class Root { kFormat, kAdapter, kModel, kParameters };
enum class Field { kName, kDims, kType, kData };

Result<FileTensor> read_parameter(const FlatTable& table) {
  FileTensor tensor;
  OFSDP_ASSIGN_OR_RETURN(tensor.name, table.text(Field::kName));
  const std::string subject = "tensor '" + printable(tensor.name) + "'";
  OFSDP_ASSIGN_OR_RETURN(const auto type, table.number<int32_t>(Field::kType, 0));
  tensor.dtype = dtype_of_number(type);
  OFSDP_REJECT_IF(tensor.dtype == DType::kUndefined, "{}: ONNX type {} is not supported", subject,
                  type);
  tensor.type = dtype_name(tensor.dtype);
  OFSDP_ASSIGN_OR_RETURN(std::vector<int64_t> dims, table.integers(Field::kDims));
  OFSDP_ASSIGN_OR_RETURN(const int64_t numel, prefixed(subject, checked_numel(dims)));
  OFSDP_ASSIGN_OR_RETURN(const auto data, table.bytes(Field::kData));
  const FlatBytes found = data.value_or(FlatBytes{});
  const auto element = static_cast<int64_t>(dtype_size(tensor.dtype));
  tensor.shape = Shape(std::move(dims));
  OFSDP_REJECT_IF(numel > found.count / element || found.count != numel * element,
                  "{}: expected {} elements of {} bytes, as its shape {} says, found {} bytes",
                  subject, numel, element, tensor.shape.text(), found.count);
  tensor.offset = found.offset;
  return tensor;
}

Result<std::vector<FileTensor>> read_adapter(std::span<const std::byte> bytes) {
  OFSDP_ASSIGN_OR_RETURN(const FlatTable root, FlatTable::root(bytes, kIdentifier));
  OFSDP_ASSIGN_OR_RETURN(const auto version, root.number<int32_t>(Root::kFormat, 0));
  OFSDP_REJECT_IF(version != kFormatVersion, "expected format version {}, found {}", kFormatVersion,
                  version);
  OFSDP_ASSIGN_OR_RETURN(const auto tables, root.tables(Root::kParameters));
  std::vector<FileTensor> tensors;
  std::set<std::string> names;
  for (const FlatTable& table : tables) {
    OFSDP_ASSIGN_OR_RETURN(FileTensor tensor, read_parameter(table));
    OFSDP_REJECT_IF(!names.insert(tensor.name).second, "tensor '{}' is there twice",
                    printable(tensor.name));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

Result<bool> is_ort_adapter(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_reading(path));
  if (file.bytes < FlatTable::kHeader) return false;
  std::array<std::byte, FlatTable::kHeader> header{};
  OFSDP_RETURN_IF_ERROR(read_exactly(file, 0, header));
  return std::memcmp(header.data() + 4, kIdentifier, 4) == 0;
}

Result<TensorFile> open_ort_adapter(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, open_for_reading(path));
  OFSDP_REJECT_IF(file.bytes < FlatTable::kHeader, "{}: expected at least {} bytes, found {}", path,
                  FlatTable::kHeader, file.bytes);
  OFSDP_ASSIGN_OR_RETURN(const FileMapping mapping, FileMapping::make(file));
  OFSDP_ASSIGN_OR_RETURN(std::vector<FileTensor> tensors,
                         prefixed(path, read_adapter(mapping.bytes())));
  OFSDP_REJECT_IF(mapping.was_cut(), "{}: was cut short while it was read", path);
  return TensorFile(std::move(file), std::move(tensors));
}

Result<TensorLayout> lay_out_ort_adapter(std::vector<Initializer> tensors) {
  FlatWriter writer(kIdentifier);
  auto root = writer.table(
      {{Root::kFormat, 4}, {Root::kAdapter, 4}, {Root::kModel, 4}, {Root::kParameters, 4}});
  writer.root();
  writer.set(root[Root::kFormat], kFormatVersion);
  writer.set(root[Root::kAdapter], kContentVersion);
  writer.set(root[Root::kModel], kContentVersion);
  const auto elements = writer.tables(tensors.size());
  writer.link_to_last(root[Root::kParameters]);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Initializer& tensor = tensors[i];
    tensor.stride = static_cast<int64_t>(dtype_size(tensor.dtype));
    tensor.bytes = tensor.shape.numel() * tensor.stride;
    auto fields =
        writer.table({{Field::kName, 4}, {Field::kDims, 4}, {Field::kType, 4}, {Field::kData, 4}});
    writer.link_to_last(elements[i]);
    writer.link(fields[Field::kName], writer.text(tensor.name));
    writer.link(fields[Field::kDims], writer.integers(tensor.shape.axes()));
    writer.set(fields[Field::kType], static_cast<int32_t>(number_of_dtype(tensor.dtype)));
    writer.hole(fields[Field::kData], tensor.bytes);
  }
  TensorLayout layout;
  std::vector<int64_t> holes;
  layout.texts.push_back({0, writer.finish(holes)});
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].offset = holes[i];
    const auto length = static_cast<uint32_t>(tensors[i].bytes);
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    layout.texts.push_back({holes[i] - static_cast<int64_t>(bytes.size()), bytes});
  }
  const int64_t end = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
  OFSDP_REJECT_IF(end > kMostFlatBytes,
                  "expected at most {} bytes in a file of this kind, found {}", kMostFlatBytes,
                  end);
  layout.places = std::move(tensors);
  return layout;
}

}  // namespace ofsdp::importer
