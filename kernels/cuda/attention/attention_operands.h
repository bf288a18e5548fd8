// The operands of Attention, ofsdp.AttentionWithStatistics and ofsdp.AttentionGrad: what of them
// any implementation here takes, and their extent.
//
//   Attention                       q, k, v, mask, past k, past v, lengths -> y
//   ofsdp.AttentionWithStatistics   q, k, v, mask, lengths -> y, statistics
//   ofsdp.AttentionGrad             dy, q, k, v, mask, lengths, y, statistics -> dq, dk, dv, dmask
//
// Heads lie in these tensors as kernels/core/head_layout.h says; absent k and v (dk and dv) are in
// the tensor of q (of dq). Kernels get addresses of first elements (HeadPlaces) and strides.
// Cached keys and the outputs of scores are not here; keys of a gradient hold the past already.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/ops/attention/attention_shape.h"

namespace ofsdp::kernels::cuda {

// An AttentionShape of kernels/cpu as the kernels of kernels/cuda/attention/attention.h take it,
// without mask and lengths, which are memory of a call.
inline HeadStrides in_elements(const kernels::HeadStrides& s) { return {s.batch, s.head, s.row}; }

inline AttentionExtent extent_of(const AttentionShape& s, DType dtype) {
  AttentionExtent e;
  e.dtype = dtype;
  e.batch = s.batch;
  e.heads = s.heads;
  e.kv_heads = s.kv_heads;
  e.queries = s.queries;
  e.keys = s.keys;
  e.width = s.width;
  e.v_width = s.v_width;
  e.q = in_elements(s.q);
  e.k = in_elements(s.k);
  e.v = in_elements(s.v);
  e.y = in_elements(s.y);
  e.scale = static_cast<float>(s.scale);
  e.softcap = static_cast<float>(s.softcap);
  e.causal = s.causal;
  e.left = s.left;
  e.right = s.right;
  e.offset = s.offset;
  e.mask_kind = s.mask == kernels::MaskKind::kNone   ? MaskKind::kNone
                : s.mask == kernels::MaskKind::kBool ? MaskKind::kBool
                                                     : MaskKind::kFloat;
  std::ranges::copy(s.mask_strides, e.mask_strides);
  e.mask_keys = s.mask_keys;
  return e;
}

// The beginnings of q, k and v (dq, dk and dv) in the tensors of a call, in bytes.
struct HeadPlaces {
  size_t q = 0, k = 0, v = 0;
  bool has_k = true, has_v = true;  // else they are in q's tensor

  std::array<void*, 3> of(void* in_q, void* in_k, void* in_v) const {
    const auto moved = [](void* tensor, size_t bytes) -> void* {
      return static_cast<std::byte*>(tensor) + bytes;
    };
    return {moved(in_q, q), moved(has_k ? in_k : in_q, k), moved(has_v ? in_v : in_q, v)};
  }
};

inline HeadPlaces places_of(const AttentionShape& s, const ops::AttentionInputs& in) {
  const auto bytes = [&](const kernels::HeadStrides& at) {
    return static_cast<size_t>(at.first) * dtype_size(in.q.dtype);
  };
  return {bytes(s.q), bytes(s.k), bytes(s.v), in.k.present(), in.v.present()};
}

inline constexpr int64_t kWidestHead = 256;
inline constexpr size_t kAttentionLengths = 6, kKeepingLengths = 4;  // which input

// Descs of the operands; `first` is the place of Q.
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

inline HeadPlaces forward_places(const Problem& p, size_t lengths) {
  const ops::AttentionInputs in = attention_inputs(p, 0, lengths, 0);
  return places_of(ops::attention_shape(in, p.attributes), in);
}

inline ops::AttentionInputs gradient_inputs(const Problem& p) {
  return attention_inputs(p, 1, 5, p.attributes.i("past_length", 0));
}

inline AttentionExtent gradient_extent(const Problem& p) {
  return operands_extent(p, gradient_inputs(p));
}

inline HeadPlaces gradient_places(const Problem& p) {
  const ops::AttentionInputs in = gradient_inputs(p);
  return places_of(ops::attention_shape(in, p.attributes), in);
}

// The strides of the y that a gradient reads.
inline HeadStrides kept_strides(const Problem& p) {
  const AttentionShape s = ops::attention_shape(gradient_inputs(p), p.attributes);
  return in_elements(ops::kept_strides(s, p.attributes));
}

inline Acceptance accepts_operands(const Problem& p, const ops::AttentionInputs& in) {
  const DType dtype = in.q.dtype;
  const AttentionExtent e = operands_extent(p, in);
  const auto same = [&](const TensorDesc& x) { return !x.present() || x.dtype == dtype; };
  return accept(
      {plain(p),
       floats(dtype),
       alike(same(in.k) && same(in.v) && (same(in.mask) || in.mask.dtype == DType::kBool)),
       {e.width <= kWidestHead && e.v_width <= kWidestHead, "heads are wider than 256"},
       {e.keys > 0 && e.width > 0 && e.v_width > 0, "an operand is empty"}});
}

inline Acceptance accepts_attention(const Problem& p) {
  if (p.has_in(4) || p.has_in(5)) return Acceptance::refuse("keys are cached");
  for (size_t i = 1; i < p.outputs.size(); ++i) {
    if (p.has_out(i)) return Acceptance::refuse("more than y is wanted");
  }
  return accepts_operands(p, attention_inputs(p, 0, kAttentionLengths, 0));
}

inline Acceptance accepts_keeping_attention(const Problem& p) {
  if (!p.has_out(1)) return Acceptance::refuse("statistics are not wanted");
  return accepts_operands(p, attention_inputs(p, 0, kKeepingLengths, 0));
}

inline Acceptance accepts_attention_grad(const Problem& p) {
  const Acceptance accepted = accept(
      {alike(p.in(0).dtype == p.in(1).dtype && (!p.has_in(6) || p.in(6).dtype == p.in(0).dtype)),
       {p.has_in(6) == p.has_in(7), "y or its statistics are absent"},
       {p.has_out(0) && p.has_out(1) == p.has_in(2) && p.has_out(2) == p.has_in(3),
        "a gradient is not wanted"}});
  return accepted ? accepts_operands(p, gradient_inputs(p)) : accepted;
}

}  // namespace ofsdp::kernels::cuda
