// Integer division for Div and Mod: a divisor of 0 is an error of the data, found before the
// processor traps; the smallest integer divided by -1 wraps.
//
// Threads: as Kernel. Owns: with_divisor_check takes the kernel it wraps.
#pragma once

#include <memory>

#include "kernels/core/element_types.h"
#include "kernels/core/kernel.h"
#include "kernels/cpu/integer_math.h"

namespace ofsdp::kernels {

template <typename T>
constexpr T wrapping_quotient(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == T{-1}) return wrapping(T{0}, a, [](auto p, auto q) { return p - q; });
  }
  return static_cast<T>(a / b);
}

// The remainder of wrapping_quotient: it has the sign of a.
template <typename T>
constexpr T wrapping_rest(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == T{-1}) return 0;
  }
  return static_cast<T>(a % b);
}

template <typename T>
Status refuse_zero_divisor(const T* divisor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (divisor[i] == T{0}) return input_error("element {} of the integer divisor is 0", i);
  }
  return ok_status();
}

// `kernel` itself, or, where input 1 has integers, one that looks for zeros first.
inline std::unique_ptr<Kernel> with_divisor_check(const Problem& p,
                                                  std::unique_ptr<Kernel> kernel) {
  if (!is_integer(p.in(1).dtype)) return kernel;
  return make_kernel(
      [inner = std::move(kernel), dtype = p.in(1).dtype, n = p.in(1).numel()](const KernelArgs& a) {
        OFSDP_RETURN_IF_ERROR(with_bits(dtype_size(dtype), [&](auto zero) {
          return refuse_zero_divisor(a.in<decltype(zero)>(1), n);
        }));
        return inner->run(a);
      });
}

}  // namespace ofsdp::kernels
