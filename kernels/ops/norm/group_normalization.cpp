// GroupNormalization(x, scale, bias), attributes num_groups, epsilon: y = h scale + bias (by
// channel) with h = (x - mean) inv, inv = 1 / sqrt(variance + epsilon), over each sample's groups
// of neighbouring channels. Outputs 1 and 2, mean and inv [N, groups], are ours.
// InstanceNormalization(x, scale, bias) has a group per channel.
//
// ofsdp.GroupNormalizationGrad(dy, x, scale, mean, inv), attribute num_groups, returns dx, dscale,
// dbias. With g = dy scale and means over the group: dx = inv (g - mean(g) - h mean(g h)), dscale =
// sum dy h, dbias = sum dy.
// https://onnx.ai/onnx/operators/onnx__GroupNormalization.html
// https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html
#include <cmath>

#include "kernels/core/op_def.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/norm/channels.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace group_normalization {
namespace {

// x is [N, groups, channels per group, inner].
struct GroupNormParams {
  int64_t batch, groups, each, inner;  // each: channels per group
  double epsilon;

  int64_t channels() const { return groups * each; }
  int64_t rows() const { return batch * groups; }
  int64_t width() const { return each * inner; }
};

inline GroupNormParams group_extent(const Shape& x, int64_t groups, const Attributes& attributes) {
  return {x[0], groups, groups == 0 ? 0 : x[1] / groups, x.numel(2, x.rank()),
          static_cast<double>(attributes.f("epsilon", 1e-5f))};
}

// Returns how many groups: an attribute, or the channel count.
using GroupsOf = int64_t (*)(const Shape& x, const Attributes& attributes);
int64_t given_groups(const Shape&, const Attributes& attributes) {
  return attributes.i("num_groups", 1);
}
int64_t channels(const Shape& x, const Attributes&) { return x.rank() > 1 ? x[1] : 1; }

template <GroupsOf groups_of>
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const int64_t groups = groups_of(x.shape, c.attributes);
  if (x.shape.rank() < 2) return input_error("expected [N, C, d...], found {}", x.text());
  if (groups < 0 || (groups == 0 ? x.shape[1] != 0 : x.shape[1] % groups != 0)) {
    return input_error("{} groups do not divide the {} channels of {}", groups, x.shape[1],
                       x.text());
  }
  for (size_t i = 1; i < 3; ++i) {
    if (c.inputs[i].shape == Shape{x.shape[1]}) continue;
    return input_error("expected {} values a channel, found input {} {}", x.shape[1], i,
                       c.inputs[i].text());
  }
  const TensorDesc stats{x.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32,
                         {x.shape[0], groups}};
  return std::vector{TensorDesc{x.dtype, x.shape}, stats, stats};
}

template <GroupsOf groups_of>
void grad(GradBuilder& b) {
  const int64_t groups = groups_of(b.desc(b.input(0)).shape, b.attributes());
  const auto made = b.emit("ofsdp.GroupNormalizationGrad",
                           {b.grad_output(0), b.input(0), b.input(1), b.output(1), b.output(2)},
                           {{"num_groups", groups}}, 3);
  for (size_t i = 0; i < 3; ++i) b.set_grad(i, made[i]);
}

template <GroupsOf groups_of>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  const int64_t groups = groups_of(c.inputs[0].desc.shape, c.attributes);
  const GroupNormParams e = group_extent(c.inputs[0].desc.shape, groups, c.attributes);
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  RefTensor means{{DType::kFloat32, {e.batch, groups}}, {}};
  RefTensor invs = means;
  const auto width = static_cast<double>(e.width());
  for (int64_t row = 0; row < e.rows(); ++row) {
    double* v = y.values.data() + row * e.width();
    double mean = 0, square = 0;
    for (int64_t i = 0; i < e.width(); ++i) mean += v[i] / width;
    for (int64_t i = 0; i < e.width(); ++i) square += (v[i] - mean) * (v[i] - mean);
    const double inv = 1 / std::sqrt(square / width + e.epsilon);
    for (int64_t i = 0; i < e.width(); ++i) {
      const auto channel = static_cast<size_t>(row % groups * e.each + i / e.inner);
      v[i] = (v[i] - mean) * inv * c.inputs[1].values[channel] + c.inputs[2].values[channel];
    }
    means.values.push_back(mean);
    invs.values.push_back(inv);
  }
  std::vector<RefTensor> all = {y, means, invs};
  all.resize(c.output_descs.size());
  return all;
}

template <typename T, GroupsOf groups_of>
std::unique_ptr<Kernel> create(const Problem& p) {
  using R = RealOf<T>;
  const GroupNormParams e =
      group_extent(p.in(0).shape, groups_of(p.in(0).shape, p.attributes), p.attributes);
  const bool stats = p.has_out(1) && p.has_out(2);
  return make_kernel([=](const KernelArgs& a) {
    if (e.width() == 0) return;
    parallel_each(e.rows(), kElementGrain / e.width() + 1, [&](int64_t row) {
      const T* x = a.in<T>(0) + row * e.width();
      T* y = a.out<T>(0) + row * e.width();
      const R mean = segment_mean(x, e.width());
      const R variance = segment_squares(x, mean, e.width()) / static_cast<R>(e.width());
      const R inv = R{1} / std::sqrt(variance + static_cast<R>(e.epsilon));
      for (int64_t k = 0; k < e.each; ++k) {
        const int64_t channel = row % e.groups * e.each + k;
        segment_affine(x + k * e.inner, mean, inv * a.in<R>(1)[channel], a.in<R>(2)[channel],
                       y + k * e.inner, e.inner);
      }
      if (!stats) return;
      a.out<R>(1)[row] = mean;
      a.out<R>(2)[row] = inv;
    });
  });
}

