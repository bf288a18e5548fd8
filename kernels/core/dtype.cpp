#include "kernels/core/dtype.h"

#include <array>

namespace ofsdp::kernels {
namespace {

struct Entry {
  std::string_view name;
  size_t size;
};

constexpr std::array<Entry, 14> kEntries = {{{"undefined", 0},
                                             {"float32", 4},
                                             {"float64", 8},
                                             {"float16", 2},
                                             {"bfloat16", 2},
                                             {"int8", 1},
                                             {"int16", 2},
                                             {"int32", 4},
                                             {"int64", 8},
                                             {"uint8", 1},
                                             {"uint16", 2},
                                             {"uint32", 4},
                                             {"uint64", 8},
                                             {"bool", 1}}};

}  // namespace

size_t dtype_size(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }

std::string_view dtype_name(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 1; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_floating(DType dtype) { return dtype >= DType::kFloat32 && dtype <= DType::kBFloat16; }

bool is_integer(DType dtype) { return dtype >= DType::kInt8 && dtype <= DType::kUInt64; }

}  // namespace ofsdp::kernels
