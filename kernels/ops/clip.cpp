// Clip(x, min, max): y = min(max(x, min), max); a bound that is absent does not bind. The bounds
// are known while planning. NaN stays NaN. dx = dy where min <= x <= max, else 0
// (ofsdp.ClipGrad(dy, x), attributes min, max). https://onnx.ai/onnx/operators/onnx__Clip.html
#include <limits>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

struct Bounds {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

float value_of(const Constant& constant) {
  return static_cast<float>(to_doubles(constant.desc, constant.bytes.data())[0]);
}

Bounds bounds_of(const Constant* low, const Constant* high) {
  Bounds b;
  if (low != nullptr) b.low = value_of(*low);
  if (high != nullptr) b.high = value_of(*high);
  return b;
}

Bounds bounds_of(const Attributes& attributes) {
  return {attributes.f("min", Bounds{}.low), attributes.f("max", Bounds{}.high)};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  for (size_t i : {size_t{1}, size_t{2}}) {
    if (c.has(i) && (c.constant(i) == nullptr || c.inputs[i].numel() != 1)) {
      return input_error("input '{}' must be one value known before the run, found {}",
                         i == 1 ? "min" : "max", c.inputs[i].text());
    }
  }
  return std::vector{c.inputs[0]};
}

ConstantPtr known(const GradBuilder& b, size_t input) {
  const bool given = b.num_inputs() > input && b.input(input);
  return given ? b.constant_value(b.input(input)) : nullptr;
}

void grad(GradBuilder& b) {
  const ConstantPtr low = known(b, 1);
  const ConstantPtr high = known(b, 2);
  const Bounds bounds = bounds_of(low.get(), high.get());
  b.set_grad(0, b.emit1("ofsdp.ClipGrad", {b.grad_output(0), b.input(0)},
                        {{"min", bounds.low}, {"max", bounds.high}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  auto bound = [&](size_t i, double none) {
    return c.inputs.size() > i && c.inputs[i].desc.present() ? c.inputs[i].values[0] : none;
  };
  const double low = bound(1, -std::numeric_limits<double>::infinity());
  const double high = bound(2, std::numeric_limits<double>::infinity());
  return unary_reference(c, [=](double v) {
    const double raised = v < low ? low : v;
    return raised > high ? high : raised;
  });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const Bounds bounds = bounds_of(c.attributes);
  return binary_reference(c, [bounds](double d, double v) {
    return v >= static_cast<double>(bounds.low) && v <= static_cast<double>(bounds.high) ? d : 0;
  });
}

OFSDP_MULTIARCH void clip_span(const float* x, float* y, int64_t n, Bounds bounds) {
  unary_row(x, y, n, [bounds](float v) {
    const float raised = v < bounds.low ? bounds.low : v;
    return raised > bounds.high ? bounds.high : raised;
  });
}

OFSDP_MULTIARCH void clip_grad_span(const float* dy, const float* x, float* dx, int64_t n,
                                    Bounds bounds) {
  binary_row(BinaryRow<float>{dy, 1, x, 1, dx, n},
             [bounds](float d, float v) { return v >= bounds.low && v <= bounds.high ? d : 0.0f; });
}

bool accepts(const Problem& p) {
  return p.in(0).dtype == DType::kFloat32 && p.in(0).layout == p.out(0).layout;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Bounds bounds = bounds_of(p.constant(1), p.constant(2));
  return make_kernel([n = p.out(0).numel(), bounds](const KernelArgs& a) {
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      clip_span(a.in<float>(0) + begin, a.out<float>(0) + begin, end - begin, bounds);
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([n = p.out(0).numel(), b = bounds_of(p.attributes)](const KernelArgs& a) {
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      clip_grad_span(a.in<float>(0) + begin, a.in<float>(1) + begin, a.out<float>(0) + begin,
                     end - begin, b);
    });
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  const TensorDesc x{f, {2, 3, 4, 5}};
  auto fill = [](size_t input, std::vector<double>& values) {
    if (input == 1) values[0] = -0.5;
    if (input == 2) values[0] = 0.75;
  };
  return {
      {.name = "none", .inputs = {x}},
      {.name = "both", .inputs = {x, {f, {}}, {f, {}}}, .fill = fill, .constant_inputs = {1, 2}},
      {.name = "low", .inputs = {x, {f, {}}}, .fill = fill, .constant_inputs = {1}},
      {.name = "high", .inputs = {x, {}, {f, {}}}, .fill = fill, .constant_inputs = {1, 2}},
      {.name = "empty", .inputs = {{f, {0, 3}}, {f, {}}}, .fill = fill, .constant_inputs = {1}}};
}

std::vector<SampleCase> grad_samples() {
  std::vector<SampleCase> list = pair_samples();
  for (SampleCase& s : list) s.attributes = {{"min", -0.5f}, {"max", 0.75f}};
  return list;
}

}  // namespace

void add_clip(Registry& registry) {
  registry.add({.name = "Clip",
                .first_opset = 11,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise,
                .constant_inputs = {1, 2}});
  registry.add({.domain = kOwnDomain,
                .name = "ClipGrad",
                .min_inputs = 2,
                .infer = infer_same,
                .reference = grad_reference,
                .cpu = {{"loops", accepts, create_grad}},
                .samples = grad_samples,
                .inplace_inputs = {0, 1},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
