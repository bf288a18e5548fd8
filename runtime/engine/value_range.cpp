#include "runtime/engine/value_range.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fsdp/comm/rank_sum.h"
#include "kernels/base/readable.h"

namespace ofsdp::runtime {
namespace {

template <typename T>
void add_values(const T* values, size_t count, ValueRange& range) {
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    if (std::isnan(value)) {
      ++range.nans;
    } else if (std::isinf(value)) {
      ++range.infinite;
    } else {
      range.least = std::min(range.least, value);
      range.most = std::max(range.most, value);
    }
  }
  range.count += static_cast<int64_t>(count);
}

// Block by block in float32, which holds them all.
void add_halves(DType dtype, std::span<const std::byte> bytes, ValueRange& range) {
  constexpr size_t kBlock = 1024;
  std::array<float, kBlock> wide;
  const size_t count = bytes.size() / dtype_size(dtype);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    convert_elements(bytes.data() + begin * dtype_size(dtype), dtype,
                     reinterpret_cast<std::byte*>(wide.data()), DType::kFloat32,
                     static_cast<int64_t>(n));
    add_values(wide.data(), n, range);
  }
}

}  // namespace

void ValueRange::add(DType dtype, std::span<const std::byte> bytes) {
  const auto add = [&]<typename T>(T) {
    add_values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T), *this);
  };
  switch (dtype) {
    case DType::kFloat32:
      return add(float{});
    case DType::kFloat64:
      return add(double{});
    case DType::kFloat16:
    case DType::kBFloat16:
      return add_halves(dtype, bytes, *this);
    case DType::kInt8:
      return add(int8_t{});
    case DType::kInt16:
      return add(int16_t{});
    case DType::kInt32:
      return add(int32_t{});
    case DType::kInt64:
      return add(int64_t{});
    case DType::kBool:
    case DType::kUInt8:
      return add(uint8_t{});
    case DType::kUInt16:
      return add(uint16_t{});
    case DType::kUInt32:
      return add(uint32_t{});
    case DType::kUInt64:
      return add(uint64_t{});
    default:
      return;
  }
}

std::string text(const ValueRange& range) {
  if (range.count == 0) return "no values";
  std::string out = "no finite value";
  if (range.least <= range.most) out = format_text("{:.4g} to {:.4g}", range.least, range.most);
  if (range.nans > 0) out += format_text(", {} NaN", readable_count(range.nans));
  if (range.infinite > 0) out += format_text(", {} infinite", readable_count(range.infinite));
  return out;
}

}  // namespace ofsdp::runtime
