// BatchNormalization(x, scale, bias, mean, variance), attributes epsilon, momentum, training_mode:
// y = (x - m) inv scale + bias with inv = 1 / sqrt(v + epsilon), per channel. In inference, m and v
// are the inputs. In training mode, m and v are x's mean and population variance over all axes but
// 1; outputs 1 and 2 are mean momentum + m (1 - momentum), and the same for variance; outputs 3 and
// 4, m and v themselves, are ours.
//
// ofsdp.BatchNormalizationGrad(dy, x, scale, m, v), attributes epsilon, training_mode, returns dx,
// dscale, dbias. With h = (x - m) inv and n elements per channel:
//
//   dbias = sum dy      dscale = sum dy h
//   inference:  dx = scale inv dy      dm = -scale inv dbias      dv = -scale inv^2 / 2 dscale
//   training:   dx = scale inv (dy - dbias / n - h dscale / n)    dm = dv = 0
//
// grad_of_stats emits dm and dv.
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html

#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"
#include "kernels/core/planned_operands.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/normalization.h"
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

// Sets dm and dv for inference, in the statistics' type, which may be wider than x's.
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
  const ChannelNormParams e = batch_norm_extent({DType::kFloat32, c.inputs[0].desc.shape});
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
  const ChannelNormParams e = batch_norm_extent(p.in(0));
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
  const ChannelNormParams e = batch_norm_extent({DType::kFloat32, c.inputs[1].desc.shape});
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
  const ChannelNormParams e = batch_norm_extent(p.in(1));
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
  const ChannelNormParams e = batch_norm_extent({x.dtype, x.shape});
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
      channels_last(
          {0}, {0},
          {.min_inputs = 5, .first_opset = 15, .inplace_inputs = {0}, .float32_inputs = {3, 4}})));
  registry.add_own(make_op(
      "BatchNormalizationGrad", {infer_like_inputs({1, 2, 2}), nullptr, grad_reference},
      image_kernels<2, create_grad<float>, create_grad<BFloat16>, create_grad<double>>("channels"),
      channels_last(
          {0, 1}, {0},
          {.min_inputs = 5, .body = batch_normalization_grad_body, .inplace_inputs = {0, 1}})));
}

// Batch normalization over all ranks' rows, in parts that importer/passes/batch_norm.cpp puts
// together. An image is [N, C, d...]; W = 2 C; "joined" is ofsdp.JoinRows' output, a row for each
// rank that has samples.
//
// ofsdp.ChannelStatistics(x) -> float32 [1, 1 + W]: elements per channel, channel means, and the
// sums of squares around these.
//
// ofsdp.JoinedStatistics(joined statistics, running mean, running variance), attribute momentum ->
// mean, variance, next running mean, next running variance over all ranks' elements, joined by
// Chan's formula in double in rank order (Chan, Golub, LeVeque, 1983). If there are no elements,
// mean and variance are the running ones, which do not change.
//
// ofsdp.ChannelDots(dy, x, scale, m, v), attribute epsilon -> float32 [1, W], dscale, dbias: with h
// = (x - m) / sqrt(v + epsilon), dbias = sum dy and dscale = sum dy h over this rank's elements;
// output 0 has both, dbias first.
//
// ofsdp.JoinedNormalizationGrad(dy, x, scale, m, v, joined statistics, joined dots), attribute
// epsilon -> dx = scale / sqrt(v + epsilon) (dy - dbias / n - h dscale / n), with n and sums over
// all ranks.
// https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html

