#include "kernels/ops/attention/microsoft_attention.h"

#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {

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
                        StandardBody body, int inputs) {
  registry.add(make_op(name, functions, {},
                       {.domain = "com.microsoft", .min_inputs = inputs, .body = body}));
}

void add_microsoft_attention(Registry& registry) {
  add_packed_attention(registry);
  add_multi_head_attention(registry);
  add_group_query_attention(registry);
}

}  // namespace ofsdp::kernels::ops
