// How ScatterElements and ScatterND put an update onto an element: ONNX's attribute `reduction`.
//
//   with_reduction(kind, f)  f(combine), combine(old, update) the new element
//
// A NaN on either side of max and min stays NaN. Integers wrap. Ownership: none. Threads: any.
#pragma once

#include <optional>
#include <string_view>

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

// Bools are numbers 0 and 1 here, whose sum is their "or".
template <typename T, typename F>
constexpr T combined(T a, T b, const F& f) {
  if constexpr (std::is_same_v<T, bool>) {
    return f(static_cast<int>(a), static_cast<int>(b)) != 0;
  } else {
    return wrapping(a, b, f);
  }
}

template <typename F>
auto with_reduction(ScatterKind kind, const F& f) {
  switch (kind) {
    case ScatterKind::kAdd:
      return f([](auto a, auto b) { return combined(a, b, [](auto p, auto q) { return p + q; }); });
    case ScatterKind::kMul:
      return f([](auto a, auto b) { return combined(a, b, [](auto p, auto q) { return p * q; }); });
    case ScatterKind::kMax:
      return f([](auto a, auto b) { return b > a || b != b ? b : a; });
    case ScatterKind::kMin:
      return f([](auto a, auto b) { return b < a || b != b ? b : a; });
    default:
      return f([](auto, auto b) { return b; });
  }
}

}  // namespace ofsdp::kernels
