// Parts of a batch normalization over the rows of all ranks; importer/passes/batch_norm_ranks.cpp
// puts them together. An image is [N, C, d...]; W = 2 C; "joined" is the output of ofsdp.JoinRows,
// one row a rank that has samples.
//
// ofsdp.ChannelStatistics(x) -> float32 [1, 1 + W]: the elements of a channel, the means of the
// channels, and the sums of squares around these.
//
// ofsdp.JoinedStatistics(joined statistics, running mean, running variance), attribute momentum ->
// mean, variance, next running mean, next running variance: those of all elements, joined by Chan's
// formula in double in the order of ranks (Chan, Golub, LeVeque, 1983). Without any elements mean
// and variance are the running ones, which stay.
//
// ofsdp.ChannelDots(dy, x, scale, m, v), attribute epsilon -> float32 [1, W], dscale, dbias: with
// h = (x - m) / sqrt(v + epsilon), dbias = sum dy and dscale = sum dy h over this rank's elements;
// output 0 has both, dbias first.
//
// ofsdp.JoinedNormalizationGrad(dy, x, scale, m, v, joined statistics, joined dots), attribute
// epsilon -> dx = scale / sqrt(v + epsilon) (dy - dbias / n - h dscale / n), with n and the sums
// those of all ranks.
// https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
#include <cmath>

#include "kernels/core/joined_rows.h"
#include "kernels/core/memory.h"
#include "kernels/cpu/channel_norm.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/ops/norm/channels.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
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
  ChannelExtent e;
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

// The rows of a joined tensor, one after the other.
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

// From sums of values and of squares, unlike the kernel.
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

// The first `images` inputs have one layout, that of input 0.
template <size_t images>
Acceptance accepts(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32)) return Acceptance::refuse(not_of_type<float>());
  bool same = true;
  for (size_t i = 1; i < images; ++i) same = same && p.in(i).layout == p.in(0).layout;
  return accept_if(same, "operands of several layouts");
}

std::unique_ptr<Kernel> create_statistics(const Problem& p) {
  const ChannelExtent e = batch_norm_extent(p.in(0));
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
  const ChannelExtent e = batch_norm_extent(p.in(1));
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

// Elements of a channel on all ranks.
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
  const ChannelExtent e = batch_norm_extent(p.in(1));
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
