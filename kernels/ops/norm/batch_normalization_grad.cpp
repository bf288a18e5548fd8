// ofsdp.BatchNormalizationGrad(dy, x, scale, m, v), attributes epsilon, training_mode: gradients of
// BatchNormalization by x, scale and bias. With h = (x - m) inv, n elements of a channel:
// dbias = sum dy, dscale = sum dy h, dx = scale inv dy for inference, and in training mode
// dx = scale inv (dy - dbias / n - h dscale / n).
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/norm/batch_normalization.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return std::vector{c.inputs[1], c.inputs[2], c.inputs[2]};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ChannelExtent e = batch_norm_extent({DType::kFloat32, c.inputs[1].desc.shape});
  const auto channels = static_cast<size_t>(e.channels);
  const auto &dy = c.inputs[0].values, &x = c.inputs[1].values;
  const double epsilon = static_cast<double>(c.attributes.f("epsilon", 1e-5f));
  RefTensor dx{c.inputs[1].desc, std::vector<double>(x.size())};
  RefTensor dscale{c.inputs[2].desc, std::vector<double>(channels)};
  RefTensor dbias = dscale;
  auto channel_of = [&](size_t i) { return i / static_cast<size_t>(e.inner) % channels; };
  auto inv = [&](size_t k) { return 1 / std::sqrt(c.inputs[4].values[k] + epsilon); };
  auto h = [&](size_t i) {
    return (x[i] - c.inputs[3].values[channel_of(i)]) * inv(channel_of(i));
  };
  for (size_t i = 0; i < x.size(); ++i) {
    dscale.values[channel_of(i)] += dy[i] * h(i);
    dbias.values[channel_of(i)] += dy[i];
  }
  const bool training = c.attributes.i("training_mode", 0) != 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = channel_of(i);
    const auto n = static_cast<double>(e.count());
    const double through = training ? (dbias.values[k] + h(i) * dscale.values[k]) / n : 0;
    dx.values[i] = c.inputs[2].values[k] * inv(k) * (dy[i] - through);
  }
  return {dx, dscale, dbias};
}

template <typename T>
bool accepts(const Problem& p) {
  return p.all_dtype(std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64) &&
         p.in(0).layout == p.in(1).layout && p.in(1).layout == p.out(0).layout;
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const ChannelExtent e = batch_norm_extent(p.in(1));
  const bool training = p.attributes.i("training_mode", 0) != 0;
  const T epsilon = static_cast<T>(p.attributes.f("epsilon", 1e-5f));
  const auto channels = static_cast<size_t>(e.channels);
  const bool has_dscale = p.has_out(1), has_dbias = p.has_out(2);
  return make_kernel(
      [=](const KernelArgs& a) {
        T* inv = reinterpret_cast<T*>(a.workspace);
        T* factor = inv + channels;
        T* shift = factor + channels;
        T* slope = shift + channels;
        T* dscale = has_dscale ? a.out<T>(1) : slope + channels;
        T* dbias = has_dbias ? a.out<T>(2) : slope + 2 * channels;
        for (size_t c = 0; c < channels; ++c) inv[c] = T{1} / std::sqrt(a.in<T>(4)[c] + epsilon);
        channel_dots(e, a.in<T>(0), a.in<T>(1), a.in<T>(3), inv, dbias, dscale,
                     slope + 3 * channels);
        const T share = training ? T{1} / static_cast<T>(e.count()) : T{0};
        for (size_t c = 0; c < channels; ++c) {
          factor[c] = a.in<T>(2)[c] * inv[c];
          shift[c] = factor[c] * dbias[c] * share;
          slope[c] = factor[c] * inv[c] * dscale[c] * share;
        }
        channel_grad(e, a.in<T>(0), a.in<T>(1), a.in<T>(3), factor, shift, slope, a.out<T>(0));
        return ok_status();
      },
      (7 * channels + e.partial_count()) * sizeof(T));
}

std::vector<SampleCase> samples() {
  auto made = [](const char* name, Shape x, int64_t training, DType dtype = DType::kFloat32,
                 double tolerance = 2e-5) {
    const TensorDesc channels{dtype, {x.rank() > 1 ? x[1] : 1}};
    return SampleCase{.name = name,
                      .attributes = {{"training_mode", training}},
                      .inputs = {{dtype, x}, {dtype, x}, channels, channels, channels},
                      .fill =
                          [](size_t input, std::vector<double>& values) {
                            for (double& v : values) v = input == 4 ? std::abs(v) + 0.5 : v;
                          },
                      .num_outputs = 3,
                      .tolerance = tolerance};
  };
  return {made("image", {3, 5, 4, 7}, 0),
          made("training", {3, 5, 4, 7}, 1),
          made("wide", {2, 300, 9, 9}, 1),
          made("matrix", {70, 6}, 1),
          made("vector", {8}, 1),
          made("empty", {0, 3, 2, 2}, 0),
          made("float64", {3, 5, 4}, 1, DType::kFloat64, 1e-12),
          made("float16", {3, 5, 4}, 1, DType::kFloat16, 4e-3)};
}

void batch_normalization_grad_body(BodyBuilder& b) {
  const TensorDesc& x = b.output_desc(0);
  const ChannelExtent e = batch_norm_extent({x.dtype, x.shape});
  const auto planes = [&](size_t i) {
    return b.reshape(b.input(i), {e.batch, e.channels, e.inner});
  };
  const auto channels = [&](size_t i) {
    return b.reshape(b.cast(b.input(i), x.dtype), {1, e.channels, 1});
  };
  const Ref dy = planes(0), variance = channels(4);
  const auto epsilon = static_cast<double>(b.attributes().f("epsilon", 1e-5f));
  const Ref deviation = b.emit1("Sqrt", {b.add(variance, b.like(variance, epsilon))});
  const Ref h = b.div(b.sub(planes(1), channels(3)), deviation);
  const Ref dscale = b.sum(b.mul(dy, h), {0, 2}), dbias = b.sum(dy, {0, 2});
  Ref d = dy;
  if (b.attributes().i("training_mode", 0) != 0) {
    const double share = 1 / static_cast<double>(std::max<int64_t>(e.count(), 1));
    d = b.sub(dy, b.mul(b.add(dbias, b.mul(h, dscale)), share));
  }
  b.set_output(0, b.reshape(b.mul(d, b.div(channels(2), deviation)), x.shape));
  if (b.wants(1)) b.set_output(1, b.reshape(dscale, {e.channels}));
  if (b.wants(2)) b.set_output(2, b.reshape(dbias, {e.channels}));
}

}  // namespace

void add_batch_normalization_grad(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "BatchNormalizationGrad",
                .min_inputs = 5,
                .infer = infer,
                .body = batch_normalization_grad_body,
                .reference = reference,
                .cpu = {{"channels", accepts<float>, create<float>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                .samples = samples,
                .inplace_inputs = {0, 1},
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0, 1},
                .channels_last_outputs = {0}});
}

}  // namespace ofsdp::kernels::ops
