#include "kernels/core/dtype.h"

#include <array>

namespace ofsdp::kernels {
namespace {

struct Entry {
  std::string_view name;
  size_t size;
  int64_t onnx;  // in TensorProto.DataType
};

constexpr std::array<Entry, kDTypes> kEntries = {
    {{"undefined", 0, 0},       {"float32", 4, 1},     {"float64", 8, 11},
     {"float16", 2, 10},        {"bfloat16", 2, 16},   {"int8", 1, 3},
     {"int16", 2, 5},           {"int32", 4, 6},       {"int64", 8, 7},
     {"uint8", 1, 2},           {"uint16", 2, 4},      {"uint32", 4, 12},
     {"uint64", 8, 13},         {"bool", 1, 9},        {"float8e4m3fn", 1, 17},
     {"float8e4m3fnuz", 1, 18}, {"float8e5m2", 1, 19}, {"float8e5m2fnuz", 1, 20},
     {"float8e8m0", 1, 24},     {"float4e2m1", 1, 23}, {"int4", 1, 22},
     {"uint4", 1, 21},          {"int2", 1, 26},       {"uint2", 1, 25}}};

}  // namespace

size_t dtype_size(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }

std::string_view dtype_name(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 1; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int64_t number_of_dtype(DType dtype) { return kEntries[static_cast<size_t>(dtype)].onnx; }

DType dtype_of_number(int64_t number) {
  for (size_t i = 1; i < kEntries.size(); ++i) {
    if (kEntries[i].onnx == number) return static_cast<DType>(i);
  }
  return DType::kUndefined;
}

bool is_floating(DType dtype) { return dtype >= DType::kFloat32 && dtype <= DType::kBFloat16; }

bool is_integer(DType dtype) { return dtype >= DType::kInt8 && dtype <= DType::kUInt64; }

}  // namespace ofsdp::kernels
