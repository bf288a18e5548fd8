// ofsdp.AttentionGrad(dY, Q, K, V, mask, lengths, Y, statistics), attributes of Attention and
// past_length: dQ, dK, dV and, over all of [B, heads, queries, keys of the mask], dmask. K and V
// hold the past already. Formulas in kernels/cpu/attention.h.
//
// Y and statistics are both there or both absent: what ofsdp.AttentionWithStatistics gave for the
// same operands. A kernel may read them,
//
//   P = exp(masked scores - statistics), rowsum(P dP) = rowsum(dY Y)
//
// or find both again. Y has the places of dY; with y_perm, four axes of which the last is 3, it is
// what a Transpose made of [B, heads, queries, width]: exporters put one after attention.
#include <algorithm>
#include <cmath>

#include "kernels/ops/attention/attention_shape.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

enum Kept : size_t { kY = 6, kStatistics = 7 };
constexpr int64_t kAxes[] = {0, 1, 2, 3};

template <typename Inputs>
AttentionShape shape_of(const Inputs& list, const Attributes& attributes) {
  auto at = [&](size_t i) { return i < list.size() ? list[i] : TensorDesc{}; };
  return attention_shape(
      {at(1), at(2), at(3), at(4), at(5).present(), attributes.i("past_length", 0)}, attributes);
}

