// The attention operators that ONNX Runtime's optimizers and model builders write. None has a
// kernel: each is ONNX's Attention between projections, rotations and masks, which its body says.
//
// The past is fed empty (importer/passes/decoder_past.h), so present is k and v. Scores that
// mask_index hides get mask_filter_value added; causality and seqlens_k hide for good.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
//
// Shared by their files: checks for infer, which say input or attribute, expected and found
// (kInput); the present outputs; elements of heads for references. Values; any thread.
#pragma once

#include "kernels/core/registry.h"
#include "kernels/ops/attention/fused_attention.h"

namespace ofsdp::kernels::ops {

using Descs = std::vector<TensorDesc>;

Status expect_rank(const TensorDesc& x, int rank, const char* name);
Status expect_shape(const TensorDesc& x, const Shape& shape, const char* name);  // where present
Status expect_attribute(const Attributes& attributes, const char* name, int64_t expected);
Status refuse_output(const InferContext& c, size_t output, const char* name);
// The attribute, which must divide `columns`.
Result<int64_t> heads_of(const Attributes& attributes, const char* name, int64_t columns);

// Descs of output, present key and present value.
Descs outputs_of(const FusedAttention& f, DType dtype);
void set_presents(BodyBuilder& b, const AttentionRefs& refs);

// Heads in rows of `columns`, of which they begin at `first`: [B, rows, columns].
HeadElement heads_in_rows(const RefTensor& x, int64_t first, int64_t width);
// The output with the present ones: heads as [B, heads, rows, width].
std::vector<RefTensor> with_presents(const ReferenceContext& c, RefTensor y,
                                     const AttentionTensors& t);

void add_without_kernel(Registry& registry, const char* name, const OpFunctions& functions,
                        StandardBody body, int inputs);
void add_packed_attention(Registry& registry);
void add_multi_head_attention(Registry& registry);
void add_group_query_attention(Registry& registry);

}  // namespace ofsdp::kernels::ops
