// Operand checks and shapes that all attention implementations share:
//
//   Attention                       q, k, v, mask, past k, past v, lengths -> y
//   ofsdp.AttentionWithStatistics   q, k, v, mask, lengths -> y, statistics
//   ofsdp.AttentionGrad             dy, q, k, v, mask, lengths, y, statistics -> dq, dk, dv, dmask
//
// kernels/core/planned_operands.h describes how heads lie in these tensors. If k and v (dk and dv)
// are absent, they lie in the tensor of q (dq). Kernels take first-element addresses (HeadOffsets)
// and strides. Cached keys and score outputs are refused; for gradients, k and v already contain
// the past.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/ops/attention/device_attention.h"

namespace ofsdp::kernels::cuda {

// Converts an AttentionShape without mask and lengths, which each call provides.
inline HeadStrides device_strides(const kernels::HeadStrides& s) {
  return {s.batch, s.head, s.row};
}

inline AttentionParams extent_of(const AttentionShape& s, DType dtype) {
  AttentionParams e;
  e.dtype = dtype;
  e.batch = s.batch;
  e.heads = s.heads;
  e.kv_heads = s.kv_heads;
  e.queries = s.queries;
  e.keys = s.keys;
  e.width = s.width;
  e.v_width = s.v_width;
  e.q = device_strides(s.q);
  e.k = device_strides(s.k);
  e.v = device_strides(s.v);
  e.y = device_strides(s.y);
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

// Byte offsets of q, k and v (dq, dk and dv) in their tensors.
struct HeadOffsets {
  size_t q = 0, k = 0, v = 0;
  bool has_k = true, has_v = true;  // if false, part of q's tensor

  std::array<void*, 3> of(void* in_q, void* in_k, void* in_v) const {
    const auto moved = [](void* tensor, size_t bytes) -> void* {
      return static_cast<std::byte*>(tensor) + bytes;
    };
    return {moved(in_q, q), moved(has_k ? in_k : in_q, k), moved(has_v ? in_v : in_q, v)};
  }
};

inline HeadOffsets places_of(const AttentionShape& s, const ops::AttentionInputs& in) {
  const auto bytes = [&](const kernels::HeadStrides& at) {
    return static_cast<size_t>(at.first) * dtype_size(in.q.dtype);
  };
  return {bytes(s.q), bytes(s.k), bytes(s.v), in.k.present(), in.v.present()};
}

inline constexpr int64_t kMaxHeadWidth = 256;

inline AttentionParams operands_params(const Problem& p, const ops::AttentionInputs& in) {
  return extent_of(ops::attention_shape(in, p.attributes), in.q.dtype);
}

inline AttentionParams forward_params(const Problem& p, size_t lengths) {
  return operands_params(p, ops::forward_inputs(p, lengths));
}

inline HeadOffsets forward_offsets(const Problem& p, size_t lengths) {
  const ops::AttentionInputs in = ops::forward_inputs(p, lengths);
  return places_of(ops::attention_shape(in, p.attributes), in);
}

inline AttentionParams gradient_params(const Problem& p) {
  return operands_params(p, ops::gradient_inputs(p));
}

inline HeadOffsets gradient_offsets(const Problem& p) {
  const ops::AttentionInputs in = ops::gradient_inputs(p);
  return places_of(ops::attention_shape(in, p.attributes), in);
}

// Returns the strides of the saved y.
inline HeadStrides kept_strides(const Problem& p) {
  const AttentionShape s = ops::attention_shape(ops::gradient_inputs(p), p.attributes);
  return device_strides(ops::kept_strides(s, p.attributes));
}

inline Acceptance accepts_operands(const Problem& p, const ops::AttentionInputs& in) {
  const DType dtype = in.q.dtype;
  const AttentionParams e = operands_params(p, in);
  const auto same = [&](const TensorDesc& x) { return !x.present() || x.dtype == dtype; };
  return accept(
      {plain(p),
       floats(dtype),
       alike(same(in.k) && same(in.v) && (same(in.mask) || in.mask.dtype == DType::kBool)),
       {e.width <= kMaxHeadWidth && e.v_width <= kMaxHeadWidth, "heads are wider than 256"},
       {e.keys > 0 && e.width > 0 && e.v_width > 0, "an operand is empty"}});
}

inline Acceptance accepts_attention(const Problem& p) {
  if (p.has_in(4) || p.has_in(5)) return Acceptance::refuse("keys are cached");
  for (size_t i = 1; i < p.outputs.size(); ++i) {
    if (p.has_out(i)) return Acceptance::refuse("more than y is wanted");
  }
  return accepts_operands(p, ops::forward_inputs(p, ops::kAttentionLengths));
}

inline Acceptance accepts_attention_with_statistics(const Problem& p) {
  if (!p.has_out(1)) return Acceptance::refuse("statistics are not wanted");
  return accepts_operands(p, ops::forward_inputs(p, ops::kStatisticsLengths));
}

inline Acceptance accepts_attention_grad(const Problem& p) {
  const Acceptance accepted = accept(
      {alike(p.in(0).dtype == p.in(1).dtype && (!p.has_in(6) || p.in(6).dtype == p.in(0).dtype)),
       {p.has_in(6) == p.has_in(7), "y or its statistics are absent"},
       {p.has_out(0) && p.has_out(1) == p.has_in(2) && p.has_out(2) == p.has_in(3),
        "a gradient is not wanted"}});
  return accepted ? accepts_operands(p, ops::gradient_inputs(p)) : accepted;
}

}  // namespace ofsdp::kernels::cuda
