// com.microsoft.BiasGelu(x, bias) and FastGelu(x, bias): Gelu of x + bias with a bias of the last
// axis; BiasGelu in the form with erf, FastGelu in that with tanh, its bias may be absent. Graphs
// that onnxruntime's optimizer has written hold them. d(x + bias) is ofsdp.GeluGrad(dy, x + bias),
// dbias its sum.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.BiasGelu
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/gelu.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  if (!c.has(1)) return infer_same(c);
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  if (desc.shape != c.inputs[0].shape) {
    return input_error("expected a bias that broadcasts to {}, found {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  return std::vector{std::move(desc)};
}

void grad_of(GradBuilder& b, const char* approximate) {
  const bool biased = b.num_inputs() > 1 && b.input(1);
  const Ref x = biased ? b.emit1("Add", {b.input(0), b.input(1)}) : b.input(0);
  const Ref dx =
      b.emit1("ofsdp.GeluGrad", {b.grad_output(0), x}, {{"approximate", std::string(approximate)}});
  if (b.needs_grad(0)) b.set_grad(0, dx);
  if (biased && b.needs_grad(1)) b.set_grad(1, b.sum_to(dx, b.input(1)));
}

std::vector<RefTensor> reference_of(const ReferenceContext& c, bool tanh) {
  if (c.inputs.size() > 1) {
    return binary_reference(c, [tanh](double x, double b) { return reference_gelu(x + b, tanh); });
  }
  return unary_reference(c, [tanh](double x) { return reference_gelu(x, tanh); });
}

struct BiasGelu {
  template <typename T>
  OFSDP_INLINE T operator()(T x, T bias) const {
    return gelu_erf(x + bias);
  }
};

struct FastGelu {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return gelu_tanh(x);
  }
  template <typename T>
  OFSDP_INLINE T operator()(T x, T bias) const {
    return gelu_tanh(x + bias);
  }
};

bool accepts(const Problem& p) {
  return accepts_unary_of<kFloatTypes>(p) && (!p.has_in(1) || accepts_binary_of<kFloatTypes>(p));
}

std::unique_ptr<Kernel> create_fast(const Problem& p) {
  return p.has_in(1) ? create_binary_of<FastGelu, kFloatTypes>(p)
                     : create_unary_of<FastGelu, kFloatTypes>(p);
}

std::vector<SampleCase> biased_samples() {
  const DType f = DType::kFloat32;
  return {{.name = "bias", .inputs = {{f, {2, 3, 37}}, {f, {37}}}},
          {.name = "one", .inputs = {{f, {5, 1}}, {f, {1}}}},
          {.name = "empty", .inputs = {{f, {0, 4}}, {f, {4}}}},
          sample_of(DType::kFloat64, "same", {{9}, {9}}),
          sample_of(DType::kFloat16, "same", {{9}, {9}})};
}

std::vector<SampleCase> fast_samples() {
  std::vector<SampleCase> list = float_samples();
  append(list, biased_samples());
  return list;
}

}  // namespace

void add_bias_gelu(Registry& registry) {
  registry.add(
      pointwise({.domain = "com.microsoft",
                 .name = "BiasGelu",
                 .min_inputs = 2,
                 .infer = infer,
                 .grad = [](GradBuilder& b) { grad_of(b, "none"); },
                 .reference = [](const ReferenceContext& c) { return reference_of(c, false); },
                 .cpu = binary_kernels<BiasGelu>(),
                 .samples = biased_samples}));
  registry.add(
      pointwise({.domain = "com.microsoft",
                 .name = "FastGelu",
                 .infer = infer,
                 .grad = [](GradBuilder& b) { grad_of(b, "tanh"); },
                 .reference = [](const ReferenceContext& c) { return reference_of(c, true); },
                 .cpu = kernels_by<accepts, create_fast>(),
                 .samples = fast_samples}));
}

}  // namespace ofsdp::kernels::ops
