// Checks attention operands and computes their sizes, for kernels on every device. The CUDA library
// compiles this file too, so it must not need the CPU kernels.
#include "kernels/ops/attention/attention_shape.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/broadcast.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kAxes[] = {0, 1, 2, 3};

// Attribute names for Q, K or V.
struct OperandNames {
  const char *layout, *heads;
};
constexpr OperandNames kQueries{kQueryLayout, "q_num_heads"}, kKeys{kKeyLayout, "kv_num_heads"},
    kValues{kValueLayout, "kv_num_heads"};

HeadLayout layout_of(const TensorDesc& x, const Attributes& attributes, const OperandNames& names) {
  if (const auto layout = head_layout(attributes, names.layout)) return *layout;
  const Shape& s = x.shape;
  if (s.rank() == 4) return {s[0], s[1], s[2], s[3], head_strides(s[1], s[2], s[3], false)};
  const int64_t heads = attributes.i(names.heads, 0), width = heads == 0 ? 0 : s[2] / heads;
  return {s[0], heads, s[1], width, head_strides(heads, s[1], width, true)};
}

Status check_layout(const HeadLayout& l, const TensorDesc& holder, const char* name) {
  const auto least =
      std::min({l.batch, l.heads, l.rows, l.width, l.at.batch, l.at.head, l.at.row, l.at.first});
  if (least >= 0 && holder.present() && l.end() <= holder.numel()) return {};
  return input_error("attribute '{}': expected heads inside of {}", name, holder.text());
}

// `holder` is the tensor that contains the operand.
Status check_operand(const TensorDesc& x, const TensorDesc& holder, const Attributes& attributes,
                     const OperandNames& names) {
  if (const auto layout = head_layout(attributes, names.layout)) {
    return check_layout(*layout, holder, names.layout);
  }
  if (x.shape.rank() != 4 && x.shape.rank() != 3) {
    return input_error("expected Q, K, V of 3 or 4 axes, found {}",
                       x.present() ? x.text() : "none");
  }
  const int64_t heads = attributes.i(names.heads, 0);
  if (x.shape.rank() == 4 || (heads > 0 && x.shape[2] % heads == 0)) return {};
  return input_error("attribute '{}': expected a divisor of {}, found {}", names.heads, x.shape[2],
                     heads);
}

// Returns the strides of [batch, heads, queries, width] in a Transpose's output.
HeadStrides transposed_strides(const AttentionShape& s, const std::vector<int64_t>& perm) {
  const int64_t sizes[] = {s.batch, s.heads, s.queries, s.v_width};
  int64_t steps[4] = {}, step = 1;
  for (size_t i = perm.size(); i-- > 0;) {
    const auto axis = static_cast<size_t>(perm[i]);
    steps[axis] = step;
    step *= sizes[axis];
  }
  return {steps[0], steps[1], steps[2]};
}

// Whether Y has three axes, as Q does then.
bool is_packed(const AttentionInputs& in, const Attributes& attributes) {
  return in.q.shape.rank() == 3 && !attributes.has(kQueryLayout);
}

}  // namespace

Status check_rows_perm(const Attributes& attributes, const char* name) {
  const std::vector<int64_t> perm = attributes.ints(name);
  if (perm.empty() || (perm.back() == 3 && std::ranges::is_permutation(perm, kAxes))) return {};
  return input_error("attribute '{}': expected the axes 0 to 3, the last 3", name);
}

