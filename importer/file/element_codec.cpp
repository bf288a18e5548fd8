#include "importer/file/element_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/reject.h"
#include "kernels/base/status.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {
namespace {

// Calls work(T{}, decode, encode) for the stored type T of `dtype`.
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

// Returns the lower `bits` of `word` as a number.
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

// Returns the words of a list; each holds one element or two.
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

}  // namespace ofsdp::importer
