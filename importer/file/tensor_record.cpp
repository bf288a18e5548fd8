#include "importer/file/tensor_record.h"

#include <algorithm>
#include <array>

#include "importer/file/tensor_data.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {
namespace {

using namespace tensor_field;  // NOLINT: their names say enough here

constexpr std::array<DType, 17> kTypes = {
    DType::kUndefined, DType::kFloat32, DType::kUInt8,
    DType::kInt8,      DType::kUInt16,  DType::kInt16,
    DType::kInt32,     DType::kInt64,   DType::kUndefined /* string */,
    DType::kBool,      DType::kFloat16, DType::kFloat64,
    DType::kUInt32,    DType::kUInt64,  DType::kUndefined,
    DType::kUndefined, DType::kBFloat16};  // 14, 15: complex

Status see_dims(const WireField& field, std::vector<int64_t>& dims) {
  if (field.type == WireType::kVarint) dims.push_back(static_cast<int64_t>(field.value));
  if (field.type != WireType::kBytes) return ok_status();
  for (WireReader reader(field.bytes, field.body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const uint64_t dim, reader.varint());
    dims.push_back(static_cast<int64_t>(dim));
  }
  return ok_status();
}

Status wrong_type(const WireField& field) {
  return input_error("field {} at byte {} has the wrong wire type {}", field.number, field.begin,
                     static_cast<int>(field.type));
}

bool right_type(const WireField& field) {
  switch (field.number) {
    case kDataType:
    case kDataLocation:
      return field.type == WireType::kVarint;
    case kStringData:
    case kName:
    case kRawData:
    case kExternalData:
      return field.type == WireType::kBytes;
    case kFloatData:
      return field.type == WireType::kBytes || field.type == WireType::kFixed32;
    case kDoubleData:
      return field.type == WireType::kBytes || field.type == WireType::kFixed64;
    case kDims:
    case kInt32Data:
    case kInt64Data:
    case kUint64Data:
      return field.type == WireType::kBytes || field.type == WireType::kVarint;
    default:
      return true;
  }
}

struct Parser {
  TensorRecord record;
  DataSeen seen;
  ExternalRef external;
  bool is_external = false;

  Status see(const WireField& field) {
    if (!right_type(field)) return wrong_type(field);
    switch (field.number) {
      case kDims:
        return see_dims(field, record.dims);
      case kDataType:
        record.onnx_type = field.value;
        return ok_status();
      case kName:
        record.name = as_text(field.bytes);
        return ok_status();
      case kDataLocation:
        is_external = field.value == 1;
        return ok_status();
      case kExternalData:
        return parse_external_entry(field.bytes, field.body, external);
      case kRawData:
        return see_raw(field, seen);
      default:
        return is_data_field(field.number) ? see_list(field, seen) : ok_status();
    }
  }

  Status see_all(std::span<const std::byte> body, int64_t origin) {
    for (WireReader reader(body, origin); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      OFSDP_RETURN_IF_ERROR(see(field));
    }
    return ok_status();
  }

  // The data are as many as type and shape say, and where they say.
  Status check_data() const {
    const bool raw = seen.number == kRawData;
    const std::optional<int64_t> bytes = record.expected_bytes();
    if (!bytes || (raw && seen.count == *bytes)) return ok_status();
    const std::string what = std::string(dtype_name(record.dtype)) + Shape(record.dims).text();
    if (raw || seen.number == 0) {
      if (*bytes == 0 && seen.number == 0) return ok_status();
      return input_error("expected {} bytes for {}, found {}", *bytes, what, raw ? seen.count : 0);
    }
    if (seen.number != list_field(record.dtype)) {
      return input_error("expected the data of {} in field {}, found it in field {}", what,
                         list_field(record.dtype), seen.number);
    }
    if (seen.count == record.numel) return ok_status();
    return input_error("expected {} values for {}, found {}", record.numel, what, seen.count);
  }

  void place(std::span<const std::byte> body, int64_t origin) {
    const auto element = static_cast<int64_t>(dtype_size(record.dtype));
    const bool raw = seen.number == kRawData || seen.number == 0;
    record.stride = raw ? element : seen.stride;
    record.offset = seen.offset;
    record.bytes = raw ? seen.bytes : (record.numel - 1) * record.stride + element;
    record.encoding =
        record.stride == element ? Initializer::Encoding::kDense : Initializer::Encoding::kStrided;
    if (record.stride != 0) return;
    record.encoding = Initializer::Encoding::kList;
    record.offset = origin;
    record.bytes = static_cast<int64_t>(body.size());
  }

  Status finish(std::span<const std::byte> body, int64_t origin) {
    record.dtype = dtype_from_onnx(record.onnx_type);
    OFSDP_ASSIGN_OR_RETURN(record.numel, checked_numel(record.dims));
    if (is_external) {
      if (seen.number != 0) {
        return input_error("expected its data in an external file, found field {}", seen.number);
      }
      record.external = std::move(external);
      return ok_status();
    }
    OFSDP_RETURN_IF_ERROR(check_data());
    place(body, origin);
    return ok_status();
  }
};

std::string find_name(std::span<const std::byte> body) {
  std::string name;
  for (WireReader reader(body); !reader.done();) {
    const Result<WireField> field = reader.next();
    if (!field.ok()) break;
    if (field->number == kName && field->type == WireType::kBytes) name = as_text(field->bytes);
  }
  return name;
}

}  // namespace

DType dtype_from_onnx(uint64_t onnx_type) {
  return onnx_type < kTypes.size() ? kTypes[onnx_type] : DType::kUndefined;
}

int onnx_from_dtype(DType dtype) {
  return static_cast<int>(std::ranges::find(kTypes, dtype) - kTypes.begin());
}

std::optional<int64_t> TensorRecord::expected_bytes() const {
  if (dtype == DType::kUndefined) return std::nullopt;
  return numel * static_cast<int64_t>(dtype_size(dtype));
}

std::string TensorRecord::label() const { return "initializer '" + printable(name) + "'"; }

Result<TensorRecord> parse_tensor(std::span<const std::byte> body, int64_t origin) {
  Parser parser;
  Status status = parser.see_all(body, origin);
  if (status.ok()) status = parser.finish(body, origin);
  if (!status.ok()) {
    parser.record.name = find_name(body);  // may lie behind what is wrong
    return std::move(status).with_prefix(parser.record.label());
  }
  return std::move(parser.record);
}

}  // namespace ofsdp::importer
