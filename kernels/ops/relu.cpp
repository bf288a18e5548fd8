// Relu: y = max(x, 0).
// dx = dy where y > 0, else 0 (ofsdp.ReluGrad(dy, y)); y is enough, so x need not be kept.
// NaN stays NaN in y and stops the gradient, as in PyTorch.
// https://onnx.ai/onnx/operators/onnx__Relu.html
#include "kernels/cpu/parallel.h"
#include "kernels/ops/list.h"

namespace ofsdp::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) { return std::vector{c.inputs[0]}; }

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.ReluGrad", {b.grad_output(0), b.output(0)}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  for (double& v : y.values) v = v < 0 ? 0 : v;
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], c.inputs[0].values};
  for (size_t i = 0; i < dx.values.size(); ++i) {
    if (!(c.inputs[1].values[i] > 0)) dx.values[i] = 0;
  }
  return {dx};
}

OFSDP_MULTIARCH void relu_span(const float* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = src[i] < 0.0f ? 0.0f : src[i];
}

OFSDP_MULTIARCH void relu_grad_span(const float* diff_dst, const float* dst, float* diff_src,
                                    int64_t n) {
  for (int64_t i = 0; i < n; ++i) diff_src[i] = dst[i] > 0.0f ? diff_dst[i] : 0.0f;
}

constexpr int64_t kGrain = 16384;

bool accepts(const Problem& p) { return p.all_dtype(DType::kFloat32); }

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([n = p.out(0).numel()](const KernelArgs& a) {
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      relu_span(a.in<float>(0) + begin, a.out<float>(0) + begin, end - begin);
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([n = p.out(0).numel()](const KernelArgs& a) {
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      relu_grad_span(a.in<float>(0) + begin, a.in<float>(1) + begin, a.out<float>(0) + begin,
                     end - begin);
    });
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  return {{.name = "vector", .attributes = {}, .inputs = {{DType::kFloat32, {37}}}},
          {.name = "image", .attributes = {}, .inputs = {{DType::kFloat32, {2, 3, 5, 7}}}},
          {.name = "empty", .attributes = {}, .inputs = {{DType::kFloat32, {0, 4}}}}};
}

std::vector<SampleCase> grad_samples() {
  const TensorDesc t{DType::kFloat32, {3, 41}};
  return {{.name = "matrix", .attributes = {}, .inputs = {t, t}}};
}

}  // namespace

void add_relu(Registry& registry) {
  registry.add({.name = "Relu",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
  registry.add({.domain = kOwnDomain,
                .name = "ReluGrad",
                .min_inputs = 2,
                .infer = infer,
                .reference = grad_reference,
                .cpu = {{"loops", accepts, create_grad}},
                .samples = grad_samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
