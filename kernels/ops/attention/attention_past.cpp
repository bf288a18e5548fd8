#include "kernels/ops/attention/attention_past.h"

#include "kernels/core/memory.h"

namespace ofsdp::kernels::ops {

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

Shape joined_shape(const TensorDesc& x, int64_t past, const Attributes& attributes) {
  if (x.shape.rank() == 4) return {x.shape[0], x.shape[1], x.shape[2] + past, x.shape[3]};
  const int64_t heads = attributes.i("kv_num_heads", 1);
  return {x.shape[0], heads, x.shape[1] + past, x.shape[2] / heads};
}

AttentionInputs with_past(AttentionInputs in, const Attributes& attributes) {
  in.k.shape = joined_shape(in.k, in.past, attributes);
  in.v.shape = joined_shape(in.v, in.past, attributes);
  return in;
}

namespace {

Ref slice_keys(GradBuilder& b, Ref x, int64_t from, int64_t to) {
  return b.emit1("Slice", {x, b.ints({from}), b.ints({to}), b.ints({2})});
}

}  // namespace

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

JoinedKeys::JoinedKeys(const Problem& p, size_t input, size_t past_input, size_t output,
                       size_t& workspace) {
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
  parts.emplace_back(fresh, std::vector<int64_t>{from.batch, from.head, from.row, 1}, to, element);
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

const std::byte* JoinedKeys::get(const KernelArgs& a, size_t input) const {
  if (!needed) return a.inputs[input].data;
  std::byte* to = in_workspace ? a.workspace + offset : a.outputs[output].data;
  parts[0].run(a.inputs[inputs[0]].data, to + skip);
  if (parts.size() > 1) parts[1].run(a.inputs[inputs[1]].data, to);
  return to;
}

}  // namespace ofsdp::kernels::ops