Status check_attention(const AttentionInputs& in, const Attributes& attributes) {
  OFSDP_RETURN_IF_ERROR(check_operand(in.q, in.q, attributes, kQueries));
  OFSDP_RETURN_IF_ERROR(check_operand(in.k, in.k.present() ? in.k : in.q, attributes, kKeys));
  OFSDP_RETURN_IF_ERROR(check_operand(in.v, in.v.present() ? in.v : in.q, attributes, kValues));
  OFSDP_RETURN_IF_ERROR(check_rows_perm(attributes, kResultPerm));
  const HeadLayout q = layout_of(in.q, attributes, kQueries);
  const HeadLayout k = layout_of(in.k, attributes, kKeys);
  const HeadLayout v = layout_of(in.v, attributes, kValues);
  const bool fits = q.batch == k.batch && q.batch == v.batch && k.heads == v.heads && k.heads > 0 &&
                    q.heads % k.heads == 0 && k.rows == v.rows && q.width == k.width;
  if (!fits) {
    return input_error("Q {}, K {} and V {} do not fit each other", in.q.text(), in.k.text(),
                       in.v.text());
  }
  if (!in.mask.present()) return ok_status();
  const int64_t keys = k.rows + in.past;
  const Shape scores{q.batch, q.heads, q.rows, keys};
  Shape mask = in.mask.shape;
  if (mask.rank() > 0 && mask[mask.rank() - 1] < keys) mask[mask.rank() - 1] = keys;
  const auto both = broadcast(mask, scores);
  const bool known = in.mask.dtype == DType::kBool || in.mask.dtype == in.q.dtype;
  if (both.ok() && *both == scores && known) return ok_status();
  return input_error("expected a mask of bool or {} that broadcasts to {}, found {}",
                     dtype_name(in.q.dtype), scores.text(), in.mask.text());
}

AttentionShape attention_shape(const AttentionInputs& in, const Attributes& attributes) {
  const HeadLayout q = layout_of(in.q, attributes, kQueries);
  const HeadLayout k = layout_of(in.k, attributes, kKeys);
  const HeadLayout v = layout_of(in.v, attributes, kValues);
  AttentionShape s;
  s.batch = q.batch;
  s.heads = q.heads;
  s.kv_heads = k.heads;
  s.queries = q.rows;
  s.keys = k.rows;
  s.width = q.width;
  s.v_width = v.width;
  s.q = q.at;
  s.k = k.at;
  s.v = v.at;
  const std::vector<int64_t> perm = attributes.ints(kResultPerm);
  s.y = perm.empty() ? head_strides(q.heads, q.rows, v.width, is_packed(in, attributes))
                     : transposed_strides(s, perm);
  s.scale = attributes.has("scale")
                ? static_cast<double>(attributes.f("scale", 1))
                : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(q.width, 1)));
  s.softcap = static_cast<double>(attributes.f("softcap", 0));
  s.causal = attributes.i("is_causal", 0) != 0;
  s.left = attributes.i("left_window_size", -1);
  s.right = attributes.i("right_window_size", -1);
  s.offset = in.past;
  s.padded = in.lengths;
  if (!in.mask.present()) return s;
  s.mask = in.mask.dtype == DType::kBool ? MaskKind::kBool : MaskKind::kFloat;
  Shape scores{s.batch, s.heads, s.queries, s.keys};
  s.mask_keys = s.keys;
  if (in.mask.shape.rank() > 0) {
    s.mask_keys = std::min(s.keys, in.mask.shape[in.mask.shape.rank() - 1]);
    scores[3] = in.mask.shape[in.mask.shape.rank() - 1];
  }
  const auto strides = broadcast_strides(in.mask, scores);
  std::copy(strides.begin(), strides.end(), s.mask_strides);
  return s;
}

Shape result_shape(const AttentionInputs& in, const AttentionShape& s,
                   const Attributes& attributes) {
  if (is_packed(in, attributes)) return {s.batch, s.queries, s.heads * s.v_width};
  const Shape plain{s.batch, s.heads, s.queries, s.v_width};
  Shape shape = plain;
  const std::vector<int64_t> perm = attributes.ints(kResultPerm);
  for (size_t i = 0; i < perm.size(); ++i) {
    shape[static_cast<int>(i)] = plain[static_cast<int>(perm[i])];
  }
  return shape;
}

