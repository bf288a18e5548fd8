// The kernel that a GPU has for an attention, as far as shapes and attributes decide. The CUDA
// library accepts by these rules (kernels/cuda/attention, kernels/cuda/cudnn); `plan` asks them
// where there is no GPU.
#pragma once

#include <algorithm>

#include "kernels/core/kernel.h"
#include "kernels/ops/attention/attention_shape.h"

namespace ofsdp::kernels::ops {

// Inputs of a problem: of Attention and ofsdp.AttentionWithStatistics, whose lengths are input
// `lengths`, and of ofsdp.AttentionGrad. attention_operands.h lists them.
inline constexpr size_t kAttentionLengths = 6, kStatisticsLengths = 4, kGradientLengths = 5;

inline AttentionInputs inputs_from(const Problem& p, size_t first, size_t lengths, int64_t past) {
  const auto at = [&](size_t i) { return p.has_in(i) ? p.in(i) : TensorDesc{}; };
  return {at(first), at(first + 1), at(first + 2), at(first + 3), p.has_in(lengths), past};
}
inline AttentionInputs forward_inputs(const Problem& p, size_t lengths) {
  return inputs_from(p, 0, lengths, 0);
}
inline AttentionInputs gradient_inputs(const Problem& p) {
  return inputs_from(p, 1, kGradientLengths, p.attributes.i("past_length", 0));
}

// The form in which cuDNN gets a mask: none, a length per sample, or an addend per score.
enum class MaskUse { kNone, kLengths, kBias };

inline MaskUse mask_use(const AttentionShape& s, const Attributes& attributes) {
  if (s.mask == kernels::MaskKind::kNone) return s.padded ? MaskUse::kLengths : MaskUse::kNone;
  const bool one_row = s.mask_strides[2] == 0 || s.queries == 1;
  const bool band = attributes.has(kMaskBand) && s.queries == s.keys && s.offset == 0;
  const bool one_head = s.mask_strides[1] == 0 || s.heads == 1;
  return one_head && (one_row || band) ? MaskUse::kLengths : MaskUse::kBias;
}

// Returns the narrower of two bounds of a window; -1: open.
inline int64_t narrower(int64_t a, int64_t b) {
  return a < 0 || b < 0 ? std::max(a, b) : std::min(a, b);
}

// Returns the shape with a mask that says the same of a key to all queries: its band (kMaskBand)
// becomes the window. REQUIRES: mask_use is kLengths.
inline AttentionShape with_one_row(AttentionShape s, const Attributes& attributes) {
  const std::vector<int64_t> band = attributes.ints(kMaskBand);
  if (s.mask_strides[2] == 0 || band.size() != 2) return s;
  s.mask_strides[3] += s.mask_strides[2];  // element (i, i)
  s.mask_strides[2] = 0;
  s.left = narrower(s.left, band[0]);
  s.right = narrower(s.right, band[1]);
  return s;
}

// Keys after the query that it may see; -1: all.
inline int64_t keys_ahead(const AttentionShape& s) { return s.causal ? 0 : s.right; }

// The fewest keys of a sample with which each query sees one. `s`: with_one_row.
inline int64_t fewest_keys(const AttentionShape& s) {
  if (s.padded) return std::max<int64_t>(1, keys_ahead(s) < 0 ? 1 : s.queries - keys_ahead(s));
  return std::max<int64_t>(1, s.left < 0 ? 1 : s.queries + s.offset - s.left);
}

// Returns whether cuDNN is asked for a problem, which it may still decline. Its diagonal begins at
// the first key, or ends at the last.
inline Acceptance takes_cudnn(const AttentionShape& given, const Attributes& attributes,
                              DType dtype) {
  constexpr int64_t kPack = 8, kWidest = 256;
  const auto bytes_apart = [](const HeadStrides& at) { return at.first % kPack != 0; };
  const MaskUse use = mask_use(given, attributes);
  const AttentionShape s = use == MaskUse::kLengths ? with_one_row(given, attributes) : given;
  const bool window = s.left >= 0 || keys_ahead(s) >= 0, from_first = s.offset == 0;
  if (!is_16_bit_float(dtype)) return Acceptance::refuse("cuDNN takes 16 bits only");
  if (s.width % kPack != 0 || s.v_width % kPack != 0 || std::max(s.width, s.v_width) > kWidest) {
    return Acceptance::refuse("cuDNN takes heads of a multiple of 8 elements, up to 256");
  }
  if (bytes_apart(s.q) || bytes_apart(s.k) || bytes_apart(s.v)) {
    return Acceptance::refuse("heads begin between 16 bytes");
  }
  if (s.padded && s.mask != kernels::MaskKind::kNone) {
    return Acceptance::refuse("there are lengths and a mask");
  }
  if (window && !s.padded && !from_first &&
      (s.offset != s.keys - s.queries || use != MaskUse::kNone)) {
    return Acceptance::refuse("the diagonal neither begins at the first key nor ends at the last");
  }
  if (!s.padded && fewest_keys(s) > s.keys) return Acceptance::refuse("a query sees no key");
  return true;
}

// Whether our kernels for tensor cores take a problem.
inline Acceptance takes_tensor_cores(const AttentionShape& s, DType dtype) {
  constexpr int64_t kMost = int64_t{1} << 30, kWidest = 128;
  return accept_if(is_16_bit_float(dtype) && !(s.softcap > 0) &&
                       std::max(s.width, s.v_width) <= kWidest && s.queries < kMost &&
                       s.keys < kMost,
                   "tensor cores take 16 bits, heads up to 128 wide and no softcap");
}

// The names of implementations, in the order in which they are asked.
inline constexpr const char* kCudnnByMask[] = {"cudnn", "cudnn by lengths", "cudnn with a bias"};
inline constexpr const char* kTensorCores = "tensor cores";
inline constexpr const char* kCudaCores = "own";

// Returns the implementation that a GPU has for an Attention or its gradient, if the forward pass
// keeps what the gradient reads.
inline KernelChoice device_choice(const std::string& op, const Problem& p) {
  const bool gradient = op == "ofsdp.AttentionGrad";
  const size_t lengths = op == "Attention" ? kAttentionLengths : kStatisticsLengths;
  const AttentionInputs in = gradient ? gradient_inputs(p) : forward_inputs(p, lengths);
  const AttentionShape s = attention_shape(in, p.attributes);
  const bool dmask = gradient && p.has_out(3);
  const Acceptance cudnn = dmask ? Acceptance::refuse("the mask's gradient is wanted")
                                 : takes_cudnn(s, p.attributes, in.q.dtype);
  const char* const name = kCudnnByMask[static_cast<int>(mask_use(s, p.attributes))];
  if (cudnn) return {name, {}};
  const Acceptance tensor_cores = takes_tensor_cores(s, in.q.dtype);
  if (tensor_cores) return {kTensorCores, {{name, cudnn.reason()}}};
  return {kCudaCores, {{name, cudnn.reason()}, {kTensorCores, tensor_cores.reason()}}};
}

}  // namespace ofsdp::kernels::ops
