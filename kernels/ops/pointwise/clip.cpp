// Clip(x, min, max): y = min(max(x, min), max), of all numbers; a bound that is absent does not
// bind. NaN stays NaN. dx = dy where min <= x <= max, else 0 (ofsdp.ClipGrad(dy, x, min, max)).
// https://onnx.ai/onnx/operators/onnx__Clip.html
#include <cmath>
#include <limits>

#include "kernels/core/standard_body.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer_bounded(const InferContext& c, size_t first) {
  for (size_t i : {first, first + 1}) {
    if (!c.has(i)) continue;
    if (c.inputs[i].numel() != 1 || c.inputs[i].dtype != c.inputs[0].dtype) {
      return input_error("expected one {} as input '{}', found {}", dtype_name(c.inputs[0].dtype),
                         i == first ? "min" : "max", c.inputs[i].text());
    }
  }
  return std::vector{c.inputs[0]};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) { return infer_bounded(c, 1); }
Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) { return infer_bounded(c, 2); }

void grad(GradBuilder& b) {
  std::vector<Ref> inputs = {b.grad_output(0)};
  for (size_t i = 0; i < b.num_inputs(); ++i) inputs.push_back(b.input(i));
  b.set_grad(0, b.emit1("ofsdp.ClipGrad", inputs));
}

double reference_bound(const ReferenceContext& c, size_t i, double none) {
  return c.inputs.size() > i && c.inputs[i].desc.present() ? c.inputs[i].values[0] : none;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const double low = reference_bound(c, 1, -std::numeric_limits<double>::infinity());
  const double high = reference_bound(c, 2, std::numeric_limits<double>::infinity());
  return unary_reference(c, [=](double v) {
    const double raised = v < low ? low : v;
    return raised > high ? high : raised;
  });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const double low = reference_bound(c, 2, -std::numeric_limits<double>::infinity());
  const double high = reference_bound(c, 3, std::numeric_limits<double>::infinity());
  return binary_reference(c, [=](double d, double v) { return v >= low && v <= high ? d : 0; });
}

template <typename T>
struct Clip {
  bool has_low, has_high;
  T low, high;
  OFSDP_INLINE T operator()(T v) const {
    const T raised = has_low && v < low ? low : v;
    return has_high && raised > high ? high : raised;
  }
  OFSDP_INLINE T operator()(T d, T v) const {
    const bool inside = (!has_low || v >= low) && (!has_high || v <= high);
    return inside && v == v ? d : T{0};
  }
};

// The formula with the bounds of this run.
template <typename T>
Clip<T> clip_of(const KernelArgs& a, size_t first) {
  auto bound = [&](size_t i) { return a.inputs.size() > i ? a.in<T>(i) : nullptr; };
  const T* low = bound(first);
  const T* high = bound(first + 1);
  return {low != nullptr, high != nullptr, low != nullptr ? *low : T{},
          high != nullptr ? *high : T{}};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return kernel_for<kNumberTypes>(p.in(0).dtype, [&p](auto zero) {
    using T = decltype(zero);
    return make_kernel([n = p.out(0).numel()](const KernelArgs& a) {
      const Clip<T> f = clip_of<T>(a, 1);
      parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
        pointwise_span(a.in<T>(0) + begin, a.out<T>(0) + begin, end - begin, f);
      });
      return ok_status();
    });
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return kernel_for<kFloatTypes>(p.in(0).dtype, [&p](auto zero) {
    using T = decltype(zero);
    return make_kernel([n = p.out(0).numel()](const KernelArgs& a) {
      const Clip<T> f = clip_of<T>(a, 2);
      parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
        pointwise_row(BinaryRow<T>{a.in<T>(0) + begin, 1, a.in<T>(1) + begin, 1,
                                   a.out<T>(0) + begin, end - begin},
                      f);
      });
      return ok_status();
    });
  });
}

Fill bounds_at(size_t first) {
  return [first](size_t input, std::vector<double>& values) {
    if (input == first) values[0] = values[0] == std::floor(values[0]) ? 1 : -0.5;
    if (input == first + 1) values[0] = values[0] == std::floor(values[0]) ? 2 : 0.75;
  };
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  const TensorDesc x{f, {2, 3, 4, 5}};
  const Fill fill = bounds_at(1);
  std::vector<SampleCase> list = {
      {.name = "none", .inputs = {x}},
      {.name = "both", .inputs = {x, {f, {}}, {f, {}}}, .fill = fill, .constant_inputs = {1, 2}},
      {.name = "low", .inputs = {x, {f, {}}}, .fill = fill, .constant_inputs = {1}},
      {.name = "high", .inputs = {x, {}, {f, {}}}, .fill = fill, .constant_inputs = {1, 2}},
      {.name = "empty", .inputs = {{f, {0, 3}}, {f, {}}}, .fill = fill, .constant_inputs = {1}}};
  for (DType dtype : types_in(kNumberTypes)) {
    list.push_back(sample_of(dtype, "both", {{19}, {}, {}}, fill));
    list.back().constant_inputs = {1, 2};
  }
  return list;
}

std::vector<SampleCase> grad_samples() {
  std::vector<SampleCase> list = float_pair_samples(bounds_at(2));
  for (SampleCase& s : list) {
    s.inputs.push_back({s.inputs[0].dtype, {}});
    s.inputs.push_back({s.inputs[0].dtype, {}});
  }
  list.push_back({.name = "none", .inputs = {{DType::kFloat32, {9}}, {DType::kFloat32, {9}}}});
  return list;
}

void clip_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), x = b.input(1), zero = b.like(dy, 0);
  Ref made = dy;
  if (b.input(2)) made = b.where(b.emit1("GreaterOrEqual", {x, b.input(2)}), made, zero);
  if (b.input(3)) made = b.where(b.emit1("LessOrEqual", {x, b.input(3)}), made, zero);
  b.set_output(0, made);
}

}  // namespace

void add_clip(Registry& registry) {
  registry.add(pointwise({.name = "Clip",
                          .first_opset = 11,
                          .infer = infer,
                          .grad = grad,
                          .reference = reference,
                          .cpu = kernels_by<accepts_unary_of<kNumberTypes>, create>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "ClipGrad",
                               .infer = infer_grad,
                               .body = clip_grad_body,
                               .reference = grad_reference,
                               .cpu = kernels_by<accepts_unary_of<kFloatTypes>, create_grad>(),
                               .samples = grad_samples}));
}

}  // namespace ofsdp::kernels::ops