namespace joined_batch_normalization {
namespace {

float epsilon_of(const Attributes& attributes) { return attributes.f("epsilon", 1e-5f); }

Result<std::vector<TensorDesc>> infer_statistics(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() == 0) return input_error("expected [N, C, d...], found {}", x.text());
  const int64_t channels = batch_norm_extent(x).channels;
  return std::vector{TensorDesc{DType::kFloat32, Shape{1, 1 + 2 * channels}}};
}

Result<std::vector<TensorDesc>> infer_joined(const InferContext& c) {
  const TensorDesc &joined = c.inputs[0], &running = c.inputs[1];
  const bool fits = joined.shape.rank() == 2 && running.shape.rank() == 1 &&
                    joined.shape[1] == JoinedRows::part_of(1, 1 + 2 * running.shape[0]) &&
                    c.inputs[2].shape == running.shape;
  if (!fits) {
    return input_error("expected joined statistics of {} and {}, found {}", running.text(),
                       c.inputs[2].text(), joined.text());
  }
  return std::vector(4, running);
}

Result<std::vector<TensorDesc>> infer_dots(const InferContext& c) {
  const int64_t channels = batch_norm_extent(c.inputs[1]).channels;
  return std::vector{TensorDesc{DType::kFloat32, Shape{1, 2 * channels}}, c.inputs[2], c.inputs[2]};
}

// --- references ---

struct ReferenceChannels {
  ChannelNormParams e;
  explicit ReferenceChannels(const TensorDesc& x)
      : e(batch_norm_extent({DType::kFloat32, x.shape})) {}
  size_t of(size_t i) const {
    return i / static_cast<size_t>(e.inner) % static_cast<size_t>(e.channels);
  }
};

std::vector<RefTensor> statistics_reference(const ReferenceContext& c) {
  const ReferenceChannels channels(c.inputs[0].desc);
  const auto& x = c.inputs[0].values;
  RefTensor y = zeros(c.output_descs[0]);
  const auto n = static_cast<double>(channels.e.count());
  const auto count = static_cast<size_t>(channels.e.channels);
  y.values[0] = n;
  for (size_t i = 0; i < x.size(); ++i) y.values[1 + channels.of(i)] += x[i] / n;
  for (size_t i = 0; i < x.size(); ++i) {
    y.values[1 + count + channels.of(i)] += std::pow(x[i] - y.values[1 + channels.of(i)], 2);
  }
  return {y};
}

// Returns the rows in a joined tensor, one after the other.
std::vector<std::vector<double>> rows_of(const RefTensor& joined, int64_t width) {
  std::vector<std::vector<double>> rows;
  const int64_t part = joined.desc.shape[1];
  for (int64_t r = 0; r < joined.desc.shape[0]; ++r) {
    if (joined[r * part] < 1) continue;
    const auto first = joined.values.begin() + r * part + JoinedRows::kHeader;
    rows.emplace_back(first, first + width);
  }
  return rows;
}

// Computes from sums of values and of squares, unlike the kernel.
std::vector<RefTensor> joined_reference(const ReferenceContext& c) {
  const RefTensor &before_mean = c.inputs[1], &before_variance = c.inputs[2];
  const int64_t channels = before_mean.desc.numel();
  const double momentum = static_cast<double>(c.attributes.f("momentum", 0.9f));
  std::vector<RefTensor> out(4, before_mean);
  const auto rows = rows_of(c.inputs[0], 1 + 2 * channels);
  for (int64_t k = 0; k < channels; ++k) {
    double n = 0, sum = 0, squares = 0;
    for (const auto& row : rows) {
      const double mean = row[static_cast<size_t>(1 + k)];
      n += row[0];
      sum += row[0] * mean;
      squares += row[static_cast<size_t>(1 + channels + k)] + row[0] * mean * mean;
    }
    const bool any = n > 0;
    out[0][k] = any ? sum / n : before_mean[k];
    out[1][k] = any ? squares / n - std::pow(sum / n, 2) : before_variance[k];
    out[2][k] = before_mean[k] * momentum + out[0][k] * (1 - momentum);
    out[3][k] = before_variance[k] * momentum + out[1][k] * (1 - momentum);
  }
  return out;
}

double inverse_of(const ReferenceContext& c, size_t channel) {
  return 1 / std::sqrt(c.inputs[4].values[channel] + static_cast<double>(epsilon_of(c.attributes)));
}

std::vector<RefTensor> dots_reference(const ReferenceContext& c) {
  const ReferenceChannels channels(c.inputs[1].desc);
  const auto count = static_cast<size_t>(channels.e.channels);
  RefTensor sums = zeros(c.output_descs[0]), dscale = zeros(c.inputs[2].desc), dbias = dscale;
  for (size_t i = 0; i < c.inputs[1].values.size(); ++i) {
    const size_t k = channels.of(i);
    const double h = (c.inputs[1].values[i] - c.inputs[3].values[k]) * inverse_of(c, k);
    dbias.values[k] += c.inputs[0].values[i];
    dscale.values[k] += c.inputs[0].values[i] * h;
  }
  for (size_t k = 0; k < count; ++k) {
    sums.values[k] = dbias.values[k];
    sums.values[count + k] = dscale.values[k];
  }
  std::vector<RefTensor> all{sums, dscale, dbias};
  all.resize(c.output_descs.size());
  return all;
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const ReferenceChannels channels(c.inputs[1].desc);
  const auto count = static_cast<size_t>(channels.e.channels);
  double n = 0;
  std::vector<double> sums(2 * count);
  for (const auto& row : rows_of(c.inputs[5], 1 + 2 * channels.e.channels)) n += row[0];
  for (const auto& row : rows_of(c.inputs[6], 2 * channels.e.channels)) {
    for (size_t k = 0; k < row.size(); ++k) sums[k] += row[k];
  }
  RefTensor dx = zeros(c.output_descs[0]);
  for (size_t i = 0; i < dx.values.size(); ++i) {
    const size_t k = channels.of(i);
    const double inverse = inverse_of(c, k);
    const double h = (c.inputs[1].values[i] - c.inputs[3].values[k]) * inverse;
    const double mean = n > 0 ? (sums[k] + h * sums[count + k]) / n : 0;
    dx.values[i] = c.inputs[2].values[k] * inverse * (c.inputs[0].values[i] - mean);
  }
  return {dx};
}

// --- kernels, float32 ---

// Accepts if the first `images` inputs share a layout.
template <size_t images>
Acceptance accepts(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32)) return Acceptance::refuse(not_of_type<float>());
  bool same = true;
  for (size_t i = 1; i < images; ++i) same = same && p.in(i).layout == p.in(0).layout;
  return accept_if(same, "operands of several layouts");
}

