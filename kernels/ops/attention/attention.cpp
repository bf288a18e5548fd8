// Attention(Q, K, V, mask, past_key, past_value, nonpad_kv_seqlen): softmax(scale Q K^T + mask) V
// for each head; grouped heads, softcap, causal and window masks, and cached keys as ONNX says.
// Outputs: Y, present_key, present_value (past and new keys joined), scores at the stage of
// qk_matmul_output_mode. Scores are float32 for 16-bit types, whatever softmax_precision.
// dQ, dK, dV, dmask: ofsdp.AttentionGrad(dY, Q, K, V, mask, nonpad_kv_seqlen) on the joined keys;
// formulas in kernels/cpu/attention.h. No gradient flows back through output 3.
// https://onnx.ai/onnx/operators/onnx__Attention.html
#include <cmath>

#include "kernels/cpu/in_float32.h"
#include "kernels/ops/attention/attention_past.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

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
  const Shape y = in.q.shape.rank() == 3 ? Shape{s.batch, s.queries, s.heads * s.v_width}
                                         : Shape{s.batch, s.heads, s.queries, s.v_width};
  return std::vector{TensorDesc{in.q.dtype, y}, TensorDesc{in.k.dtype, all.k.shape},
                     TensorDesc{in.v.dtype, all.v.shape},
                     TensorDesc{in.q.dtype, {s.batch, s.heads, s.queries, s.keys}}};
}

