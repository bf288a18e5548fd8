// Attention(x, weights, bias, mask_index, past, attention_bias): the projections of q, k and v are
// one product x weights + bias, whose columns are parted by qkv_hidden_sizes (default: in three).
// The bias may have a row for each of the product's: an adapter of `weights` comes in with it.
#include "kernels/ops/attention/microsoft_attention.h"

namespace ofsdp::kernels::ops {
namespace packed_attention {
namespace {
namespace packed {

constexpr size_t kInputs = 7;

struct Parts {
  FusedAttention f;
  std::vector<int64_t> columns;  // of q, k and v in the product
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
                     packed::body, 2);
}

}  // namespace ofsdp::kernels::ops
