// Helpers for `accepts` and `create`: checks on operands, shapes, constants and workspace layout.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/core/planned_operands.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

inline bool is_index(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

// A check in `accepts` and the reason for refusing.
struct Condition {
  bool holds;
  const char* otherwise;
};
inline Condition plain(const Problem& p) {
  return {p.all_plain(), "an operand is not in the plain layout"};
}
// Holds if no operand except `these` has a pitch. `these` point into `p`.
inline Condition dense_but(const Problem& p, std::initializer_list<const TensorDesc*> these) {
  const auto holds = [&](const TensorDesc& desc) {
    return desc.pitch == 0 || std::ranges::find(these, &desc) != these.end();
  };
  return {std::ranges::all_of(p.inputs, holds) && std::ranges::all_of(p.outputs, holds),
          "rows of an operand are apart"};
}
inline Condition floats(DType dtype) {
  return {is_32_or_16_bit_float(dtype), "the dtype is none of float32, float16 and bfloat16"};
}
inline Condition alike(bool types) { return {types, "operands differ in their dtypes"}; }
inline Condition same_layout(bool same) { return {same, "operands differ in their layouts"}; }
inline Condition some(const TensorDesc& x) { return {x.numel() > 0, "an operand is empty"}; }
inline Condition supported(bool dtype) { return {dtype, "there is no kernel for the dtype"}; }
inline Condition up_to(bool axes) { return {axes, "there are too many axes"}; }
// Holds if the input is absent or constant.
inline Condition known(const Problem& p, size_t input) {
  return {!p.has_in(input) || p.constant(input) != nullptr,
          "an operand that planning needs is known only at run time"};
}
// Refuses for the first condition that fails.
inline Acceptance accept(std::initializer_list<Condition> conditions) {
  for (const Condition& c : conditions) {
    if (!c.holds) return Acceptance::refuse(c.otherwise);
  }
  return true;
}
// Returns `first` if it refuses, otherwise checks the conditions.
inline Acceptance accept(const Acceptance& first, std::initializer_list<Condition> conditions) {
  return first ? accept(conditions) : first;
}

inline Acceptance accepts_plain(const Problem& p) { return accept({plain(p)}); }
inline Acceptance accepts_plain_floats(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype)});
}

// Makes a kernel that calls `Launcher(params, input 0, input 1, ..., output 0, stream)`. The
// launcher's signature gives the input count.
template <auto Launcher, typename E, typename... A, size_t... I>
cudaError_t launch_with(cudaError_t (*)(const E&, A...), std::index_sequence<I...>, const E& extent,
                        cudaStream_t stream, const Launch& l) {
  return Launcher(extent, l.in(I)..., l.out(0), stream);
}
template <typename E, typename... A>
constexpr auto inputs_of(cudaError_t (*)(const E&, A...)) {
  return std::make_index_sequence<sizeof...(A) - 2>();
}
template <auto Launcher, typename E>
std::unique_ptr<CudaKernel> launches(const E& extent) {
  return make_cuda_kernel([extent](cudaStream_t stream, const Launch& l) {
    return launch_with<Launcher>(Launcher, inputs_of(Launcher), extent, stream, l);
  });
}

inline cudaError_t copy_bytes(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  return to == from ? cudaSuccess
                    : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

// Returns an axis attribute, counted from the front.
inline int axis_of(const Attributes& attributes, const char* name, int64_t otherwise, int rank) {
  const int64_t axis = attributes.i(name, otherwise);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

// A tensor viewed along one axis: [outer, n, inner].
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;
};
inline Lines lines_along(const Shape& shape, int64_t given) {
  const int axis = static_cast<int>(given < 0 ? given + shape.rank() : given);
  return {shape.numel(0, axis), shape[axis], shape.numel(axis + 1, shape.rank())};
}

// Returns a constant integer input, or an empty list if the input is absent.
std::vector<int64_t> known_ints(const Problem& p, size_t input);

// Returns a constant scalar input, or `otherwise` if the input is absent.
double known_scalar(const Problem& p, size_t input, double otherwise);

// Elements that Pad adds before and after each axis; negative values crop.
struct Pads {
  std::vector<int64_t> before, after;
};
Pads known_pads(const Problem& p);

// Describes an operand that ofsdp.JoinRows made.
inline GatheredRows gathered_rows(const TensorDesc& joined, int64_t most, int64_t width) {
  return {.ranks = joined.shape[0],
          .part = joined.shape[1],
          .header = JoinedRows::kHeader,
          .most = most,
          .width = width};
}

// Lays out a workspace: `take` reserves space and returns its offset, a multiple of 256 bytes.
class Places {
 public:
  size_t take(int64_t elements, size_t size) { return take(static_cast<size_t>(elements) * size); }
  size_t take(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += round_up(bytes);
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

inline std::byte* at(void* base, size_t offset) { return static_cast<std::byte*>(base) + offset; }

// Workspace bytes for `count` int64 row indices.
inline size_t row_bytes(int64_t count) {
  return round_up(static_cast<size_t>(count) * sizeof(int64_t));
}

}  // namespace ofsdp::kernels::cuda
