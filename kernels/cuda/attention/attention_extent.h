// An AttentionShape of kernels/cpu as the kernels of kernels/cuda/attention/attention.h take it, without mask
// and lengths, which are memory of a call.
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/attention.h"
#include "kernels/ops/attention/attention_shape.h"

namespace ofsdp::kernels::cuda {

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

}  // namespace ofsdp::kernels::cuda
