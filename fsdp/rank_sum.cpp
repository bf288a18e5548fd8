#include "fsdp/rank_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/core/status.h"
#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

// Vectors of the compiler instead of a pragma: they do not depend on the flags of the build.
using Floats = float __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t kLanes = 16;

// All sources in one pass: a block is read once and written once.
template <int kCount>
[[gnu::always_inline]] inline void sum_of(const float* const* sources, int64_t numel, float* dst) {
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    Floats sum = *reinterpret_cast<const Floats*>(sources[0] + i);
    for (int s = 1; s < kCount; ++s) sum += *reinterpret_cast<const Floats*>(sources[s] + i);
    *reinterpret_cast<Floats*>(dst + i) = sum;
  }
  for (; i < numel; ++i) {
    float sum = sources[0][i];
    for (int s = 1; s < kCount; ++s) sum += sources[s][i];
    dst[i] = sum;
  }
}

// The counts are named so that each loop over sources has a fixed length and unrolls.
OFSDP_MULTIARCH void sum_up_to_four(const float* const* sources, int count, int64_t numel,
                                    float* dst) {
  switch (count) {
    case 1:
      return sum_of<1>(sources, numel, dst);
    case 2:
      return sum_of<2>(sources, numel, dst);
    case 3:
      return sum_of<3>(sources, numel, dst);
    default:
      return sum_of<4>(sources, numel, dst);
  }
}

// More than four: the sum so far is the first source of the next pass, which keeps the order.
void sum_floats(std::span<const std::byte* const> sources, int64_t numel, float* dst,
                const float* onto) {
  const float* pass[4] = {onto};
  int count = onto != nullptr ? 1 : 0;
  for (size_t next = 0; next < sources.size();) {
    while (count < 4 && next < sources.size()) {
      pass[count++] = reinterpret_cast<const float*>(sources[next++]);
    }
    sum_up_to_four(pass, count, numel, dst);
    pass[0] = dst;
    count = 1;
  }
}

constexpr int64_t kPiece = 1024;  // stays in the first-level cache with what it is added to

void add_halves(const std::byte* src, DType dtype, float* dst, int64_t numel) {
  alignas(64) std::array<float, kPiece> wide;
  for (int64_t begin = 0; begin < numel; begin += kPiece) {
    const int64_t count = std::min(kPiece, numel - begin);
    widen(dtype, src + static_cast<size_t>(begin) * sizeof(uint16_t), wide.data(), count);
    const float* pass[2] = {dst + begin, wide.data()};
    sum_up_to_four(pass, 2, count, dst + begin);
  }
}

}  // namespace

void add_elements(const std::byte* src, DType from, float* dst, int64_t numel) {
  if (from != DType::kFloat32) return add_halves(src, from, dst, numel);
  const float* pass[2] = {dst, reinterpret_cast<const float*>(src)};
  sum_up_to_four(pass, 2, numel, dst);
}

void round_elements(float* values, DType to, int64_t numel) {
  if (to == DType::kFloat32) return;
  alignas(64) std::array<uint16_t, kPiece> narrowed;
  for (int64_t begin = 0; begin < numel; begin += kPiece) {
    const int64_t count = std::min(kPiece, numel - begin);
    narrow(values + begin, to, narrowed.data(), count);
    widen(to, narrowed.data(), values + begin, count);
  }
}

void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, int64_t numel,
                       float* dst, const float* onto) {
  if (dtype == DType::kFloat32) return sum_floats(sources, numel, dst, onto);
  if (onto == nullptr) {
    widen(dtype, sources[0], dst, numel);
    sources = sources.subspan(1);
  } else if (onto != dst) {
    std::memcpy(dst, onto, static_cast<size_t>(numel) * sizeof(float));
  }
  for (const std::byte* src : sources) add_halves(src, dtype, dst, numel);
}

void convert_elements(const std::byte* src, DType from, std::byte* dst, DType to, int64_t numel) {
  if (src == dst || numel == 0) return;
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(numel) * dtype_size(from));
    return;
  }
  const WidthSpan span = width_span(from, to);
  OFSDP_CHECK(span != nullptr, "conversion from {} to {}", dtype_name(from), dtype_name(to));
  span(src, dst, 0, numel);
}

}  // namespace ofsdp
