#include "importer/file/tensor_record.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "importer/file/element_codec.h"
#include "importer/file/wire.h"
#include "kernels/base/reject.h"
#include "kernels/core/narrow_types.h"

namespace ofsdp::importer {
namespace {

Result<int64_t> parse_count(std::string_view key, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  OFSDP_REJECT_IF(error != std::errc{} || end != text.data() + text.size() || value < 0,
                  "external data: expected a number of bytes as {}, found '{}'", key,
                  printable(text));
  return value;
}

Status check_location(const std::string& location) {
  auto refuse = [&](const char* found) {
    return input_error("external data: expected a path inside of the model's folder, found {} '{}'",
                       found, printable(location));
  };
  if (location.empty()) return input_error("external data: location is missing");
  if (location[0] == '/') return refuse("the absolute path");
  if (location.find('\0') != std::string::npos) return refuse("a NUL character in");
  if (("/" + location + "/").find("/../") != std::string::npos) return refuse("'..' in");
  return ok_status();
}

struct Free {
  void operator()(char* p) const { std::free(p); }
};

// Returns the path without symbolic links; empty if it does not exist.
std::string real_path(const std::string& path) {
  const std::unique_ptr<char, Free> real(realpath(path.c_str(), nullptr));
  return real ? real.get() : "";
}

// Returns the folder of the real file at a model's path; empty if it does not exist.
std::string real_folder(const std::string& model) {
  const std::string real = real_path(model);
  return real.empty() ? "" : folder_of(real);
}

// Returns whether the path `real` is below `folder`; an empty folder contains nothing.
bool is_inside(const std::string& real, const std::string& folder) {
  return !folder.empty() && real.starts_with(folder == "/" ? folder : folder + "/");
}

}  // namespace

Status parse_external_entry(std::span<const std::byte> entry, int64_t origin, ExternalRef& ref) {
  std::string_view key;
  std::string_view value;
  for (WireReader reader(entry, origin); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.type != WireType::kBytes) continue;
    if (field.number == entry_field::kKey) key = as_text(field.bytes);
    if (field.number == entry_field::kValue) value = as_text(field.bytes);
  }
  if (key == "location") ref.location = value;
  if (key == "offset") {
    OFSDP_ASSIGN_OR_RETURN(ref.offset, parse_count(key, value));
  }
  if (key == "length") {
    OFSDP_ASSIGN_OR_RETURN(ref.length, parse_count(key, value));
  }
  return ok_status();
}

Result<OpenFile> open_external(const std::string& model, const std::string& location) {
  OFSDP_RETURN_IF_ERROR(check_location(location));
  const std::string path = join_path(folder_of(model), location);
  const std::string real = real_path(path);
  OFSDP_REJECT_IF(real.empty(), "external data file {}: {}", printable(path),
                  errno == ENOENT ? "no such file" : std::strerror(errno));
  OFSDP_REJECT_IF(
      !is_inside(real, real_path(folder_of(model))) && !is_inside(real, real_folder(model)),
      "external data file {}: expected a file inside of the model's folder, found a symbolic "
      "link to {}",
      printable(path), printable(real));
  // `real` has no links; do not follow one that replaced it meanwhile.
  return open_for_reading(real, Symlinks::kRefuse);
}

Result<int64_t> external_bytes(const ExternalRef& ref, const OpenFile& file,
                               std::optional<int64_t> expected) {
  OFSDP_REJECT_IF(expected && ref.length && *ref.length != *expected,
                  "external data in {}: expected {} bytes for its type and shape, found {}",
                  file.path, *expected, *ref.length);
  const int64_t left = file.bytes - ref.offset;
  const int64_t bytes = expected ? *expected : ref.length.value_or(left);
  OFSDP_REJECT_IF(left < 0 || bytes > left,
                  "external data in {}: expected {} bytes at offset {}, found {}", file.path, bytes,
                  ref.offset, left < 0 ? 0 : left);
  return bytes;
}

using namespace tensor_field;  // NOLINT: their names say enough here

bool is_data_field(uint32_t number) {
  return (number >= kFloatData && number <= kInt64Data) ||
         (number >= kRawData && number <= kUint64Data);
}

bool half_bytes(uint64_t onnx_type) { return onnx_type == 21 || onnx_type == 22; }

int64_t per_byte(DType dtype) { return is_narrow(dtype) ? 8 / narrow_bits(dtype) : 1; }

