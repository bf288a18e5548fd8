// BatchNormalization(x, scale, bias, mean, variance), attributes epsilon, momentum, training_mode:
// y = (x - m) inv scale + bias with inv = 1 / sqrt(v + epsilon), per channel. For inference m and v
// are the inputs. In training mode they are those of x over all axes but 1 (variance of the
// population), and outputs 1 and 2 are mean momentum + m (1 - momentum), likewise for variance;
// we add outputs 3 and 4, m and v themselves.
// dx, dscale, dbias: ofsdp.BatchNormalizationGrad(dy, x, scale, m, v). For inference also
// dm = -scale inv dbias and dv = -scale inv^2 / 2 dscale; in training mode these are 0.
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
#include "kernels/ops/norm/batch_normalization.h"

#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {

ChannelExtent batch_norm_extent(const TensorDesc& x) {
  const Shape& s = x.shape;
  if (s.rank() < 2) return {s.numel(), 1, 1, false};
  const int64_t inner = s.numel(2, s.rank());
  return {s[0], s[1], inner, x.layout == Layout::kChannelsLast || inner == 1};
}

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

// dm and dv of inference.
void grad_of_stats(GradBuilder& b, Ref dscale, Ref dbias) {
  const DType dtype = b.desc(b.input(4)).dtype;
  const Ref epsilon = b.scalar(dtype, static_cast<double>(b.attributes().f("epsilon", 1e-5f)));
  const Ref deviation = b.emit1("Sqrt", {b.emit1("Add", {b.input(4), epsilon})});
  const Ref factor = b.emit1("Div", {b.input(1), deviation});
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
bool accepts(const Problem& p) {
  return p.all_dtype(std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64) &&
         p.in(0).layout == p.out(0).layout;
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const ChannelExtent e = batch_norm_extent(p.in(0));
  const bool training = trains(p.attributes);
  const T epsilon = static_cast<T>(p.attributes.f("epsilon", 1e-5f));
  const T momentum = static_cast<T>(p.attributes.f("momentum", 0.9f));
  std::array<bool, 5> wanted{};
  for (size_t i = 0; i < 5; ++i) wanted[i] = p.has_out(i);
  const auto channels = static_cast<size_t>(e.channels);
  const size_t count = 3 * channels + (training ? e.partial_count() : 0);
  return make_kernel(
      [=](const KernelArgs& a) {
        T* mean = reinterpret_cast<T*>(a.workspace);
        T* variance = mean + channels;
        T* factor = variance + channels;
        if (training) {
          channel_stats(e, a.in<T>(0), mean, variance, factor + channels);
        } else {
          std::copy_n(a.in<T>(3), channels, mean);
          std::copy_n(a.in<T>(4), channels, variance);
        }
        for (size_t c = 0; c < channels; ++c) {
          factor[c] = a.in<T>(1)[c] / std::sqrt(variance[c] + epsilon);
        }
        channel_affine(e, a.in<T>(0), mean, factor, a.in<T>(2), a.out<T>(0));
        for (size_t i = 1; i < 5; ++i) {
          if (!wanted[i]) continue;
          const T* now = i % 2 == 1 ? mean : variance;
          const T* before = i % 2 == 1 ? a.in<T>(3) : a.in<T>(4);
          for (size_t c = 0; c < channels; ++c) {
            a.out<T>(i)[c] = i > 2 ? now[c] : before[c] * momentum + now[c] * (T{1} - momentum);
          }
        }
        return ok_status();
      },
      count * sizeof(T));
}

std::vector<SampleCase> samples() {
  auto made = [](const char* name, Shape x, int64_t training, size_t outputs = 1,
                 DType dtype = DType::kFloat32, double tolerance = 2e-5) {
    const Shape channels{x.rank() > 1 ? x[1] : 1};
    return SampleCase{.name = name,
                      .attributes = {{"training_mode", training}, {"momentum", 0.7f}},
                      .inputs = {{dtype, x},
                                 {dtype, channels},
                                 {dtype, channels},
                                 {dtype, channels},
                                 {dtype, channels}},
                      .fill =
                          [](size_t input, std::vector<double>& values) {
                            for (double& v : values) v = input == 4 ? std::abs(v) + 0.5 : v;
                          },
                      .num_outputs = outputs,
                      .check_grad = dtype == DType::kFloat32 && outputs == 1,
                      .tolerance = tolerance};
  };
  return {made("image", {3, 5, 4, 7}, 0),
          made("image_training", {3, 5, 4, 7}, 1),
          made("image_outputs", {3, 5, 4, 7}, 1, 5),
          made("wide", {2, 300, 9, 9}, 1, 5),
          made("many", {9, 4, 11, 11}, 1, 3),
          made("matrix", {70, 6}, 1),
          made("volume", {2, 3, 4, 2, 3}, 1, 3),
          made("vector", {8}, 0),
          made("vector_training", {8}, 1, 3),
          made("empty", {0, 3, 2, 2}, 0),
          made("float64", {3, 5, 4}, 1, 3, DType::kFloat64, 1e-12),
          made("float16", {3, 5, 4}, 1, 3, DType::kFloat16, 4e-3)};
}

}  // namespace

void add_batch_normalization(Registry& registry) {
  registry.add({.name = "BatchNormalization",
                .min_inputs = 5,
                .first_opset = 15,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"channels", accepts<float>, create<float>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0},
                .channels_last_outputs = {0}});
}

}  // namespace ofsdp::kernels::ops
