// BatchNormalization(x, scale, bias, mean, variance), attributes epsilon, momentum, training_mode:
// y = (x - m) inv scale + bias with inv = 1 / sqrt(v + epsilon), per channel. For inference m and v
// are the inputs. In training mode they are those of x over all axes but 1 (variance of the
// population), and outputs 1 and 2 are mean momentum + m (1 - momentum), and the same for variance;
// we add outputs 3 and 4, m and v themselves. dx, dscale, dbias: ofsdp.BatchNormalizationGrad(dy,
// x, scale, m, v), attributes epsilon, training_mode. With h = (x - m) inv and n elements of a
// channel: dbias = sum dy, dscale = sum dy h, dx = scale inv dy for inference, and scale inv (dy -
// dbias / n - h dscale / n) in training mode. For inference also dm = -scale inv dbias and dv =
// -scale inv^2 / 2 dscale; in training mode these are 0.
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/core/standard_body.h"
#include "kernels/cpu/channel_norm.h"
#include "kernels/ops/norm/channels.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace batch_normalization {
namespace {

bool trains(const Attributes& attributes) { return attributes.i("training_mode", 0) != 0; }

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() == 0) return input_error("expected [N, C, d...], found {}", x.text());
  const Shape channels{batch_norm_extent(x).channels};
  for (size_t i = 1; i < 5; ++i) {
    if (c.inputs[i].shape == channels) continue;
    return input_error("expected {} values a channel for {}, found input {} {}", channels.text(),
                       x.text(), i, c.inputs[i].text());
  }
  if (!trains(c.attributes)) return std::vector{x};
  const TensorDesc stats{c.inputs[3].dtype, channels};
  return std::vector{x, stats, stats, stats, stats};
}

// dm and dv of inference, in the type of the statistics, which may be wider than x's.
void grad_of_stats(GradBuilder& b, Ref dscale, Ref dbias) {
  if (!b.needs_grad(3) && !b.needs_grad(4)) return;
  const DType dtype = b.desc(b.input(4)).dtype;
  dscale = b.cast(dscale, dtype);
  dbias = b.cast(dbias, dtype);
  const Ref epsilon = b.scalar(dtype, static_cast<double>(b.attributes().f("epsilon", 1e-5f)));
  const Ref deviation = b.emit1("Sqrt", {b.emit1("Add", {b.input(4), epsilon})});
  const Ref scale = b.cast(b.input(1), dtype);
  const Ref factor = b.emit1("Div", {scale, deviation});
  if (b.needs_grad(3)) b.set_grad(3, b.emit1("Neg", {b.emit1("Mul", {factor, dbias})}));
  if (!b.needs_grad(4)) return;
  const Ref half = b.emit1("Div", {b.emit1("Mul", {factor, b.scalar(dtype, -0.5)}), deviation});
  b.set_grad(4, b.emit1("Mul", {half, dscale}));
}