uint32_t list_field(DType dtype) {
  if (dtype == DType::kFloat32) return kFloatData;
  if (dtype == DType::kFloat64) return kDoubleData;
  if (dtype == DType::kInt64) return kInt64Data;
  return dtype == DType::kUInt32 || dtype == DType::kUInt64 ? kUint64Data : kInt32Data;
}

int64_t fixed_bytes(uint32_t number) {
  return number == kFloatData ? 4 : number == kDoubleData ? 8 : 0;
}

namespace {

// The data of a message, as far as it was read.
struct DataSeen {
  uint32_t number = 0;  // raw_data or a list; 0: none
  int64_t count = 0;    // elements of a list, bytes of raw_data
  int64_t offset = 0;   // of the first element
  int64_t bytes = 0;    // of the first piece
  int64_t stride = 0;   // 0: irregular
};

Result<int64_t> packed_count(const WireField& field) {
  const auto bytes = static_cast<int64_t>(field.bytes.size());
  const int64_t element = fixed_bytes(field.number);
  if (element != 0) {
    if (bytes % element == 0) return bytes / element;
    return input_error("expected elements of {} bytes in field {}, found {} bytes", element,
                       field.number, bytes);
  }
  const auto last = [](std::byte b) { return (b & std::byte{0x80}) == std::byte{0}; };
  OFSDP_REJECT_IF(!last(field.bytes.back()), "the last number of field {} is cut off",
                  field.number);
  return static_cast<int64_t>(std::ranges::count_if(field.bytes, last));
}

// Elements at equal distances can be addressed; others make a kList.
Status see_list(const WireField& field, DataSeen& seen) {
  const bool packed = field.type == WireType::kBytes && field.number != kStringData;
  if (packed && field.bytes.empty()) return ok_status();
  OFSDP_REJECT_IF(seen.number != 0 && seen.number != field.number,
                  "expected its data in one field, found fields {} and {}", seen.number,
                  field.number);
  int64_t count = 1;
  if (packed) {
    OFSDP_ASSIGN_OR_RETURN(count, packed_count(field));
  }
  const int64_t element = fixed_bytes(field.number);
  const int64_t distance = packed ? element : element + 1;  // a tag of one byte before each
  if (seen.number == 0) {
    seen = {field.number, 0, field.body, field.end - field.body, element == 0 ? 0 : distance};
  } else if (packed || field.body != seen.offset + seen.count * seen.stride) {
    seen.stride = 0;
  }
  seen.count += count;
  return ok_status();
}

Status see_raw(const WireField& field, DataSeen& seen) {
  OFSDP_REJECT_IF(seen.number != 0 && seen.number != kRawData && !field.bytes.empty(),
                  "expected its data in one field, found fields {} and {}", seen.number,
                  field.number);
  if (seen.number != 0 && seen.number != kRawData) return ok_status();
  const auto bytes = static_cast<int64_t>(field.bytes.size());
  seen = {bytes == 0 ? 0u : uint32_t{kRawData}, bytes, field.body, bytes, 0};
  return ok_status();
}

Status see_dims(const WireField& field, std::vector<int64_t>& dims) {
  if (field.type == WireType::kVarint) dims.push_back(static_cast<int64_t>(field.value));
  if (field.type != WireType::kBytes) return ok_status();
  for (WireReader reader(field.bytes, field.body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const uint64_t dim, reader.varint());
    dims.push_back(static_cast<int64_t>(dim));
  }
  return ok_status();
}

// The wire types of a known field, for one value and for a packed list.
struct FieldTypes {
  uint32_t number;
  WireType one, packed;
};

constexpr FieldTypes kFieldTypes[] = {
    {kDataType, WireType::kVarint, WireType::kVarint},
    {kDataLocation, WireType::kVarint, WireType::kVarint},
    {kStringData, WireType::kBytes, WireType::kBytes},
    {kName, WireType::kBytes, WireType::kBytes},
    {kRawData, WireType::kBytes, WireType::kBytes},
    {kExternalData, WireType::kBytes, WireType::kBytes},
    {kFloatData, WireType::kFixed32, WireType::kBytes},
    {kDoubleData, WireType::kFixed64, WireType::kBytes},
    {kDims, WireType::kVarint, WireType::kBytes},
    {kInt32Data, WireType::kVarint, WireType::kBytes},
    {kInt64Data, WireType::kVarint, WireType::kBytes},
    {kUint64Data, WireType::kVarint, WireType::kBytes},
};

Status check_type(const WireField& field) {
  const auto* known = std::ranges::find(kFieldTypes, field.number, &FieldTypes::number);
  const bool right =
      known == std::end(kFieldTypes) || field.type == known->one || field.type == known->packed;
  if (right) return ok_status();
  return input_error("field {} at byte {} has the wrong wire type {}", field.number, field.begin,
                     static_cast<int>(field.type));
}

struct Parser {
  TensorRecord record;
  DataSeen seen;
  ExternalRef external;
  bool is_external = false;

