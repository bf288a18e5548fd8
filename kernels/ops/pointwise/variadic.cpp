#include "kernels/ops/pointwise/variadic.h"

namespace ofsdp::kernels::ops {

OpDef variadic(OpDef op) {
  op.infer = infer_variadic;
  op.inplace_inputs = {0, 1};
  op.layout = LayoutRule::kElementwise;
  return op;
}

Result<std::vector<TensorDesc>> infer_variadic(const InferContext& c) {
  TensorDesc y = c.inputs[0];
  for (const TensorDesc& x : c.inputs) {
    if (x.dtype != y.dtype) {
      return input_error("expected inputs of one type, found {} and {}", y.text(), x.text());
    }
    OFSDP_ASSIGN_OR_RETURN(y.shape, broadcast(y.shape, x.shape));
  }
  y.layout = Layout::kPlain;
  for (const TensorDesc& x : c.inputs) {
    if (x.shape == y.shape) y.layout = x.layout;
  }
  return std::vector{std::move(y)};
}

void grad_of_chosen(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (b.num_inputs() == 1) return b.set_grad(0, dy);
  const Ref zero = b.scalar(b.desc(dy).dtype, 0);
  const Ref one = b.scalar(b.desc(dy).dtype, 1);
  std::vector<Ref> hits;
  Ref count;
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    hits.push_back(b.emit1("Equal", {b.input(i), b.output(0)}));
    const Ref here = b.emit1("Where", {hits[i], one, zero});
    count = i == 0 ? here : b.emit1("Add", {count, here});
  }
  const Ref share = b.emit1("Div", {dy, count});
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (!b.needs_grad(i)) continue;
    b.set_grad(i, b.sum_to(b.emit1("Where", {hits[i], share, zero}), b.input(i)));
  }
}

std::vector<SampleCase> variadic_samples(TypeSet types) {
  const DType f = DType::kFloat32;
  const TensorDesc image{f, {2, 3, 4, 5}};
  std::vector<SampleCase> list = {
      {.name = "one", .inputs = {{f, {3, 7}}}},
      {.name = "two", .inputs = {{f, {3, 37}}, {f, {3, 37}}}},
      {.name = "three", .inputs = {{f, {4, 1}}, {f, {3, 1, 5}}, {f, {}}}},
      {.name = "grows", .inputs = {{f, {5}}, {f, {1}}, {f, {2, 5}}, {f, {5}}}},
      {.name = "images", .inputs = {image, image, image}},
      {.name = "empty", .inputs = {{f, {0, 4}}, {f, {4}}}}};
  for (DType dtype : types_in(types)) list.push_back(sample_of(dtype, "three", {{9}, {9}, {9}}));
  return list;
}

}  // namespace ofsdp::kernels::ops
