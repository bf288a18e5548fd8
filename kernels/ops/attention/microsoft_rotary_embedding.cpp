// com.microsoft.RotaryEmbedding(x, positions, cos, sin): RotaryEmbedding with its inputs in another
// order; a single position is the offset of the first step. Formula and derivative in
// rotary_embedding.cpp. Attributes scale (not 1) and is_packed_batching are refused.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/attention/rotary.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr RotaryInputs kInputs{2, 3, 1};

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const float scale = c.attributes.f("scale", 1.0f);
  if (scale != 1.0f || c.attributes.i("is_packed_batching", 0) != 0) {
    return input_error("expected scale 1 and is_packed_batching 0, found {} and {}", scale,
                       c.attributes.i("is_packed_batching", 0));
  }
  return infer_rotary(c, kInputs);
}

void grad(GradBuilder& b) {
  const Ref back = b.emit1("Neg", {b.input(3)});
  b.set_grad(0, b.emit1("com.microsoft.RotaryEmbedding",
                        {b.grad_output(0), b.input(1), b.input(2), back}, b.attributes()));
}

std::vector<RefTensor> reference(const ReferenceContext& c) { return reference_rotary(c, kInputs); }

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return create_rotary<T>(p, kInputs);
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  auto made = [&](const char* name, Shape x, Shape positions) {
    return SampleCase{.name = name,
                      .inputs = {{f, std::move(x)},
                                 {DType::kInt64, std::move(positions)},
                                 {f, {7, 5}},
                                 {f, {7, 5}}},
                      .fill = fill_with(1, {2, 0, 4, 1, 3}),
                      .constant_inputs = {2, 3}};
  };
  return {made("heads", {2, 3, 4, 10}, {2, 4}), made("packed", {2, 4, 30}, {2, 4}),
          made("offset", {2, 3, 4, 10}, {1})};
}

}  // namespace

void add_microsoft_rotary_embedding(Registry& registry) {
  registry.add({.domain = "com.microsoft",
                .name = "RotaryEmbedding",
                .min_inputs = 4,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"rows", accepts_rotary<float>, create<float>},
                        in_float32<accepts_rotary<float>, create<float>>(),
                        {"float64", accepts_rotary<double>, create<double>}},
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
