// LayerNormalization, RMSNormalization and ONNX Runtime's variants.
//
// LayerNormalization(x, scale, bias), attributes axis, epsilon: y = h scale + bias with h = (x -
// mean) inv, inv = 1 / sqrt(variance + epsilon), over the axes from `axis` on; outputs 1 and 2 are
// mean and inv, in float32 (stash_type). Also com.microsoft.LayerNormalization.
// https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
//
// RMSNormalization(x, scale): y = x inv scale with inv = 1 / sqrt(mean(x^2) + epsilon). Output 1,
// inv, is ours. ONNX Runtime calls it SimplifiedLayerNormalization(x, scale), in its domain and in
// ai.onnx.
// https://onnx.ai/onnx/operators/onnx__RMSNormalization.html
//
// com.microsoft.SkipLayerNormalization(x, skip, scale, norm_bias, bias): with s = x + skip + bias,
// y = LayerNormalization(s, scale, norm_bias) over the last axis; outputs 1, 2, 3 are mean, inv and
// s. skip broadcasts to x. SkipSimplifiedLayerNormalization(x, skip, scale, bias) is the same with
// RMSNormalization; output 1 is unused (0).
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
//
// ofsdp.LayerNormalizationGrad(dy, x, scale, mean, inv, dmean, dinv) returns dx, dscale, dbias
// (formulas: kernels/cpu/normalization.h); without mean it is RMSNormalization's gradient. With
// skip, ds = LayerNormalizationGrad + d(output 3); dx = ds; dskip and dbias are ds summed to their
// shapes.
//
// Scale and bias broadcast to x; an operand with more than one row of `width` is broadcast into the
// workspace first.

#include <algorithm>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"
#include "kernels/core/planned_operands.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/normalization.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// x is [rows, width], cut at attribute `axis`.
int norm_axis(const Shape& x, const Attributes& attributes);
NormRows rows_of(const Shape& x, const Attributes& attributes, bool centred);
Shape stats_shape(const Shape& x, const Attributes& attributes);  // 1 from the axis on

// T is float, double, BFloat16 or Half. Inputs 3 to 6 are statistics and must be float32.
template <typename T>
Acceptance accepts_norm(const Problem& p) {
  const DType dtype = dtype_of<T>();
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const bool statistic = i >= 3 && i < kNormAddend;
    if (!p.has_in(i) || p.in(i).dtype == (statistic ? DType::kFloat32 : dtype)) continue;
    return Acceptance::refuse(statistic ? "statistics that are not float32" : not_of_type<T>());
  }
  if (p.out(0).dtype != dtype) return Acceptance::refuse(not_of_type<T>());
  return accept_if(p.all_plain(), kNotPlain);
}

// Returns an operator's implementations, given a kernel for every float type.
template <auto create32, auto create_bfloat16, auto create_half, auto create64>
std::vector<Implementation> norm_kernels(const char* name) {
  return {{name, accepts_norm<float>, create32},
          {"bfloat16", accepts_norm<BFloat16>, create_bfloat16},
          {"float16", accepts_norm<Half>, create_half},
          in_float32<accepts_norm<float>, create32>(),
          {"float64", accepts_norm<double>, create64}};
}

namespace layer_normalization {
namespace {

// Returns an error unless scale or bias broadcasts to x.
Status check_norm_operand(const TensorDesc& x, const TensorDesc& operand, const char* name) {
  const auto both = broadcast(x.shape, operand.shape);
  if (both.ok() && *both == x.shape && is_floating(operand.dtype)) return ok_status();
  return input_error("expected {} that broadcasts to {}, found {}", name, x.text(), operand.text());
}

// A scale or bias as the kernel reads it: in place, or broadcast to x's shape.
struct Stretched {
  Stretched(const Problem& p, int input, size_t& workspace) : index(input) {
    const auto i = static_cast<size_t>(input);
    if (input < 0 || !p.has_in(i)) {
      index = -1;
      return;
    }
    const Shape& x = p.in(0).shape;
    if (is_one_row(p.in(i).shape, x, norm_axis(x, p.attributes))) return;
    copy.emplace(x, broadcast_strides(p.in(i), x), strides_of({p.in(i).dtype, x}),
                 dtype_size(p.in(i).dtype));
    offset = workspace;
    workspace += align_up(p.in(0).bytes(), kTensorAlignment);
  }

