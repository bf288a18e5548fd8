#include "kernels/ops/attention/fused_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ofsdp::kernels::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// 0, 1, ..., count - 1 in `dtype`, as [1, 1, 1, count].
Ref counting(BodyBuilder& b, DType dtype, int64_t count) {
  std::vector<double> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
  Constant constant{{dtype, Shape{1, 1, 1, count}}, {}};
  constant.bytes.resize(constant.desc.bytes());
  from_doubles(numbers, constant.desc, constant.bytes.data());
  return b.constant(std::make_shared<const Constant>(std::move(constant)));
}

// Element number `part` of each sample in a list of parts [parts B], as [B, 1, 1, 1].
Ref each_sample(BodyBuilder& b, Ref list, const FusedAttention& f, int64_t part) {
  const Ref flat = b.reshape(list, Shape{b.desc(list).numel()});
  const Ref mine = b.slice(flat, 0, part * f.batch, (part + 1) * f.batch);
  return b.reshape(mine, Shape{f.batch, 1, 1, 1});
}

bool is_no_mask(const TensorDesc& mask, const FusedAttention& f) {
  return !mask.present() ||
         (mask.shape.rank() == 2 && mask.shape[1] == 1 && mask.shape != Shape{f.batch, f.keys});
}

// Whether a key counts, from a mask_index of two axes or more.
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

// Returns the addend of the scores that mask_index is; none: it hides nothing.
Ref mask_addend(BodyBuilder& b, Ref mask, const FusedAttention& f) {
  if (!mask || is_no_mask(b.desc(mask), f)) return {};
  const bool list = b.desc(mask).shape.rank() == 1;
  const Ref seen = list ? seen_in_lengths(b, mask, f) : seen_in_mask(b, mask, f);
  const DType dtype = b.output_desc(0).dtype;
  const Ref hidden = b.scalar(dtype, f.filter);
  return b.where(seen, b.scalar(dtype, 0), hidden);
}

// The mask of ONNX's Attention: what all masks add, or a mask of truth where that says it all.
Ref joined_mask(BodyBuilder& b, const FusedAttention& f, const AttentionRefs& refs) {
  Ref mask = mask_addend(b, refs.mask_index, f);
  if (refs.bias) mask = mask ? b.add(refs.bias, mask) : refs.bias;
  if (!refs.seqlens) return mask;
  const Ref last = each_sample(b, refs.seqlens, f, 0);
  const Ref seen = b.emit1("LessOrEqual", {counting(b, b.desc(last).dtype, f.keys), last});
  return mask ? b.where(seen, mask, b.like(mask, -kInfinity)) : seen;
}

// Returns the addend of scores [queries, keys] that causality and window are.
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

// [Note: one more key] A smooth softmax has one more term in its denominator: e^0, or e^sink of
// each head. It is a key of zeros, whose score is 0 whatever the query, with a value of zeros. The
// sink is what the mask adds there. Causality must not hide it, so it is part of the mask.
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

// The score before the softmax; minus infinity: the key is not seen.
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

}  // namespace ofsdp::kernels::ops
