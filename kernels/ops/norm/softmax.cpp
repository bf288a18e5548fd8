// Softmax(x), LogSoftmax(x) and Hardmax(x), attribute axis.
//
//   Softmax     y_c = e^x_c / sum_k e^x_k        dx_c = y_c (dy_c - sum_k dy_k y_k)
//   LogSoftmax  y_c = x_c - ln sum_k e^x_k       dx_c = dy_c - e^y_c sum_k dy_k
//   Hardmax     1 at the first largest element along the axis, 0 elsewhere; dx = 0
//
// The gradients are ofsdp.SoftmaxGrad(dy, y) and ofsdp.LogSoftmaxGrad(dy, y): y is enough, so x
// need not be kept. https://onnx.ai/onnx/operators/onnx__Softmax.html
// https://onnx.ai/onnx/operators/onnx__LogSoftmax.html
// https://onnx.ai/onnx/operators/onnx__Hardmax.html
#include "kernels/cpu/softmax.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/softmax_loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace softmaxes {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank()).status());
  return std::vector{c.inputs[0]};
}

SoftmaxExtent extent(const Shape& shape, const Attributes& attributes) {
  const int64_t axis = attributes.i("axis", -1);
  return softmax_extent(shape, static_cast<int>(axis < 0 ? axis + shape.rank() : axis));
}

template <bool logarithm>
void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1(logarithm ? "ofsdp.LogSoftmaxGrad" : "ofsdp.SoftmaxGrad",
                        {b.grad_output(0), b.output(0)}, {{"axis", b.attributes().i("axis", -1)}}));
}

// f(first, step): the elements of one distribution are first, first + step, ..., of `classes`.
void reference_walk(const SoftmaxExtent& e, const auto& f) {
  for (int64_t i = 0; i < e.outer * e.inner; ++i) {
    f(static_cast<size_t>(i / e.inner * e.classes * e.inner + i % e.inner),
      static_cast<size_t>(e.inner));
  }
}

template <bool logarithm>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const SoftmaxExtent e = extent(y.desc.shape, c.attributes);
  const auto classes = static_cast<size_t>(e.classes);
  reference_walk(e, [&](size_t first, size_t step) {
    double max = -INFINITY;
    double sum = 0;
    for (size_t k = 0; k < classes; ++k) max = std::max(max, y.values[first + k * step]);
    for (size_t k = 0; k < classes; ++k) sum += std::exp(y.values[first + k * step] - max);
    for (size_t k = 0; k < classes; ++k) {
      double& v = y.values[first + k * step];
      v = logarithm ? v - max - std::log(sum) : std::exp(v - max) / sum;
    }
  });
  return {y};
}

template <bool logarithm>
std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], c.inputs[0].values};
  const std::vector<double>&dy = c.inputs[0].values, &y = c.inputs[1].values;
  const SoftmaxExtent e = extent(dx.desc.shape, c.attributes);
  const size_t classes = static_cast<size_t>(e.classes);
  reference_walk(e, [&](size_t first, size_t step) {
    double sum = 0;
    const size_t end = first + classes * step;
    for (size_t at = first; at < end; at += step) sum += logarithm ? dy[at] : dy[at] * y[at];
    for (size_t at = first; at < end; at += step) {
      dx.values[at] = logarithm ? dy[at] - std::exp(y[at]) * sum : y[at] * (dy[at] - sum);
    }
  });
  return {dx};
}

// `run` is one of the functions of kernels/cpu/softmax.h, or its loops in double.
template <typename T, auto run>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    run(e, a.in<T>(0), a.out<T>(0));
  });
}

template <typename T, auto run>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    run(e, a.in<T>(0), a.in<T>(1), a.out<T>(0));
  });
}

void softmax_grad_body(BodyBuilder& b) {
  const Ref y = b.input(1), product = b.mul(b.input(0), y);
  b.set_output(0, b.sub(product, b.mul(y, b.sum(product, {b.attributes().i("axis", -1)}))));
}

void log_softmax_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0);
  const Ref sum = b.sum(dy, {b.attributes().i("axis", -1)});
  b.set_output(0, b.sub(dy, b.mul(b.emit1("Exp", {b.input(1)}), sum)));
}

// Registers the operator and its gradient in our own domain, under the operator's name and "Grad".
template <bool logarithm>
void add(Registry& registry, const std::string& name, std::vector<Implementation> kernels,
         std::vector<Implementation> grad_kernels) {
  registry.add(make_op(name, {infer, grad<logarithm>, reference<logarithm>}, std::move(kernels),
                       {.first_opset = 13, .inplace_inputs = {0}}));
  registry.add_own(make_op(name + "Grad", {infer, nullptr, grad_reference<logarithm>},
                           std::move(grad_kernels),
                           {.min_inputs = 2,
                            .body = logarithm ? log_softmax_grad_body : softmax_grad_body,
                            .inplace_inputs = {0, 1}}));
}

// --- Hardmax ---

void hardmax_grad(GradBuilder& b) {
  const TensorDesc& x = b.desc(b.input(0));
  b.set_grad(0, b.emit1("Expand", {b.scalar(x.dtype, 0), b.ints(x.shape.axes())}));
}

template <typename T>
void hardmax(const SoftmaxExtent& e, const T* x, T* y) {
  for_distributions(e, [&](int64_t first) {
    int64_t best = 0;
    for (int64_t k = 1; k < e.classes; ++k) {
      if (x[first + k * e.inner] > x[first + best * e.inner]) best = k;
    }
    for (int64_t k = 0; k < e.classes; ++k) y[first + k * e.inner] = k == best ? T{1} : T{0};
  });
}

std::vector<RefTensor> hardmax_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  hardmax(extent(y.desc.shape, c.attributes), c.inputs[0].values.data(), y.values.data());
  return {y};
}

}  // namespace
}  // namespace softmaxes

void add_softmax(Registry& registry) {
  using namespace softmaxes;
  add<false>(registry, "Softmax",
             plain_float_kernels<create<float, softmax>, create<double, softmax_loops>>("rows"),
             plain_float_kernels<create_grad<float, softmax_grad>,
                                 create_grad<double, softmax_grad_loops<false>>>("rows"));
  add<true>(
      registry, "LogSoftmax",
      plain_float_kernels<create<float, log_softmax>, create<double, log_softmax_loops>>("rows"),
      plain_float_kernels<create_grad<float, log_softmax_grad>,
                          create_grad<double, softmax_grad_loops<true>>>("rows"));
  registry.add(make_op(
      "Hardmax", {infer, hardmax_grad, hardmax_reference},
      plain_float_kernels<create<float, hardmax<float>>, create<double, hardmax<double>>>("loops"),
      {.first_opset = 13}));
}

}  // namespace ofsdp::kernels::ops