  template <typename T>
  const T* get(const KernelArgs& a) const {
    if (index < 0) return nullptr;
    if (!copy) return a.in<T>(static_cast<size_t>(index));
    copy->run(a.inputs[static_cast<size_t>(index)].data, a.workspace + offset);
    return reinterpret_cast<const T*>(a.workspace + offset);
  }

  int index;
  std::optional<StridedCopy> copy;
  size_t offset = 0;
};

// Operand indices; -1: none.
struct NormOperands {
  int x = 0, scale = 1, bias = 2;
  int y = 0, mean = 1, inv = 2;
};

// Computes y and the wanted statistics.
template <typename T>
std::unique_ptr<Kernel> create_norm(const Problem& p, bool centred, NormOperands operands) {
  size_t workspace = 0;
  NormRows n = rows_of(p.in(0).shape, p.attributes, centred);
  const Stretched scale(p, operands.scale, workspace);
  const Stretched bias(p, operands.bias, workspace);
  n.scale_step = scale.copy ? n.width : 0;
  n.bias_step = bias.copy ? n.width : 0;
  const bool mean = operands.mean >= 0 && p.has_out(static_cast<size_t>(operands.mean));
  const bool inv = operands.inv >= 0 && p.has_out(static_cast<size_t>(operands.inv));
  return make_kernel(
      [=](const KernelArgs& a) {
        norm_rows<T>(n, {a.in<T>(static_cast<size_t>(operands.x)), scale.get<T>(a), bias.get<T>(a),
                         a.out<T>(static_cast<size_t>(operands.y)),
                         mean ? a.out<float>(static_cast<size_t>(operands.mean)) : nullptr,
                         inv ? a.out<float>(static_cast<size_t>(operands.inv)) : nullptr});
      },
      workspace);
}

// Returns y, mean and inv (per row), in double.
std::vector<RefTensor> reference_norm(const RefTensor& x, const RefTensor* scale,
                                      const RefTensor* bias, const Attributes& attributes,
                                      bool centred) {
  const NormRows n = rows_of(x.desc.shape, attributes, centred);
  const TensorDesc stats{DType::kFloat32, stats_shape(x.desc.shape, attributes)};
  RefTensor y{x.desc, x.values}, means{stats, {}}, invs{stats, {}};
  for (int64_t row = 0; row < n.rows; ++row) {
    double* v = y.values.data() + row * n.width;
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n.width && centred; ++i) mean += v[i] / static_cast<double>(n.width);
    for (int64_t i = 0; i < n.width; ++i) square += (v[i] - mean) * (v[i] - mean);
    const double count = std::max(static_cast<double>(n.width), 1.0);  // over no elements: 0
    const double inv = 1 / std::sqrt(square / count + n.epsilon);
    for (int64_t i = 0; i < n.width; ++i) v[i] = (v[i] - mean) * inv;
    means.values.push_back(mean);
    invs.values.push_back(inv);
  }
  for (size_t i = 0; i < y.values.size(); ++i) {
    const auto index = unravel(x.desc.shape, static_cast<int64_t>(i));
    if (scale != nullptr) y.values[i] *= scale->values[ravel_broadcast(scale->desc.shape, index)];
    if (bias != nullptr) y.values[i] += bias->values[ravel_broadcast(bias->desc.shape, index)];
  }
  return {y, means, invs};
}

// Sets the gradients of scale and bias and returns dx. `mean` is none if not centred. `dmean` and
// `dinv` are the statistics' gradients, mostly none.
struct NormGrad {
  Ref dy, x, scale, mean, inv, dmean, dinv;
};
Ref emit_norm_grad(GradBuilder& b, const NormGrad& g, size_t scale_input, size_t bias_input) {
  const Shape& x = b.desc(g.x).shape;
  const int axis = norm_axis(x, b.attributes());
  const bool has_bias = bias_input < b.num_inputs() && b.input(bias_input);
  const bool wants = b.needs_grad(scale_input) || (has_bias && b.needs_grad(bias_input));
  const bool one_row = is_one_row(b.desc(g.scale).shape, x, axis) &&
                       (!has_bias || is_one_row(b.desc(b.input(bias_input)).shape, x, axis));
  const std::vector<Ref> inputs = {g.dy, g.x, g.scale, g.mean, g.inv, g.dmean, g.dinv};
  const auto made = b.emit("ofsdp.LayerNormalizationGrad", inputs, {{"axis", int64_t{axis}}},
                           wants && one_row ? 3 : 1);
  if (!wants) return made[0];
  Ref dscale, dbias;
  if (one_row) {
    dscale = made[1];
    dbias = made[2];
  } else {
    // In the statistics' type, which may be wider than x's.
    const DType wide = b.desc(g.inv).dtype;
    Ref h = b.cast(g.x, wide);
    if (g.mean) h = b.emit1("Sub", {h, g.mean});
    h = b.emit1("Mul", {h, g.inv});
    const Ref dy = b.cast(g.dy, wide);
    dscale = b.cast(b.sum_to(b.emit1("Mul", {dy, h}), g.scale), b.desc(g.scale).dtype);
    if (has_bias) dbias = b.sum_to(g.dy, b.input(bias_input));
  }
  if (b.needs_grad(scale_input)) {
    b.set_grad(scale_input, reshape_like(b, dscale, b.input(scale_input)));
  }
  if (has_bias && b.needs_grad(bias_input)) {
    b.set_grad(bias_input, reshape_like(b, dbias, b.input(bias_input)));
  }
  return made[0];
}

// Returns output 0's gradient; zeros if it has none.
Ref first_grad(GradBuilder& b, DType dtype) {
  if (b.grad_output(0)) return b.grad_output(0);
  return b.emit1("Expand", {b.scalar(dtype, 0), b.ints(b.desc(b.input(0)).shape.axes())});
}

// --- LayerNormalization ---

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  OFSDP_RETURN_IF_ERROR(normalize_axis(c.attributes.i("axis", -1), x.shape.rank()).status());
  OFSDP_RETURN_IF_ERROR(check_norm_operand(x, c.inputs[1], "scale"));
  if (c.has(2)) OFSDP_RETURN_IF_ERROR(check_norm_operand(x, c.inputs[2], "bias"));
  const TensorDesc stats{DType::kFloat32, stats_shape(x.shape, c.attributes)};
  return std::vector{TensorDesc{x.dtype, x.shape}, stats, stats};
}

