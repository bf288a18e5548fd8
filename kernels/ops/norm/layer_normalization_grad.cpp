// ofsdp.LayerNormalizationGrad(dy, x, scale, mean, inv, dmean, dinv, addend), attribute axis: dx,
// dscale and dbias of LayerNormalization, and of RMSNormalization where mean is absent; dscale and
// dbias are only there when scale is one row. dmean, dinv and addend may be absent. The addend, of
// the shape and dtype of x, is added to dx: importer/passes/passes.h says who puts it there.
// Formulas: kernels/cpu/norm_rows.h.
#include <algorithm>

#include "kernels/core/memory.h"
#include "kernels/core/standard_body.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/norm/normalized_rows.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
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
        auto* spare = reinterpret_cast<T*>(a.workspace + partial);  // where an unwanted sum goes
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
