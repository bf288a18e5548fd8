// ofsdp.AttentionWithStatistics(Q, K, V, mask, lengths): Attention without cached keys, with its
// attributes, that leaves what its gradient would have to find again.
// importer/passes/passes.h puts it where a device has kernels for it; it comes after
// the backward nodes are made, so it has no gradient.
//
//   Y            as of Attention
//   statistics   float32 [B, heads, queries]: max + log(sum(e^(score - max))) over the masked
//                scores of a query, in the natural base: the log-sum-exp of FlashAttention, the `Stats`
//                [B, heads, queries, 1] of cuDNN
//
// A query that sees no key has statistics of +infinity, as FlashAttention-2 has it: e^(score -
// statistics) is 0 whatever stands for its scores. Kernels that read statistics must give such a
// query no gradient whatever they are, since another library's forward pass may have written them.
#include "kernels/ops/attention/attention_shape.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

enum Operand : size_t { kQ, kK, kV, kMask, kLengths };

template <typename Inputs>  // descs, one per input; not present(): absent
AttentionInputs inputs_of(const Inputs& list) {
  auto at = [&](size_t i) { return i < list.size() ? list[i] : TensorDesc{}; };
  return {at(kQ), at(kK), at(kV), at(kMask), at(kLengths).present(), 0};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const AttentionInputs in = inputs_of(c.inputs);
  OFSDP_RETURN_IF_ERROR(check_attention(in, c.attributes));
  const AttentionShape s = attention_shape(in, c.attributes);
  const Shape y = in.q.shape.rank() == 3 ? Shape{s.batch, s.queries, s.heads * s.v_width}
                                         : Shape{s.batch, s.heads, s.queries, s.v_width};
  return std::vector{TensorDesc{in.q.dtype, y},
                     TensorDesc{DType::kFloat32, {s.batch, s.heads, s.queries}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  std::vector<TensorDesc> descs;
  for (const RefTensor& input : c.inputs) descs.push_back(input.desc);
  const AttentionShape s = attention_shape(inputs_of(descs), c.attributes);
  const auto given = [&](size_t i) {
    return i < c.inputs.size() && c.inputs[i].desc.present() ? &c.inputs[i] : nullptr;
  };
  RefTensor y{c.output_descs[0], {}}, statistics{c.output_descs[1], {}};
  y.values.resize(static_cast<size_t>(y.desc.numel()));
  reference_attention(s, c.inputs[kQ].values, c.inputs[kK].values, given(kMask), given(kLengths),
                      [&](const AttentionRow& r) {
                        add_attention_row(s, s.y, r, c.inputs[kV].values, y.values);
                        statistics.values.push_back(log_sum_exp(r.masked));
                      });
  return {y, statistics};
}

template <typename T>
Acceptance accepts(const Problem& p) {
  if (!p.has_out(1)) return Acceptance::refuse("no statistics wanted");
  return accepts_attention<T>(p, p.inputs.size(), kMask, kLengths);
}

// The bits of Attention: its kernel.
template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const AttentionShape s = attention_shape(inputs_of(p.inputs), p.attributes);
  const bool mask = p.has_in(kMask), lengths = p.has_in(kLengths);
  const AttentionKernel<T> kernel(s, false, false);
  return make_kernel(
      [=](const KernelArgs& a) {
        AttentionOperands<T> o{};
        o.q = a.in<T>(kQ);
        o.k = a.in<T>(kK);
        o.v = a.in<T>(kV);
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

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32, b = DType::kBool;
  const Attributes causal{{"is_causal", int64_t{1}}}, cap{{"softcap", 0.7f}};
  const Attributes packed{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}};
  const TensorDesc none, q{f, {2, 4, 5, 6}}, k{f, {2, 2, 7, 6}}, v{f, {2, 2, 7, 3}},
      lengths{DType::kInt64, {2}}, long_q{f, {1, 4, 150, 16}}, long_k{f, {1, 2, 150, 16}};
  std::vector<SampleCase> list;
  const auto add = [&](const char* name, std::vector<TensorDesc> inputs,
                       const Attributes& attributes, const Fill& fill = {}) {
    for (DType d : {f, DType::kFloat16, DType::kBFloat16}) {
      SampleCase made{.name = format_text("{}_{}", name, dtype_name(d)),
                      .attributes = attributes,
                      .inputs = inputs,
                      .fill = fill,
                      .num_outputs = 2,
                      .check_grad = false,
                      .tolerance = d == f                 ? 2e-5
                                   : d == DType::kFloat16 ? 1e-3
                                                          : 8e-3};
      for (TensorDesc& desc : made.inputs) {
        if (desc.dtype == f) desc.dtype = d;
      }
      list.push_back(std::move(made));
    }
  };
  add("grouped", {q, k, v}, {{"scale", 0.3f}});
  add("packed", {{f, {2, 5, 24}}, {f, {2, 7, 12}}, {f, {2, 7, 6}}}, packed);
  add("causal", {long_q, long_k, long_k}, causal);
  add("window", {q, k, v}, {{"left_window_size", int64_t{1}}, {"right_window_size", int64_t{1}}});
  add("softcap", {q, k, v, {f, {5, 7}}}, cap);
  add("short_mask", {q, k, v, {f, {4, 1, 4}}}, {});
  add("unseen", {q, k, v, {b, {2, 1, 5, 7}}}, {}, [](size_t i, std::vector<double>& values) {
    if (i == kMask) std::fill_n(values.begin() + 7, 21, 0.0);
  });
  add("padded", {q, k, v, none, lengths}, causal, fill_with(kLengths, {3, 7}));
  add("no_length", {q, k, v, none, lengths}, {}, fill_with(kLengths, {0, 4}));
  add("empty", {{f, {0, 3, 5, 8}}, {f, {0, 3, 7, 8}}, {f, {0, 3, 7, 4}}}, {});
  return list;
}

}  // namespace

void add_attention_with_statistics(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "AttentionWithStatistics",
                .min_inputs = 3,
                .infer = infer,
                .reference = reference,
                .cpu = {{"blocks", accepts<float>, create<float>},
                        {"bfloat16", accepts<BFloat16>, create<BFloat16>},
                        in_float32<accepts<float>, create<float>>()},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