  Status see(const WireField& field) {
    OFSDP_RETURN_IF_ERROR(check_type(field));
    if (field.number == kDims) return see_dims(field, record.dims);
    if (field.number == kExternalData)
      return parse_external_entry(field.bytes, field.body, external);
    if (field.number == kRawData) return see_raw(field, seen);
    if (is_data_field(field.number)) return see_list(field, seen);
    if (field.number == kDataType) record.onnx_type = field.value;
    if (field.number == kName) record.name = as_text(field.bytes);
    if (field.number == kDataLocation) is_external = field.value == 1;
    return ok_status();
  }

  Status see_all(std::span<const std::byte> body, int64_t origin) {
    for (WireReader reader(body, origin); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      OFSDP_RETURN_IF_ERROR(see(field));
    }
    return ok_status();
  }

  // Checks that the data have the field and the number of elements that type and shape demand.
  Status check_data() const {
    const bool raw = seen.number == kRawData;
    const std::optional<int64_t> bytes = record.expected_bytes();
    if (!bytes || (raw && seen.count == *bytes)) return ok_status();
    const std::string what = std::string(dtype_name(record.dtype)) + Shape(record.dims).text();
    if (raw || seen.number == 0) {
      if (*bytes == 0 && seen.number == 0) return ok_status();
      return input_error("expected {} bytes for {}, found {}", *bytes, what, raw ? seen.count : 0);
    }
    OFSDP_REJECT_IF(seen.number != list_field(record.dtype),
                    "expected the data of {} in field {}, found it in field {}", what,
                    list_field(record.dtype), seen.number);
    const int64_t values = per_byte(record.dtype) > 1 ? *bytes : record.numel;
    if (seen.count == values) return ok_status();
    return input_error("expected {} values for {}, found {}", values, what, seen.count);
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
    record.dtype = dtype_of_number(static_cast<int64_t>(record.onnx_type));
    OFSDP_ASSIGN_OR_RETURN(record.numel, checked_numel(record.dims));
    if (is_external) {
      OFSDP_REJECT_IF(seen.number != 0, "expected its data in an external file, found field {}",
                      seen.number);
      record.external = std::move(external);
      return ok_status();
    }
    OFSDP_RETURN_IF_ERROR(check_data());
    place(body, origin);
    return ok_status();
  }
};

}  // namespace

std::optional<int64_t> TensorRecord::expected_bytes() const {
  if (dtype == DType::kUndefined) return std::nullopt;
  const int64_t each = per_byte(dtype);
  return (numel * static_cast<int64_t>(dtype_size(dtype)) + each - 1) / each;
}

std::string TensorRecord::label() const { return "initializer '" + printable(name) + "'"; }

Result<TensorRecord> parse_tensor(std::span<const std::byte> body, int64_t origin) {
  Parser parser;
  Status status = parser.see_all(body, origin);
  if (status.ok()) status = parser.finish(body, origin);
  if (!status.ok()) {
    parser.record.name = string_field(body, kName);  // may follow the wrong field
    return std::move(status).with_prefix(parser.record.label());
  }
  return std::move(parser.record);
}

Status decode_list(std::span<const std::byte> body, DType dtype, int64_t first,
                   std::span<float> dst) {
  const uint32_t number = list_field(dtype);
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  int64_t index = 0;
  auto take = [&](const std::byte* value) {
    const int64_t at = index++ - first;
    if (at < 0 || at >= static_cast<int64_t>(dst.size())) return;
    decode_floats(dtype, value, element, dst.subspan(static_cast<size_t>(at), 1));
  };
  for (WireReader reader(body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.number != number) continue;
    const int64_t fixed = fixed_bytes(number);
    if (fixed != 0) {
      for (size_t i = 0; i + static_cast<size_t>(fixed) <= field.bytes.size();
           i += static_cast<size_t>(fixed)) {
        take(field.bytes.data() + i);
      }
      continue;
    }
    for (WireReader values(field.bytes); !values.done();) {
      OFSDP_ASSIGN_OR_RETURN(const uint64_t value, values.varint());
      take(reinterpret_cast<const std::byte*>(&value));  // its lower 16 bits
    }
  }
  return ok_status();
}

}  // namespace ofsdp::importer
