// Integer arithmetic that wraps instead of being undefined; ONNX leaves overflow open. Used by the
// integer kernels of Add, Sub, Mul, Neg, ...; floats pass through unchanged.
#pragma once

#include <type_traits>

namespace ofsdp::kernels {

template <typename T, typename F>
[[gnu::always_inline]] constexpr T wrapping(T a, T b, const F& f) {
  if constexpr (std::is_integral_v<T>) {
    // Small types would be promoted to int, and its overflow is undefined.
    using U = std::conditional_t<sizeof(T) < sizeof(unsigned), unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

}  // namespace ofsdp::kernels
