// ofsdp.DropoutGrad(dy, mask), attribute ratio: dx = dy mask / (1 - ratio); see dropout.cpp.
#include "kernels/core/standard_body.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/random/dropout.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  if (c.inputs[1].dtype != DType::kBool || c.inputs[1].shape != c.inputs[0].shape) {
    return input_error("expected a bool mask for {}, found {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  return std::vector{c.inputs[0]};
}

float scale_of(const Attributes& attributes) {
  return static_cast<float>(dropout_scale(static_cast<double>(attributes.f("ratio", 0.5f))));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], c.inputs[0].values};
  const double scale = dropout_scale(static_cast<double>(c.attributes.f("ratio", 0.5f)));
  for (size_t i = 0; i < dx.values.size(); ++i) dx.values[i] *= c.inputs[1].values[i] * scale;
  return {dx};
}

OFSDP_MULTIARCH void mask_span(const float* dy, const uint8_t* mask, float scale, float* dx,
                               int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dx[i] = mask[i] != 0 ? dy[i] * scale : 0.0f;
}

bool accepts(const Problem& p) {
  return p.in(0).dtype == DType::kFloat32 && p.in(0).layout == p.in(1).layout;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([n = p.out(0).numel(), scale = scale_of(p.attributes)](const KernelArgs& a) {
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      mask_span(a.in<float>(0) + begin, a.in<uint8_t>(1) + begin, scale, a.out<float>(0) + begin,
                end - begin);
    });
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const TensorDesc dy{DType::kFloat32, {2, 3, 4, 5}};
  return {
      {.name = "image", .attributes = {{"ratio", 0.25f}}, .inputs = {dy, {DType::kBool, dy.shape}}},
      {.name = "empty", .inputs = {{DType::kFloat32, {0, 3}}, {DType::kBool, {0, 3}}}}};
}

void dropout_grad_body(BodyBuilder& b) {
  const double ratio = static_cast<double>(b.attributes().f("ratio", 0.5f));
  const Ref dy = b.input(0);
  const Ref kept = b.cast(b.input(1), b.desc(dy).dtype);
  b.set_output(0, b.mul(b.mul(dy, kept), ratio < 1 ? 1 / (1 - ratio) : 0));
}

}  // namespace

void add_dropout_grad(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "DropoutGrad",
                .min_inputs = 2,
                .infer = infer,
                .body = dropout_grad_body,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::kernels::ops