void grad(GradBuilder& b) {
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
  const auto made = b.emit("ofsdp.AttentionGrad",
                           {dy, b.input(0), cache ? b.output(1) : b.input(1),
                            cache ? b.output(2) : b.input(2), mask, input(6)},
                           attributes, mask_grad ? 4 : 3);
  b.set_grad(0, made[0]);
  if (mask_grad) b.set_grad(3, b.sum_to(made[3], mask));
  if (cache) {
    set_joined_grad(b, made[1], 1, 1, 4);
    return set_joined_grad(b, made[2], 2, 2, 5);
  }
  b.set_grad(1, made[1]);
  b.set_grad(2, made[2]);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  std::vector<TensorDesc> descs;
  for (const RefTensor& input : c.inputs) descs.push_back(input.desc);
  const AttentionInputs in = with_past(inputs_of(descs), c.attributes);
  auto given = [&](size_t i) {
    return i < c.inputs.size() && c.inputs[i].desc.present() ? &c.inputs[i] : nullptr;
  };
  const AttentionShape s = attention_shape(in, c.attributes);
  RefTensor k{in.k, joined_values(c.inputs[1], given(4), c.attributes)};
  RefTensor v{in.v, joined_values(c.inputs[2], given(5), c.attributes)};
  RefTensor y{c.output_descs[0], {}}, scores{{in.q.dtype, {}}, {}};
  y.values.resize(static_cast<size_t>(y.desc.numel()));
  if (c.output_descs.size() > 3) scores.desc = c.output_descs[3];
  const int64_t mode = c.attributes.i("qk_matmul_output_mode", 0);
  reference_attention(s, c.inputs[0].values, k.values, given(3), given(6),
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
bool accepts(const Problem& p) {
  const DType dtype = stored_type<T>();
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const DType found = p.in(i).dtype;
    if (!p.has_in(i) || found == dtype) continue;
    if (!(i == 3 && found == DType::kBool) && !(i == 6 && found == DType::kInt64)) return false;
  }
  return p.all_plain() && AttentionKernel<T>::is_available();
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
        o.k = reinterpret_cast<const T*>(keys.get(a, 1));
        o.v = reinterpret_cast<const T*>(values.get(a, 2));
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

struct Made {
  const char* name;
  std::vector<TensorDesc> inputs;
  Attributes attributes = {};
  size_t outputs = 1;
  Fill fill = {};
  bool check_grad = true;
  double tolerance = 2e-5;
};

SampleCase sample(Made m) {
  return {.name = m.name,
          .attributes = std::move(m.attributes),
          .inputs = std::move(m.inputs),
          .fill = std::move(m.fill),
          .num_outputs = m.outputs,
          .check_grad = m.check_grad,
          .tolerance = m.tolerance};
}

// Finite differences of 16-bit values say nothing.
SampleCase typed(const char* name, std::vector<TensorDesc> inputs, Attributes attributes,
                 size_t outputs, double tolerance) {
  const bool check_grad = inputs[0].dtype == DType::kFloat64;
  return sample(
      {name, std::move(inputs), std::move(attributes), outputs, {}, check_grad, tolerance});
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32, d = DType::kFloat64, h = DType::kFloat16, w = DType::kBFloat16;
  const TensorDesc none;
  const int64_t one = 1;
  const Attributes packed{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}};
  const Attributes packed_causal{
      {"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"is_causal", one}};
  const TensorDesc q{f, {2, 4, 5, 6}}, k{f, {2, 2, 7, 6}}, v{f, {2, 2, 7, 3}};
  return {sample({"heads", {{f, {2, 3, 5, 8}}, {f, {2, 3, 7, 8}}, {f, {2, 3, 7, 4}}}}),
          sample({"grouped", {q, k, v}, {{"scale", 0.3f}}}),
          sample({"packed", {{f, {2, 5, 24}}, {f, {2, 7, 12}}, {f, {2, 7, 6}}}, packed}),
          sample({"causal",
                  {{f, {1, 2, 150, 4}}, {f, {1, 1, 150, 4}}, {f, {1, 1, 150, 4}}},
                  {{"is_causal", one}}}),
          sample({"window", {q, k, v}, {{"left_window_size", one}, {"right_window_size", one}}}),
          sample({"softcap", {q, k, v}, {{"softcap", 0.7f}}}),
          sample({"float_mask", {q, k, v, {f, {5, 7}}}}),
          sample({"head_mask", {q, k, v, {f, {4, 1, 7}}}, {{"softcap", 0.7f}}}),
          sample({"bool_mask", {q, k, v, {DType::kBool, {2, 1, 5, 7}}}, {{"is_causal", one}}}),
          sample({"short_mask", {q, k, v, {f, {5, 4}}}}),
          sample({"past",
                  {{f, {2, 5, 24}},
                   {f, {2, 7, 12}},
                   {f, {2, 7, 6}},
                   none,
                   {f, {2, 2, 3, 6}},
                   {f, {2, 2, 3, 3}}},
                  packed_causal,
                  3}),
          sample({"raw_scores", {q, k, v}, {{"softcap", 0.7f}}, 4, {}, false}),
          sample({"masked_scores",
                  {q, k, v},
                  {{"is_causal", one}, {"qk_matmul_output_mode", int64_t{2}}},
                  4,
                  {},
                  false}),
          sample({"probabilities",
                  {q, k, v},
                  {{"is_causal", one}, {"qk_matmul_output_mode", int64_t{3}}},
                  4,
                  {},
                  false}),
          sample({"padded",
                  {q, k, v, none, none, none, {DType::kInt64, {2}}},
                  {{"is_causal", one}},
                  1,
                  fill_with(6, {3, 7})}),
          sample({"no_keys", {{f, {2, 3, 5, 8}}, {f, {2, 3, 0, 8}}, {f, {2, 3, 0, 4}}}}),
          sample({"no_width", {{f, {2, 3, 5, 0}}, {f, {2, 3, 7, 0}}, {f, {2, 3, 7, 4}}}}),
          sample({"no_values", {{f, {2, 3, 5, 8}}, {f, {2, 3, 7, 8}}, {f, {2, 3, 7, 0}}}}),
          sample({"empty", {{f, {0, 3, 5, 8}}, {f, {0, 3, 7, 8}}, {f, {0, 3, 7, 4}}}}),
          typed("float64", {{d, {2, 3, 5, 8}}, {d, {2, 3, 7, 8}}, {d, {2, 3, 7, 4}}}, {}, 1, 1e-12),
          typed("float16", {{h, {2, 3, 5, 8}}, {h, {2, 3, 7, 8}}, {h, {2, 3, 7, 4}}}, {}, 1, 1e-3),
          typed("bfloat16",
                {{w, {2, 4, 150, 16}}, {w, {2, 2, 140, 16}}, {w, {2, 2, 140, 8}}, {w, {150, 140}}},
                {{"scale", 0.3f}}, 1, 8e-3),
          typed("bfloat16_packed", {{w, {2, 5, 24}}, {w, {2, 7, 12}}, {w, {2, 7, 6}}},
                packed_causal, 1, 8e-3),
          typed("bfloat16_scores", {{w, {2, 4, 5, 6}}, {w, {2, 2, 7, 6}}, {w, {2, 2, 7, 3}}},
                {{"is_causal", one}, {"softcap", 0.7f}, {"qk_matmul_output_mode", int64_t{2}}}, 4,
                8e-3)};
}

}  // namespace

void add_attention(Registry& registry) {
  registry.add({.name = "Attention",
                .min_inputs = 3,
                .first_opset = 23,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"blocks", accepts<float>, create<float>},
                        {"bfloat16", accepts<BFloat16>, create<BFloat16>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