void grad(GradBuilder& b) {
  const bool training = trains(b.attributes());
  if (!b.grad_output(0)) return;  // the running statistics carry no gradient
  const Ref mean = training ? b.output(3) : b.input(3);
  const Ref variance = training ? b.output(4) : b.input(4);
  const auto made = b.emit(
      "ofsdp.BatchNormalizationGrad", {b.grad_output(0), b.input(0), b.input(1), mean, variance},
      {{"training_mode", int64_t{training}}, {"epsilon", b.attributes().f("epsilon", 1e-5f)}}, 3);
  for (size_t i = 0; i < 3; ++i) b.set_grad(i, made[i]);
  if (!training) return grad_of_stats(b, made[1], made[2]);
  for (size_t i = 3; i < 5; ++i) {
    if (!b.needs_grad(i)) continue;
    const Ref zero = b.scalar(b.desc(b.input(i)).dtype, 0);
    b.set_grad(i, b.emit1("Expand", {zero, b.ints(b.desc(b.input(i)).shape.axes())}));
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ChannelExtent e = batch_norm_extent({DType::kFloat32, c.inputs[0].desc.shape});
  const auto channels = static_cast<size_t>(e.channels);
  const auto& x = c.inputs[0].values;
  auto channel_of = [&](size_t i) { return i / static_cast<size_t>(e.inner) % channels; };
  std::vector<double> mean = c.inputs[3].values, variance = c.inputs[4].values;
  if (trains(c.attributes)) {
    mean.assign(channels, 0);
    variance.assign(channels, 0);
    const auto n = static_cast<double>(e.count());
    for (size_t i = 0; i < x.size(); ++i) mean[channel_of(i)] += x[i] / n;
    for (size_t i = 0; i < x.size(); ++i) {
      variance[channel_of(i)] += std::pow(x[i] - mean[channel_of(i)], 2) / n;
    }
  }
  RefTensor y{c.output_descs[0], {}};
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = channel_of(i);
    const double epsilon = static_cast<double>(c.attributes.f("epsilon", 1e-5f));
    y.values.push_back((x[i] - mean[k]) / std::sqrt(variance[k] + epsilon) * c.inputs[1].values[k] +
                       c.inputs[2].values[k]);
  }
  const double momentum = static_cast<double>(c.attributes.f("momentum", 0.9f));
  RefTensor means{c.inputs[3].desc, mean}, variances{c.inputs[4].desc, variance};
  RefTensor running_mean = means, running_variance = variances;
  for (size_t k = 0; k < channels; ++k) {
    running_mean.values[k] = c.inputs[3].values[k] * momentum + mean[k] * (1 - momentum);
    running_variance.values[k] = c.inputs[4].values[k] * momentum + variance[k] * (1 - momentum);
  }
  std::vector<RefTensor> all = {y, running_mean, running_variance, means, variances};
  all.resize(c.output_descs.size());
  return all;
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  using R = RealOf<T>;
  const ChannelExtent e = batch_norm_extent(p.in(0));
  const bool training = trains(p.attributes);
  const R epsilon = static_cast<R>(p.attributes.f("epsilon", 1e-5f));
  const R momentum = static_cast<R>(p.attributes.f("momentum", 0.9f));
  std::array<bool, 5> wanted{};
  for (size_t i = 0; i < 5; ++i) wanted[i] = p.has_out(i);
  const auto channels = static_cast<size_t>(e.channels);
  const size_t count = 3 * channels + (training ? e.partial_count() : 0);
  return make_kernel(
      [=](const KernelArgs& a) {
        R* mean = reinterpret_cast<R*>(a.workspace);
        R* variance = mean + channels;
        R* factor = variance + channels;
        if (training) {
          channel_stats(e, a.in<T>(0), mean, variance, factor + channels);
        } else {
          std::copy_n(a.in<R>(3), channels, mean);
          std::copy_n(a.in<R>(4), channels, variance);
        }
        for (size_t c = 0; c < channels; ++c) {
          factor[c] = a.in<R>(1)[c] / std::sqrt(variance[c] + epsilon);
        }
        channel_affine(e, a.in<T>(0), mean, factor, a.in<R>(2), a.out<T>(0));
        for (size_t i = 1; i < 5; ++i) {
          if (!wanted[i]) continue;
          const R* now = i % 2 == 1 ? mean : variance;
          const R* before = i % 2 == 1 ? a.in<R>(3) : a.in<R>(4);
          for (size_t c = 0; c < channels; ++c) {
            a.out<R>(i)[c] = i > 2 ? now[c] : before[c] * momentum + now[c] * (R{1} - momentum);
          }
        }
      },
      count * sizeof(R));
}

// --- the gradient ---

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
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
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  using R = RealOf<T>;
  const ChannelExtent e = batch_norm_extent(p.in(1));
  const bool training = p.attributes.i("training_mode", 0) != 0;
  const R epsilon = static_cast<R>(p.attributes.f("epsilon", 1e-5f));
  const auto channels = static_cast<size_t>(e.channels);
  const bool has_dscale = p.has_out(1), has_dbias = p.has_out(2);
  return make_kernel(
      [=](const KernelArgs& a) {
        R* inv = reinterpret_cast<R*>(a.workspace);
        R* factor = inv + channels;
        R* shift = factor + channels;
        R* slope = shift + channels;
        R* dscale = has_dscale ? a.out<R>(1) : slope + channels;
        R* dbias = has_dbias ? a.out<R>(2) : slope + 2 * channels;
        for (size_t c = 0; c < channels; ++c) inv[c] = R{1} / std::sqrt(a.in<R>(4)[c] + epsilon);
        channel_dots(e, a.in<T>(0), a.in<T>(1), a.in<R>(3), inv, dbias, dscale,
                     slope + 3 * channels);
        const R share = training ? R{1} / static_cast<R>(e.count()) : R{0};
        for (size_t c = 0; c < channels; ++c) {
          factor[c] = a.in<R>(2)[c] * inv[c];
          shift[c] = factor[c] * dbias[c] * share;
          slope[c] = factor[c] * inv[c] * dscale[c] * share;
        }
        channel_grad(e, a.in<T>(0), a.in<T>(1), a.in<R>(3), factor, shift, slope, a.out<T>(0));
      },
      (7 * channels + e.partial_count()) * sizeof(R));
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
}  // namespace batch_normalization

void add_batch_normalization(Registry& registry) {
  using namespace batch_normalization;
  registry.add(make_op(
      "BatchNormalization", {infer, grad, reference},
      image_kernels<1, create<float>, create<BFloat16>, create<double>>("channels"),
      channels_last({0}, {0}, {.min_inputs = 5, .first_opset = 15, .inplace_inputs = {0}})));
  registry.add_own(make_op(
      "BatchNormalizationGrad", {infer_like_inputs({1, 2, 2}), nullptr, grad_reference},
      image_kernels<2, create_grad<float>, create_grad<BFloat16>, create_grad<double>>("channels"),
      channels_last(
          {0, 1}, {0},
          {.min_inputs = 5, .body = batch_normalization_grad_body, .inplace_inputs = {0, 1}})));
}

}  // namespace ofsdp::kernels::ops
