// The common part of ONNX Runtime's attention operators, then Attention with packed weights.

#include "kernels/ops/attention/microsoft_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns 0, 1, ..., count - 1 in `dtype`, as [1, 1, 1, count].
Ref counting(BodyBuilder& b, DType dtype, int64_t count) {
  std::vector<double> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
  Constant constant{{dtype, Shape{1, 1, 1, count}}, {}};
  constant.bytes.resize(constant.desc.bytes());
  from_doubles(numbers, constant.desc, constant.bytes.data());
  return b.constant(std::make_shared<const Constant>(std::move(constant)));
}

// Returns element `part` for each sample from a list [parts B], as [B, 1, 1, 1].
Ref each_sample(BodyBuilder& b, Ref list, const FusedAttention& f, int64_t part) {
  const Ref flat = b.reshape(list, Shape{b.desc(list).numel()});
  const Ref mine = b.slice(flat, 0, part * f.batch, (part + 1) * f.batch);
  return b.reshape(mine, Shape{f.batch, 1, 1, 1});
}

bool is_no_mask(const TensorDesc& mask, const FusedAttention& f) {
  return !mask.present() ||
         (mask.shape.rank() == 2 && mask.shape[1] == 1 && mask.shape != Shape{f.batch, f.keys});
}

// Returns whether each key is seen, from a mask_index with two axes or more.
Ref seen_in_mask(BodyBuilder& b, Ref mask, const FusedAttention& f) {
  const int rank = b.desc(mask).shape.rank();
  if (rank == 2) mask = b.reshape(mask, Shape{f.batch, 1, 1, f.keys});
  if (rank == 3) mask = b.reshape(mask, Shape{f.batch, 1, f.queries, f.keys});
  if (rank == 4) mask = b.slice(b.slice(mask, 2, 0, f.queries), 3, 0, f.keys);
  return b.emit1("Greater", {mask, b.like(mask, 0)});
}

// The same from lengths, or from ends and starts.
Ref seen_in_lengths(BodyBuilder& b, Ref mask, const FusedAttention& f) {
  const Ref at = counting(b, b.desc(mask).dtype, f.keys);
  const Ref before_end = b.emit1("Less", {at, each_sample(b, mask, f, 0)});
  if (b.desc(mask).numel() != 2 * f.batch) return before_end;
  const Ref from_start = b.emit1("GreaterOrEqual", {at, each_sample(b, mask, f, 1)});
  return b.emit1("And", {before_end, from_start});
}

// Returns mask_index as an addend for the scores; none if it hides nothing.
Ref mask_addend(BodyBuilder& b, Ref mask, const FusedAttention& f) {
  if (!mask || is_no_mask(b.desc(mask), f)) return {};
  const bool list = b.desc(mask).shape.rank() == 1;
  const Ref seen = list ? seen_in_lengths(b, mask, f) : seen_in_mask(b, mask, f);
  const DType dtype = b.output_desc(0).dtype;
  const Ref hidden = b.scalar(dtype, f.filter);
  return b.where(seen, b.scalar(dtype, 0), hidden);
}

// Returns the mask for ONNX's Attention: the sum of all masks, or a boolean mask if that is enough.
Ref joined_mask(BodyBuilder& b, const FusedAttention& f, const AttentionRefs& refs) {
  Ref mask = mask_addend(b, refs.mask_index, f);
  if (refs.bias) mask = mask ? b.add(refs.bias, mask) : refs.bias;
  if (!refs.seqlens) return mask;
  const Ref last = each_sample(b, refs.seqlens, f, 0);
  const Ref seen = b.emit1("LessOrEqual", {counting(b, b.desc(last).dtype, f.keys), last});
  return mask ? b.where(seen, mask, b.like(mask, -kInfinity)) : seen;
}

// Returns causality and window as an addend [queries, keys] for the scores.
Ref order_addend(BodyBuilder& b, const FusedAttention& f) {
  const TensorDesc desc{b.output_desc(0).dtype, {f.queries, f.keys}};
  std::vector<double> values;
  for (int64_t query = 0; query < f.queries; ++query) {
    for (int64_t key = 0; key < f.keys; ++key) {
      const bool late = f.causal && key > query;
      const bool early = f.window > 0 && key <= query - f.window;
      values.push_back(late || early ? -kInfinity : 0);
    }
  }
  Constant constant{desc, std::vector<std::byte>(desc.bytes())};
  from_doubles(values, desc, constant.bytes.data());
  return b.constant(std::make_shared<const Constant>(std::move(constant)));
}

