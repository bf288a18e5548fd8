// MultiHeadAttention(query, key, value, bias, key_padding_mask, attention_bias, past_key,
// past_value): q [B, S, D], k [B, L, D], v [B, L, D_v], with the three parts of bias added; or
// k and v as [B, heads, L, width]; or packed: query [B, S, heads, 3, width] alone, or key
// [B, L, heads, 2, width] without value.
#include "kernels/ops/attention/microsoft_attention.h"

namespace ofsdp::kernels::ops {
namespace multi_head_attention {
namespace {
namespace multi {

constexpr size_t kInputs = 8;

// One product holds q, k and v; one holds k and v.
bool packs_all(const Descs& in) { return !in[1].present(); }
bool packs_keys(const Descs& in) { return in[1].shape.rank() == 5; }

Status read_query(const Attributes& attributes, const Descs& in, FusedAttention& f) {
  const bool whole = packs_all(in);
  OFSDP_RETURN_IF_ERROR(expect_rank(in[0], whole ? 5 : 3, "query"));
  const Shape& q = in[0].shape;
  OFSDP_ASSIGN_OR_RETURN(f.heads, heads_of(attributes, "num_heads", q[2]));
  f.batch = q[0];
  f.queries = f.keys = q[1];
  f.kv_heads = f.heads;
  f.width = f.v_width = whole ? q[4] : q[2] / f.heads;
  if (!whole) return ok_status();
  return expect_shape(in[0], {f.batch, f.queries, f.heads, 3, f.width}, "query");
}

Status read_keys(const Descs& in, FusedAttention& f) {
  const Shape& k = in[1].shape;
  if (packs_keys(in)) {
    f.keys = k[1];
    return expect_shape(in[1], {f.batch, f.keys, f.heads, 2, f.width}, "key");
  }
  const bool apart = k.rank() == 4;  // [B, heads, L, width]
  OFSDP_RETURN_IF_ERROR(expect_rank(in[1], apart ? 4 : 3, "key"));
  OFSDP_RETURN_IF_ERROR(expect_rank(in[2], k.rank(), "value"));
  const Shape& v = in[2].shape;
  f.keys = k[apart ? 2 : 1];
  f.v_width = apart ? v[3] : v[2] / f.heads;
  const Shape keys =
      apart ? Shape{f.batch, f.heads, f.keys, f.width} : Shape{f.batch, f.keys, f.heads * f.width};
  const Shape values = apart ? Shape{f.batch, f.heads, f.keys, f.v_width}
                             : Shape{f.batch, f.keys, f.heads * f.v_width};
  OFSDP_RETURN_IF_ERROR(expect_shape(in[1], keys, "key"));
  return expect_shape(in[2], values, "value");
}

Result<FusedAttention> form(const Attributes& attributes, const Descs& in) {
  FusedAttention f;
  OFSDP_RETURN_IF_ERROR(read_query(attributes, in, f));
  if (!packs_all(in)) OFSDP_RETURN_IF_ERROR(read_keys(in, f));
  read_scores(attributes, f);
  return f;
}

Result<Descs> infer(const InferContext& c) {
  Descs in = c.inputs;
  in.resize(kInputs);
  OFSDP_ASSIGN_OR_RETURN(const FusedAttention f, form(c.attributes, in));
  OFSDP_RETURN_IF_ERROR(expect_shape(in[3], {f.heads * (2 * f.width + f.v_width)}, "bias"));
  if (in[3].present() && !packs_all(in) && in[1].shape.rank() != 3) {
    return input_error("input 'bias': expected none for a key {}", in[1].text());
  }
  OFSDP_RETURN_IF_ERROR(check_mask_index(in[4], f));
  OFSDP_RETURN_IF_ERROR(check_bias(in[5], f));
  OFSDP_RETURN_IF_ERROR(check_no_past(in[6], 2, "past_key"));
  OFSDP_RETURN_IF_ERROR(check_no_past(in[7], 2, "past_value"));
  OFSDP_RETURN_IF_ERROR(refuse_output(c, 3, "qk"));
  return outputs_of(f, in[0].dtype);
}

// x with its part of the bias.
Ref biased(BodyBuilder& b, Ref x, const std::vector<Ref>& bias, size_t part) {
  return bias.empty() ? x : b.add(x, bias[part]);
}

// Part number `part` of the axis in front of the last, as [B, heads, rows, width].
std::vector<Ref> packed_heads(BodyBuilder& b, Ref x, int64_t parts, const FusedAttention& f) {
  const std::vector<int64_t> ones(static_cast<size_t>(parts), 1);
  std::vector<Ref> made =
      b.emit("Split", {x, b.ints(ones)}, {{"axis", int64_t{3}}}, static_cast<size_t>(parts));
  const int64_t rows = b.desc(x).shape[1];
  for (Ref& part : made) {
    part = b.transpose(b.reshape(part, Shape{f.batch, rows, f.heads, f.width}), {0, 2, 1, 3});
  }
  return made;
}

Ref packed_query(BodyBuilder& b, const FusedAttention& f) {
  if (!b.input(3)) return b.input(0);
  const Ref parts = b.reshape(b.input(3), Shape{3, f.heads, f.width});
  return b.add(b.input(0), b.transpose(parts, {1, 0, 2}));
}

AttentionRefs operands(BodyBuilder& b, const FusedAttention& f, const Descs& in) {
  AttentionRefs refs;
  if (packs_all(in)) {
    const auto parts = packed_heads(b, packed_query(b, f), 3, f);
    refs.q = parts[0];
    refs.k = parts[1];
    refs.v = parts[2];
    return refs;
  }
  std::vector<Ref> bias;
  if (b.input(3)) {
    const int64_t columns = f.heads * f.width;
    bias = b.emit("Split", {b.input(3), b.ints({columns, columns, f.heads * f.v_width})},
                  {{"axis", int64_t{0}}}, 3);
  }
  refs.q = split_heads(b, biased(b, b.input(0), bias, 0), f.heads);
  if (packs_keys(in)) {
    const auto parts = packed_heads(b, b.input(1), 2, f);
    refs.k = parts[0];
    refs.v = parts[1];
    return refs;
  }
  const bool apart = in[1].shape.rank() == 4;
  refs.k = apart ? b.input(1) : split_heads(b, biased(b, b.input(1), bias, 1), f.heads);
  refs.v = apart ? b.input(2) : split_heads(b, biased(b, b.input(2), bias, 2), f.heads);
  return refs;
}

void body(BodyBuilder& b) {
  const Descs in = input_descs(b, kInputs);
  const FusedAttention f = *form(b.attributes(), in);
  AttentionRefs refs = operands(b, f, in);
  refs.mask_index = b.input(4);
  refs.bias = b.input(5);
  b.set_output(0, attend(b, f, refs));
  set_presents(b, refs);
}

// Elements of part `part` of `parts` that are packed along axis 3.
HeadElement packed_elements(const RefTensor& x, int64_t part) {
  return [&x, part](int64_t sample, int64_t head, int64_t row, int64_t i) {
    return x.values[ravel(x.desc.shape, {sample, row, head, part, i})];
  };
}

HeadElement apart_elements(const RefTensor& x) {
  return [&x](int64_t sample, int64_t head, int64_t row, int64_t i) {
    return x.values[ravel(x.desc.shape, {sample, head, row, i})];
  };
}

// Adds the bias of the columns from `first` on.
HeadElement plus_bias(HeadElement element, const RefTensor* bias, int64_t first, int64_t width) {
  if (bias == nullptr) return element;
  return [=](int64_t sample, int64_t head, int64_t row, int64_t i) {
    return element(sample, head, row, i) + (*bias)[first + head * width + i];
  };
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  Descs in = descs_of(c.inputs);
  in.resize(kInputs);
  const FusedAttention f = *form(c.attributes, in);
  const bool whole = packs_all(in), halves = !whole && packs_keys(in);
  const bool apart = !whole && in[1].shape.rank() == 4;
  const auto element = [&](size_t input, int64_t width) {
    if (whole) return packed_elements(c.inputs[0], static_cast<int64_t>(input));
    if (halves && input > 0) return packed_elements(c.inputs[1], static_cast<int64_t>(input) - 1);
    if (apart && input > 0) return apart_elements(c.inputs[input]);
    return heads_in_rows(c.inputs[input], 0, width);
  };
  const RefTensor* bias = given(c.inputs, 3);
  const int64_t columns = f.heads * f.width;
  const AttentionTensors t{plus_bias(element(0, f.width), bias, 0, f.width),
                           plus_bias(element(1, f.width), bias, columns, f.width),
                           plus_bias(element(2, f.v_width), bias, 2 * columns, f.v_width),
                           given(c.inputs, 4),
                           given(c.inputs, 5),
                           nullptr,
                           nullptr};
  return with_presents(c, reference_attend(f, t, c.output_descs[0]), t);
}

}  // namespace multi
}  // namespace
}  // namespace multi_head_attention

void add_multi_head_attention(Registry& registry) {
  using namespace multi_head_attention;
  add_without_kernel(registry, "MultiHeadAttention", {multi::infer, nullptr, multi::reference},
                     multi::body, 1);
}

}  // namespace ofsdp::kernels::ops
