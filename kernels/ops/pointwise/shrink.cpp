// Shrink, attributes lambd (0.5) and bias (0): y = x + bias where x < -lambd, x - bias where
// x > lambd, else 0; of all numbers. dx = dy where |x| > lambd, else 0 (ofsdp.ShrinkGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Shrink.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "ShrinkGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto lambd = static_cast<double>(c.attributes.f("lambd", 0.5f));
  const auto bias = static_cast<double>(c.attributes.f("bias", 0.0f));
  return unary_reference(c, [=](double x) {
    return x < -lambd ? x + bias : x > lambd ? x - bias : 0;
  });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto lambd = static_cast<double>(c.attributes.f("lambd", 0.5f));
  return binary_reference(c, [=](double d, double x) { return x < -lambd || x > lambd ? d : 0; });
}

struct Shrink {
  float lambd;
  float bias;
  explicit Shrink(const Attributes& a) : lambd(a.f("lambd", 0.5f)), bias(a.f("bias", 0.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    using Real = std::conditional_t<std::is_floating_point_v<T>, T, double>;
    const Real v = static_cast<Real>(x), edge = static_cast<Real>(lambd);
    const Real shift = static_cast<Real>(bias);
    const Real low = v < -edge ? v + shift : Real{0};
    return static_cast<T>(v > edge ? v - shift : low);
  }
};

struct ShrinkGrad {
  float lambd;
  explicit ShrinkGrad(const Attributes& a) : lambd(a.f("lambd", 0.5f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x < static_cast<T>(-lambd) || x > static_cast<T>(lambd) ? d : T{0};
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"lambd", 0.75f}, {"bias", 0.25f}});
  append(list, vectors_of_types(kIntegerTypes));
  list.push_back(extreme_sample({{"lambd", 0.75f}, {"bias", 0.25f}}));
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

}  // namespace

void add_shrink(Registry& registry) {
  registry.add(pointwise({.name = "Shrink",
                          .first_opset = 9,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Shrink, kNumberTypes>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "ShrinkGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<ShrinkGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"lambd", 0.75f}, {"bias", 0.25f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
