#include "importer/file/tensor_record.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "importer/file/wire.h"
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {
namespace {

// Calls work(T{}, decode, encode) for `dtype`'s stored type T.
template <typename F>
void with_codec(DType dtype, const F& work) {
  const auto same = [](float v) { return v; };
  const auto narrow = [](double v) { return static_cast<float>(v); };
  if (dtype == DType::kFloat32) return work(float{}, same, same);
  if (dtype == DType::kFloat64) return work(double{}, narrow, same);
  if (dtype == DType::kFloat16) return work(uint16_t{}, half_to_float, float_to_half);
  if (dtype == DType::kBFloat16) return work(uint16_t{}, bfloat16_to_float, float_to_bfloat16);
  OFSDP_CHECK(false, "{} is no floating type", dtype_name(dtype));
}

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

// Returns the folder with the real file at a model's path; empty if it does not exist.
std::string real_folder(const std::string& model) {
  const std::string real = real_path(model);
  return real.empty() ? "" : parent_folder(real);
}

// Returns whether the path `real` is below `folder`; an empty folder contains nothing.
bool is_inside(const std::string& real, const std::string& folder) {
  return !folder.empty() && real.starts_with(folder == "/" ? folder : folder + "/");
}

}  // namespace

// Files align nothing, so elements are copied.
void decode_floats(DType dtype, const std::byte* src, int64_t stride, std::span<float> dst) {
  with_codec(dtype, [&](auto stored, auto decode, auto) {
    for (float& value : dst) {
      std::memcpy(&stored, src, sizeof stored);
      value = decode(stored);
      src += stride;
    }
  });
}

void encode_floats(DType dtype, std::span<const float> src, int64_t stride, std::byte* dst) {
  with_codec(dtype, [&](auto stored, auto, auto encode) {
    for (const float value : src) {
      stored = encode(value);
      std::memcpy(dst, &stored, sizeof stored);
      dst += stride;
    }
  });
}

namespace {

struct IntegerType {
  int onnx_type;
  const char* name;
  DType carrier;
  int bits;
  bool is_signed;
};

constexpr IntegerType kIntegerTypes[] = {
    {2, "uint8", DType::kUInt8, 8, false},    {3, "int8", DType::kInt8, 8, true},
    {4, "uint16", DType::kUInt16, 16, false}, {5, "int16", DType::kInt16, 16, true},
    {6, "int32", DType::kInt32, 32, true},    {21, "uint4", DType::kUInt8, 4, false},
    {22, "int4", DType::kInt8, 4, true},
};

const IntegerType* integer_type(int onnx_type) {
  const auto* found = std::ranges::find(kIntegerTypes, onnx_type, &IntegerType::onnx_type);
  return found == std::end(kIntegerTypes) ? nullptr : found;
}

const IntegerType& known_type(int onnx_type) {
  const IntegerType* type = integer_type(onnx_type);
  OFSDP_CHECK(type != nullptr, "type {} has no integers", onnx_type);
  return *type;
}

// Returns the lower `bits` in `word` as a number.
int64_t number_of(uint64_t word, int bits, bool is_signed) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  word &= mask;
  const bool negative = is_signed && (word >> (bits - 1) & 1) != 0;
  return static_cast<int64_t>(negative ? word | ~mask : word);
}

bool is_signed(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32;
}

int bits_of(const Initializer& place) {
  return place.bits != 0 ? place.bits : static_cast<int>(dtype_size(place.dtype)) * 8;
}

// Returns a list's words; each holds one element or two.
Result<std::vector<uint64_t>> list_words(std::span<const std::byte> body) {
  std::vector<uint64_t> words;
  for (WireReader reader(body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.number != tensor_field::kInt32Data) continue;
    if (field.type == WireType::kVarint) words.push_back(field.value);
    for (WireReader values(field.bytes); !values.done();) {
      OFSDP_ASSIGN_OR_RETURN(const uint64_t word, values.varint());
      words.push_back(word);
    }
  }
  return words;
}

}  // namespace

DType integer_carrier(int onnx_type) {
  const IntegerType* type = integer_type(onnx_type);
  return type == nullptr ? DType::kUndefined : type->carrier;
}

int stored_type(const Initializer& tensor) {
  for (const IntegerType& type : kIntegerTypes) {
    if (type.carrier == tensor.dtype && type.bits == bits_of(tensor)) return type.onnx_type;
  }
  return static_cast<int>(onnx_number(tensor.dtype));
}

std::string integer_name(int onnx_type) {
  const IntegerType* type = integer_type(onnx_type);
  return type == nullptr ? format_text("type {}", onnx_type) : type->name;
}

int Quantization::bits() const { return known_type(onnx_type).bits; }

int64_t Quantization::lowest() const {
  const IntegerType& type = known_type(onnx_type);
  return type.is_signed ? -(int64_t{1} << (type.bits - 1)) : 0;
}