void grad(GradBuilder& b) {
  const NormGrad g{first_grad(b, b.desc(b.input(0)).dtype),
                   b.input(0),
                   b.input(1),
                   b.output(1),
                   b.output(2),
                   b.grad_output(1),
                   b.grad_output(2)};
  b.set_grad(0, emit_norm_grad(b, g, 1, 2));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_norm(c.inputs[0], &c.inputs[1], given(c.inputs, 2), c.attributes, true);
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return create_norm<T>(p, true, {});
}

// --- RMSNormalization ---

Result<std::vector<TensorDesc>> rms_infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  OFSDP_RETURN_IF_ERROR(normalize_axis(c.attributes.i("axis", -1), x.shape.rank()).status());
  OFSDP_RETURN_IF_ERROR(check_norm_operand(x, c.inputs[1], "scale"));
  return std::vector{TensorDesc{c.inputs[1].dtype, x.shape},
                     TensorDesc{DType::kFloat32, stats_shape(x.shape, c.attributes)}};
}

void rms_grad(GradBuilder& b) {
  const Ref dy = first_grad(b, b.desc(b.input(1)).dtype);
  const NormGrad g{dy, b.input(0), b.input(1), Ref{}, b.output(1), Ref{}, b.grad_output(1)};
  b.set_grad(0, emit_norm_grad(b, g, 1, 2));
}

std::vector<RefTensor> rms_reference(const ReferenceContext& c) {
  auto made = reference_norm(c.inputs[0], &c.inputs[1], nullptr, c.attributes, false);
  return {made[0], made[2]};
}

template <typename T>
std::unique_ptr<Kernel> rms_create(const Problem& p) {
  return create_norm<T>(p, false, {.bias = -1, .mean = -1, .inv = 1});
}

std::vector<Implementation> rms_kernels() {
  return norm_kernels<rms_create<float>, rms_create<BFloat16>, rms_create<Half>,
                      rms_create<double>>("rows");
}

void add_rms(Registry& registry, const char* domain, const char* name, int first_opset) {
  registry.add(make_op(
      name, {rms_infer, rms_grad, rms_reference}, rms_kernels(),
      {.domain = domain, .min_inputs = 2, .first_opset = first_opset, .inplace_inputs = {0}}));
}

// --- with skip ---

