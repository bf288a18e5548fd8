// LpPool: y[n, c, o] = (sum over taps k inside x of |x[n, c, o s - p + k d]|^p)^(1/p), p = 2 unless
// given. dx by ofsdp.LpPoolGrad(dy, x, y): dx = sum over the outputs that read it of
// dy sign(x) |x|^(p-1) y^(1-p), 0 where y is 0.
// https://onnx.ai/onnx/operators/onnx__LpPool.html
//
// GlobalLpPool: [N, C, spatial...] -> [N, C, 1...], (sum of |x|^p)^(1/p) over the spatial axes:
// LpPool with one window that covers x. https://onnx.ai/onnx/operators/onnx__GlobalLpPool.html
//
// The kernels are plain loops over the window.
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pool/pool_shape.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace lp_pool {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Window w, infer_pool(c.attributes, c.inputs[0].shape));
  if (c.attributes.i("p", 2) < 1) {
    return input_error("p: expected 1 or more, found {}", c.attributes.i("p", 2));
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, pool_output(w, c.inputs[0].shape)}};
}

// The attributes of the window and p: those of LpPool, or of one window that covers x.
using WindowOf = Attributes (*)(const Attributes& attributes, const Shape& x);
Attributes given_window(const Attributes& attributes, const Shape&) { return attributes; }
Attributes covering_window(const Attributes& attributes, const Shape& x) {
  Attributes made = global_window(x);
  made.set("p", attributes.i("p", 2));
  return made;
}

template <WindowOf window_of>
void grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  const Attributes attributes = window_of(b.attributes(), x);
  Attributes made = pool_attributes(attributes, known_pool(attributes, x), x);
  made.set("p", attributes.i("p", 2));
  b.set_grad(0, b.emit1("ofsdp.LpPoolGrad", {b.grad_output(0), b.input(0), b.output(0)}, made));
}

template <WindowOf window_of>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  const Attributes attributes = window_of(c.attributes, x.desc.shape);
  const Window w = known_pool(attributes, x.desc.shape);
  const auto p = static_cast<double>(attributes.i("p", 2));
  RefTensor y = zeros(c.output_descs[0]);
  for (int64_t plane = 0; plane < x.desc.shape.numel(0, 2); ++plane) {
    for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
      y[plane * w.out_size() + out] += std::pow(std::abs(x[plane * w.in_size() + in]), p);
    });
  }
  for (double& v : y.values) v = std::pow(v, 1 / p);
  return {y};
}

// Returns the derivative of y by the x of one tap.
template <typename T>
T slope(T x, T y, int64_t p) {
  if (y == 0 || x == 0) return 0;
  const T size = std::pow(std::abs(x) / y, static_cast<T>(p - 1));
  return x < 0 ? -size : size;
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const RefTensor &dy = c.inputs[0], &x = c.inputs[1], &y = c.inputs[2];
  const Window w = known_pool(c.attributes, x.desc.shape);
  const auto p = static_cast<double>(c.attributes.i("p", 2));
  RefTensor dx{c.output_descs[0], std::vector<double>(x.values.size())};
  for (int64_t plane = 0; plane < x.desc.shape.numel(0, 2); ++plane) {
    for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
      const auto i = static_cast<size_t>(plane * w.in_size() + in);
      const auto o = static_cast<size_t>(plane * w.out_size() + out);
      if (x.values[i] == 0 || y.values[o] == 0) return;
      dx.values[i] += dy.values[o] * std::copysign(std::pow(std::abs(x.values[i]), p - 1) *
                                                       std::pow(y.values[o], 1 - p),
                                                   x.values[i]);
    });
  }
  return {dx};
}

template <typename T>
T power(T x, int64_t p) {
  return p == 2 ? x * x : p == 1 ? std::abs(x) : std::pow(std::abs(x), static_cast<T>(p));
}

template <typename T>
T root(T sum, int64_t p) {
  return p == 2 ? std::sqrt(sum) : p == 1 ? sum : std::pow(sum, 1 / static_cast<T>(p));
}

// f(x, y of the same plane) for all planes, in parallel.
void for_planes(int64_t planes, const auto& f) {
  parallel_each(planes, 1, [&](int64_t i) { f(i); });
}

template <typename T>
std::unique_ptr<Kernel> make_forward(const Window& w, int64_t planes, int64_t p) {
  return make_kernel([=](const KernelArgs& a) {
    for_planes(planes, [&](int64_t plane) {
      const T* x = a.in<T>(0) + plane * w.in_size();
      T* y = a.out<T>(0) + plane * w.out_size();
      std::fill_n(y, w.out_size(), T{0});
      for_each_tap(w, [&](int64_t out, int64_t, int64_t in) { y[out] += power(x[in], p); });
      for (int64_t i = 0; i < w.out_size(); ++i) y[i] = root(y[i], p);
    });
  });
}

template <typename T>
std::unique_ptr<Kernel> create_grad_of(const Problem& problem) {
  const Window w = known_pool(problem.attributes, problem.in(1).shape);
  return make_kernel([w, p = problem.attributes.i("p", 2),
                      planes = problem.in(1).shape.numel(0, 2)](const KernelArgs& a) {
    for_planes(planes, [&](int64_t plane) {
      const T* dy = a.in<T>(0) + plane * w.out_size();
      const T* x = a.in<T>(1) + plane * w.in_size();
      const T* y = a.in<T>(2) + plane * w.out_size();
      T* dx = a.out<T>(0) + plane * w.in_size();
      std::fill_n(dx, w.in_size(), T{0});
      for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
        dx[in] += dy[out] * slope(x[in], y[out], p);
      });
    });
  });
}

template <WindowOf window_of>
std::unique_ptr<Kernel> create(const Problem& problem) {
  const Shape& x = problem.in(0).shape;
  const Attributes attributes = window_of(problem.attributes, x);
  const Window w = known_pool(attributes, x);
  const int64_t p = attributes.i("p", 2);
  return problem.in(0).dtype == DType::kFloat64 ? make_forward<double>(w, x.numel(0, 2), p)
                                                : make_forward<float>(w, x.numel(0, 2), p);
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return p.in(0).dtype == DType::kFloat64 ? create_grad_of<double>(p) : create_grad_of<float>(p);
}

// Plain, in float32 or float64.
Acceptance accepts(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return accept_if(p.all_dtype(DType::kFloat32) || p.all_dtype(DType::kFloat64),
                   "not all float32 or all float64");
}

// --- GlobalLpPool ---

Result<std::vector<TensorDesc>> global_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(Shape y, infer_global_pool(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, std::move(y)}};
}

}  // namespace lp_pool

void add_lp_pool(Registry& registry) {
  using namespace lp_pool;
  registry.add(make_op("LpPool", {infer, grad<given_window>, reference<given_window>},
                       with_half_floats<accepts, create<given_window>>("loops")));
  registry.add_own(make_op("LpPoolGrad", {infer_like_inputs({1}), nullptr, grad_reference},
                           with_half_floats<accepts, create_grad>("loops"), {.min_inputs = 3}));
  registry.add(make_op("GlobalLpPool",
                       {global_infer, grad<covering_window>, reference<covering_window>},
                       with_half_floats<accepts, create<covering_window>>("loops")));
}

}  // namespace ofsdp::kernels::ops
