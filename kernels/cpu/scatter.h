// How ScatterElements and ScatterND join an update to an element: ONNX's attribute `reduction`.
//
//   with_reduction(kind, dtype, f)  f<kind, T>(); combined<kind>(old, update) is the new element
//
// A NaN on either side of max and min stays NaN. Integers wrap. Threads: any.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/core/element_types.h"
#include "kernels/cpu/integer_math.h"

namespace ofsdp::kernels {

enum class ScatterKind { kNone, kAdd, kMul, kMax, kMin };

inline std::optional<ScatterKind> scatter_kind(std::string_view name) {
  if (name == "none") return ScatterKind::kNone;
  if (name == "add") return ScatterKind::kAdd;
  if (name == "mul") return ScatterKind::kMul;
  if (name == "max") return ScatterKind::kMax;
  if (name == "min") return ScatterKind::kMin;
  return std::nullopt;
}

// The update joined to an element. Bools are numbers 0 and 1 here, whose sum is their "or".
template <ScatterKind kind, typename T>
[[gnu::always_inline]] inline T combined(T a, T b) {
  if constexpr (std::is_same_v<T, bool> &&
                (kind == ScatterKind::kAdd || kind == ScatterKind::kMul)) {
    return kind == ScatterKind::kAdd ? a || b : a && b;
  } else if constexpr (kind == ScatterKind::kAdd) {
    return wrapping(a, b, [](auto p, auto q) { return p + q; });
  } else if constexpr (kind == ScatterKind::kMul) {
    return wrapping(a, b, [](auto p, auto q) { return p * q; });
  } else if constexpr (kind == ScatterKind::kMax) {
    return b > a || b != b ? b : a;
  } else if constexpr (kind == ScatterKind::kMin) {
    return b < a || b != b ? b : a;
  } else {
    return b;
  }
}

// f<kind, T>() for elements of `dtype`. Types whose results have the same bits share a T: of one size
// where updates replace elements, unsigned integers where integers are added and multiplied.
template <typename F>
auto with_reduction(ScatterKind kind, DType dtype, const F& f) {
  using enum ScatterKind;
  const auto wrapping_types = [&]<ScatterKind k>() {
    return with_number(dtype, [&]<typename T>(T) {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        return f.template operator()<k, std::make_unsigned_t<T>>();
      } else {
        return f.template operator()<k, T>();
      }
    });
  };
  const auto all_types = [&]<ScatterKind k>() {
    return with_number(dtype, [&]<typename T>(T) { return f.template operator()<k, T>(); });
  };
  switch (kind) {
    case kAdd:
      return wrapping_types.template operator()<kAdd>();
    case kMul:
      return wrapping_types.template operator()<kMul>();
    case kMax:
      return all_types.template operator()<kMax>();
    case kMin:
      return all_types.template operator()<kMin>();
    default:
      return with_bits(dtype_size(dtype),
                       [&]<typename T>(T) { return f.template operator()<kNone, T>(); });
  }
}

}  // namespace ofsdp::kernels
