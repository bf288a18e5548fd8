// ofsdp.GroupNormalizationGrad(dy, x, scale, mean, inv), attribute num_groups: dx, dscale and dbias
// of GroupNormalization and InstanceNormalization; formulas in group_normalization.cpp.
#include "kernels/core/standard_body.h"
#include "kernels/cpu/channel_norm.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/norm/group_norm.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return std::vector{c.inputs[1], c.inputs[2], c.inputs[2]};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const GroupExtent e =
      group_extent(c.inputs[1].desc.shape, c.attributes.i("num_groups", 1), c.attributes);
  const auto &dy = c.inputs[0].values, &x = c.inputs[1].values, &scale = c.inputs[2].values;
  RefTensor dx{c.inputs[1].desc, std::vector<double>(x.size())};
  RefTensor dscale{c.inputs[2].desc, std::vector<double>(scale.size())};
  RefTensor dbias = dscale;
  const auto width = static_cast<double>(e.width());
  for (int64_t row = 0; row < e.rows(); ++row) {
    const double mean = c.inputs[3].values[static_cast<size_t>(row)];
    const double inv = c.inputs[4].values[static_cast<size_t>(row)];
    double mean_g = 0, mean_gh = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t i = 0; i < e.width(); ++i) {
        const auto at = static_cast<size_t>(row * e.width() + i);
        const auto channel = static_cast<size_t>(row % e.groups * e.each + i / e.inner);
        const double g = dy[at] * scale[channel];
        const double h = (x[at] - mean) * inv;
        if (pass == 1) {
          dx.values[at] = inv * (g - mean_g - h * mean_gh);
          continue;
        }
        mean_g += g / width;
        mean_gh += g * h / width;
        dscale.values[channel] += dy[at] * h;
        dbias.values[channel] += dy[at];
      }
    }
  }
  return {dx, dscale, dbias};
}

// dx of one row of the group and its sums per channel, in `sums` [each][2].
template <typename T>
void backward_row(const GroupExtent& e, const KernelArgs& a, int64_t row, double* sums) {
  const T mean = a.in<T>(3)[row], inv = a.in<T>(4)[row];
  const T* scale = a.in<T>(2) + row % e.groups * e.each;
  double total = 0, total_dot = 0;
  for (int64_t k = 0; k < e.each; ++k) {
    const int64_t at = row * e.width() + k * e.inner;
    const RowDots made = segment_dots(a.in<T>(0) + at, a.in<T>(1) + at, mean, inv, e.inner);
    sums[2 * k] = made.sum;
    sums[2 * k + 1] = made.dot;
    total += made.sum * static_cast<double>(scale[k]);
    total_dot += made.dot * static_cast<double>(scale[k]);
  }
  const auto shift = static_cast<T>(total / static_cast<double>(e.width())) * inv;
  const auto slope = static_cast<T>(total_dot / static_cast<double>(e.width())) * inv * inv;
  for (int64_t k = 0; k < e.each; ++k) {
    const int64_t at = row * e.width() + k * e.inner;
    segment_grad(a.in<T>(0) + at, a.in<T>(1) + at, {mean, inv * scale[k], shift, slope},
                 a.out<T>(0) + at, e.inner);
  }
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const GroupExtent e = group_extent(p.in(1).shape, p.attributes.i("num_groups", 1), p.attributes);
  const bool has_dscale = p.has_out(1), has_dbias = p.has_out(2);
  const size_t bytes = static_cast<size_t>(e.batch * e.channels() * 2) * sizeof(double);
  return make_kernel(
      [=](const KernelArgs& a) {
        auto* sums = reinterpret_cast<double*>(a.workspace);  // [N][C][2]
        parallel_for(e.rows(), 16384 / (e.width() + 1) + 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            backward_row<T>(e, a, row, sums + row * e.each * 2);
          }
        });
        for (int64_t c = 0; c < e.channels(); ++c) {
          double sum = 0, dot = 0;
          for (int64_t n = 0; n < e.batch; ++n) {
            sum += sums[(n * e.channels() + c) * 2];
            dot += sums[(n * e.channels() + c) * 2 + 1];
          }
          if (has_dscale) a.out<T>(1)[c] = static_cast<T>(dot);
          if (has_dbias) a.out<T>(2)[c] = static_cast<T>(sum);
        }
        return ok_status();
      },
      bytes);
}

std::vector<SampleCase> samples() {
  auto made = [](const char* name, Shape x, int64_t groups, DType dtype = DType::kFloat32,
                 double tolerance = 2e-5) {
    const TensorDesc stats{dtype == DType::kFloat64 ? dtype : DType::kFloat32, {x[0], groups}};
    return SampleCase{.name = name,
                      .attributes = {{"num_groups", groups}},
                      .inputs = {{dtype, x}, {dtype, x}, {dtype, {x[1]}}, stats, stats},
                      .num_outputs = 3,
                      .tolerance = tolerance};
  };
  return {made("image", {2, 6, 3, 5}, 3),
          made("channels", {3, 4, 5}, 4),
          made("matrix", {3, 8}, 2),
          made("empty", {0, 4, 5}, 2),
          made("float64", {2, 4, 5}, 2, DType::kFloat64, 1e-12),
          made("float16", {2, 4, 5}, 2, DType::kFloat16, 3e-3)};
}

void group_normalization_grad_body(BodyBuilder& b) {
  const GroupExtent e =
      group_extent(b.output_desc(0).shape, b.attributes().i("num_groups", 1), b.attributes());
  const DType dtype = b.output_desc(0).dtype;
  const Shape rows{e.batch, e.groups, 1, 1};
  const auto grouped = [&](size_t i) {
    return b.reshape(b.input(i), {e.batch, e.groups, e.each, e.inner});
  };
  const auto statistic = [&](size_t i) { return b.reshape(b.cast(b.input(i), dtype), rows); };
  const auto mean = [&](Ref a) {
    return b.mul(b.sum(a, {2, 3}), 1 / static_cast<double>(std::max<int64_t>(e.width(), 1)));
  };
  const Ref dy = grouped(0), inv = statistic(4), h = b.mul(b.sub(grouped(1), statistic(3)), inv);
  const Ref g = b.mul(dy, b.reshape(b.input(2), {1, e.groups, e.each, 1}));
  const Ref d = b.sub(b.sub(g, mean(g)), b.mul(h, mean(b.mul(g, h))));
  b.set_output(0, b.reshape(b.mul(inv, d), b.output_desc(0).shape));
  const auto by_channel = [&](Ref a) { return b.reshape(b.sum(a, {0, 3}), {e.channels()}); };
  if (b.wants(1)) b.set_output(1, by_channel(b.mul(dy, h)));
  if (b.wants(2)) b.set_output(2, by_channel(dy));
}

}  // namespace

void add_group_normalization_grad(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "GroupNormalizationGrad",
                .min_inputs = 5,
                .infer = infer,
                .body = group_normalization_grad_body,
                .reference = reference,
                .cpu = {{"rows", accepts_group_norm<float>, create<float>},
                        in_float32<accepts_group_norm<float>, create<float>>(),
                        {"float64", accepts_group_norm<double>, create<double>}},
                .samples = samples,
                .inplace_inputs = {0, 1}});
}

}  // namespace ofsdp::kernels::ops