std::unique_ptr<Kernel> create_statistics(const Problem& p) {
  const ChannelNormParams e = batch_norm_extent(p.in(0));
  const auto n = static_cast<float>(e.count());
  return make_kernel(
      [=](const KernelArgs& a) {
        float* const y = a.out<float>(0);
        float *const mean = y + 1, *const squares = mean + e.channels;
        y[0] = n;
        channel_stats(e, a.in<float>(0), mean, squares, reinterpret_cast<float*>(a.workspace));
        for (int64_t c = 0; c < e.channels; ++c) squares[c] *= n;
      },
      e.partial_count() * sizeof(float));
}

std::unique_ptr<Kernel> create_joined(const Problem& p) {
  const int64_t channels = p.in(1).numel();
  const float momentum = p.attributes.f("momentum", 0.9f);
  std::array<bool, 4> wanted{};
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = p.has_out(i);
  return make_kernel([=, shape = p.in(0).shape](const KernelArgs& a) {
    const JoinedRows joined(a.in<float>(0), shape, 1, 1 + 2 * channels);
    const float *const before_mean = a.in<float>(1), *const before_variance = a.in<float>(2);
    for (int64_t c = 0; c < channels; ++c) {
      double count = 0, middle = 0, sum = 0;
      for (int64_t r = 0; r < joined.ranks(); ++r) {
        if (joined.rows(r) == 0) continue;
        const float* const row = joined.row(r);
        const auto n = static_cast<double>(row[0]);
        const double far = static_cast<double>(row[1 + c]) - middle;
        sum += static_cast<double>(row[1 + channels + c]) + far * far * count * n / (count + n);
        middle += far * n / (count + n);
        count += n;
      }
      const bool any = count > 0;
      const float mean = any ? static_cast<float>(middle) : before_mean[c];
      const float variance = any ? static_cast<float>(sum / count) : before_variance[c];
      const float next_mean = before_mean[c] * momentum + mean * (1.0f - momentum);
      const float next_variance = before_variance[c] * momentum + variance * (1.0f - momentum);
      if (wanted[0]) a.out<float>(0)[c] = mean;
      if (wanted[1]) a.out<float>(1)[c] = variance;
      if (wanted[2]) a.out<float>(2)[c] = any ? next_mean : before_mean[c];
      if (wanted[3]) a.out<float>(3)[c] = any ? next_variance : before_variance[c];
    }
  });
}

