// GroupNormalization(x, scale, bias), attributes num_groups, epsilon: y = h scale + bias (by
// channel) with h = (x - mean) inv, inv = 1 / sqrt(variance + epsilon) over each group of
// neighbouring channels of each sample. We add outputs 1 and 2, mean and inv [N, groups].
// dx, dscale, dbias: ofsdp.GroupNormalizationGrad(dy, x, scale, mean, inv). With g = dy scale and
// means over the group: dx = inv (g - mean(g) - h mean(g h)), dscale = sum dy h, dbias = sum dy.
// https://onnx.ai/onnx/operators/onnx__GroupNormalization.html
#include <cmath>

#include "kernels/cpu/channel_norm.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/norm/group_norm.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
Result<std::vector<TensorDesc>> infer_group_norm(const InferContext& c, int64_t groups) {
  const TensorDesc& x = c.inputs[0];
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

void grad_of_group_norm(GradBuilder& b, int64_t groups) {
  const auto made = b.emit("ofsdp.GroupNormalizationGrad",
                           {b.grad_output(0), b.input(0), b.input(1), b.output(1), b.output(2)},
                           {{"num_groups", groups}}, 3);
  for (size_t i = 0; i < 3; ++i) b.set_grad(i, made[i]);
}

std::vector<RefTensor> reference_group_norm(const ReferenceContext& c, int64_t groups) {
  const GroupExtent e = group_extent(c.inputs[0].desc.shape, groups, c.attributes);
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

template <typename T>
bool accepts_group_norm(const Problem& p) {
  return p.all_plain() && p.all_dtype(std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64);
}
template bool accepts_group_norm<float>(const Problem&);
template bool accepts_group_norm<double>(const Problem&);

template <typename T>
std::unique_ptr<Kernel> create_group_norm(const Problem& p, int64_t groups) {
  const GroupExtent e = group_extent(p.in(0).shape, groups, p.attributes);
  const bool stats = p.has_out(1) && p.has_out(2);
  return make_kernel([=](const KernelArgs& a) {
    if (e.width() == 0) return ok_status();
    parallel_for(e.rows(), 16384 / e.width() + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = a.in<T>(0) + row * e.width();
        T* y = a.out<T>(0) + row * e.width();
        const T mean = segment_mean(x, e.width());
        const T variance = segment_squares(x, mean, e.width()) / static_cast<T>(e.width());
        const T inv = T{1} / std::sqrt(variance + static_cast<T>(e.epsilon));
        for (int64_t k = 0; k < e.each; ++k) {
          const int64_t channel = row % e.groups * e.each + k;
          segment_affine(x + k * e.inner, mean, inv * a.in<T>(1)[channel], a.in<T>(2)[channel],
                         y + k * e.inner, e.inner);
        }
        if (!stats) continue;
        a.out<T>(1)[row] = mean;
        a.out<T>(2)[row] = inv;
      }
    });
    return ok_status();
  });
}
template std::unique_ptr<Kernel> create_group_norm<float>(const Problem&, int64_t);
template std::unique_ptr<Kernel> create_group_norm<double>(const Problem&, int64_t);

SampleCase group_norm_sample(const char* name, Shape x, int64_t groups, DType dtype,
                             double tolerance) {
  const TensorDesc channels{dtype, {x[1]}};
  return {.name = name,
          .attributes = {{"num_groups", groups}, {"epsilon", 1e-3f}},
          .inputs = {{dtype, std::move(x)}, channels, channels},
          .check_grad = dtype == DType::kFloat32,
          .tolerance = tolerance};
}

namespace {

int64_t groups_of(const Attributes& attributes) { return attributes.i("num_groups", 1); }

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return infer_group_norm(c, groups_of(c.attributes));
}

void grad(GradBuilder& b) { grad_of_group_norm(b, groups_of(b.attributes())); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_group_norm(c, groups_of(c.attributes));
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return create_group_norm<T>(p, groups_of(p.attributes));
}

std::vector<SampleCase> samples() {
  return {group_norm_sample("image", {2, 6, 3, 5}, 3),
          group_norm_sample("one_group", {3, 4, 7}, 1),
          group_norm_sample("channels", {3, 4, 5}, 4),
          group_norm_sample("matrix", {3, 8}, 2),
          group_norm_sample("empty", {0, 4, 5}, 2),
          group_norm_sample("float64", {2, 4, 5}, 2, DType::kFloat64, 1e-12),
          group_norm_sample("float16", {2, 4, 5}, 2, DType::kFloat16, 3e-3)};
}

}  // namespace

void add_group_normalization(Registry& registry) {
  registry.add({.name = "GroupNormalization",
                .min_inputs = 3,
                .first_opset = 21,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"rows", accepts_group_norm<float>, create<float>},
                        in_float32<accepts_group_norm<float>, create<float>>(),
                        {"float64", accepts_group_norm<double>, create<double>}},
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