// Inputs: x, skip, scale, the norm's bias (only if centred), the sum's bias.
struct SkipNorm {
  bool centred;
  constexpr size_t norm_bias() const { return centred ? 3 : 99; }
  constexpr size_t sum_bias() const { return centred ? 4 : 3; }
};

Attributes last_axis(const Attributes& attributes) {
  return {{"axis", int64_t{-1}}, {"epsilon", attributes.f("epsilon", 1e-12f)}};
}

template <SkipNorm s>
Result<std::vector<TensorDesc>> skip_infer(const InferContext& c) {
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

template <SkipNorm s>
void skip_grad(GradBuilder& b) {
  Ref ds = b.grad_output(3);
  if (b.grad_output(0) || b.grad_output(1) || b.grad_output(2)) {
    const Ref dy = first_grad(b, b.desc(b.input(0)).dtype);
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

template <SkipNorm s>
std::vector<RefTensor> skip_reference(const ReferenceContext& c) {
  RefTensor sum{c.output_descs[0], c.inputs[0].values};
  for (size_t at = 0; at < sum.values.size(); ++at) {
    const auto index = unravel(sum.desc.shape, static_cast<int64_t>(at));
    for (size_t i : {size_t{1}, s.sum_bias()}) {
      if (i >= c.inputs.size() || !c.inputs[i].desc.present()) continue;
      sum.values[at] += c.inputs[i].values[ravel_broadcast(c.inputs[i].desc.shape, index)];
    }
  }
  auto made = reference_norm(sum, &c.inputs[2], given(c.inputs, s.norm_bias()),
                             last_axis(c.attributes), s.centred);
  if (!s.centred) made[1].values.assign(made[1].values.size(), 0);
  made.push_back(sum);
  made.resize(c.output_descs.size());
  return made;
}

OFSDP_MULTIARCH void add_row(const BinaryRow<float>& row) {
  binary_row(row, [](float a, float b) { return a + b; });
}

template <SkipNorm s>
std::unique_ptr<Kernel> skip_create(const Problem& p) {
  const TensorDesc x = p.in(0);
  const NormRows n = rows_of(x.shape, last_axis(p.attributes), s.centred);
  const size_t bias = s.norm_bias(), sum_bias = s.sum_bias();
  const bool has_bias = p.has_in(bias), has_sum_bias = p.has_in(sum_bias);
  const bool has_mean = p.has_out(1), has_inv = p.has_out(2), has_sum = p.has_out(3);
  const StridedLoop with_skip = binary_loop({{}, {x, p.in(1)}, {x}, {}});
  const StridedLoop with_bias = binary_loop({{}, {x, has_sum_bias ? p.in(sum_bias) : x}, {x}, {}});
  return make_kernel(
      [=](const KernelArgs& a) {
        auto* sum = reinterpret_cast<float*>(has_sum ? a.outputs[3].data : a.workspace);
        const auto add = run_binary<float, float, add_row>;
        add(with_skip, a.in<float>(0), a.in<float>(1), sum);
        if (has_sum_bias) add(with_bias, sum, a.in<float>(sum_bias), sum);
        if (!s.centred && has_mean) std::fill_n(a.out<float>(1), n.rows, 0.0f);
        norm_rows<float>(n, {sum, a.in<float>(2), has_bias ? a.in<float>(bias) : nullptr,
                             a.out<float>(0), has_mean && s.centred ? a.out<float>(1) : nullptr,
                             has_inv ? a.out<float>(2) : nullptr});
      },
      has_sum ? 0 : x.bytes());
}

template <SkipNorm s>
void add_skip(Registry& registry, const char* name) {
  registry.add(make_op(name, {skip_infer<s>, skip_grad<s>, skip_reference<s>},
                       with_half_floats<accepts_plain_of<float>, skip_create<s>>("rows"),
                       {.domain = "com.microsoft", .min_inputs = 3}));
}

}  // namespace
}  // namespace layer_normalization

int norm_axis(const Shape& x, const Attributes& attributes) {
  const int64_t axis = attributes.i("axis", -1);
  return static_cast<int>(axis < 0 ? axis + x.rank() : axis);
}

NormRows rows_of(const Shape& x, const Attributes& attributes, bool centred) {
  const int axis = norm_axis(x, attributes);
  return {x.numel(0, axis), x.numel(axis, x.rank()),
          static_cast<double>(attributes.f("epsilon", 1e-5f)), centred};
}

Shape stats_shape(const Shape& x, const Attributes& attributes) {
  Shape shape = x;
  for (int axis = norm_axis(x, attributes); axis < x.rank(); ++axis) shape[axis] = 1;
  return shape;
}

void add_layer_normalization(Registry& registry) {
  using namespace layer_normalization;
  for (const char* domain : {"", "com.microsoft"}) {
    OpDef op{.domain = domain, .name = "LayerNormalization", .min_inputs = 2};
    op.first_opset = *domain == 0 ? 17 : op.first_opset;
    op.infer = infer;
    op.grad = grad;
    op.reference = reference;
    op.cpu = norm_kernels<create<float>, create<BFloat16>, create<Half>, create<double>>("rows");
    op.inplace_inputs = {0};
    registry.add(std::move(op));
  }
  add_rms(registry, "", "RMSNormalization", 23);
  for (const char* domain : {"", "com.microsoft"}) {
    add_rms(registry, domain, "SimplifiedLayerNormalization", OpDef{}.first_opset);
  }
  add_skip<SkipNorm{true}>(registry, "SkipLayerNormalization");
  add_skip<SkipNorm{false}>(registry, "SkipSimplifiedLayerNormalization");
}

// ofsdp.LayerNormalizationGrad(dy, x, scale, mean, inv, dmean, dinv, addend), attribute axis: dx,
// dscale and dbias for LayerNormalization, or for RMSNormalization if mean is absent; dscale and
// dbias exist only if scale is one row. dmean, dinv and addend may be absent. The addend, like x in
// shape and dtype, is added to dx; a pass puts it there (importer/passes/joined_nodes.h). Formulas:
// kernels/cpu/normalization.h.

namespace layer_normalization_grad {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[1];
  const int axis = norm_axis(x.shape, c.attributes);
  const auto& axes = x.shape.axes();
  if (c.has(kNormAddend) && c.inputs[kNormAddend] != TensorDesc{x.dtype, x.shape}) {
    return input_error("expected an addend of {}, found {}", x.text(),
                       c.inputs[kNormAddend].text());
  }
  const TensorDesc row{c.inputs[2].dtype, Shape(std::vector(axes.begin() + axis, axes.end()))};
  return std::vector{TensorDesc{x.dtype, x.shape}, row, row};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto& dy = c.inputs[0].values;
  const auto& x = c.inputs[1];
  const RefTensor& scale = c.inputs[2];
  auto there = [&](size_t i) { return i < c.inputs.size() && c.inputs[i].desc.present(); };
  const NormRows n = rows_of(x.desc.shape, c.attributes, there(3));
  const auto width = static_cast<size_t>(n.width);
  RefTensor dx{x.desc, std::vector<double>(dy.size())};
  const auto outputs = c.output_descs.size();
  RefTensor dscale{outputs > 1 ? c.output_descs[1] : TensorDesc{}, std::vector<double>(width)};
  RefTensor dbias = dscale;
  for (size_t row = 0; row < static_cast<size_t>(n.rows); ++row) {
    const double mean = there(3) ? c.inputs[3].values[row] : 0;
    const double inv = c.inputs[4].values[row];
    const auto count = static_cast<double>(n.width);
    std::vector<double> g, h;
    double mean_g = 0, mean_gh = 0;
    for (size_t i = 0; i < width; ++i) {
      const size_t at = row * width + i;
      const auto index = unravel(x.desc.shape, static_cast<int64_t>(at));
      g.push_back(dy[at] * scale.values[ravel_broadcast(scale.desc.shape, index)]);
      h.push_back((x.values[at] - mean) * inv);
      mean_g += there(3) ? g[i] / count : 0;
      mean_gh += g[i] * h[i] / count;
      dscale.values[i] += dy[at] * h[i];
      dbias.values[i] += dy[at];
    }
    for (size_t i = 0; i < width; ++i) {
      double& d = dx.values[row * width + i];
      d = inv * (g[i] - mean_g - h[i] * mean_gh);
      if (there(5)) d += c.inputs[5].values[row] / count;
      if (there(6)) d -= c.inputs[6].values[row] * inv * inv * h[i] / count;
      if (there(kNormAddend)) d += c.inputs[kNormAddend].values[row * width + i];
    }
  }
  return {dx, dscale, dbias};
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& x = p.in(1).shape;
  NormRows n = rows_of(x, p.attributes, p.has_in(3));
  const bool one_row = is_one_row(p.in(2).shape, x, norm_axis(x, p.attributes));
  const bool sums = p.has_out(1) || p.has_out(2);
  n.scale_step = one_row ? 0 : n.width;
  const StridedCopy stretch(x, broadcast_strides(p.in(2), x), strides_of({p.in(2).dtype, x}),
                            sizeof(T));
  using Real = RealOf<T>;
  const size_t row_bytes = align_up(static_cast<size_t>(n.width) * sizeof(Real), kTensorAlignment);
  const size_t partial =
      sums ? static_cast<size_t>(norm_partial_count(n)) * 2 * row_bytes : size_t{0};
  const size_t stretched = one_row ? 0 : p.in(1).bytes();
  auto there = [&](size_t i) { return p.has_in(i); };
  const bool mean = there(3), dmean = there(5), dinv = there(6), addend = there(kNormAddend);
  const bool has_dscale = p.has_out(1), has_dbias = p.has_out(2);
  return make_kernel(
      [=](const KernelArgs& a) {
        const T* scale = a.in<T>(2);
        if (!one_row) {
          stretch.run(a.inputs[2].data, a.workspace + partial + 2 * row_bytes);
          scale = reinterpret_cast<const T*>(a.workspace + partial + 2 * row_bytes);
        }
        auto* spare = reinterpret_cast<T*>(a.workspace + partial);  // takes an unwanted sum
        T* dscale = has_dscale ? a.out<T>(1) : sums ? spare : nullptr;
        T* dbias = has_dbias ? a.out<T>(2) : sums ? spare : nullptr;
        norm_rows_grad<T>(
            n, {a.in<T>(0), a.in<T>(1), scale, mean ? a.in<float>(3) : nullptr, a.in<float>(4),
                dmean ? a.in<float>(5) : nullptr, dinv ? a.in<float>(6) : nullptr,
                addend ? a.in<T>(kNormAddend) : nullptr, a.out<T>(0), dscale, dbias,
                reinterpret_cast<Real*>(a.workspace)});
      },
      partial + 2 * row_bytes + stretched);
}

void layer_normalization_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), x = b.input(1), scale = b.input(2);
  // Statistics are float32 whatever x is.
  const auto statistic = [&](size_t i) {
    return b.input(i) ? b.cast(b.input(i), b.desc(x).dtype) : Ref{};
  };
  const Ref mean = statistic(3), dmean = statistic(5), dinv = statistic(6);
  const Shape& shape = b.desc(x).shape;
  const int axis = norm_axis(shape, b.attributes());
  const auto n = static_cast<double>(std::max<int64_t>(shape.numel(axis, shape.rank()), 1));
  std::vector<int64_t> lead, rest;
  for (int i = 0; i < shape.rank(); ++i) (i < axis ? lead : rest).push_back(i);
  const Ref inv = statistic(4), h = b.mul(mean ? b.sub(x, mean) : x, inv), g = b.mul(dy, scale);
  Ref d = b.sub(g, b.mul(h, b.mul(b.sum(b.mul(g, h), rest), 1 / n)));
  if (mean) d = b.sub(d, b.mul(b.sum(g, rest), 1 / n));
  d = b.mul(inv, d);
  if (dmean) d = b.add(d, b.mul(dmean, 1 / n));
  if (dinv) d = b.sub(d, b.mul(b.mul(b.mul(dinv, 1 / n), b.mul(inv, inv)), h));
  if (b.input(kNormAddend)) d = b.add(d, b.input(kNormAddend));
  b.set_output(0, d);
  if (b.wants(1)) b.set_output(1, b.reshape(b.sum(b.mul(dy, h), lead), b.output_desc(1).shape));
  if (b.wants(2)) b.set_output(2, b.reshape(b.sum(dy, lead), b.output_desc(2).shape));
}

}  // namespace
}  // namespace layer_normalization_grad

void add_layer_normalization_grad(Registry& registry) {
  using namespace layer_normalization_grad;
  registry.add_own(
      make_op("LayerNormalizationGrad", {infer, nullptr, reference},
              norm_kernels<create<float>, create<BFloat16>, create<Half>, create<double>>("blocks"),
              {.min_inputs = 5,
               .body = layer_normalization_grad_body,
               .inplace_inputs = {0, 1, kNormAddend}}));
}

}  // namespace ofsdp::kernels::ops