int64_t Quantization::greatest() const {
  const IntegerType& type = known_type(onnx_type);
  return (int64_t{1} << (type.is_signed ? type.bits - 1 : type.bits)) - 1;
}

Status read_integers(const OpenFile& file, const Initializer& place, int64_t first,
                     std::span<int64_t> dst) {
  const int bits = bits_of(place);
  const int64_t per_word = place.bits == 4 ? 2 : 1;
  const auto count = static_cast<int64_t>(dst.size());
  const bool list = place.encoding == Initializer::Encoding::kList;
  const int64_t begin = first / per_word, end = (first + count + per_word - 1) / per_word;
  std::vector<uint64_t> words;
  if (list) {
    std::vector<std::byte> body(static_cast<size_t>(place.bytes));
    OFSDP_RETURN_IF_ERROR(read_exactly(file, place.offset, body));
    OFSDP_ASSIGN_OR_RETURN(words, list_words(body));
    OFSDP_FAULT_IF(static_cast<int64_t>(words.size()) < end, "{}: was cut short", place.name);
    words.erase(words.begin(), words.begin() + begin);
  } else {
    const auto size = dtype_size(place.dtype);
    std::vector<std::byte> bytes(static_cast<size_t>(end - begin) * size);
    OFSDP_RETURN_IF_ERROR(
        read_exactly(file, place.offset + begin * static_cast<int64_t>(size), bytes));
    words.resize(static_cast<size_t>(end - begin));
    for (size_t i = 0; i < words.size(); ++i) std::memcpy(&words[i], bytes.data() + i * size, size);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    const uint64_t word = words[static_cast<size_t>(at / per_word - begin)];
    dst[static_cast<size_t>(i)] =
        number_of(word >> (at % per_word * 4), bits, is_signed(place.dtype));
  }
  return ok_status();
}

void dequantize(const Quantization& q, int64_t first, std::span<const int64_t> integers,
                std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) {
    const auto k = static_cast<size_t>(q.map.index(first + static_cast<int64_t>(i)));
    const int64_t zero = q.zero_points.empty() ? 0 : q.zero_points[k];
    dst[i] = static_cast<float>(integers[i] - zero) * q.scales[k];
  }
}

void requantize(const Quantization& q, int64_t first, std::span<const float> src,
                std::span<int64_t> integers) {
  const auto lowest = static_cast<double>(q.lowest()), greatest = static_cast<double>(q.greatest());
  for (size_t i = 0; i < src.size(); ++i) {
    const auto k = static_cast<size_t>(q.map.index(first + static_cast<int64_t>(i)));
    const auto zero = static_cast<double>(q.zero_points.empty() ? 0 : q.zero_points[k]);
    const double ratio = q.rounds ? static_cast<double>(src[i] / q.scales[k])
                                  : static_cast<double>(src[i]) / static_cast<double>(q.scales[k]);
    const double rounded = std::nearbyint(ratio) + zero;
    integers[i] = static_cast<int64_t>(rounded > lowest ? std::min(rounded, greatest) : lowest);
  }
}

std::vector<std::byte> integer_bytes(const Initializer& place, std::span<const int64_t> integers) {
  const size_t size = dtype_size(place.dtype);
  if (place.bits != 4) {
    std::vector<std::byte> bytes(integers.size() * size);
    for (size_t i = 0; i < integers.size(); ++i) {
      std::memcpy(bytes.data() + i * size, &integers[i], size);  // little-endian
    }
    return bytes;
  }
  std::vector<std::byte> bytes((integers.size() + 1) / 2);
  for (size_t i = 0; i < integers.size(); ++i) {
    bytes[i / 2] |= static_cast<std::byte>((integers[i] & 15) << (i % 2 * 4));
  }
  return bytes;
}

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
  const std::string path = join_path(parent_folder(model), location);
  const std::string real = real_path(path);
  OFSDP_REJECT_IF(real.empty(), "external data file {}: {}", printable(path),
                  errno == ENOENT ? "no such file" : std::strerror(errno));
  OFSDP_REJECT_IF(
      !is_inside(real, real_path(parent_folder(model))) && !is_inside(real, real_folder(model)),
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

// A message's data, as far as it was read.
struct DataSeen {
  uint32_t number = 0;  // raw_data or a list; 0: none
  int64_t count = 0;    // list elements, or raw_data bytes
  int64_t offset = 0;   // to the first element
  int64_t bytes = 0;    // in the first piece
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
  const int64_t distance = packed ? element : element + 1;  // a one-byte tag before each
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

// A known field's wire types, for one value and for a packed list.
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

  // Checks that the data have the field and element count that type and shape demand.
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
    record.dtype = dtype_from_onnx_number(static_cast<int64_t>(record.onnx_type));
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
      take(reinterpret_cast<const std::byte*>(&value));  // the lower 16 bits
    }
  }
  return ok_status();
}

}  // namespace ofsdp::importer