Status check_lengths(const AttentionShape& s, const int64_t* lengths) {
  for (int64_t b = 0; b < s.batch; ++b) {
    if (lengths[b] >= 0 && lengths[b] <= s.keys) continue;
    return input_error("nonpad_kv_seqlen {} of sample {} is outside 0..{}", lengths[b], b, s.keys);
  }
  return {};
}

HeadStrides kept_strides(const AttentionShape& s, const Attributes& attributes) {
  const std::vector<int64_t> perm = attributes.ints("y_perm");
  return perm.empty() ? s.y : transposed_strides(s, perm);
}

void reference_attention(const AttentionShape& s, const std::vector<double>& q,
                         const std::vector<double>& k, const RefTensor* mask,
                         const RefTensor* lengths,
                         const std::function<void(const AttentionRow&)>& f) {
  for (int64_t item = 0; item < s.batch * s.heads * s.queries; ++item) {
    AttentionRow row{.b = item / s.queries / s.heads,
                     .h = item / s.queries % s.heads,
                     .query = item % s.queries};
    row.kv = row.h / (s.heads / s.kv_heads);
    const int64_t at_q = s.q.of(row.b, row.h, row.query);
    const auto length =
        s.padded ? static_cast<int64_t>(lengths->values[static_cast<size_t>(row.b)]) : s.keys;
    const int64_t at = row.query + (s.padded ? length - s.queries : s.offset);
    double max = -INFINITY, sum = 0;
    for (int64_t key = 0; key < s.keys; ++key) {
      double raw = 0;
      for (int64_t i = 0; i < s.width; ++i) {
        raw += q[static_cast<size_t>(at_q + i)] *
               k[static_cast<size_t>(s.k.of(row.b, row.kv, key) + i)];
      }
      raw *= s.scale;
      const double capped = s.softcap > 0 ? s.softcap * std::tanh(raw / s.softcap) : raw;
      bool seen = key < length && (!s.causal || key <= at) &&
                  (s.right < 0 || key <= at + s.right) && (s.left < 0 || key >= at - s.left);
      double masked = capped;
      if (mask != nullptr) {
        seen = seen && key < s.mask_keys;
        const auto m = static_cast<size_t>(row.b * s.mask_strides[0] + row.h * s.mask_strides[1] +
                                           row.query * s.mask_strides[2] + key * s.mask_strides[3]);
        if (seen && s.mask == MaskKind::kBool) seen = mask->values[m] != 0;
        if (seen && s.mask == MaskKind::kFloat) masked += mask->values[m];
      }
      if (!seen) masked = -INFINITY;
      row.raw.push_back(raw);
      row.capped.push_back(capped);
      row.masked.push_back(masked);
      max = std::max(max, masked);
    }
    for (double m : row.masked) {
      row.probability.push_back(m == -INFINITY ? 0 : std::exp(m - max));
      sum += row.probability.back();
    }
    for (double& p : row.probability) p = sum == 0 ? 0 : p / sum;
    f(row);
  }
}

void add_attention_row(const AttentionShape& s, const HeadStrides& at, const AttentionRow& row,
                       const std::vector<double>& v, std::vector<double>& y) {
  const int64_t to = at.of(row.b, row.h, row.query), from = s.v.of(row.b, row.kv);
  for (int64_t i = 0; i < s.keys * s.v_width; ++i) {
    const int64_t key = i / s.v_width, column = i % s.v_width;
    y[static_cast<size_t>(to + column)] += row.probability[static_cast<size_t>(key)] *
                                           v[static_cast<size_t>(from + key * s.v.row + column)];
  }
}

double log_sum_exp(const std::vector<double>& masked) {
  double max = -INFINITY, sum = 0;
  for (double m : masked) max = std::max(max, m);
  for (double m : masked) sum += m == -INFINITY ? 0 : std::exp(m - max);
  return sum == 0 ? INFINITY : max + std::log(sum);
}

}  // namespace ofsdp::kernels::ops