Ref expanded(BodyBuilder& b, Ref x, const Shape& shape) {
  return b.desc(x).shape == shape ? x : b.emit1("Expand", {x, b.ints(shape.axes())});
}

Ref with_last(BodyBuilder& b, Ref x, Ref last, int64_t axis) {
  return b.emit1("Concat", {x, last}, {{"axis", axis}});
}

// [Note: one more key] A smooth softmax has one more term in the denominator: e^0, or e^sink for
// each head. We append a key of zeros, so every query scores 0 there, with zeros as the value; the
// mask adds the sink to that score. Causality must not hide this key, so it becomes part of the
// mask.
AttentionRefs with_one_more_key(BodyBuilder& b, const FusedAttention& f, AttentionRefs refs,
                                Ref& mask) {
  const DType dtype = b.output_desc(0).dtype;
  const Ref zero = b.scalar(dtype, 0);
  if (mask && b.desc(mask).dtype == DType::kBool) {
    mask = b.where(mask, zero, b.scalar(dtype, -kInfinity));
  }
  const Ref order = order_addend(b, f);
  mask = mask ? b.add(mask, order) : order;
  mask = expanded(b, mask, f.scores());
  const Ref sink = refs.sink ? b.reshape(refs.sink, Shape{1, f.heads, 1, 1}) : zero;
  mask = with_last(b, mask, expanded(b, sink, {f.batch, f.heads, f.queries, 1}), 3);
  refs.k = with_last(b, refs.k, expanded(b, zero, {f.batch, f.kv_heads, 1, f.width}), 2);
  refs.v = with_last(b, refs.v, expanded(b, zero, {f.batch, f.kv_heads, 1, f.v_width}), 2);
  return refs;
}

bool has_sink(const FusedAttention& f, const AttentionRefs& refs) { return f.smooth || refs.sink; }

}  // namespace

std::vector<TensorDesc> input_descs(const BodyBuilder& b, size_t count) {
  std::vector<TensorDesc> descs;
  for (size_t i = 0; i < count; ++i) {
    const Ref ref = b.input(i);
    descs.push_back(ref ? b.desc(ref) : TensorDesc{});
  }
  return descs;
}

void read_scores(const Attributes& attributes, FusedAttention& f) {
  f.scale = static_cast<double>(attributes.f("scale", 0));
  if (f.scale == 0) f.scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(f.width, 1)));
  f.filter = static_cast<double>(attributes.f("mask_filter_value", -10000.0f));
  f.causal = attributes.i("unidirectional", 0) != 0 && f.queries > 1;
}

Status check_mask_index(const TensorDesc& mask, const FusedAttention& f) {
  if (!mask.present()) return ok_status();
  const Shape& m = mask.shape;
  const int64_t count = m.numel();
  bool fits = is_no_mask(mask, f) && (m[0] == f.batch || m[0] == 1);
  if (m.rank() == 1) {
    fits = count == f.batch || count == 2 * f.batch || count == 3 * f.batch + 2;
  }
  if (m.rank() == 2) fits = fits || m == Shape{f.batch, f.keys};
  if (m.rank() == 3) fits = m == Shape{f.batch, f.queries, f.keys};
  if (m.rank() == 4) {
    fits = m[0] == f.batch && m[1] == 1 && m[2] == m[3] && m[2] >= std::max(f.keys, f.queries);
  }
  if (fits && is_integer(mask.dtype)) return ok_status();
  return input_error(
      "expected an integer mask of {} lengths, of [{}, {}], of [{}, {}, {}] or of [{}, 1, M, M], "
      "found {}",
      f.batch, f.batch, f.keys, f.batch, f.queries, f.keys, f.batch, mask.text());
}

Status check_bias(const TensorDesc& bias, const FusedAttention& f) {
  if (!bias.present()) return ok_status();
  const auto both = broadcast(bias.shape, f.scores());
  if (bias.shape.rank() == 4 && both.ok() && *both == f.scores()) return ok_status();
  return input_error("expected an attention_bias that broadcasts to {}, found {}",
                     f.scores().text(), bias.text());
}

Status check_no_past(const TensorDesc& past, int axis, const char* name) {
  if (!past.present() || (past.shape.rank() > axis && past.shape[axis] == 0)) return ok_status();
  return input_error("input '{}': expected a past of length 0, found {}", name, past.text());
}

Ref split_heads(BodyBuilder& b, Ref x, int64_t heads) {
  const Shape& s = b.desc(x).shape;
  return b.transpose(b.reshape(x, Shape{s[0], s[1], heads, s[2] / heads}), {0, 2, 1, 3});
}

