// ONNX Runtime's MultiHeadAttention and GroupQueryAttention.
//
// MultiHeadAttention(query, key, value, bias, key_padding_mask, attention_bias, past_key,
// past_value): q [B, S, D], k [B, L, D], v [B, L, D_v], each plus a part of bias. Or k and v are
// [B, heads, L, width]. Or they are packed: query [B, S, heads, 3, width] alone, or key [B, L,
// heads, 2, width] without value.

#include <cmath>

#include "kernels/ops/attention/microsoft_attention.h"

namespace ofsdp::kernels::ops {
namespace multi_head_attention {
namespace {
namespace multi {

constexpr size_t kInputs = 8;

// Whether one product holds q, k and v; whether one holds k and v.
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

// Returns x plus part `part` of the bias.
Ref biased(BodyBuilder& b, Ref x, const std::vector<Ref>& bias, size_t part) {
  return bias.empty() ? x : b.add(x, bias[part]);
}

// Splits the second to last axis into parts, each as [B, heads, rows, width].
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

// Reads part `part` from operands packed along axis 3.
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

// Adds the bias, which begins at column `first`.
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
                     {.body = multi::body, .costly = true, .past = {{6, 7, 8, 9}, {1, 2}}});
}

// GroupQueryAttention(query, key, value, past_key, past_value, seqlens_k, total_sequence_length,
// cos_cache, sin_cache, position_ids, attention_bias, head_sink, k_scale, v_scale, q_norm_weight,
// k_norm_weight): grouped heads, causal. If key is absent, each query row holds q, k and v. q and k
// are normalized (if they have weights), then rotated (if do_rotary); positions count from 0.
// seqlens_k is each sample's valid keys minus one: rows are padded on the right.

namespace group_query_attention {
namespace {
namespace group {

enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kSeqlens,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale,
  kQueryNorm,
  kKeyNorm,
  kInputs
};

Result<FusedAttention> form(const Attributes& attributes, const Descs& in) {
  OFSDP_RETURN_IF_ERROR(expect_rank(in[kQuery], 3, "query"));
  const Shape& q = in[kQuery].shape;
  const bool packed = !in[kKey].present();
  FusedAttention f;
  f.batch = q[0];
  f.queries = f.keys = q[1];
  f.kv_heads = attributes.i("kv_num_heads", 0);
  const int64_t heads = attributes.i("num_heads", 0);
  if (f.kv_heads <= 0 || heads % f.kv_heads != 0) {
    return input_error("attribute 'kv_num_heads': expected a divisor of num_heads {}, found {}",
                       heads, f.kv_heads);
  }
  const int64_t all = packed ? heads + 2 * f.kv_heads : heads;
  if (heads <= 0 || q[2] % all != 0) {
    return input_error("input 'query': expected rows of {} heads, found {}", all,
                       in[kQuery].text());
  }
  f.heads = heads;
  f.width = f.v_width = q[2] / all;
  read_scores(attributes, f);
  f.softcap = static_cast<double>(attributes.f("softcap", 0));
  f.causal = attributes.i("causal", 1) != 0;
  f.window = std::max<int64_t>(attributes.i("local_window_size", -1), 0);
  f.smooth = attributes.i("smooth_softmax", 0) != 0;
  if (packed) return f;
  const Shape rows{f.batch, f.keys, f.kv_heads * f.width};
  OFSDP_RETURN_IF_ERROR(expect_rank(in[kValue], 3, "value"));
  OFSDP_RETURN_IF_ERROR(expect_shape(in[kKey], rows, "key"));
  OFSDP_RETURN_IF_ERROR(expect_shape(in[kValue], rows, "value"));
  return f;
}

bool rotates(const Attributes& attributes) { return attributes.i("do_rotary", 0) != 0; }

Status check_rotary(const Attributes& attributes, const Descs& in, const FusedAttention& f) {
  if (!rotates(attributes)) return ok_status();
  const Shape& cos = in[kCos].shape;
  const bool fits = cos.rank() == 2 && cos == in[kSin].shape && cos[0] >= f.queries && cos[1] > 0 &&
                    2 * cos[1] <= f.width;
  if (!fits) {
    return input_error(
        "expected cos_cache and sin_cache of one shape, at least [{}, at most {}], "
        "found {} and {}",
        f.queries, f.width / 2, in[kCos].text(), in[kSin].text());
  }
  return expect_shape(in[kPositions], {f.batch, f.queries}, "position_ids");
}

// If the total length is known, it must be the whole prompt's.
Status check_total(const InferContext& c, const FusedAttention& f) {
  const Constant* total = c.constant(kTotal);
  if (total == nullptr || total->desc.numel() != 1) return ok_status();
  const double found = to_doubles(total->desc, total->bytes.data())[0];
  if (found == static_cast<double>(f.keys)) return ok_status();
  return input_error(
      "input 'total_sequence_length': expected {}, the keys without a past, found "
      "{}",
      f.keys, found);
}

Result<Descs> infer(const InferContext& c) {
  Descs in = c.inputs;
  in.resize(std::max<size_t>(in.size(), kInputs));
  OFSDP_ASSIGN_OR_RETURN(const FusedAttention f, form(c.attributes, in));
  OFSDP_RETURN_IF_ERROR(check_no_past(in[kPastKey], 2, "past_key"));
  OFSDP_RETURN_IF_ERROR(check_no_past(in[kPastValue], 2, "past_value"));
  if (in[kSeqlens].present() && in[kSeqlens].numel() != f.batch) {
    return input_error("input 'seqlens_k': expected {} lengths, found {}", f.batch,
                       in[kSeqlens].text());
  }
  OFSDP_RETURN_IF_ERROR(check_total(c, f));
  OFSDP_RETURN_IF_ERROR(check_rotary(c.attributes, in, f));
  OFSDP_RETURN_IF_ERROR(check_bias(in[kBias], f));
  OFSDP_RETURN_IF_ERROR(expect_shape(in[kSink], {f.heads}, "head_sink"));
  OFSDP_RETURN_IF_ERROR(expect_shape(in[kQueryNorm], {f.width}, "q_norm_weight"));
  OFSDP_RETURN_IF_ERROR(expect_shape(in[kKeyNorm], {f.width}, "k_norm_weight"));
  OFSDP_RETURN_IF_ERROR(expect_attribute(c.attributes, "kv_cache_bit_width", 0));
  OFSDP_RETURN_IF_ERROR(refuse_output(c, 3, "output_qk"));
  return outputs_of(f, in[kQuery].dtype);
}

float norm_epsilon(const Attributes& attributes, const char* own) {
  return attributes.f(own, attributes.f("qk_norm_epsilon", 1e-6f));
}

// Normalizes each head in rows [B, S, heads width].
Ref normalized(BodyBuilder& b, Ref x, Ref weight, const char* epsilon, int64_t heads) {
  if (!weight) return x;
  const Shape rows = b.desc(x).shape;
  const Ref apart = b.reshape(x, Shape{rows[0], rows[1], heads, rows[2] / heads});
  const Ref made =
      b.emit1("RMSNormalization", {apart, weight},
              {{"axis", int64_t{-1}}, {"epsilon", norm_epsilon(b.attributes(), epsilon)}});
  return b.reshape(made, rows);
}

// Returns position_ids, or 0, 1, ... for each sample.
Ref positions(BodyBuilder& b, const FusedAttention& f) {
  if (b.input(kPositions)) return b.cast(b.input(kPositions), DType::kInt64);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < f.batch * f.queries; ++i) numbers.push_back(i % f.queries);
  return b.reshape(b.ints(numbers), Shape{f.batch, f.queries});
}

Ref rotated(BodyBuilder& b, Ref x, Ref places, const FusedAttention& f, int64_t heads) {
  Attributes attributes{{"num_heads", heads},
                        {"interleaved", b.attributes().i("rotary_interleaved", 0)}};
  const int64_t dim = 2 * b.desc(b.input(kCos)).shape[1];
  if (dim < f.width) attributes.set("rotary_embedding_dim", dim);
  return b.emit1("RotaryEmbedding", {x, b.input(kCos), b.input(kSin), places}, attributes);
}

void body(BodyBuilder& b) {
  const Descs in = input_descs(b, kInputs);
  const FusedAttention f = *form(b.attributes(), in);
  std::vector<Ref> rows{b.input(kQuery), b.input(kKey), b.input(kValue)};
  if (!rows[1]) {
    const int64_t q = f.heads * f.width, kv = f.kv_heads * f.width;
    rows = b.emit("Split", {rows[0], b.ints({q, kv, kv})}, {{"axis", int64_t{-1}}}, 3);
  }
  rows[0] = normalized(b, rows[0], b.input(kQueryNorm), "q_norm_epsilon", f.heads);
  rows[1] = normalized(b, rows[1], b.input(kKeyNorm), "k_norm_epsilon", f.kv_heads);
  if (rotates(b.attributes())) {
    const Ref places = positions(b, f);
    rows[0] = rotated(b, rows[0], places, f, f.heads);
    rows[1] = rotated(b, rows[1], places, f, f.kv_heads);
  }
  AttentionRefs refs;
  refs.q = split_heads(b, rows[0], f.heads);
  refs.k = split_heads(b, rows[1], f.kv_heads);
  refs.v = split_heads(b, rows[2], f.kv_heads);
  refs.bias = b.input(kBias);
  refs.seqlens = b.input(kSeqlens);
  refs.sink = b.input(kSink);
  b.set_output(0, attend(b, f, refs));
  set_presents(b, refs);
}

HeadElement normalized_heads(HeadElement x, const RefTensor* weight, double epsilon,
                             int64_t width) {
  if (weight == nullptr) return x;
  return [=](int64_t sample, int64_t head, int64_t row, int64_t i) {
    double squares = 0;
    for (int64_t k = 0; k < width; ++k) squares += std::pow(x(sample, head, row, k), 2);
    const double mean = squares / static_cast<double>(width);
    return x(sample, head, row, i) / std::sqrt(mean + epsilon) * (*weight)[i];
  };
}

HeadElement rotated_heads(const ReferenceContext& c, HeadElement x) {
  if (!rotates(c.attributes)) return x;
  const RefTensor &cos = c.inputs[kCos], &sin = c.inputs[kSin];
  const RefTensor* places = given(c.inputs, kPositions);
  const int64_t half = cos.desc.shape[1], rows = c.inputs[0].desc.shape[1];
  const bool neighbours = c.attributes.i("rotary_interleaved", 0) != 0;
  return [=, &cos, &sin](int64_t sample, int64_t head, int64_t row, int64_t i) {
    if (i >= 2 * half) return x(sample, head, row, i);
    const bool second = neighbours ? i % 2 == 1 : i >= half;
    const int64_t pair = neighbours ? i / 2 : i % half;
    const int64_t a = neighbours ? 2 * pair : pair, z = neighbours ? a + 1 : pair + half;
    const double given =
        places == nullptr ? static_cast<double>(row) : (*places)[sample * rows + row];
    const int64_t at = static_cast<int64_t>(given) * half + pair;
    const double first = x(sample, head, row, a), last = x(sample, head, row, z);
    return second ? first * sin[at] + last * cos[at] : first * cos[at] - last * sin[at];
  };
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  Descs in = descs_of(c.inputs);
  in.resize(std::max<size_t>(in.size(), kInputs));
  const FusedAttention f = *form(c.attributes, in);
  const bool packed = !in[kKey].present();
  const RefTensor &q = c.inputs[kQuery], &k = packed ? q : c.inputs[kKey],
                  &v = packed ? q : c.inputs[kValue];
  const int64_t key_column = packed ? f.heads * f.width : 0;
  const int64_t value_column = packed ? key_column + f.kv_heads * f.width : 0;
  const auto prepared = [&](const RefTensor& x, int64_t column, size_t weight,
                            const char* epsilon) {
    return rotated_heads(
        c, normalized_heads(heads_in_rows(x, column, f.width), given(c.inputs, weight),
                            static_cast<double>(norm_epsilon(c.attributes, epsilon)), f.width));
  };
  const AttentionTensors t{prepared(q, 0, kQueryNorm, "q_norm_epsilon"),
                           prepared(k, key_column, kKeyNorm, "k_norm_epsilon"),
                           heads_in_rows(v, value_column, f.width),
                           nullptr,
                           given(c.inputs, kBias),
                           given(c.inputs, kSeqlens),
                           given(c.inputs, kSink)};
  return with_presents(c, reference_attend(f, t, c.output_descs[0]), t);
}

}  // namespace group
}  // namespace
}  // namespace group_query_attention

void add_group_query_attention(Registry& registry) {
  using namespace group_query_attention;
  add_without_kernel(registry, "GroupQueryAttention", {group::infer, nullptr, group::reference},
                     {.body = group::body, .rotary_inputs = {7, 8}, .past = {{3, 4}, {1, 2}}});
}

}  // namespace ofsdp::kernels::ops
