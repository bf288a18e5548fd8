// com.microsoft.SkipLayerNormalization(x, skip, scale, norm_bias, bias): with
// s = x + skip + bias, y = LayerNormalization(s, scale, norm_bias) over the last axis; outputs
// 1, 2, 3 are mean, inv and s. skip broadcasts to x.
// ds = LayerNormalizationGrad + d(output 3); dx = ds, dskip and dbias are ds summed to their shapes.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/core/memory.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/norm/normalized_rows.h"
#include "kernels/ops/norm/skip_layer_norm.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Attributes last_axis(const Attributes& attributes) {
  return {{"axis", int64_t{-1}}, {"epsilon", attributes.f("epsilon", 1e-12f)}};
}

}  // namespace

Result<std::vector<TensorDesc>> infer_skip_norm(const InferContext& c, SkipNorm s) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() < 1) return input_error("expected at least one axis, found {}", x.text());
  const size_t inputs = s.sum_bias() + 1;
  const std::array<const char*, 5> names = {"x", "skip", "scale", "norm bias", "bias"};
  for (size_t i = 1; i < inputs; ++i) {
    if (!c.has(i)) continue;
    OFSDP_RETURN_IF_ERROR(check_norm_operand(x, c.inputs[i], names[i]));
  }
  const Shape width{x.shape[x.shape.rank() - 1]};
  for (size_t i : {size_t{2}, s.norm_bias()}) {
    if (!c.has(i) || c.inputs[i].shape == width) continue;
    return input_error("expected {} {} for {}, found {}", names[i], width.text(), x.text(),
                       c.inputs[i].text());
  }
  const TensorDesc stats{DType::kFloat32, stats_shape(x.shape, {})};
  return std::vector{x, stats, stats, x};
}

void grad_of_skip_norm(GradBuilder& b, SkipNorm s) {
  Ref ds = b.grad_output(3);
  if (b.grad_output(0) || b.grad_output(1) || b.grad_output(2)) {
    const Ref dy = b.grad_output(0) ? b.grad_output(0)
                                    : b.emit1("Expand", {b.scalar(b.desc(b.input(0)).dtype, 0),
                                                         b.ints(b.desc(b.input(0)).shape.axes())});
    const NormGrad g{dy,
                     b.output(3),
                     b.input(2),
                     s.centred ? b.output(1) : Ref{},
                     b.output(2),
                     s.centred ? b.grad_output(1) : Ref{},
                     b.grad_output(2)};
    const Ref through = emit_norm_grad(b, g, 2, s.norm_bias());
    ds = ds ? b.emit1("Add", {ds, through}) : through;
  }
  for (size_t i : {size_t{0}, size_t{1}, s.sum_bias()}) {
    if (i < b.num_inputs() && b.input(i) && b.needs_grad(i)) {
      b.set_grad(i, b.sum_to(ds, b.input(i)));
    }
  }
}

std::vector<RefTensor> reference_skip_norm(const ReferenceContext& c, SkipNorm s) {
  RefTensor sum{c.output_descs[0], c.inputs[0].values};
  for (size_t at = 0; at < sum.values.size(); ++at) {
    const auto index = unravel(sum.desc.shape, static_cast<int64_t>(at));
    for (size_t i : {size_t{1}, s.sum_bias()}) {
      if (i >= c.inputs.size() || !c.inputs[i].desc.present()) continue;
      sum.values[at] += c.inputs[i].values[ravel_broadcast(c.inputs[i].desc.shape, index)];
    }
  }
  const size_t bias = s.norm_bias();
  const bool has_bias = bias < c.inputs.size() && c.inputs[bias].desc.present();
  auto made = reference_norm(sum, &c.inputs[2], has_bias ? &c.inputs[bias] : nullptr,
                             last_axis(c.attributes), s.centred);
  if (!s.centred) made[1].values.assign(made[1].values.size(), 0);
  made.push_back(sum);
  made.resize(c.output_descs.size());
  return made;
}

bool accepts_skip_norm(const Problem& p) { return p.all_plain() && p.all_dtype(DType::kFloat32); }

