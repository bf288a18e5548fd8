#include "importer/file/tensor_data.h"

#include <algorithm>

#include "importer/file/element_codec.h"

namespace ofsdp::importer {

using namespace tensor_field;  // NOLINT: this file is about them

namespace {

Result<int64_t> packed_count(const WireField& field) {
  const auto bytes = static_cast<int64_t>(field.bytes.size());
  const int64_t element = fixed_bytes(field.number);
  if (element != 0) {
    if (bytes % element == 0) return bytes / element;
    return input_error("expected elements of {} bytes in field {}, found {} bytes", element,
                       field.number, bytes);
  }
  const auto last = [](std::byte b) { return (b & std::byte{0x80}) == std::byte{0}; };
  if (!last(field.bytes.back())) {
    return input_error("the last number of field {} is cut off", field.number);
  }
  return static_cast<int64_t>(std::ranges::count_if(field.bytes, last));
}

}  // namespace

bool is_data_field(uint32_t number) {
  return (number >= kFloatData && number <= kInt64Data) ||
         (number >= kRawData && number <= kUint64Data);
}

uint32_t list_field(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return kFloatData;
    case DType::kFloat64:
      return kDoubleData;
    case DType::kInt64:
      return kInt64Data;
    case DType::kUInt32:
    case DType::kUInt64:
      return kUint64Data;
    default:
      return kInt32Data;
  }
}

int64_t fixed_bytes(uint32_t number) {
  return number == kFloatData ? 4 : number == kDoubleData ? 8 : 0;
}

// Elements that follow one another at equal distances can be addressed; others make a kList.
Status see_list(const WireField& field, DataSeen& seen) {
  const bool packed = field.type == WireType::kBytes && field.number != kStringData;
  if (packed && field.bytes.empty()) return ok_status();
  if (seen.number != 0 && seen.number != field.number) {
    return input_error("expected its data in one field, found fields {} and {}", seen.number,
                       field.number);
  }
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
  if (seen.number != 0 && seen.number != kRawData && !field.bytes.empty()) {
    return input_error("expected its data in one field, found fields {} and {}", seen.number,
                       field.number);
  }
  if (seen.number != 0 && seen.number != kRawData) return ok_status();
  const auto bytes = static_cast<int64_t>(field.bytes.size());
  seen = {bytes == 0 ? 0u : uint32_t{kRawData}, bytes, field.body, bytes, 0};
  return ok_status();
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