std::unique_ptr<Kernel> create_dots(const Problem& p) {
  const ChannelNormParams e = batch_norm_extent(p.in(1));
  const float epsilon = epsilon_of(p.attributes);
  const bool has_dscale = p.has_out(1), has_dbias = p.has_out(2);
  return make_kernel(
      [=](const KernelArgs& a) {
        float* const inverse = reinterpret_cast<float*>(a.workspace);
        float *const dbias = a.out<float>(0), *const dscale = dbias + e.channels;
        for (int64_t c = 0; c < e.channels; ++c) {
          inverse[c] = 1.0f / std::sqrt(a.in<float>(4)[c] + epsilon);
        }
        channel_dots(e, a.in<float>(0), a.in<float>(1), a.in<float>(3), inverse, dbias, dscale,
                     inverse + e.channels);
        if (has_dscale) std::copy_n(dscale, e.channels, a.out<float>(1));
        if (has_dbias) std::copy_n(dbias, e.channels, a.out<float>(2));
      },
      (static_cast<size_t>(e.channels) + e.partial_count()) * sizeof(float));
}

// Returns the elements per channel on all ranks.
double joined_count(const JoinedRows& statistics) {
  double n = 0;
  for (int64_t r = 0; r < statistics.ranks(); ++r) {
    if (statistics.rows(r) > 0) n += static_cast<double>(*statistics.row(r));
  }
  return n;
}

double joined_sum(const JoinedRows& dots, int64_t i) {
  double sum = 0;
  for (int64_t r = 0; r < dots.ranks(); ++r) {
    if (dots.rows(r) > 0) sum += static_cast<double>(dots.row(r)[i]);
  }
  return sum;
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  const ChannelNormParams e = batch_norm_extent(p.in(1));
  const float epsilon = epsilon_of(p.attributes);
  const auto run = [=, statistics_shape = p.in(5).shape,
                    dots_shape = p.in(6).shape](const KernelArgs& a) {
    const JoinedRows statistics(a.in<float>(5), statistics_shape, 1, 1 + 2 * e.channels);
    const JoinedRows dots(a.in<float>(6), dots_shape, 1, 2 * e.channels);
    float* const factor = reinterpret_cast<float*>(a.workspace);
    float *const shift = factor + e.channels, *const slope = shift + e.channels;
    const double n = joined_count(statistics), share = n > 0 ? 1 / n : 0;
    for (int64_t c = 0; c < e.channels; ++c) {
      const float inverse = 1.0f / std::sqrt(a.in<float>(4)[c] + epsilon);
      factor[c] = a.in<float>(2)[c] * inverse;
      shift[c] = factor[c] * static_cast<float>(joined_sum(dots, c) * share);
      slope[c] = factor[c] * inverse * static_cast<float>(joined_sum(dots, e.channels + c) * share);
    }
    channel_grad(e, a.in<float>(0), a.in<float>(1), a.in<float>(3), factor, shift, slope,
                 a.out<float>(0));
  };
  return make_kernel(run, 3 * static_cast<size_t>(e.channels) * sizeof(float));
}

}  // namespace
}  // namespace joined_batch_normalization

void add_joined_batch_normalization(Registry& registry) {
  using namespace joined_batch_normalization;
  registry.add_own(make_op("ChannelStatistics", {infer_statistics, nullptr, statistics_reference},
                           with_half_floats<accepts<1>, create_statistics>("channels"),
                           channels_last({0}, {})));
  registry.add_own(make_op("JoinedStatistics", {infer_joined, nullptr, joined_reference},
                           {{"loops", accepts<1>, create_joined}}, {.min_inputs = 3}));
  registry.add_own(make_op("ChannelDots", {infer_dots, nullptr, dots_reference},
                           with_half_floats<accepts<2>, create_dots>("channels"),
                           channels_last({0, 1}, {}, {.min_inputs = 5})));
  registry.add_own(
      make_op("JoinedNormalizationGrad", {infer_like_inputs({1}), nullptr, grad_reference},
              with_half_floats<accepts<2>, create_grad>("channels"),
              channels_last({0, 1}, {0}, {.min_inputs = 7, .inplace_inputs = {0, 1}})));
}

}  // namespace ofsdp::kernels::ops
