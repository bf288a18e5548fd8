#include "runtime/data/row_source.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/core/tensor.h"
#include "runtime/data/sampler.h"

namespace ofsdp::runtime {
namespace {

// Returns 24 random bits as a float in [0, 1), exactly.
float uniform(uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1p-24f; }

// Box and Muller: elements 2k and 2k+1 are cosine and sine from one uniform pair.
struct NormalPair {
  float first, second;
};

NormalPair normal_pair(uint64_t key, uint64_t pair) {
  const uint64_t bits = mix_bits(key, pair);
  const float radius = std::sqrt(-2 * std::log(1 - uniform(bits)));
  const float angle = 2 * std::numbers::pi_v<float> * uniform(bits << 32);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Returns a 128-bit product's upper half; the bias is negligible for any real axis.
int64_t integer_below(uint64_t bits, int64_t below) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>(
      static_cast<uint64_t>((Wide{bits} * static_cast<uint64_t>(below)) >> 64));
}

struct Element {
  float real = 0;
  int64_t integer = 0;
};

Element both(int64_t value) { return {static_cast<float>(value), value}; }

Element make_element(SyntheticKind kind, int64_t below, uint64_t key, uint64_t element) {
  switch (kind) {
    case SyntheticKind::kNormal:  // put_normals
      break;
    case SyntheticKind::kUniform:
      return {uniform(mix_bits(key, element)), 0};
    case SyntheticKind::kBelow:
      return both(integer_below(mix_bits(key, element), below));
    case SyntheticKind::kBits:
      return both(static_cast<int64_t>(mix_bits(key, element) >> 63));
    case SyntheticKind::kOnes:
      return both(1);
    case SyntheticKind::kZeros:
      return both(0);
  }
  return {};
}

template <typename T>
void put(std::byte* dst, T value) {
  std::memcpy(dst, &value, sizeof(T));
}

void put_element(std::byte* dst, DType dtype, const Element& element) {
  switch (dtype) {
    case DType::kFloat32:
      return put(dst, element.real);
    case DType::kFloat64:
      return put(dst, static_cast<double>(element.real));
    case DType::kFloat16:
      return put(dst, float_to_half(element.real));
    case DType::kBFloat16:
      return put(dst, float_to_bfloat16(element.real));
    case DType::kBool:
      return put(dst, static_cast<uint8_t>(element.integer != 0));
    default:
      std::memcpy(dst, &element.integer, dtype_size(dtype));  // little-endian: the low bytes
  }
}

// Writes normal numbers, a pair at a time, since small networks wait for it.
void put_normals(std::byte* dst, DType dtype, uint64_t key, uint64_t numel) {
  const size_t size = dtype_size(dtype);
  for (uint64_t i = 0; i < numel; i += 2) {
    const NormalPair pair = normal_pair(key, i / 2);
    put_element(dst + i * size, dtype, {pair.first, 0});
    if (i + 1 < numel) put_element(dst + (i + 1) * size, dtype, {pair.second, 0});
  }
}

}  // namespace

SyntheticData::SyntheticData(uint64_t seed, const std::vector<SyntheticColumn>& columns) {
  for (const SyntheticColumn& column : columns) {
    bound_.push_back({column.name, "synthetic", column.dtype, column.row});
    recipes_.push_back({column.kind, column.below, mix_bits(mix_bits(seed), column.name)});
  }
}

Status SyntheticData::read_rows(int column, std::span<const int64_t> samples, std::byte* dst) {
  const BoundColumn& bound = bound_[static_cast<size_t>(column)];
  const Recipe& recipe = recipes_[static_cast<size_t>(column)];
  const auto numel = static_cast<uint64_t>(bound.row.numel());
  const size_t size = dtype_size(bound.dtype);
  for (int64_t sample : samples) {
    const uint64_t key = mix_bits(recipe.key, static_cast<uint64_t>(sample));
    if (recipe.kind == SyntheticKind::kNormal) {
      put_normals(dst, bound.dtype, key, numel);
      dst += numel * size;
      continue;
    }
    for (uint64_t i = 0; i < numel; ++i, dst += size) {
      put_element(dst, bound.dtype, make_element(recipe.kind, recipe.below, key, i));
    }
  }
  return ok_status();
}

}  // namespace ofsdp::runtime
