#include "fsdp/comm/rank_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/status.h"
#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::fsdp {
namespace {

// The compiler's vector types instead of a pragma, so that build flags do not matter.
using Floats = float __attribute__((vector_size(64), aligned(4), may_alias));
using Bits32 = uint32_t __attribute__((vector_size(64)));
using Bits16 = uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
constexpr int64_t kLanes = 16;

// Returns no vectors by value, since instruction sets differ in how they pass them.
[[gnu::always_inline]] inline void load(const float* x, Floats& v) {
  v = *reinterpret_cast<const Floats*>(x);
}
[[gnu::always_inline]] inline void load(const BFloat16* x, Floats& v) {
  const auto& bits = *reinterpret_cast<const Bits16*>(x);
  v = reinterpret_cast<Floats>(__builtin_convertvector(bits, Bits32) << 16);
}
[[gnu::always_inline]] inline void load(const Half* x, Floats& v) {
  for (int64_t lane = 0; lane < kLanes; ++lane) v[lane] = as_float(x[lane]);
}

// Sums all sources in one pass, so that each element is read and written once. With kOnto the sum
// starts from dst.
template <int kCount, bool kOnto, typename T>
[[gnu::always_inline]] inline void sum_fixed(const T* const* sources, int64_t numel, float* dst) {
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    Floats sum, next;
    kOnto ? load(dst + i, sum) : load(sources[0] + i, sum);
    for (int s = kOnto ? 0 : 1; s < kCount; ++s) {
      load(sources[s] + i, next);
      sum += next;
    }
    *reinterpret_cast<Floats*>(dst + i) = sum;
  }
  for (; i < numel; ++i) {
    float sum = kOnto ? dst[i] : as_float(sources[0][i]);
    for (int s = kOnto ? 0 : 1; s < kCount; ++s) sum += as_float(sources[s][i]);
    dst[i] = sum;
  }
}

// A case for each count lets the loop over sources unroll.
template <bool kOnto, typename T>
OFSDP_MULTIARCH void sum_up_to_four(const T* const* sources, int count, int64_t numel, float* dst) {
  switch (count) {
    case 1:
      return sum_fixed<1, kOnto>(sources, numel, dst);
    case 2:
      return sum_fixed<2, kOnto>(sources, numel, dst);
    case 3:
      return sum_fixed<3, kOnto>(sources, numel, dst);
    default:
      return sum_fixed<4, kOnto>(sources, numel, dst);
  }
}

// Adds four sources at a time to the sum, which keeps the order.
template <typename T>
void sum_sources(std::span<const std::byte* const> sources, int64_t numel, float* dst,
                 const float* onto) {
  if (onto != nullptr && onto != dst) {
    std::memcpy(dst, onto, static_cast<size_t>(numel) * sizeof(float));
  }
  const T* pass[4];
  for (size_t next = 0; next < sources.size(); next += 4) {
    const size_t count = std::min<size_t>(4, sources.size() - next);
    for (size_t s = 0; s < count; ++s) pass[s] = reinterpret_cast<const T*>(sources[next + s]);
    if (next == 0 && onto == nullptr) {
      sum_up_to_four<false>(pass, static_cast<int>(count), numel, dst);
    } else {
      sum_up_to_four<true>(pass, static_cast<int>(count), numel, dst);
    }
  }
}

constexpr int64_t kPiece = 1024;  // stays in the first-level cache with the rounded values

}  // namespace

void add_elements(const std::byte* src, DType from, float* dst, int64_t numel) {
  with_stored_float(from, [&](auto zero) {
    const auto* values = reinterpret_cast<const decltype(zero)*>(src);
    sum_up_to_four<true>(&values, 1, numel, dst);
  });
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
  with_stored_float(dtype,
                    [&](auto zero) { sum_sources<decltype(zero)>(sources, numel, dst, onto); });
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

}  // namespace ofsdp::fsdp