namespace {

OFSDP_MULTIARCH void add_row(const BinaryRow<float>& row) {
  binary_row(row, [](float a, float b) { return a + b; });
}

}  // namespace

std::unique_ptr<Kernel> create_skip_norm(const Problem& p, SkipNorm s) {
  const TensorDesc x = p.in(0);
  const NormRows n = rows_of(x.shape, last_axis(p.attributes), s.centred);
  const size_t bias = s.norm_bias(), sum_bias = s.sum_bias();
  const bool has_bias = p.has_in(bias), has_sum_bias = p.has_in(sum_bias);
  const bool has_mean = p.has_out(1), has_inv = p.has_out(2), has_sum = p.has_out(3);
  const StridedLoop with_skip = binary_loop({{}, {x, p.in(1)}, {x}, {}});
  const StridedLoop with_bias = binary_loop({{}, {x, has_sum_bias ? p.in(sum_bias) : x}, {x}, {}});
  return make_kernel(
      [=](const KernelArgs& a) {
        const TensorView sum{has_sum ? a.outputs[3].data : a.workspace, x};
        auto add = [&](const StridedLoop& loop, const TensorView& left, const TensorView& right) {
          const TensorView inputs[] = {left, right};
          run_binary<float, float, add_row>(loop, {inputs, {&sum, 1}, nullptr, nullptr});
        };
        add(with_skip, a.inputs[0], a.inputs[1]);
        if (has_sum_bias) add(with_bias, sum, a.inputs[sum_bias]);
        if (!s.centred && has_mean) std::fill_n(a.out<float>(1), n.rows, 0.0f);
        norm_rows<float>(
            n, {sum.as<const float>(), a.in<float>(2), has_bias ? a.in<float>(bias) : nullptr,
                a.out<float>(0), has_mean && s.centred ? a.out<float>(1) : nullptr,
                has_inv ? a.out<float>(2) : nullptr});
        return ok_status();
      },
      has_sum ? 0 : x.bytes());
}

std::vector<SampleCase> skip_norm_samples(SkipNorm s) {
  auto made = [&](const char* name, Shape x, Shape skip, bool biases, size_t outputs,
                  DType dtype = DType::kFloat32) {
    const TensorDesc width{dtype, {x[x.rank() - 1]}};
    const TensorDesc bias = biases ? width : TensorDesc{};
    SampleCase c{.name = name,
                 .attributes = {{"epsilon", 1e-3f}},
                 .inputs = {{dtype, x}, {dtype, skip}, width, bias},
                 .num_outputs = outputs,
                 .check_grad = dtype == DType::kFloat32,
                 .tolerance = dtype == DType::kFloat32 ? 2e-5 : 3e-3};
    if (s.centred) c.inputs.push_back(bias);
    return c;
  };
  return {made("plain", {2, 3, 37}, {2, 3, 37}, false, 1),
          made("biases", {2, 3, 37}, {2, 3, 37}, true, 1),
          made("outputs", {2, 3, 7}, {3, 7}, true, 4),
          made("rows", {5, 7}, {5, 7}, true, 3),
          made("empty", {0, 3, 7}, {0, 3, 7}, true, 4),
          made("float16", {2, 3, 7}, {1, 3, 7}, true, 4, DType::kFloat16)};
}

namespace {

constexpr SkipNorm kCentred{true};

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return infer_skip_norm(c, kCentred);
}
void grad(GradBuilder& b) { grad_of_skip_norm(b, kCentred); }
std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_skip_norm(c, kCentred);
}
std::unique_ptr<Kernel> create(const Problem& p) { return create_skip_norm(p, kCentred); }

}  // namespace

void add_skip_layer_normalization(Registry& registry) {
  registry.add(
      {.domain = "com.microsoft",
       .name = "SkipLayerNormalization",
       .min_inputs = 3,
       .infer = infer,
       .grad = grad,
       .reference = reference,
       .cpu = {{"rows", accepts_skip_norm, create}, in_float32<accepts_skip_norm, create>()},
       .samples = [] { return skip_norm_samples(kCentred); }});
}

}  // namespace ofsdp::kernels::ops