Ref attend(BodyBuilder& b, const FusedAttention& f, const AttentionRefs& refs) {
  AttentionRefs all = refs;
  Ref mask = joined_mask(b, f, refs);
  Attributes attributes{{"scale", static_cast<float>(f.scale)}};
  if (f.softcap != 0) attributes.set("softcap", static_cast<float>(f.softcap));
  if (has_sink(f, refs)) {
    all = with_one_more_key(b, f, refs, mask);
  } else {
    if (f.causal) attributes.set("is_causal", int64_t{1});
    if (f.window > 0) attributes.set("left_window_size", f.window - 1);
  }
  std::vector<Ref> inputs{all.q, all.k, all.v};
  if (mask) inputs.push_back(mask);
  const Ref y = b.emit1("Attention", inputs, attributes);
  return b.reshape(b.transpose(y, {0, 2, 1, 3}), f.output());
}

// --- the reference ---

namespace {

double mask_of(const RefTensor& mask, const FusedAttention& f, int64_t sample, int64_t query,
               int64_t key) {
  const Shape& m = mask.desc.shape;
  bool seen = true;
  if (m.rank() == 1) {
    seen = static_cast<double>(key) < mask[sample];
    if (m[0] == 2 * f.batch) seen = seen && static_cast<double>(key) >= mask[f.batch + sample];
  } else if (!is_no_mask(mask.desc, f)) {
    const int64_t row = m.rank() == 2 ? sample : sample * m[m.rank() - 2] + query;
    seen = mask[row * m[m.rank() - 1] + key] > 0;
  }
  return seen ? 0 : f.filter;
}

// Returns the score before the softmax; minus infinity if the key is not seen.
double score_of(const FusedAttention& f, const AttentionTensors& t, int64_t sample, int64_t head,
                int64_t query, int64_t key) {
  const bool late = f.causal && key > query;
  const bool early = f.window > 0 && key <= query - f.window;
  const bool padding = t.seqlens != nullptr && static_cast<double>(key) > (*t.seqlens)[sample];
  if (late || early || padding) return -kInfinity;
  const int64_t kv = head / (f.heads / f.kv_heads);
  double score = 0;
  for (int64_t i = 0; i < f.width; ++i) {
    score += t.q(sample, head, query, i) * t.k(sample, kv, key, i);
  }
  score *= f.scale;
  if (f.softcap != 0) score = f.softcap * std::tanh(score / f.softcap);
  if (t.mask_index != nullptr) score += mask_of(*t.mask_index, f, sample, query, key);
  if (t.bias == nullptr) return score;
  return score + t.bias->values[ravel_broadcast(t.bias->desc.shape, {sample, head, query, key})];
}

}  // namespace

RefTensor reference_attend(const FusedAttention& f, const AttentionTensors& t,
                           const TensorDesc& output) {
  RefTensor y = zeros(output);
  for (int64_t row = 0; row < f.batch * f.heads * f.queries; ++row) {
    const int64_t sample = row / (f.heads * f.queries), head = row / f.queries % f.heads;
    const int64_t query = row % f.queries, kv = head / (f.heads / f.kv_heads);
    std::vector<double> scores;
    double most = -kInfinity, sum = 0;
    for (int64_t key = 0; key < f.keys; ++key) {
      scores.push_back(score_of(f, t, sample, head, query, key));
      most = std::max(most, scores.back());
    }
    if (most == -kInfinity) continue;  // sees no key
    for (double& score : scores) sum += score = std::exp(score - most);
    if (t.sink != nullptr || f.smooth) {
      sum += std::exp((t.sink != nullptr ? (*t.sink)[head] : 0) - most);
    }
    for (int64_t key = 0; key < f.keys; ++key) {
      for (int64_t i = 0; i < f.v_width; ++i) {
        y[((sample * f.queries + query) * f.heads + head) * f.v_width + i] +=
            scores[static_cast<size_t>(key)] / sum * t.v(sample, kv, key, i);
      }
    }
  }
  return y;
}

// Attention(x, weights, bias, mask_index, past, attention_bias): one product x weights + bias makes
// q, k and v; qkv_hidden_sizes splits the columns (default: three equal parts). The bias may have a
// row for each row of the product: an adapter for `weights` comes in that way.

