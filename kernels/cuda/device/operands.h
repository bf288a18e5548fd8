// Questions that `accepts` and `create` of several implementations ask about a problem's operands.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "kernels/core/joined_rows.h"
#include "kernels/core/kernel.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/rows_of_ranks.h"

namespace ofsdp::kernels::cuda {

inline bool is_index(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

// A condition of `accepts`, and the reason to refuse when it does not hold.
struct Condition {
  bool holds;
  const char* otherwise;
};
inline Condition plain(const Problem& p) {
  return {p.all_plain(), "an operand is not in the plain layout"};
}
// No operand has a pitch but these, which are the problem's own.
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
// Absent, or a constant.
inline Condition known(const Problem& p, size_t input) {
  return {!p.has_in(input) || p.constant(input) != nullptr,
          "an operand that planning needs is known only at run time"};
}
// The first condition that does not hold decides.
inline Acceptance accept(std::initializer_list<Condition> conditions) {
  for (const Condition& c : conditions) {
    if (!c.holds) return Acceptance::refuse(c.otherwise);
  }
  return true;
}
// As `first`, and then the conditions.
inline Acceptance accept(const Acceptance& first, std::initializer_list<Condition> conditions) {
  return first ? accept(conditions) : first;
}

inline Acceptance accepts_plain(const Problem& p) { return accept({plain(p)}); }
inline Acceptance accepts_plain_floats(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype)});
}

// The kernel `Launcher(extent, inputs..., output 0, stream)`, with as many inputs as it has
// parameters for.
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

// An axis attribute, counted from the front.
inline int axis_of(const Attributes& attributes, const char* name, int64_t otherwise, int rank) {
  const int64_t axis = attributes.i(name, otherwise);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

// A tensor seen along one axis: [outer, n, inner].
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;
};
inline Lines lines_along(const Shape& shape, int64_t given) {
  const int axis = static_cast<int>(given < 0 ? given + shape.rank() : given);
  return {shape.numel(0, axis), shape[axis], shape.numel(axis + 1, shape.rank())};
}

// The values of an integer input that is known while planning; empty where it is absent.
std::vector<int64_t> known_ints(const Problem& p, size_t input);

// The value of a scalar that is known while planning, or `otherwise` where it is absent.
double known_scalar(const Problem& p, size_t input, double otherwise);

// The elements that Pad puts before and after each axis, negative where it cuts off.
struct Pads {
  std::vector<int64_t> before, after;
};
Pads known_pads(const Problem& p);

// An operand that ofsdp.JoinRows made: at most `most` rows of each rank.
inline RowsOfRanks rows_of_ranks(const TensorDesc& joined, int64_t most, int64_t width) {
  return {.ranks = joined.shape[0],
          .part = joined.shape[1],
          .header = JoinedRows::kHeader,
          .most = most,
          .width = width};
}

// Parts of a workspace, each at a multiple of 256 bytes: `take` returns the offset of the next one.
class Places {
 public:
  size_t take(int64_t elements, size_t size) { return take(static_cast<size_t>(elements) * size); }
  size_t take(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

inline std::byte* at(void* base, size_t offset) { return static_cast<std::byte*>(base) + offset; }

// Bytes of `count` row numbers in a workspace.
inline size_t row_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(int64_t) + 255) / 256 * 256;
}

}  // namespace ofsdp::kernels::cuda
