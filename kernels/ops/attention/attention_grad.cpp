// ofsdp.AttentionGrad(dY, Q, K, V, mask, lengths, Y, statistics): dQ, dK, dV, and dmask [B, heads,
// queries, mask keys], not summed over broadcast axes. Attributes: Attention's, and past_length. K
// and V already hold the past. kernels/cpu/attention.h has the formulas.
//
// Y and statistics come together or not at all: ofsdp.AttentionWithStatistics returned them for the
// same operands. A kernel may read them,
//
//   P = exp(masked scores - statistics), rowsum(P dP) = rowsum(dY Y)
//
// or compute both again. Y has dY's layout; if y_perm is set (four axes, the last one 3), Y is the
// Transpose of [B, heads, queries, width] that exporters put after attention.
//
// Layouts and ofsdp_result_perm (kernels/core/planned_operands.h) are Attention's: dQ, dK and dV
// lie as Q, K and V do, dY as Y. If K and V are absent, dQ's tensor holds all three gradients,
// which must cover every element.
//
// ofsdp.AttentionWithStatistics(Q, K, V, mask, lengths): Attention without cached keys, with the
// same attributes. It also returns the statistics that the gradient would otherwise compute again.
// A pass inserts it if a device has kernels for it (importer/passes/joined_nodes.h), after the
// backward nodes exist, so it has no gradient.
//
//   Y            as Attention returns it
//   statistics   float32 [B, heads, queries]: each query's log-sum-exp over the masked scores,
//                max + log(sum(e^(score - max))), natural base, as in FlashAttention; cuDNN's
//                `Stats` [B, heads, queries, 1]
//
// If a query sees no key, the statistics are +infinity, as in FlashAttention-2: then e^(score -
// statistics) is 0 for all scores. Kernels that read statistics must give such a query no gradient
// even if the statistics differ, since another library's forward pass may have written them.
#include <algorithm>
#include <cmath>