namespace packed_attention {
namespace {
namespace packed {

constexpr size_t kInputs = 7;

struct Parts {
  FusedAttention f;
  std::vector<int64_t> columns;  // for q, k and v in the product
};

Result<Parts> parts(const Attributes& attributes, const Descs& in) {
  OFSDP_RETURN_IF_ERROR(expect_rank(in[0], 3, "input"));
  OFSDP_RETURN_IF_ERROR(expect_rank(in[1], 2, "weights"));
  const Shape &x = in[0].shape, &w = in[1].shape;
  if (w[0] != x[2]) {
    return input_error("input 'weights': expected {} rows, found {}", x[2], in[1].text());
  }
  if (!(in[2].present() && in[2].shape == Shape{x[0], x[1], w[1]})) {
    OFSDP_RETURN_IF_ERROR(expect_shape(in[2], {w[1]}, "bias"));
  }
  Parts p{{}, attributes.ints("qkv_hidden_sizes", {w[1] / 3, w[1] / 3, w[1] / 3})};
  const auto& c = p.columns;
  if (c.size() != 3 || c[0] != c[1] || c[0] < 0 || c[2] < 0 || c[0] + c[1] + c[2] != w[1]) {
    return input_error(
        "attribute 'qkv_hidden_sizes': expected three sizes of {} columns, the "
        "first two equal, found {}",
        w[1], Shape(c).text());
  }
  FusedAttention& f = p.f;
  OFSDP_ASSIGN_OR_RETURN(f.heads, heads_of(attributes, "num_heads", c[0]));
  OFSDP_RETURN_IF_ERROR(heads_of(attributes, "num_heads", c[2]).status());
  f.batch = x[0];
  f.queries = f.keys = x[1];
  f.kv_heads = f.heads;
  f.width = c[0] / f.heads;
  f.v_width = c[2] / f.heads;
  read_scores(attributes, f);
  return p;
}

Result<Descs> infer(const InferContext& c) {
  Descs in = c.inputs;
  in.resize(kInputs);
  OFSDP_ASSIGN_OR_RETURN(const Parts p, parts(c.attributes, in));
  OFSDP_RETURN_IF_ERROR(check_mask_index(in[3], p.f));
  OFSDP_RETURN_IF_ERROR(check_no_past(in[4], 3, "past"));
  OFSDP_RETURN_IF_ERROR(check_bias(in[5], p.f));
  OFSDP_RETURN_IF_ERROR(expect_attribute(c.attributes, "do_rotary", 0));
  const bool present = c.wanted.size() > 1 && c.wanted[1];
  if (present && p.f.width != p.f.v_width) {
    return input_error("output 'present': expected keys as wide as values, found {} and {}",
                       p.f.width, p.f.v_width);
  }
  const Shape past{2, p.f.batch, p.f.heads, p.f.keys, p.f.width};
  return Descs{{in[0].dtype, p.f.output()}, {in[0].dtype, past}};
}

void body(BodyBuilder& b) {
  const Parts p = *parts(b.attributes(), input_descs(b, kInputs));
  Ref product = b.emit1("MatMul", {b.input(0), b.input(1)});
  if (b.input(2)) product = b.add(product, b.input(2));
  const auto of = b.emit("Split", {product, b.ints(p.columns)}, {{"axis", int64_t{-1}}}, 3);
  AttentionRefs refs;
  refs.q = split_heads(b, of[0], p.f.heads);
  refs.k = split_heads(b, of[1], p.f.heads);
  refs.v = split_heads(b, of[2], p.f.heads);
  refs.mask_index = b.input(3);
  refs.bias = b.input(5);
  b.set_output(0, attend(b, p.f, refs));
  if (!b.wants(1)) return;
  const Shape one{1, p.f.batch, p.f.heads, p.f.keys, p.f.width};
  const Ref k = b.reshape(refs.k, one), v = b.reshape(refs.v, one);
  b.set_output(1, b.emit1("Concat", {k, v}, {{"axis", int64_t{0}}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  Descs in = descs_of(c.inputs);
  in.resize(kInputs);
  const Parts p = *parts(c.attributes, in);
  const RefTensor &x = c.inputs[0], &w = c.inputs[1];
  const RefTensor* bias = given(c.inputs, 2);
  const int64_t rows = p.f.batch * p.f.queries, inner = w.desc.shape[0], all = w.desc.shape[1];
  RefTensor product = zeros({x.desc.dtype, {p.f.batch, p.f.queries, all}});
  for (int64_t i = 0; i < rows * all; ++i) {
    if (bias != nullptr) product[i] = (*bias)[i % bias->desc.numel()];
    for (int64_t k = 0; k < inner; ++k) product[i] += x[i / all * inner + k] * w[k * all + i % all];
  }
  const AttentionTensors t{heads_in_rows(product, 0, p.f.width),
                           heads_in_rows(product, p.columns[0], p.f.width),
                           heads_in_rows(product, p.columns[0] + p.columns[1], p.f.v_width),
                           given(c.inputs, 3),
                           given(c.inputs, 5),
                           nullptr,
                           nullptr};
  std::vector<RefTensor> made{reference_attend(p.f, t, c.output_descs[0])};
  if (c.output_descs.size() < 2) return made;
  made.push_back(zeros(c.output_descs[1]));
  const Shape& present = c.output_descs[1].shape;
  for (int64_t i = 0; i < present.numel(); ++i) {
    const auto at = unravel(present, i);
    made[1][i] = (at[0] == 0 ? t.k : t.v)(at[1], at[2], at[3], at[4]);
  }
  return made;
}

}  // namespace packed
}  // namespace
}  // namespace packed_attention

void add_packed_attention(Registry& registry) {
  using namespace packed_attention;
  add_without_kernel(registry, "Attention", {packed::infer, nullptr, packed::reference},
                     {.min_inputs = 2,
                      .body = packed::body,
                      .costly = true,
                      .product = true,
                      .past = {{4, 6}, {1}, 1, 3}});
}

Status expect_rank(const TensorDesc& x, int rank, const char* name) {
  if (x.shape.rank() == rank) return ok_status();
  return input_error("input '{}': expected {} axes, found {}", name, rank,
                     x.present() ? x.text() : "none");
}

Status expect_shape(const TensorDesc& x, const Shape& shape, const char* name) {
  if (!x.present() || x.shape == shape) return ok_status();
  return input_error("input '{}': expected {}, found {}", name, shape.text(), x.text());
}

Result<int64_t> heads_of(const Attributes& attributes, const char* name, int64_t columns) {
  const int64_t heads = attributes.i(name, 0);
  if (heads > 0 && columns % heads == 0) return heads;
  return input_error("attribute '{}': expected a divisor of {}, found {}", name, columns, heads);
}

Status expect_attribute(const Attributes& attributes, const char* name, int64_t expected) {
  const int64_t found = attributes.i(name, expected);
  if (found == expected) return ok_status();
  return input_error("attribute '{}': expected {}, found {}", name, expected, found);
}

Status refuse_output(const InferContext& c, size_t output, const char* name) {
  const bool wanted = output < c.wanted.size() && c.wanted[output];
  if (!wanted) return ok_status();
  return input_error("output '{}': expected none, found one: it has no kernel", name);
}

Descs outputs_of(const FusedAttention& f, DType dtype) {
  return {{dtype, f.output()},
          {dtype, {f.batch, f.kv_heads, f.keys, f.width}},
          {dtype, {f.batch, f.kv_heads, f.keys, f.v_width}},
          {}};
}

void set_presents(BodyBuilder& b, const AttentionRefs& refs) {
  if (b.wants(1)) b.set_output(1, refs.k);
  if (b.wants(2)) b.set_output(2, refs.v);
}

HeadElement heads_in_rows(const RefTensor& x, int64_t first, int64_t width) {
  return [&x, first, width](int64_t sample, int64_t head, int64_t row, int64_t i) {
    return x.values[ravel(x.desc.shape, {sample, row, first + head * width + i})];
  };
}

namespace {

RefTensor present_of(const TensorDesc& desc, const HeadElement& element) {
  RefTensor made = zeros(desc);
  for (int64_t i = 0; i < desc.numel(); ++i) {
    const auto at = unravel(desc.shape, i);
    made[i] = element(at[0], at[1], at[2], at[3]);
  }
  return made;
}

}  // namespace

std::vector<RefTensor> with_presents(const ReferenceContext& c, RefTensor y,
                                     const AttentionTensors& t) {
  std::vector<RefTensor> made{std::move(y)};
  if (c.output_descs.size() > 1) made.push_back(present_of(c.output_descs[1], t.k));
  if (c.output_descs.size() > 2) made.push_back(present_of(c.output_descs[2], t.v));
  return made;
}

void add_without_kernel(Registry& registry, const char* name, const OpFunctions& functions,
                        OpDef rest) {
  rest.domain = "com.microsoft";
  registry.add(make_op(name, functions, {}, std::move(rest)));
}

void add_microsoft_attention(Registry& registry) {
  add_packed_attention(registry);
  add_multi_head_attention(registry);
  add_group_query_attention(registry);
}

}  // namespace ofsdp::kernels::ops