// --- the gradient ---

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const GroupNormParams e =
      group_extent(c.inputs[1].desc.shape, c.attributes.i("num_groups", 1), c.attributes);
  const auto &dy = c.inputs[0].values, &x = c.inputs[1].values, &scale = c.inputs[2].values;
  RefTensor dx{c.inputs[1].desc, std::vector<double>(x.size())};
  RefTensor dscale{c.inputs[2].desc, std::vector<double>(scale.size())};
  RefTensor dbias = dscale;
  const auto width = static_cast<double>(e.width());
  for (int64_t row = 0; row < e.rows(); ++row) {
    const double mean = c.inputs[3][row];
    const double inv = c.inputs[4][row];
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

// Writes dx for one group row, and the channel sums into `sums` [each][2].
template <typename T>
void backward_row(const GroupNormParams& e, const KernelArgs& a, int64_t row, double* sums) {
  using R = RealOf<T>;
  const R mean = a.in<R>(3)[row], inv = a.in<R>(4)[row];
  const R* scale = a.in<R>(2) + row % e.groups * e.each;
  double total = 0, total_dot = 0;
  for (int64_t k = 0; k < e.each; ++k) {
    const int64_t at = row * e.width() + k * e.inner;
    const RowDots made = segment_dots(a.in<T>(0) + at, a.in<T>(1) + at, mean, inv, e.inner);
    sums[2 * k] = made.sum;
    sums[2 * k + 1] = made.dot;
    total += made.sum * static_cast<double>(scale[k]);
    total_dot += made.dot * static_cast<double>(scale[k]);
  }
  const auto shift = static_cast<R>(total / static_cast<double>(e.width())) * inv;
  const auto slope = static_cast<R>(total_dot / static_cast<double>(e.width())) * inv * inv;
  for (int64_t k = 0; k < e.each; ++k) {
    const int64_t at = row * e.width() + k * e.inner;
    segment_grad<T>(a.in<T>(0) + at, a.in<T>(1) + at, {mean, inv * scale[k], shift, slope},
                    a.out<T>(0) + at, e.inner);
  }
}

template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  const GroupNormParams e =
      group_extent(p.in(1).shape, p.attributes.i("num_groups", 1), p.attributes);
  const bool has_dscale = p.has_out(1), has_dbias = p.has_out(2);
  const size_t bytes = static_cast<size_t>(e.batch * e.channels() * 2) * sizeof(double);
  return make_kernel(
      [=](const KernelArgs& a) {
        auto* sums = reinterpret_cast<double*>(a.workspace);  // [N][C][2]
        parallel_each(e.rows(), kElementGrain / (e.width() + 1) + 1,
                      [&](int64_t row) { backward_row<T>(e, a, row, sums + row * e.each * 2); });
        for (int64_t c = 0; c < e.channels(); ++c) {
          double sum = 0, dot = 0;
          for (int64_t n = 0; n < e.batch; ++n) {
            sum += sums[(n * e.channels() + c) * 2];
            dot += sums[(n * e.channels() + c) * 2 + 1];
          }
          if (has_dscale) a.out<RealOf<T>>(1)[c] = static_cast<RealOf<T>>(dot);
          if (has_dbias) a.out<RealOf<T>>(2)[c] = static_cast<RealOf<T>>(sum);
        }
      },
      bytes);
}

void group_normalization_grad_body(BodyBuilder& b) {
  const GroupNormParams e =
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

template <GroupsOf groups_of>
void add(Registry& registry, const char* name, int first_opset) {
  registry.add(make_op(name, {infer<groups_of>, grad<groups_of>, reference<groups_of>},
                       image_kernels<1, create<float, groups_of>, create<BFloat16, groups_of>,
                                     create<double, groups_of>>("rows"),
                       {.min_inputs = 3, .first_opset = first_opset, .inplace_inputs = {0}}));
}

}  // namespace
}  // namespace group_normalization

void add_group_normalization(Registry& registry) {
  using namespace group_normalization;
  add<given_groups>(registry, "GroupNormalization", 21);
  add<channels>(registry, "InstanceNormalization", 6);
  registry.add_own(make_op(
      "GroupNormalizationGrad", {infer_like_inputs({1, 2, 2}), nullptr, grad_reference},
      image_kernels<2, create_grad<float>, create_grad<BFloat16>, create_grad<double>>("rows"),
      {.min_inputs = 5, .body = group_normalization_grad_body, .inplace_inputs = {0, 1}}));
}

}  // namespace ofsdp::kernels::ops
