// Attention(Q, K, V, mask, past_key, past_value, nonpad_kv_seqlen): for each head, Y =
// softmax(scale Q K^T + mask) V. Grouped heads, softcap, causal and window masks, and cached keys
// follow ONNX. Outputs: Y, present_key and present_value (past and new keys joined), and the scores
// at the stage that qk_matmul_output_mode names. 16-bit types have float32 scores, whatever
// softmax_precision says.
//
// Gradient: ofsdp.AttentionGrad(dY, Q, K, V, mask, nonpad_kv_seqlen) on the joined keys returns dQ,
// dK, dV and dmask; kernels/cpu/attention.h has the formulas. Output 3 must not have a gradient.
// https://onnx.ai/onnx/operators/onnx__Attention.html
//
// Our own attributes, which fusion sets if no past is joined (kernels/core/planned_operands.h):
// layouts say where the heads of Q, K and V lie in the input tensors; K and V may then be absent
// and lie in Q's tensor. With ofsdp_result_perm, Y is that Transpose of [B, heads, S, width].

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/attention/attention_shape.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace attention {
namespace {

// --- joining the past: past_key and past_value are [B, heads, past, width], new keys and values
// [B, heads, new, width] or packed [B, new, heads width] ---

// Returns [B, heads, past + new, width] for K or V.
Shape joined_shape(const TensorDesc& x, int64_t past, const Attributes& attributes) {
  if (x.shape.rank() == 4) return {x.shape[0], x.shape[1], x.shape[2] + past, x.shape[3]};
  const int64_t heads = attributes.i("kv_num_heads", 1);
  return {x.shape[0], heads, x.shape[1] + past, x.shape[2] / heads};
}

// Checks inputs 4 to 6: past_key, past_value, lengths. REQUIRES: check_attention has passed.
Status check_past(const InferContext& c, const AttentionInputs& in) {
  if (c.has(4) != c.has(5)) return input_error("past_key and past_value must come together");
  if (c.has(4) && c.has(6)) return input_error("nonpad_kv_seqlen cannot go with past_key");
  for (size_t i = 4; i < 6 && c.has(i); ++i) {
    Shape expected = joined_shape(c.inputs[i - 3], 0, c.attributes);
    expected[2] = in.past;
    if (c.inputs[i].shape == expected) continue;
    return input_error("expected a past of shape {}, found {}", expected.text(),
                       c.inputs[i].text());
  }
  if (c.has(6) && c.inputs[6].shape != Shape{in.q.shape[0]}) {
    return input_error("expected {} lengths, found {}", in.q.shape[0], c.inputs[6].text());
  }
  return ok_status();
}

// Returns `in` with the past joined in front of keys and values. An operand with a layout has no
// past.
AttentionInputs with_past(AttentionInputs in, const Attributes& attributes) {
  if (!attributes.has(kKeyLayout)) in.k.shape = joined_shape(in.k, in.past, attributes);
  if (!attributes.has(kValueLayout)) in.v.shape = joined_shape(in.v, in.past, attributes);
  return in;
}

Ref slice_keys(GradBuilder& b, Ref x, int64_t from, int64_t to) {
  return b.emit1("Slice", {x, b.ints({from}), b.ints({to}), b.ints({2})});
}

// Splits the gradient of joined keys (or values) between the past and the new keys.
void set_joined_grad(GradBuilder& b, Ref grad, size_t output, size_t input, size_t past_input) {
  if (b.grad_output(output)) grad = b.emit1("Add", {grad, b.grad_output(output)});
  const bool has_past = past_input < b.num_inputs() && b.input(past_input);
  const int64_t past = has_past ? b.desc(b.input(past_input)).shape[2] : 0;
  const int64_t keys = b.desc(grad).shape[2];
  if (has_past) b.set_grad(past_input, slice_keys(b, grad, 0, past));
  if (!b.needs_grad(input)) return;
  if (has_past) grad = slice_keys(b, grad, past, keys);
  if (b.desc(b.input(input)).shape.rank() == 3) {
    grad = b.emit1("Transpose", {grad}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    grad = reshape_like(b, grad, b.input(input));
  }
  b.set_grad(input, grad);
}

// Returns K or V joined with the past (null: none), as [B, heads, keys, width].
std::vector<double> joined_values(const RefTensor& x, const RefTensor* past,
                                  const Attributes& attributes) {
  const int64_t before = past == nullptr ? 0 : past->desc.shape[2];
  const Shape shape = joined_shape(x.desc, before, attributes);
  std::vector<double> all;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const auto at = unravel(shape, i);
    if (at[2] < before) {
      all.push_back(past->values[ravel(past->desc.shape, at)]);
    } else if (x.desc.shape.rank() == 4) {
      all.push_back(x.values[ravel(x.desc.shape, {at[0], at[1], at[2] - before, at[3]})]);
    } else {
      const int64_t column = at[1] * shape[3] + at[3];
      all.push_back(x.values[ravel(x.desc.shape, {at[0], at[2] - before, column})]);
    }
  }
  return all;
}

// Returns the tensor that holds K or V, joined with the past unless it has a layout.
RefTensor operand_of(const ReferenceContext& c, size_t input, const char* layout,
                     const TensorDesc& joined) {
  if (!c.attributes.has(layout)) {
    return {joined, joined_values(c.inputs[input], given(c.inputs, input + 3), c.attributes)};
  }
  return c.inputs[held_by(c.inputs, input, 0)];
}

// Joins past and new keys (or values), or unpacks heads, into output `output`, or into the
// workspace if the node lacks that output.
struct JoinedKeys {
  JoinedKeys(const Problem& p, size_t input, size_t past_input, size_t output, size_t& workspace)
      : given(held_by(p, input, 0)) {
    const int64_t past = p.has_in(past_input) ? p.in(past_input).shape[2] : 0;
    needed = p.has_in(past_input) || p.has_out(output);
    if (!needed) return;
    const TensorDesc& x = p.in(input);
    const Shape all = joined_shape(x, past, p.attributes);
    const size_t element = dtype_size(x.dtype);
    Shape fresh = all;
    fresh[2] -= past;
    const HeadStrides from = head_strides(all[1], fresh[2], all[3], x.shape.rank() == 3);
    const std::vector<int64_t> to = strides_of({x.dtype, all});
    parts.emplace_back(fresh, std::vector<int64_t>{from.batch, from.head, from.row, 1}, to,
                       element);
    skip = static_cast<size_t>(past * all[3]) * element;
    if (past > 0) {
      parts.emplace_back(p.in(past_input).shape, strides_of(p.in(past_input)), to, element);
    }
    in_workspace = !p.has_out(output);
    offset = workspace;
    if (in_workspace) {
      workspace += align_up(static_cast<size_t>(all.numel()) * element, kTensorAlignment);
    }
    inputs = {input, past_input};
    this->output = output;
  }

  // Returns the joined keys; joins them first unless an input already holds them.
  const std::byte* get(const KernelArgs& a) const {
    if (!needed) return a.inputs[given].data;
    std::byte* to = in_workspace ? a.workspace + offset : a.outputs[output].data;
    parts[0].run(a.inputs[inputs[0]].data, to + skip);
    if (parts.size() > 1) parts[1].run(a.inputs[inputs[1]].data, to);
    return to;
  }

  size_t given;
  bool needed = false, in_workspace = false;
  std::vector<StridedCopy> parts;
  std::array<size_t, 2> inputs{};
  size_t output = 0, offset = 0, skip = 0;
};

// --- the operator ---

template <typename Inputs>  // descs, one per input; not present(): absent
AttentionInputs inputs_of(const Inputs& list) {
  auto at = [&](size_t i) { return i < list.size() ? list[i] : TensorDesc{}; };
  return {at(0), at(1), at(2), at(3), at(6).present(), at(4).present() ? at(4).shape[2] : 0};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  if (c.has(4) && c.inputs[4].shape.rank() != 4) {
    return input_error("expected a past of 4 axes, found {}", c.inputs[4].text());
  }
  const AttentionInputs in = inputs_of(c.inputs);
  OFSDP_RETURN_IF_ERROR(check_attention(in, c.attributes));
  OFSDP_RETURN_IF_ERROR(check_past(c, in));
  const AttentionInputs all = with_past(in, c.attributes);
  const AttentionShape s = attention_shape(all, c.attributes);
  return std::vector{TensorDesc{in.q.dtype, result_shape(in, s, c.attributes)},
                     TensorDesc{in.k.dtype, all.k.shape}, TensorDesc{in.v.dtype, all.v.shape},
                     TensorDesc{in.q.dtype, {s.batch, s.heads, s.queries, s.keys}}};
}

void grad(GradBuilder& b) {
  if (b.grad_output(3)) {
    return b.fail(input_error(
        "expected no gradient of output 3 (qk_matmul_output), found one: write the scores with "
        "MatMul and Softmax"));
  }
  auto input = [&](size_t i) { return i < b.num_inputs() ? b.input(i) : Ref{}; };
  const bool cache = input(4) || b.grad_output(1) || b.grad_output(2);
  Ref dy = b.grad_output(0);
  if (!dy) {
    if (!cache) return;
    const TensorDesc y = b.desc(b.output(0));
    dy = b.emit1("Expand", {b.scalar(y.dtype, 0), b.ints(y.shape.axes())});
  }
  Attributes attributes = b.attributes();
  attributes.set("past_length", input(4) ? b.desc(input(4)).shape[2] : int64_t{0});
  const Ref mask = input(3);
  const bool mask_grad = mask && b.needs_grad(3) && is_floating(b.desc(mask).dtype);
  // If Q's tensor holds all three operands, one gradient shaped like it holds all three gradients;
  // the mask is then not trained.
  const size_t outputs = mask_grad ? 4 : input(1) ? 3 : 1;
  const auto made = b.emit("ofsdp.AttentionGrad",
                           {dy, b.input(0), cache ? b.output(1) : input(1),
                            cache ? b.output(2) : input(2), mask, input(6)},
                           attributes, outputs);
  b.set_grad(0, made[0]);
  if (mask_grad) b.set_grad(3, b.sum_to(made[3], mask));
  if (cache) {
    set_joined_grad(b, made[1], 1, 1, 4);
    return set_joined_grad(b, made[2], 2, 2, 5);
  }
  if (outputs == 1) return;
  b.set_grad(1, made[1]);
  b.set_grad(2, made[2]);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const AttentionInputs in = with_past(inputs_of(descs_of(c.inputs)), c.attributes);
  const AttentionShape s = attention_shape(in, c.attributes);
  const RefTensor k = operand_of(c, 1, kKeyLayout, in.k), v = operand_of(c, 2, kValueLayout, in.v);
  RefTensor y{c.output_descs[0], {}}, scores{{in.q.dtype, {}}, {}};
  y.values.resize(static_cast<size_t>(y.desc.numel()));
  if (c.output_descs.size() > 3) scores.desc = c.output_descs[3];
  const int64_t mode = c.attributes.i("qk_matmul_output_mode", 0);
  reference_attention(s, c.inputs[0].values, k.values, given(c.inputs, 3), given(c.inputs, 6),
                      [&](const AttentionRow& r) {
                        add_attention_row(s, s.y, r, v.values, y.values);
                        const auto& wanted = mode == 0   ? r.raw
                                             : mode == 1 ? r.capped
                                             : mode == 2 ? r.masked
                                                         : r.probability;
                        scores.values.insert(scores.values.end(), wanted.begin(), wanted.end());
                      });
  std::vector<RefTensor> all = {y, k, v, scores};
  all.resize(c.output_descs.size());
  return all;
}

template <typename T>
Acceptance accepts(const Problem& p) {
  return accepts_attention<T>(p, attention_shape(inputs_of(p.inputs), p.attributes),
                              p.inputs.size(), 3, 6);
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  size_t workspace = 0;
  const JoinedKeys keys(p, 1, 4, 1, workspace), values(p, 2, 5, 2, workspace);
  AttentionInputs in = inputs_of(p.inputs);
  if (keys.needed) in.k.shape = joined_shape(in.k, in.past, p.attributes);
  if (values.needed) in.v.shape = joined_shape(in.v, in.past, p.attributes);
  const AttentionShape s = attention_shape(in, p.attributes);
  const bool scores = p.has_out(3), mask = p.has_in(3), lengths = p.has_in(6);
  const auto mode = static_cast<ScoresOutput>(p.attributes.i("qk_matmul_output_mode", 0));
  const AttentionKernel<T> kernel(s, false, scores);
  return make_kernel(
      [=](const KernelArgs& a) {
        AttentionOperands<T> o{};
        o.q = a.in<T>(0);
        o.k = reinterpret_cast<const T*>(keys.get(a));
        o.v = reinterpret_cast<const T*>(values.get(a));
        o.mask = mask ? a.inputs[3].data : nullptr;
        o.lengths = lengths ? a.in<int64_t>(6) : nullptr;
        o.y = a.out<T>(0);
        o.scores = scores ? a.out<T>(3) : nullptr;
        if (lengths) OFSDP_RETURN_IF_ERROR(check_lengths(s, o.lengths));
        kernel.forward(o, mode, a.workspace + workspace);
        return ok_status();
      },
      workspace + kernel.workspace_bytes());
}

}  // namespace
}  // namespace attention

void add_attention(Registry& registry) {
  using namespace attention;
  registry.add(make_op("Attention", {infer, grad, reference},
                       {{"blocks", accepts<float>, create<float>},
                        {"bfloat16", accepts<BFloat16>, create<BFloat16>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                       {.first_opset = 23, .costly = true, .past = {{4, 5}, {1, 2}}}));
}

}  // namespace ofsdp::kernels::ops
