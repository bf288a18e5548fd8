// Parts of image normalizations: batch normalization's channels, and the list of implementations.
#pragma once

#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/normalization.h"

namespace ofsdp::kernels::ops {

// Returns x's extent as [N, C, d...]; a vector is N samples with one channel. Without inner axes
// both layouts are the same, and channels last is the faster order.
inline ChannelNormParams batch_norm_extent(const TensorDesc& x) {
  const Shape& s = x.shape;
  if (s.rank() < 2) return {s.numel(), 1, 1, false};
  const int64_t inner = s.numel(2, s.rank());
  return {s[0], s[1], inner, x.layout == Layout::kChannelsLast || inner == 1};
}

// Accepts images (the first `images` inputs, which must be present, and output 0) if they have type
// T and one layout. Other operands that are present must be RealOf<T>.
template <typename T, size_t images>
Acceptance accepts_images(const Problem& p) {
  const auto fits = [](bool image, const TensorDesc& desc) {
    return !desc.present() || desc.dtype == (image ? dtype_of<T>() : dtype_of<RealOf<T>>());
  };
  bool types = true, layouts = true;
  for (size_t i = 0; i < p.inputs.size(); ++i) types = types && fits(i < images, p.in(i));
  for (size_t i = 0; i < p.outputs.size(); ++i) types = types && fits(i == 0, p.out(i));
  for (size_t i = 0; i < images; ++i) layouts = layouts && p.in(i).layout == p.out(0).layout;
  if (!types) return Acceptance::refuse(not_of_type<T>());
  return accept_if(layouts, "operands of several layouts");
}

// Returns an operator's implementations; the first that accepts a problem is taken: float32, called
// `name`; bfloat16, which reads and writes the first `images` inputs and output 0 as they are,
// other operands in float32; float16, through float32 as a whole, since gcc does not vectorise
// float16 sums; float64. create32, create_bfloat16, create64: make the kernel from a Problem.
template <size_t images, auto create32, auto create_bfloat16, auto create64>
std::vector<Implementation> image_kernels(const char* name) {
  return {
      {name, accepts_images<float, images>, create32},
      in_float32_but("bfloat16", images, {"", accepts_images<BFloat16, images>, create_bfloat16}),
      in_float32<accepts_images<float, images>, create32>(),
      {"float64", accepts_images<double, images>, create64}};
}

}  // namespace ofsdp::kernels::ops
