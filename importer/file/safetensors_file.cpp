#include "importer/file/safetensors_file.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "importer/file/unique_keys.h"
#include "importer/file/wire.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostHeader = int64_t{100} << 20;  // the limit of the format's own reader

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

// `bytes`: of all tensors, which begin at `data`.
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

Result<TensorFile> open_safetensors(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, open_for_reading(path));
  const int64_t bytes = file.bytes;
  OFSDP_REJECT_IF(bytes < 8, "{}: is no safetensors file: it has {} bytes", path, bytes);
  std::array<std::byte, 8> prefix{};
  OFSDP_RETURN_IF_ERROR(read_exactly(file, 0, prefix));
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(prefix[i]) << (8 * i);
  const int64_t most = std::min(kMostHeader, bytes - 8);
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
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") continue;
    OFSDP_ASSIGN_OR_RETURN(FileTensor tensor,
                           prefixed(format_text("{}: tensor '{}'", path, printable(name)),
                                    tensor_of(name, json, data, bytes - data)));
    tensors.push_back(std::move(tensor));
  }
  return TensorFile(std::move(file), std::move(tensors));
}

}  // namespace ofsdp::importer