Status check_kept(const InferContext& c, const AttentionShape& s) {
  if (!c.has(kY) && !c.has(kStatistics)) return {};
  std::vector<int64_t> perm = c.attributes.ints("y_perm");
  if (!perm.empty() && (perm.back() != 3 || !std::ranges::is_permutation(perm, kAxes))) {
    return input_error("attribute 'y_perm': expected the axes 0 to 3, the last 3");
  }
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
  std::vector<TensorDesc> descs;
  for (const RefTensor& input : c.inputs) descs.push_back(input.desc);
  const AttentionShape s = shape_of(descs, c.attributes);
  const auto &dy = c.inputs[0].values, &q = c.inputs[1].values, &k = c.inputs[2].values,
             &v = c.inputs[3].values;
  auto zeros = [](const RefTensor& x) {
    return RefTensor{x.desc, std::vector<double>(x.values.size())};
  };
  auto given = [&](size_t i) {
    return i < c.inputs.size() && c.inputs[i].desc.present() ? &c.inputs[i] : nullptr;
  };
  RefTensor dq = zeros(c.inputs[1]), dk = zeros(c.inputs[2]), dv = zeros(c.inputs[3]), dmask;
  reference_attention(s, q, k, given(4), given(5), [&](const AttentionRow& r) {
    const int64_t at_y = r.b * s.y.batch + r.h * s.y.head + r.query * s.y.row;
    const int64_t at_q = r.b * s.q.batch + r.h * s.q.head + r.query * s.q.row;
    const int64_t at_k = r.b * s.k.batch + r.kv * s.k.head;
    const int64_t at_v = r.b * s.v.batch + r.kv * s.v.head;
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
  std::vector<RefTensor> all = {dq, dk, dv, dmask};
  all.resize(c.output_descs.size());
  if (all.size() > 3) all[3].desc = c.output_descs[3];
  return all;
}

// Y and statistics are not read: probabilities are computed again with the same bits.
template <typename T>
Acceptance accepts(const Problem& p) {
  return accepts_attention<T>(p, kY, 4, 5);
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const AttentionKernel<T> kernel(shape_of(p.inputs, p.attributes), true, false);
  const bool mask = p.has_in(4), lengths = p.has_in(5), dmask = p.has_out(3);
  return make_kernel(
      [=](const KernelArgs& a) {
        AttentionOperands<T> o{};
        o.q = a.in<T>(1);
        o.k = a.in<T>(2);
        o.v = a.in<T>(3);
        o.mask = mask ? a.inputs[4].data : nullptr;
        o.lengths = lengths ? a.in<int64_t>(5) : nullptr;
        o.dy = a.in<T>(0);
        o.dq = a.out<T>(0);
        o.dk = a.out<T>(1);
        o.dv = a.out<T>(2);
        o.dmask = dmask ? a.out<T>(3) : nullptr;
        kernel.backward(o, a.workspace);
        return ok_status();
      },
      kernel.workspace_bytes());
}

// Y by its places in memory, and the statistics, for the operands of a sample.
struct Found {
  std::vector<double> y, statistics;
};
Found found_of(const std::vector<RefTensor>& inputs, const Attributes& attributes) {
  std::vector<TensorDesc> descs;
  for (const RefTensor& input : inputs) descs.push_back(input.desc);
  const AttentionShape s = shape_of(descs, attributes);
  const HeadStrides at = kept_strides(s, attributes);
  Found found{std::vector<double>(static_cast<size_t>(inputs[0].desc.numel())), {}};
  const auto given = [&](size_t i) {
    return i < inputs.size() && inputs[i].desc.present() ? &inputs[i] : nullptr;
  };
  reference_attention(s, inputs[1].values, inputs[2].values, given(4), given(5),
                      [&](const AttentionRow& r) {
                        found.statistics.push_back(log_sum_exp(r.masked));
                        add_attention_row(s, at, r, inputs[3].values, found.y);
                      });
  return found;
}

// Returns the sample with the Y and statistics that its forward pass would have kept.
SampleCase with_kept(SampleCase sample) {
  const AttentionShape s = shape_of(sample.inputs, sample.attributes);
  sample.name += "_kept";
  const auto before = std::make_shared<std::vector<RefTensor>>();
  for (const TensorDesc& desc : sample.inputs) before->push_back({desc, {}});
  sample.inputs.resize(kY);
  sample.inputs.push_back(sample.inputs[0]);
  sample.inputs.push_back({DType::kFloat32, {s.batch, s.heads, s.queries}});
  sample.fill = [fill = sample.fill, before, attributes = sample.attributes](
                    size_t i, std::vector<double>& values) {
    if (fill) fill(i, values);
    if (i == kY) values = found_of(*before, attributes).y;
    if (i == kStatistics) values = found_of(*before, attributes).statistics;
    if (i >= before->size()) return;
    const TensorDesc& desc = (*before)[i].desc;
    std::vector<std::byte> bytes(desc.bytes());
    from_doubles(values, desc, bytes.data());
    (*before)[i].values = to_doubles(desc, bytes.data());
  };
  return sample;
}

std::vector<SampleCase> samples() {
  auto made = [](const char* name, std::vector<TensorDesc> inputs, Attributes attributes,
                 size_t outputs, DType dtype = DType::kFloat32, double tolerance = 3e-5) {
    for (size_t i = 0; i < 4; ++i) inputs[i].dtype = dtype;
    return SampleCase{.name = name,
                      .attributes = std::move(attributes),
                      .inputs = std::move(inputs),
                      .fill = fill_with(5, {3, 7}),
                      .num_outputs = outputs,
                      .tolerance = tolerance};
  };
  const DType f = DType::kFloat32;
  const TensorDesc none, y{f, {2, 4, 5, 3}}, q{f, {2, 4, 5, 6}}, k{f, {2, 2, 7, 6}},
      v{f, {2, 2, 7, 3}}, long_q{f, {1, 4, 150, 4}}, long_k{f, {1, 2, 150, 4}};
  const Attributes causal{{"is_causal", int64_t{1}}};
  const Attributes packed{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}};
  std::vector<SampleCase> list = {
      made("grouped", {y, q, k, v}, {{"scale", 0.3f}}, 3),
      made("packed", {{f, {2, 5, 12}}, {f, {2, 5, 24}}, {f, {2, 7, 12}}, {f, {2, 7, 6}}}, packed,
           3),
      made("causal", {long_q, long_q, long_k, long_k}, causal, 3),
      made("softcap", {y, q, k, v, {f, {5, 7}}}, {{"softcap", 0.7f}}, 4),
      made("past", {y, q, k, v}, {{"past_length", int64_t{2}}, {"is_causal", int64_t{1}}}, 3),
      made("short_mask", {y, q, k, v, {f, {4, 1, 4}}}, causal, 4),
      made("bool_mask", {y, q, k, v, {DType::kBool, {5, 7}}}, {}, 3),
      made("padded", {y, q, k, v, none, {DType::kInt64, {2}}}, causal, 3),
      made("empty", {{f, {0, 4, 5, 3}}, {f, {0, 4, 5, 6}}, {f, {0, 2, 7, 6}}, {f, {0, 2, 7, 3}}},
           {}, 3),
      made("float64", {y, q, k, v}, {}, 3, DType::kFloat64, 1e-12),
      made("float16", {y, q, k, v}, {}, 3, DType::kFloat16, 3e-3),
      made("bfloat16", {long_q, long_q, long_k, long_k}, causal, 3, DType::kBFloat16, 1e-2),
      made("bfloat16_packed", {{f, {2, 5, 12}}, {f, {2, 5, 24}}, {f, {2, 7, 12}}, {f, {2, 7, 6}}},
           packed, 3, DType::kBFloat16, 1e-2),
      made("bfloat16_mask", {y, q, k, v, {DType::kBFloat16, {5, 7}}}, {{"softcap", 0.7f}}, 4,
           DType::kBFloat16, 1e-2)};
  // Rows that see nothing, by a mask and by their length.
  SampleCase unseen = made("unseen", {y, q, k, v, {DType::kBool, {2, 1, 5, 7}}}, {}, 3);
  unseen.fill = [](size_t i, std::vector<double>& values) {
    if (i == 4) std::fill_n(values.begin() + 7, 21, 0.0);
  };
  SampleCase no_length =
      made("no_length", {y, q, k, v, none, {DType::kInt64, {2}}}, {}, 3, DType::kBFloat16, 1e-2);
  no_length.fill = fill_with(5, {0, 4});
  list.insert(list.end(), {unseen, no_length});
  const size_t plain = list.size();
  for (size_t i = 0; i < plain; ++i) {
    if (list[i].attributes.i("past_length", 0) == 0) list.push_back(with_kept(list[i]));
  }
  // Y as a Transpose leaves it.
  const TensorDesc twice{f, {2, 4, 35, 8}}, keys{f, {2, 2, 35, 8}};
  for (const std::vector<int64_t>& perm : {std::vector<int64_t>{0, 2, 1, 3}, {2, 0, 1, 3}}) {
    const std::string name = perm[0] == 0 ? "rows_of_heads" : "rows_of_samples";
    for (DType dtype : {f, DType::kFloat16, DType::kBFloat16}) {
      const double tolerance = dtype == f ? 3e-5 : dtype == DType::kFloat16 ? 3e-3 : 1e-2;
      SampleCase transposed =
          made("", {twice, twice, keys, keys}, {{"y_perm", perm}}, 3, dtype, tolerance);
      transposed.name = format_text("{}_{}", name, dtype_name(dtype));
      list.push_back(with_kept(transposed));
    }
  }
  return list;
}

}  // namespace

void add_attention_grad(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "AttentionGrad",
                .min_inputs = 4,
                .infer = infer,
                .reference = reference,
                .cpu = {{"blocks", accepts<float>, create<float>},
                        {"bfloat16", accepts<BFloat16>, create<BFloat16>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