#include "kernels/ops/attention/attention_shape.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace attention_grad {
namespace {

enum Kept : size_t { kY = 6, kStatistics = 7 };

AttentionShape shape_of(const auto& list, const Attributes& attributes) {
  auto at = [&](size_t i) { return i < list.size() ? list[i] : TensorDesc{}; };
  return attention_shape(
      {at(1), at(2), at(3), at(4), at(5).present(), attributes.i("past_length", 0)}, attributes);
}

Status check_kept(const InferContext& c, const AttentionShape& s) {
  if (!c.has(kY) && !c.has(kStatistics)) return {};
  OFSDP_RETURN_IF_ERROR(check_rows_perm(c.attributes, "y_perm"));
  const TensorDesc statistics{DType::kFloat32, {s.batch, s.heads, s.queries}};
  const bool fits = c.has(kY) && c.has(kStatistics) && c.inputs[kY].dtype == c.inputs[1].dtype &&
                    c.inputs[kY].numel() == c.inputs[0].numel() &&
                    c.inputs[kStatistics] == statistics;
  if (fits) return {};
  return input_error("expected Y of as many elements as dY and statistics {}, found {} and {}",
                     statistics.text(), c.has(kY) ? c.inputs[kY].text() : "none",
                     c.has(kStatistics) ? c.inputs[kStatistics].text() : "none");
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const AttentionShape s = shape_of(c.inputs, c.attributes);
  OFSDP_RETURN_IF_ERROR(check_kept(c, s));
  return std::vector{c.inputs[1], c.inputs[2], c.inputs[3],
                     TensorDesc{c.inputs[1].dtype, {s.batch, s.heads, s.queries, s.mask_keys}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const AttentionShape s = shape_of(descs_of(c.inputs), c.attributes);
  const size_t at_keys = held_by(c.inputs, 2, 1), at_values = held_by(c.inputs, 3, 1);
  const auto &dy = c.inputs[0].values, &q = c.inputs[1].values, &k = c.inputs[at_keys].values,
             &v = c.inputs[at_values].values;
  std::vector<RefTensor> all{
      zeros(c.inputs[1].desc), zeros(c.inputs[2].desc), zeros(c.inputs[3].desc), {}};
  RefTensor &dq = all[0], &dk = all[at_keys - 1], &dv = all[at_values - 1], &dmask = all[3];
  reference_attention(s, q, k, given(c.inputs, 4), given(c.inputs, 5), [&](const AttentionRow& r) {
    const int64_t at_y = s.y.of(r.b, r.h, r.query), at_q = s.q.of(r.b, r.h, r.query);
    const int64_t at_k = s.k.of(r.b, r.kv), at_v = s.v.of(r.b, r.kv);
    std::vector<double> dp;
    double dot = 0;
    for (int64_t key = 0; key < s.keys; ++key) {
      const double p = r.probability[static_cast<size_t>(key)];
      double sum = 0;
      for (int64_t i = 0; i < s.v_width; ++i) {
        const double d = dy[static_cast<size_t>(at_y + i)];
        const auto at = static_cast<size_t>(at_v + key * s.v.row + i);
        sum += d * v[at];
        dv.values[at] += p * d;
      }
      dp.push_back(sum);
      dot += p * sum;
    }
    for (int64_t key = 0; key < s.keys; ++key) {
      const auto at = static_cast<size_t>(key);
      double ds = r.probability[at] * (dp[at] - dot);
      if (key < s.mask_keys) dmask.values.push_back(ds);
      if (s.softcap > 0) ds *= 1 - std::pow(r.capped[at] / s.softcap, 2);
      for (int64_t i = 0; i < s.width; ++i) {
        const auto to_k = static_cast<size_t>(at_k + key * s.k.row + i);
        const auto to_q = static_cast<size_t>(at_q + i);
        dq.values[to_q] += s.scale * ds * k[to_k];
        dk.values[to_k] += s.scale * ds * q[to_q];
      }
    }
  });
  all.resize(c.output_descs.size());
  if (all.size() > 3) all[3].desc = c.output_descs[3];
  return all;
}

// Does not read Y and statistics: recomputed probabilities have the same bits.
template <typename T>
Acceptance accepts(const Problem& p) {
  return accepts_attention<T>(p, shape_of(p.inputs, p.attributes), kY, 4, 5);
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const AttentionKernel<T> kernel(shape_of(p.inputs, p.attributes), true, false);
  const bool mask = p.has_in(4), lengths = p.has_in(5), dmask = p.has_out(3);
  const size_t keys = held_by(p, 2, 1), values = held_by(p, 3, 1);
  return make_kernel(
      [=](const KernelArgs& a) {
        AttentionOperands<T> o{};
        o.q = a.in<T>(1);
        o.k = a.in<T>(keys);
        o.v = a.in<T>(values);
        o.mask = mask ? a.inputs[4].data : nullptr;
        o.lengths = lengths ? a.in<int64_t>(5) : nullptr;
        o.dy = a.in<T>(0);
        o.dq = a.out<T>(0);
        o.dk = a.out<T>(keys - 1);
        o.dv = a.out<T>(values - 1);
        o.dmask = dmask ? a.out<T>(3) : nullptr;
        kernel.backward(o, a.workspace);
      },
      kernel.workspace_bytes());
}

// Y in memory order, and the statistics, as the reference computes them.
struct Found {
  std::vector<double> y, statistics;
};

enum Operand : size_t { kQ, kK, kV, kMask, kLengths };

template <typename Inputs>  // descs, one per input; not present(): absent
AttentionInputs inputs_of(const Inputs& list) {
  auto at = [&](size_t i) { return i < list.size() ? list[i] : TensorDesc{}; };
  return {at(kQ), at(kK), at(kV), at(kMask), at(kLengths).present(), 0};
}

Result<std::vector<TensorDesc>> statistics_infer(const InferContext& c) {
  const AttentionInputs in = inputs_of(c.inputs);
  OFSDP_RETURN_IF_ERROR(check_attention(in, c.attributes));
  const AttentionShape s = attention_shape(in, c.attributes);
  return std::vector{TensorDesc{in.q.dtype, result_shape(in, s, c.attributes)},
                     TensorDesc{DType::kFloat32, {s.batch, s.heads, s.queries}}};
}

std::vector<RefTensor> statistics_reference(const ReferenceContext& c) {
  const AttentionShape s = attention_shape(inputs_of(descs_of(c.inputs)), c.attributes);
  RefTensor y{c.output_descs[0], {}}, statistics{c.output_descs[1], {}};
  y.values.resize(static_cast<size_t>(y.desc.numel()));
  const auto held = [&](size_t i) -> const std::vector<double>& {
    return c.inputs[held_by(c.inputs, i, kQ)].values;
  };
  reference_attention(s, held(kQ), held(kK), given(c.inputs, kMask), given(c.inputs, kLengths),
                      [&](const AttentionRow& r) {
                        add_attention_row(s, s.y, r, held(kV), y.values);
                        statistics.values.push_back(log_sum_exp(r.masked));
                      });
  return {y, statistics};
}

template <typename T>
Acceptance statistics_accepts(const Problem& p) {
  if (!p.has_out(1)) return Acceptance::refuse("no statistics wanted");
  return accepts_attention<T>(p, attention_shape(inputs_of(p.inputs), p.attributes),
                              p.inputs.size(), kMask, kLengths);
}

// Uses Attention's kernel, so Y has the same bits.
template <typename T>
std::unique_ptr<Kernel> statistics_create(const Problem& p) {
  const AttentionShape s = attention_shape(inputs_of(p.inputs), p.attributes);
  const bool mask = p.has_in(kMask), lengths = p.has_in(kLengths);
  const size_t keys = held_by(p, kK, kQ), values = held_by(p, kV, kQ);
  const AttentionKernel<T> kernel(s, false, false);
  return make_kernel(
      [=](const KernelArgs& a) {
        AttentionOperands<T> o{};
        o.q = a.in<T>(kQ);
        o.k = a.in<T>(keys);
        o.v = a.in<T>(values);
        o.mask = mask ? a.inputs[kMask].data : nullptr;
        o.lengths = lengths ? a.in<int64_t>(kLengths) : nullptr;
        o.y = a.out<T>(0);
        o.statistics = a.out<float>(1);
        if (lengths) OFSDP_RETURN_IF_ERROR(check_lengths(s, o.lengths));
        kernel.forward(o, ScoresOutput::kRaw, a.workspace);
        return ok_status();
      },
      kernel.workspace_bytes());
}

}  // namespace
}  // namespace attention_grad

void add_attention_grad(Registry& registry) {
  using namespace attention_grad;
  registry.add_own(make_op("AttentionGrad", {infer, nullptr, reference},
                           {{"blocks", accepts<float>, create<float>},
                            {"bfloat16", accepts<BFloat16>, create<BFloat16>},
                            in_float32<accepts<float>, create<float>>(),
                            {"float64", accepts<double>, create<double>}},
                           {.min_inputs = 4}));
  registry.add_own(make_op("AttentionWithStatistics",
                           {statistics_infer, nullptr, statistics_reference},
                           {{"blocks", statistics_accepts<float>, statistics_create<float>},
                            {"bfloat16", statistics_accepts<BFloat16>, statistics_create<BFloat16>},
                            in_float32<statistics_accepts<float>, statistics_create<float>>()},
                           {.min_inputs = 1, .joined = true}));  // Q's tensor may hold K and V
}

}  // namespace ofsdp::kernels::ops
