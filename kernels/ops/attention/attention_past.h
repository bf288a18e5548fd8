// Keys and values that hold a past: ONNX's Attention takes past_key and past_value [B, heads, past,
// width] beside the new ones, [B, heads, new, width] or packed [B, new, heads width], and works on
// both joined.
//
// Ownership: values. Threads: any. Errors: kInput of check_past; the rest follows it.
#pragma once

#include <array>
#include <vector>

#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/attention/attention_shape.h"

namespace ofsdp::kernels::ops {

// Of Attention's inputs 4 to 6, the past and the lengths, after check_attention.
Status check_past(const InferContext& c, const AttentionInputs& in);

// [B, heads, past + new, width] of K or V.
Shape joined_shape(const TensorDesc& x, int64_t past, const Attributes& attributes);

// `in` with keys and values that hold the past.
AttentionInputs with_past(AttentionInputs in, const Attributes& attributes);

// The gradient of joined keys or values, cut into that of the past and that of the new ones.
void set_joined_grad(GradBuilder& b, Ref grad, size_t output, size_t input, size_t past_input);

// K or V joined with its past (null: none), as [B, heads, keys, width].
std::vector<double> joined_values(const RefTensor& x, const RefTensor* past,
                                  const Attributes& attributes);

// Joins past and new keys (or values), or unpacks heads, into output `output` or the workspace, of
// which it takes its part.
struct JoinedKeys {
  JoinedKeys(const Problem& p, size_t input, size_t past_input, size_t output, size_t& workspace);

  // The bytes of all keys; made by this call where they are not an input.
  const std::byte* get(const KernelArgs& a, size_t input) const;

  bool needed = false, in_workspace = false;
  std::vector<StridedCopy> parts;
  std::array<size_t, 2> inputs{};
  size_t output = 0, offset = 0, skip = 0;
};

}  // namespace ofsdp::kernels::ops
