// Elements that index tensors name.
//
//   with_index(dtype, f)  f(T{}) with int64_t or int32_t, ONNX's index types
//   Indices               a tensor's indices, in either type
//   wrapped(index, n)     index + n if the index is negative
//   check_indices         an error that names the first index outside -n..n-1
//   ElementPlaces         for GatherElements and ScatterElements: index (o, k, j) in the index
//                         tensor means data element outer_at[o] + index * step + inner_at[j]
//   TuplePlaces           for GatherND and ScatterND: an index tuple means a slice of the data
//
// Made while planning. Errors are input errors.
#pragma once

#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cpu/loops.h"

namespace ofsdp::kernels {

inline bool is_index(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kInt32; }

auto with_index(DType dtype, const auto& f) {
  return dtype == DType::kInt32 ? f(int32_t{}) : f(int64_t{});
}

inline int64_t wrapped(int64_t index, int64_t n) { return index < 0 ? index + n : index; }

// Checks the width at each index, so that loops over indices compile once.
class Indices {
 public:
  explicit Indices(const TensorView& view)
      : narrow_(view.desc.dtype == DType::kInt32 ? view.as<const int32_t>() : nullptr),
        wide_(view.as<const int64_t>()) {}
  int64_t operator[](int64_t i) const { return narrow_ != nullptr ? narrow_[i] : wide_[i]; }

 private:
  const int32_t* narrow_;  // null: wide
  const int64_t* wide_;
};

Status check_indices(const auto& indices, int64_t count, int64_t n) {
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] >= -n && indices[i] < n) continue;
    return input_error("index {} at element {} is outside -{}..{}", indices[i], i, n, n - 1);
  }
  return ok_status();
}

struct ElementPlaces {
  Lines lines;  // the index tensor along the axis
  int64_t n;    // axis size in the data
  int64_t step;
  std::vector<int64_t> outer_at, inner_at;

  ElementPlaces(const Shape& data, const Shape& indices, int64_t axis);

  // Calls f(data element, index tensor element), in rising order within a line. A thread takes
  // whole lines, so no two threads touch the same data element.
  void for_each(const Indices& indices, const auto& f) const {
    for_line_blocks(lines, [&](int64_t o, int64_t begin, int64_t end) {
      const int64_t size = n, stride = step, count = lines.n;
      const int64_t base = outer_at[static_cast<size_t>(o)];
      const int64_t* inner = inner_at.data();
      if (end - begin == 1) {
        const int64_t first = lines.at(o, 0, begin), across = lines.inner;
        const int64_t start = base + inner[begin];
        for (int64_t k = 0; k < count; ++k) {
          const int64_t at = first + k * across;
          f(start + wrapped(indices[at], size) * stride, at);
        }
        return;
      }
      for (int64_t k = 0; k < count; ++k) {
        const int64_t row = lines.at(o, k, 0);
        for (int64_t j = begin; j < end; ++j) {
          f(base + wrapped(indices[row + j], size) * stride + inner[j], row + j);
        }
      }
    });
  }
};

struct TuplePlaces {
  int64_t tuples;     // index tuples
  int64_t per_batch;  // index tuples for each batch entry
  int64_t batch_step;
  int64_t slice;                      // elements a tuple names
  std::vector<int64_t> sizes, steps;  // for each tuple member

  // `indices` [batch..., ..., m], `data` [batch..., m axes, slice...]
  TuplePlaces(const Shape& data, const Shape& indices, int batch_axes);

  Status check(const int64_t* indices) const;
  // Returns the first element in the slice that tuple `t` names.
  int64_t place(const int64_t* indices, int64_t t) const {
    const auto members = static_cast<int64_t>(sizes.size());
    int64_t at = t / per_batch * batch_step;
    for (int64_t i = 0; i < members; ++i) {
      const auto member = static_cast<size_t>(i);
      at += wrapped(indices[t * members + i], sizes[member]) * steps[member];
    }
    return at;
  }
};

}  // namespace ofsdp::kernels
