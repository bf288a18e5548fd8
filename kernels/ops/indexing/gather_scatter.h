// The common part of the gather and scatter operators: operand checks, positions for the
// references, and a scatter's gradient, which is the same for elements and slices.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/core/element_types.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// --- how an update joins an element: ONNX's attribute `reduction` ---
//
//   with_reduction(kind, dtype, f)  f<kind, T>(); combined<kind>(old, update) is the new element
//
// A NaN on either side of max or min stays NaN. Integers wrap.

enum class ScatterKind { kNone, kAdd, kMul, kMax, kMin };

inline std::optional<ScatterKind> scatter_kind(std::string_view name) {
  if (name == "none") return ScatterKind::kNone;
  if (name == "add") return ScatterKind::kAdd;
  if (name == "mul") return ScatterKind::kMul;
  if (name == "max") return ScatterKind::kMax;
  if (name == "min") return ScatterKind::kMin;
  return std::nullopt;
}

// Returns the element after the update. Bools are the numbers 0 and 1 here, so their sum is "or".
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

// Calls f<kind, T>() for `dtype`. Types with the same resulting bits share a T: all types of one
// size if updates replace elements; signed and unsigned integers if they add or multiply.
auto with_reduction(ScatterKind kind, DType dtype, const auto& f) {
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

// --- operands, positions, gradients ---

// Emits a zero tensor, made at run time.
Ref zeros(GradBuilder& b, const TensorDesc& desc);

// For GatherElements and ScatterElements. Returns an error unless the indices are int64 or int32,
// have data's rank, and exceed data's shape only along attribute axis.
Status check_element_indices(const InferContext& c);
// Returns which element of data element `i` of the indices names.
size_t element_place(const Shape& data, const RefTensor& indices, int64_t i, int64_t axis);

Acceptance accepts_index_type(const Problem& p);  // plain, int32 or int64 indices in input 1

// For GatherND and ScatterND: returns the shape of the gathered slices, which updates have too.
Result<Shape> tuple_slices(const InferContext& c, int64_t batch_axes);
// Calls f(element of data, element of the slices) in slice order.
void for_tuple_elements(const Shape& data, const RefTensor& indices, int batch_axes,
                        const std::function<void(size_t, size_t)>& f);

Result<ScatterKind> reduction_of(const Attributes& attributes);
double reduce_doubles(ScatterKind kind, double a, double b);

// Sets the gradients of scatter(data, indices, updates); `gather` is the counterpart, `carried` has
// the attributes of both other than reduction:
//   none     d data = dy with zeros at the indices,  d updates = dy there
//   add      d data = dy,                            d updates = dy there
//   mul      d data = dy scattered with the updates, d updates = dy there times all other factors
//   max/min  all operands that equal y, data included, share dy evenly
void scatter_grad(GradBuilder& b, const std::string& scatter, const std::string& gather,
                  const Attributes& carried);

}  // namespace ofsdp::kernels::ops
