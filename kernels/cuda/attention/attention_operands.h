// The operands of Attention, ofsdp.AttentionWithStatistics and ofsdp.AttentionGrad: what of them any
// implementation here takes, and their extent.
//
//   Attention                       q, k, v, mask, past k, past v, lengths -> y
//   ofsdp.AttentionWithStatistics   q, k, v, mask, lengths -> y, statistics
//   ofsdp.AttentionGrad             dy, q, k, v, mask, lengths, y, statistics -> dq, dk, dv, dmask
//
// Cached keys and the outputs of scores are not here; keys of a gradient hold the past already.
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "kernels/cuda/attention/attention_extent.h"
#include "kernels/cuda/device/operands.h"

namespace ofsdp::kernels::cuda {

inline constexpr int64_t kWidestHead = 256;
inline constexpr size_t kAttentionLengths = 6, kKeepingLengths = 4;  // which input

// Where the operands of a call begin; `first` is the place of Q.
inline ops::AttentionInputs attention_inputs(const Problem& p, size_t first, size_t lengths,
                                             int64_t past) {
  const auto at = [&](size_t i) { return p.has_in(i) ? p.in(i) : TensorDesc{}; };
  return {at(first), at(first + 1), at(first + 2), at(first + 3), p.has_in(lengths), past};
}

inline AttentionExtent operands_extent(const Problem& p, const ops::AttentionInputs& in) {
  return extent_of(ops::attention_shape(in, p.attributes), in.q.dtype);
}

inline AttentionExtent forward_extent(const Problem& p, size_t lengths) {
  return operands_extent(p, attention_inputs(p, 0, lengths, 0));
}

inline ops::AttentionInputs gradient_inputs(const Problem& p) {
  return attention_inputs(p, 1, 5, p.attributes.i("past_length", 0));
}

inline AttentionExtent gradient_extent(const Problem& p) {
  return operands_extent(p, gradient_inputs(p));
}

// Of the y that a gradient reads.
inline HeadStrides kept_strides(const Problem& p) {
  const AttentionShape s = ops::attention_shape(gradient_inputs(p), p.attributes);
  return in_elements(ops::kept_strides(s, p.attributes));
}

inline bool accepts_operands(const Problem& p, const ops::AttentionInputs& in) {
  const DType dtype = in.q.dtype;
  const AttentionExtent e = operands_extent(p, in);
  const bool mask = !in.mask.present() || in.mask.dtype == dtype || in.mask.dtype == DType::kBool;
  return p.all_plain() && is_float(dtype) && in.k.dtype == dtype && in.v.dtype == dtype && mask &&
         e.width <= kWidestHead && e.v_width <= kWidestHead && e.keys > 0 && e.width > 0 &&
         e.v_width > 0;
}

inline bool accepts_attention(const Problem& p) {
  for (const size_t cached : {size_t{4}, size_t{5}}) {
    if (p.has_in(cached)) return false;
  }
  for (size_t i = 1; i < p.outputs.size(); ++i) {
    if (p.has_out(i)) return false;
  }
  return accepts_operands(p, attention_inputs(p, 0, kAttentionLengths, 0));
}

inline bool accepts_keeping_attention(const Problem& p) {
  return p.has_out(1) && accepts_operands(p, attention_inputs(p, 0, kKeepingLengths, 0));
}

inline bool accepts_attention_grad(const Problem& p) {
  const bool kept = !p.has_in(6) || p.in(6).dtype == p.in(0).dtype;
  return p.in(0).dtype == p.in(1).dtype && kept && p.has_in(6) == p.has_in(7) && p.has_out(0) &&
         p.has_out(1) && p.has_out(2) && accepts_operands(p, gradient_inputs(p));
}

}  // namespace ofsdp::kernels::cuda
