#include "importer/file/tensor_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "importer/file/file_mapping.h"
#include "importer/file/flat_buffer.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

const FileTensor* TensorFile::find(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &FileTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

Status TensorFile::read(const FileTensor& tensor, int64_t first, std::span<float> dst) const {
  const auto stride = static_cast<int64_t>(dtype_size(tensor.dtype));
  constexpr size_t kChunk = 16384;
  std::vector<std::byte> buffer(std::min(dst.size(), kChunk) * static_cast<size_t>(stride));
  while (!dst.empty()) {
    const auto part = dst.first(std::min(dst.size(), kChunk));
    const auto raw = std::span(buffer).first(part.size() * static_cast<size_t>(stride));
    OFSDP_RETURN_IF_ERROR(read_exactly(file_, tensor.offset + first * stride, raw));
    decode_floats(tensor.dtype, raw.data(), stride, part);
    first += static_cast<int64_t>(part.size());
    dst = dst.subspan(part.size());
  }
  return {};
}

std::shared_ptr<const ValueSource> tensor_values(std::shared_ptr<const TensorFile> file,
                                                 const FileTensor& tensor) {
  return std::make_shared<StoredValues<TensorFile, FileTensor>>(std::move(file), tensor);
}

Status write_texts(const OpenFile& file, const TensorLayout& layout) {
  for (const TensorLayout::Text& text : layout.texts) {
    OFSDP_RETURN_IF_ERROR(write_exactly(file, text.offset, std::as_bytes(std::span(text.bytes))));
  }
  return {};
}

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxHeader = int64_t{100} << 20;  // the limit in the format's own reader

struct TypeRow {
  const char* name;
  int64_t bytes;
  DType dtype;
};
constexpr std::array kTypes = {
    TypeRow{"F64", 8, DType::kFloat64},      TypeRow{"F32", 4, DType::kFloat32},
    TypeRow{"F16", 2, DType::kFloat16},      TypeRow{"BF16", 2, DType::kBFloat16},
    TypeRow{"I64", 8, DType::kInt64},        TypeRow{"I32", 4, DType::kInt32},
    TypeRow{"I16", 2, DType::kInt16},        TypeRow{"I8", 1, DType::kInt8},
    TypeRow{"U8", 1, DType::kUInt8},         TypeRow{"BOOL", 1, DType::kBool},
    TypeRow{"U16", 2, DType::kUInt16},       TypeRow{"U32", 4, DType::kUInt32},
    TypeRow{"U64", 8, DType::kUInt64},       TypeRow{"F8_E4M3", 1, DType::kUndefined},
    TypeRow{"F8_E5M2", 1, DType::kUndefined}};

Result<int64_t> whole(const Json& json) {
  if (json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{INT64_MAX}) {
    return static_cast<int64_t>(json.get<uint64_t>());
  }
  return input_error("expected whole numbers from 0 to {}, found {}", INT64_MAX,
                     printable(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

// `bytes`: size of all tensors, which begin at `data`.
Result<FileTensor> tensor_of(const std::string& name, const Json& json, int64_t data,
                             int64_t bytes) {
  FileTensor tensor{.name = name};
  OFSDP_REJECT_IF(!json.is_object(), "expected an object");
  const Json type = json.value("dtype", Json()), shape = json.value("shape", Json());
  const Json offsets = json.value("data_offsets", Json());
  OFSDP_REJECT_IF(!type.is_string(), "expected a dtype");
  tensor.type = printable(type.get_ref<const std::string&>());
  const auto row = std::ranges::find_if(kTypes, [&](const TypeRow& r) { return r.name == type; });
  OFSDP_REJECT_IF(row == kTypes.end(), "dtype '{}' is not known", tensor.type);
  tensor.dtype = row->dtype;
  OFSDP_REJECT_IF(!shape.is_array() || !offsets.is_array() || offsets.size() != 2,
                  "expected a shape and two data_offsets");
  std::vector<int64_t> axes;
  for (const Json& axis : shape) {
    OFSDP_ASSIGN_OR_RETURN(const int64_t n, whole(axis));
    axes.push_back(n);
  }
  OFSDP_ASSIGN_OR_RETURN(const int64_t numel, checked_numel(axes));
  OFSDP_ASSIGN_OR_RETURN(const int64_t begin, whole(offsets[0]));
  OFSDP_ASSIGN_OR_RETURN(const int64_t end, whole(offsets[1]));
  OFSDP_REJECT_IF(begin > end || end > bytes, "data_offsets {} and {} of {} bytes", begin, end,
                  bytes);
  OFSDP_REJECT_IF((end - begin) % row->bytes != 0 || (end - begin) / row->bytes != numel,
                  "expected {} elements, found {} bytes of {}", numel, end - begin, row->name);
  tensor.shape = Shape(std::move(axes));
  tensor.offset = data + begin;
  return tensor;
}

}  // namespace

const char* safetensors_type(DType dtype) {
  const auto row = std::ranges::find(kTypes, dtype, &TypeRow::dtype);
  OFSDP_CHECK(row != kTypes.end(), "{} is no type of a safetensors file", dtype_name(dtype));
  return row->name;
}

std::optional<DType> safetensors_dtype(std::string_view type) {
  const auto row = std::ranges::find_if(kTypes, [&](const TypeRow& r) { return r.name == type; });
  if (row == kTypes.end() || row->dtype == DType::kUndefined) return std::nullopt;
  return row->dtype;
}

Result<TensorFile> open_safetensors(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, open_for_reading(path));
  const int64_t bytes = file.bytes;
  OFSDP_REJECT_IF(bytes < 8, "{}: is no safetensors file: it has {} bytes", path, bytes);
  std::array<std::byte, 8> prefix{};
  OFSDP_RETURN_IF_ERROR(read_exactly(file, 0, prefix));
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(prefix[i]) << (8 * i);
  const int64_t most = std::min(kMaxHeader, bytes - 8);
  OFSDP_REJECT_IF(length > static_cast<uint64_t>(most),
                  "{}: is no safetensors file: a header of {} bytes, expected at most {}", path,
                  length, most);
  std::string text(static_cast<size_t>(length), '\0');
  OFSDP_RETURN_IF_ERROR(read_exactly(file, 8, std::as_writable_bytes(std::span(text))));
  OFSDP_ASSIGN_OR_RETURN(const Json header, prefixed(path + ": header", parse_unique(text)));
  OFSDP_REJECT_IF(!header.is_object(), "{}: is no safetensors file: its header is no JSON object",
                  path);
  const auto data = static_cast<int64_t>(length) + 8;
  std::vector<FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : json.items()) {
        if (value.is_string()) metadata[key] = value.get<std::string>();
      }
      continue;
    }
    OFSDP_ASSIGN_OR_RETURN(FileTensor tensor,
                           prefixed(format_text("{}: tensor '{}'", path, printable(name)),
                                    tensor_of(name, json, data, bytes - data)));
    tensors.push_back(std::move(tensor));
  }
  return TensorFile(std::move(file), std::move(tensors), std::move(metadata));
}

namespace {

constexpr const char* kIdentifier = "TORT";
constexpr int32_t kFormatVersion = 1;
constexpr int32_t kContentVersion = 1;  // adapter and model versions; nobody reads them

// Each table's fields; tensor_file.h lists them with types.
enum class Root { kFormat, kAdapter, kModel, kParameters };
enum class Field { kName, kDims, kType, kData };

Result<FileTensor> read_parameter(const FlatTable& table) {
  FileTensor tensor;
  OFSDP_ASSIGN_OR_RETURN(tensor.name, table.text(Field::kName));
  const std::string subject = "tensor '" + printable(tensor.name) + "'";
  OFSDP_ASSIGN_OR_RETURN(const auto type, table.number<int32_t>(Field::kType, 0));
  tensor.dtype = dtype_from_onnx_number(type);
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
    writer.set(fields[Field::kType], static_cast<int32_t>(onnx_number(tensor.dtype)));
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
  OFSDP_REJECT_IF(end > kMaxFlatBytes, "expected at most {} bytes in a file of this kind, found {}",
                  kMaxFlatBytes, end);
  layout.places = std::move(tensors);
  return layout;
}

}  // namespace ofsdp::importer
