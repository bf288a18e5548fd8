// Shared by the gather and scatter operators: checks of their operands, places for their
// references, and the gradient of a scatter, which is the same for elements and for slices.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/core/element_types.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// --- how an update is joined to an element: ONNX's attribute `reduction` ---
//
//   with_reduction(kind, dtype, f)  f<kind, T>(); combined<kind>(old, update) is the new element
//
// A NaN on either side of max and min stays NaN. Integers wrap.

enum class ScatterKind { kNone, kAdd, kMul, kMax, kMin };

inline std::optional<ScatterKind> scatter_kind(std::string_view name) {
  if (name == "none") return ScatterKind::kNone;
  if (name == "add") return ScatterKind::kAdd;
  if (name == "mul") return ScatterKind::kMul;
  if (name == "max") return ScatterKind::kMax;
  if (name == "min") return ScatterKind::kMin;
  return std::nullopt;
}

// Joins the update to an element. Bools are numbers 0 and 1 here: their sum is "or".
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

// Calls f<kind, T>() for elements of `dtype`. Types that give the same bits share a T: all types of
// one size if updates replace elements, signed and unsigned integers if they are added or
// multiplied.
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

// --- operands, places, gradients ---

// A tensor of zeros made at run time.
Ref zeros(GradBuilder& b, const TensorDesc& desc);

// For GatherElements and ScatterElements: int64 or int32 indices of the rank of data, nowhere
// larger but along the attribute axis.
Status check_element_indices(const InferContext& c);
// Returns the element of data that element `i` of the indices names.
size_t element_place(const Shape& data, const RefTensor& indices, int64_t i, int64_t axis);

Acceptance accepts_index_type(const Problem& p);  // plain operands and such indices as input 1

// For GatherND and ScatterND: returns the shape of the gathered slices, and of the updates.
Result<Shape> tuple_slices(const InferContext& c, int64_t batch_axes);
// Calls f(element of data, element of the slices), in the order of the slices.
void for_tuple_elements(const Shape& data, const RefTensor& indices, int batch_axes,
                        const std::function<void(size_t, size_t)>& f);

Result<ScatterKind> reduction_of(const Attributes& attributes);
double reduce_doubles(ScatterKind kind, double a, double b);

// scatter(data, indices, updates) with the attribute reduction, `gather` its counterpart, `carried`
// their other attributes:
//   none     d data = dy with zeros at the indices,  d updates = dy there
//   add      d data = dy,                            d updates = dy there
//   mul      d data = dy scattered with the updates, d updates = dy there times all other factors
//   max/min  dy shared evenly by all, data included, that are equal to y
void scatter_grad(GradBuilder& b, const std::string& scatter, const std::string& gather,
                  const Attributes& carried);

}  // namespace ofsdp::kernels::ops
