#include "kernels/ops/norm/normalized_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/strided_copy.h"

namespace ofsdp::kernels::ops {

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

bool is_one_row(const Shape& operand, const Shape& x, int axis) {
  const int width = x.rank() - axis;
  for (int i = 1; i <= std::max(operand.rank(), width); ++i) {
    const int64_t given = i <= operand.rank() ? operand[operand.rank() - i] : 1;
    if (given != (i <= width ? x[x.rank() - i] : 1)) return false;
  }
  return true;
}

Status check_norm_operand(const TensorDesc& x, const TensorDesc& operand, const char* name) {
  const auto both = broadcast(x.shape, operand.shape);
  if (both.ok() && *both == x.shape && is_floating(operand.dtype)) return ok_status();
  return input_error("expected {} that broadcasts to {}, found {}", name, x.text(), operand.text());
}

template <typename T>
bool accepts_norm(const Problem& p) {
  const DType dtype = stored_type<T>();
  for (size_t i = 0; i < p.inputs.size(); ++i) {  // the statistics behind them are float32
    if (p.has_in(i) && p.in(i).dtype != (i < 3 ? dtype : DType::kFloat32)) return false;
  }
  return p.all_plain() && p.out(0).dtype == dtype;
}
template bool accepts_norm<float>(const Problem&);
template bool accepts_norm<double>(const Problem&);
template bool accepts_norm<BFloat16>(const Problem&);
template bool accepts_norm<Half>(const Problem&);

namespace {

// A scale or bias as the kernel reads it: in place, or stretched to the shape of x.
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

}  // namespace

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
        return ok_status();
      },
      workspace);
}
template std::unique_ptr<Kernel> create_norm<float>(const Problem&, bool, NormOperands);
template std::unique_ptr<Kernel> create_norm<double>(const Problem&, bool, NormOperands);
template std::unique_ptr<Kernel> create_norm<BFloat16>(const Problem&, bool, NormOperands);
template std::unique_ptr<Kernel> create_norm<Half>(const Problem&, bool, NormOperands);

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
    const double count = std::max(static_cast<double>(n.width), 1.0);  // of nothing: 0
    const double inv = 1 / std::sqrt(square / count + n.epsilon);
    for (int64_t i = 0; i < n.width; ++i) v[i] = (v[i] - mean) * inv;
    means.values.push_back(mean);
    invs.values.push_back(inv);
  }
  for (size_t i = 0; i < y.values.size(); ++i) {
    const auto index = unravel(x.desc.shape, static_cast<int64_t>(i));
    if (scale != nullptr) {
      y.values[i] *= scale->values[ravel_broadcast(scale->desc.shape, index)];
    }
    if (bias != nullptr) y.values[i] += bias->values[ravel_broadcast(bias->desc.shape, index)];
  }
  return {y, means, invs};
}

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
    Ref h = g.mean ? b.emit1("Sub", {g.x, g.mean}) : g.x;
    h = b.emit1("Mul", {h, g.inv});
    dscale = b.sum_to(b.emit1("Mul", {g.dy, h}), g.scale);
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

std::vector<SampleCase> norm_samples(bool bias, size_t outputs) {
  auto made = [&](const char* name, Shape x, Shape scale, int64_t axis, DType dtype,
                  double tolerance) {
    SampleCase s{.name = name,
                 .attributes = {{"axis", axis}, {"epsilon", 1e-3f}},
                 .inputs = {{dtype, std::move(x)}, {dtype, scale}},
                 .num_outputs = outputs,
                 .check_grad = dtype == DType::kFloat32,
                 .tolerance = tolerance};
    if (bias) s.inputs.push_back({dtype, std::move(scale)});
    return s;
  };
  const DType f = DType::kFloat32;
  return {made("last", {5, 37}, {37}, -1, f, 2e-5),
          made("rows", {70, 33}, {33}, 1, f, 2e-5),
          made("sequence", {2, 3, 16}, {16}, 2, f, 2e-5),
          made("two_axes", {3, 4, 5}, {4, 5}, 1, f, 2e-5),
          made("all_axes", {3, 4}, {3, 4}, 0, f, 2e-5),
          made("broadcast_scale", {3, 4, 5}, {5}, 1, f, 2e-5),
          made("scale_of_rows", {3, 4, 5}, {3, 1, 1}, 2, f, 2e-5),
          made("one_element", {3, 1}, {1}, -1, f, 2e-5),
          made("no_width", {3, 0}, {0}, -1, f, 2e-5),
          made("empty", {0, 4}, {4}, -1, f, 2e-5),
          made("float64", {3, 7}, {7}, -1, DType::kFloat64, 1e-7),
          made("float16", {3, 7}, {7}, -1, DType::kFloat16, 2e-3),
          made("bfloat16_rows", {40, 37}, {37}, -1, DType::kBFloat16, 8e-3),
          made("bfloat16", {3, 7}, {7}, -1, DType::kBFloat16, 1e-2)};
}

}  // namespace ofsdp::kernels::ops
