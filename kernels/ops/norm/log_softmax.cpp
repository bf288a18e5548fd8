// LogSoftmax(x), attribute axis: y_c = x_c - ln sum_k e^x_k.
// dx_c = dy_c - e^y_c sum_k dy_k (ofsdp.LogSoftmaxGrad(dy, y)); y is enough, so x need not be kept.
// https://onnx.ai/onnx/operators/onnx__LogSoftmax.html
#include <algorithm>
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/softmax_loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
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

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.LogSoftmaxGrad", {b.grad_output(0), b.output(0)},
                        {{"axis", b.attributes().i("axis", -1)}}));
}

// f(first, step): the elements of one distribution are first, first + step, ..., of `classes`.
template <typename F>
void reference_walk(const SoftmaxExtent& e, const F& f) {
  for (int64_t i = 0; i < e.outer * e.inner; ++i) {
    f(static_cast<size_t>(i / e.inner * e.classes * e.inner + i % e.inner),
      static_cast<size_t>(e.inner));
  }
}

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
      v = v - max - std::log(sum);
    }
  });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], c.inputs[0].values};
  const std::vector<double>& y = c.inputs[1].values;
  const SoftmaxExtent e = extent(dx.desc.shape, c.attributes);
  const auto classes = static_cast<size_t>(e.classes);
  reference_walk(e, [&](size_t first, size_t step) {
    double sum = 0;
    for (size_t k = 0; k < classes; ++k) {
      const size_t at = first + k * step;
      sum += c.inputs[0].values[at];
    }
    for (size_t k = 0; k < classes; ++k) {
      const size_t at = first + k * step;
      dx.values[at] = c.inputs[0].values[at] - std::exp(y[at]) * sum;
    }
  });
  return {dx};
}

bool accepts(const Problem& p) { return p.all_dtype(DType::kFloat32) && p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    log_softmax(e, a.in<float>(0), a.out<float>(0));
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    log_softmax_grad(e, a.in<float>(0), a.in<float>(1), a.out<float>(0));
    return ok_status();
  });
}

bool accepts_double(const Problem& p) { return p.all_dtype(DType::kFloat64) && p.all_plain(); }

std::unique_ptr<Kernel> create_double(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    log_softmax_loops(e, a.in<double>(0), a.out<double>(0));
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_grad_double(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    log_softmax_grad_loops(e, a.in<double>(0), a.in<double>(1), a.out<double>(0));
    return ok_status();
  });
}

SampleCase sample(const char* name, Shape shape, int64_t axis, size_t inputs,
                  DType dtype = DType::kFloat32, double tolerance = 2e-5) {
  return {.name = name,
          .attributes = {{"axis", axis}},
          .inputs = std::vector<TensorDesc>(inputs, {dtype, std::move(shape)}),
          .check_grad = dtype_size(dtype) > 2,
          .tolerance = tolerance};
}

std::vector<SampleCase> samples_of(size_t inputs) {
  return {sample("classes", {5, 10}, -1, inputs),
          sample("vocabulary", {3, 333}, 1, inputs),
          sample("channels", {2, 4, 3, 5}, 1, inputs),
          sample("leading", {6, 150}, 0, inputs),
          sample("one_class", {4, 1}, 1, inputs),
          sample("empty", {0, 10}, 1, inputs),
          sample("no_class", {3, 0}, 1, inputs),
          sample("float64", {3, 5, 2}, 1, inputs, DType::kFloat64, 1e-13),
          sample("float16", {3, 5, 2}, -1, inputs, DType::kFloat16, 1e-3),
          sample("bfloat16", {3, 5, 2}, 0, inputs, DType::kBFloat16, 8e-3)};
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = samples_of(1);
  list.push_back(sample("large_values", {2, 20}, 1, 1));
  list.back().fill = [](size_t, std::vector<double>& values) {
    for (double& v : values) v *= 100;
  };
  list.back().check_grad = false;
  return list;
}

std::vector<SampleCase> grad_samples() { return samples_of(2); }

void log_softmax_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0);
  const Ref sum = b.sum(dy, {b.attributes().i("axis", -1)});
  b.set_output(0, b.sub(dy, b.mul(b.emit1("Exp", {b.input(1)}), sum)));
}

}  // namespace

void add_log_softmax(Registry& registry) {
  registry.add({.name = "LogSoftmax",
                .first_opset = 13,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"rows", accepts, create},
                        in_float32<accepts, create>(),
                        {"float64", accepts_double, create_double}},
                .samples = samples,
                .inplace_inputs = {0}});
  registry.add({.domain = kOwnDomain,
                .name = "LogSoftmaxGrad",
                .min_inputs = 2,
                .infer = infer,
                .body = log_softmax_grad_body,
                .reference = grad_reference,
                .cpu = {{"rows", accepts, create_grad},
                        in_float32<accepts, create_grad>(),
                        {"float64", accepts_double, create_grad_double}},
                .samples = grad_samples,
                .inplace_inputs = {0, 1}});
}

}  // namespace ofsdp::kernels::ops
