// Normalization operators and their gradients, launched by norm.h.
#include "kernels/core/planned_operands.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/norm/norm.h"

namespace ofsdp::kernels::cuda {
namespace {

// --- Layer and RMS normalization ---

struct Rows {
  const Shape& x;
  int axis = 0;
  int64_t rows = x.numel(0, axis), width = x.numel(axis, x.rank());
  bool is_row(const TensorDesc& operand, DType dtype) const {
    return operand.dtype == dtype && is_one_row(operand.shape, x, axis);
  }
};
constexpr const char* kNotARow = "scale or bias is not one row of the dtype of x";

Rows rows_of(const Problem& p, const Shape& x) {
  return {x, axis_of(p.attributes, "axis", -1, x.rank())};
}

// Requires one row each for scale and bias, in x's dtype; statistics are float32.
Acceptance accepts_rows(const Problem& p) {
  const Rows r = rows_of(p, p.in(0).shape);
  const DType dtype = p.in(0).dtype;
  return accept(
      {plain(p),
       floats(dtype),
       alike(p.out(0).dtype == dtype),
       {r.is_row(p.in(1), dtype) && (!p.has_in(2) || r.is_row(p.in(2), dtype)), kNotARow}});
}

// LayerNormalization also returns mean and inv, RMSNormalization inv.
CudaImplementation rows(const char* op, bool centred) {
  return {op, "own", accepts_rows, [centred](DeviceState&, const Problem& p) {
            const Rows r = rows_of(p, p.in(0).shape);
            NormForward n{.dtype = p.in(0).dtype,
                          .rows = r.rows,
                          .width = r.width,
                          .epsilon = p.attributes.f("epsilon", 1e-5f),
                          .centred = centred};
            return make_cuda_kernel([n](cudaStream_t stream, const Launch& l) mutable {
              n.x = l.in(0);
              n.scale = l.in(1);
              n.bias = l.in(2);
              n.y = l.out(0);
              n.mean = n.centred ? l.out<float>(1) : nullptr;
              n.inv = l.out<float>(n.centred ? 2 : 1);
              return norm_forward(n, stream);
            });
          }};
}

// Inputs dy, x, scale, mean, inv, dmean, dinv, addend; outputs dx, dscale, dbias. RMSNormalization
// has no mean.
Acceptance accepts_rows_grad(const Problem& p) {
  const DType dtype = p.in(1).dtype;
  return accept({plain(p),
                 floats(dtype),
                 alike(p.in(0).dtype == dtype &&
                       (!p.has_in(kNormAddend) || p.in(kNormAddend).dtype == dtype)),
                 {p.has_in(2) && rows_of(p, p.in(1).shape).is_row(p.in(2), dtype), kNotARow},
                 {p.has_in(4) && p.has_out(0), "statistics or dx are absent"},
                 some(p.in(1))});
}

std::unique_ptr<CudaKernel> create_rows_grad(DeviceState&, const Problem& p) {
  const Rows r = rows_of(p, p.in(1).shape);
  NormBackward n{.dtype = p.in(1).dtype, .rows = r.rows, .width = r.width};
  return make_cuda_kernel(
      [n](cudaStream_t stream, const Launch& l) mutable {
        n.dy = l.in(0);
        n.x = l.in(1);
        n.scale = l.in(2);
        n.mean = l.in<float>(3);
        n.inv = l.in<float>(4);
        n.dmean = l.in<float>(5);
        n.dinv = l.in<float>(6);
        n.addend = l.in(kNormAddend);
        n.dx = l.out(0);
        n.dscale = l.out(1);
        n.dbias = l.out(2);
        n.scratch = l.workspace;
        return norm_backward(n, stream);
      },
      norm_backward_scratch(r.rows, r.width));
}

// com.microsoft.SkipLayerNormalization(x, skip, scale, norm_bias, bias) normalizes x + skip + bias
// over the last axis; outputs mean, inv and the sum after y. The simplified variant has no
// norm_bias.
struct SkipNorm {
  bool centred;
  size_t norm_bias() const { return centred ? 3 : 99; }
  size_t sum_bias() const { return centred ? 4 : 3; }
};

// Accepts a skip that repeats along leading axes only.
Acceptance accepts_skip(const Problem& p, SkipNorm s) {
  const Shape& x = p.in(0).shape;
  const Rows r{x, x.rank() - 1};
  const DType dtype = p.in(0).dtype;
  const auto row = [&](size_t i) { return !p.has_in(i) || r.is_row(p.in(i), dtype); };
  const Shape& skip = p.in(1).shape;
  bool trailing = skip.rank() > 0 && skip.rank() <= x.rank() && p.in(1).numel() >= r.width;
  int64_t inner = 1;
  for (int k = 1; k <= skip.rank() && trailing; ++k) {
    const int64_t size = skip[skip.rank() - k];
    trailing = size == x[x.rank() - k] || (size == 1 && inner == p.in(1).numel());
    inner *= size;
  }
  return accept({plain(p),
                 floats(dtype),
                 alike(p.in(1).dtype == dtype),
                 {trailing, "skip is not repeated along leading axes"},
                 {row(2) && row(s.norm_bias()) && row(s.sum_bias()), kNotARow}});
}

std::unique_ptr<CudaKernel> create_skip(const Problem& p, SkipNorm s) {
  const Shape& x = p.in(0).shape;
  NormForward n{.dtype = p.in(0).dtype,
                .rows = x.numel(0, x.rank() - 1),
                .width = x[x.rank() - 1],
                .epsilon = p.attributes.f("epsilon", 1e-12f),
                .centred = s.centred};
  n.residual_rows = p.in(1).numel() / n.width;
  return make_cuda_kernel([=](cudaStream_t stream, const Launch& l) mutable {
    // RMS normalization does not centre: the mean is 0.
    if (l.out(1) != nullptr && !s.centred) {
      const auto bytes = static_cast<size_t>(n.rows) * sizeof(float);
      OFSDP_CUDA_TRY(cudaMemsetAsync(l.out(1), 0, bytes, stream));
    }
    n.x = l.in(0);
    n.residual = l.in(1);
    n.scale = l.in(2);
    n.bias = l.in(s.norm_bias());
    n.residual_bias = l.in(s.sum_bias());
    n.y = l.out(0);
    n.mean = s.centred ? l.out<float>(1) : nullptr;
    n.inv = l.out<float>(2);
    n.sum = l.out(3);
    return norm_forward(n, stream);
  });
}

CudaImplementation skip(const char* op, SkipNorm s) {
  return {op, "own", [s](const Problem& p) { return accepts_skip(p, s); },
          [s](DeviceState&, const Problem& p) { return create_skip(p, s); }};
}

// --- Batch normalization ---

// x is [N, C, d...]; a vector is N samples of one channel.
ChannelNormParams channels_of(const TensorDesc& x, DType stats) {
  ChannelNormParams e{.dtype = x.dtype, .stats = stats, .samples = x.shape.numel(), .channels = 1};
  if (x.shape.rank() >= 2) {
    e.samples = x.shape[0];
    e.channels = x.shape[1];
    e.inner = x.shape.numel(2, x.shape.rank());
  }
  e.last = x.layout == Layout::kChannelsLast || e.inner == 1;
  return e;
}

// Statistics (inputs 3 and 4) have x's dtype, or float32.
Condition has_batch_types(const Problem& p, DType dtype) {
  const DType stats = p.in(3).dtype;
  return alike(p.in(0).dtype == dtype && p.in(1).dtype == dtype && p.in(2).dtype == dtype &&
               p.in(4).dtype == stats && (stats == dtype || stats == DType::kFloat32));
}

Acceptance accepts_batch(const Problem& p) {
  return accept({floats(p.in(0).dtype), has_batch_types(p, p.in(0).dtype),
                 same_layout(p.in(0).layout == p.out(0).layout)});
}

std::unique_ptr<CudaKernel> create_batch(DeviceState&, const Problem& p) {
  ChannelNorm n{.extent = channels_of(p.in(0), p.in(3).dtype),
                .epsilon = p.attributes.f("epsilon", 1e-5f),
                .momentum = p.attributes.f("momentum", 0.9f),
                .training = p.attributes.i("training_mode", 0) != 0};
  return make_cuda_kernel(
      [n](cudaStream_t stream, const Launch& l) mutable {
        const void** operands[] = {&n.x, &n.scale, &n.bias, &n.mean, &n.variance};
        void** results[] = {&n.y, &n.running_mean, &n.running_variance, &n.batch_mean,
                            &n.batch_variance};
        for (size_t i = 0; i < 5; ++i) *operands[i] = l.in(i);
        for (size_t i = 0; i < 5; ++i) *results[i] = l.out(i);
        n.scratch = l.workspace;
        return channel_norm(n, stream);
      },
      channel_norm_scratch(n.extent));
}

// Inputs dy, x, scale, mean, variance; outputs dx, dscale, dbias.
Acceptance accepts_batch_grad(const Problem& p) {
  const Layout layout = p.in(1).layout;
  return accept(
      {floats(p.in(1).dtype), has_batch_types(p, p.in(1).dtype),
       same_layout(p.in(0).layout == layout && (!p.has_out(0) || p.out(0).layout == layout)),
       some(p.in(1))});
}

std::unique_ptr<CudaKernel> create_batch_grad(DeviceState&, const Problem& p) {
  ChannelNormGradient n{.extent = channels_of(p.in(1), p.in(3).dtype),
                        .epsilon = p.attributes.f("epsilon", 1e-5f),
                        .training = p.attributes.i("training_mode", 0) != 0};
  return make_cuda_kernel(
      [n](cudaStream_t stream, const Launch& l) mutable {
        const void** operands[] = {&n.dy, &n.x, &n.scale, &n.mean, &n.variance};
        void** results[] = {&n.dx, &n.dscale, &n.dbias};
        for (size_t i = 0; i < 5; ++i) *operands[i] = l.in(i);
        for (size_t i = 0; i < 3; ++i) *results[i] = l.out(i);
        n.scratch = l.workspace;
        return channel_norm_grad(n, stream);
      },
      channel_norm_scratch(n.extent));
}

// --- Batch normalization over all ranks ---

Acceptance accepts_statistics(const Problem& p) {
  return accept({floats(p.in(0).dtype), some(p.in(0))});
}

std::unique_ptr<CudaKernel> create_statistics(DeviceState&, const Problem& p) {
  const ChannelNormParams e = channels_of(p.in(0), DType::kFloat32);
  return make_cuda_kernel(
      [e](cudaStream_t stream, const Launch& l) {
        return channel_statistics(e, l.in(0), l.out<float>(0), l.workspace, stream);
      },
      channel_norm_scratch(e));
}

Acceptance accepts_joined_statistics(const Problem& p) {
  return accept({plain(p), supported(p.all_dtype(DType::kFloat32))});
}

std::unique_ptr<CudaKernel> create_joined_statistics(DeviceState&, const Problem& p) {
  const int64_t channels = p.in(1).numel();
  JoinedStatistics s{.channels = channels,
                     .momentum = p.attributes.f("momentum", 0.9f),
                     .rows = gathered_rows(p.in(0), 1, 1 + 2 * channels)};
  return make_cuda_kernel([s](cudaStream_t stream, const Launch& l) mutable {
    s.rows.data = l.in<float>(0);
    s.running_mean = l.in<float>(1);
    s.running_variance = l.in<float>(2);
    float** results[] = {&s.mean, &s.variance, &s.next_mean, &s.next_variance};
    for (size_t i = 0; i < 4; ++i) *results[i] = l.out<float>(i);
    return joined_statistics(s, stream);
  });
}

// Inputs dy, x, scale, mean, variance, ...; mean and variance are over all ranks, in float32.
Acceptance accepts_parts(const Problem& p) {
  const DType dtype = p.in(1).dtype;
  return accept({floats(dtype), has_batch_types(p, dtype),
                 supported(p.in(3).dtype == DType::kFloat32),
                 same_layout(p.in(0).layout == p.in(1).layout), some(p.in(1))});
}

ChannelNormGradient parts_of(const Problem& p) {
  return {.extent = channels_of(p.in(1), DType::kFloat32),
          .epsilon = p.attributes.f("epsilon", 1e-5f),
          .training = true};
}

void take_parts(ChannelNormGradient& n, const Launch& l) {
  const void** operands[] = {&n.dy, &n.x, &n.scale, &n.mean, &n.variance};
  for (size_t i = 0; i < 5; ++i) *operands[i] = l.in(i);
  n.scratch = l.workspace;
}

std::unique_ptr<CudaKernel> create_dots(DeviceState&, const Problem& p) {
  const ChannelNormGradient given = parts_of(p);
  return make_cuda_kernel(
      [n = given](cudaStream_t stream, const Launch& l) mutable {
        take_parts(n, l);
        n.dscale = l.out(1);
        n.dbias = l.out(2);
        return channel_dots(n, l.out<float>(0), stream);
      },
      channel_norm_scratch(given.extent));
}

Acceptance accepts_joined_grad(const Problem& p) {
  return accept(accepts_parts(p), {same_layout(p.out(0).layout == p.in(1).layout)});
}

std::unique_ptr<CudaKernel> create_joined_grad(DeviceState&, const Problem& p) {
  const ChannelNormGradient given = parts_of(p);
  const int64_t channels = given.extent.channels;
  return make_cuda_kernel(
      [n = given, statistics = gathered_rows(p.in(5), 1, 1 + 2 * channels),
       dots = gathered_rows(p.in(6), 1, 2 * channels)](cudaStream_t stream,
                                                       const Launch& l) mutable {
        take_parts(n, l);
        n.dx = l.out(0);
        statistics.data = l.in<float>(5);
        dots.data = l.in<float>(6);
        return joined_gradient(n, statistics, dots, stream);
      },
      channel_norm_scratch(given.extent));
}

// --- Group and instance normalization ---

GroupNormParams groups_of(const TensorDesc& x, int64_t groups) {
  return {.dtype = x.dtype,
          .batch = x.shape[0],
          .groups = groups,
          .each = groups == 0 ? 0 : x.shape[1] / groups,
          .inner = x.shape.numel(2, x.shape.rank())};
}

Acceptance accepts_groups(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept({plain(p), floats(dtype), alike(p.in(1).dtype == dtype && p.in(2).dtype == dtype),
                 some(p.in(0))});
}

CudaImplementation groups(const char* op, bool of_channels) {
  return {op, "own", accepts_groups, [of_channels](DeviceState&, const Problem& p) {
            const int64_t count = of_channels ? p.in(0).shape[1] : p.attributes.i("num_groups", 1);
            GroupNorm n{.extent = groups_of(p.in(0), count),
                        .epsilon = p.attributes.f("epsilon", 1e-5f)};
            return make_cuda_kernel(
                [n](cudaStream_t stream, const Launch& l) mutable {
                  n.x = l.in(0);
                  n.scale = l.in(1);
                  n.bias = l.in(2);
                  n.y = l.out(0);
                  n.mean = l.out<float>(1);
                  n.inv = l.out<float>(2);
                  n.scratch = l.workspace;
                  return group_norm(n, stream);
                },
                group_norm_scratch(n.extent));
          }};
}

// Inputs dy, x, scale, mean, inv; outputs dx, dscale, dbias.
Acceptance accepts_groups_grad(const Problem& p) {
  const DType dtype = p.in(1).dtype;
  return accept({plain(p), floats(dtype),
                 alike(p.in(0).dtype == dtype && p.in(2).dtype == dtype &&
                       p.in(3).dtype == DType::kFloat32 && p.in(4).dtype == DType::kFloat32),
                 some(p.in(1))});
}

std::unique_ptr<CudaKernel> create_groups_grad(DeviceState&, const Problem& p) {
  GroupNormGradient n{.extent = groups_of(p.in(1), p.attributes.i("num_groups", 1))};
  return make_cuda_kernel(
      [n](cudaStream_t stream, const Launch& l) mutable {
        n.dy = l.in(0);
        n.x = l.in(1);
        n.scale = l.in(2);
        n.mean = l.in<float>(3);
        n.inv = l.in<float>(4);
        n.dx = l.out(0);
        n.dscale = l.out(1);
        n.dbias = l.out(2);
        n.scratch = l.workspace;
        return group_norm_grad(n, stream);
      },
      group_norm_scratch(n.extent));
}

// --- Softmax, its logarithm, local response ---

Acceptance accepts_softmax(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), alike(p.all_dtype(p.in(0).dtype))});
}

template <auto kLaunch>
CudaImplementation softmax_of(const char* op, bool log) {
  return {op, "own", accepts_softmax, [log](DeviceState&, const Problem& p) {
            const Shape& shape = p.out(0).shape;
            const int axis = axis_of(p.attributes, "axis", -1, shape.rank());
            return launches<kLaunch>(SoftmaxParams{.dtype = p.out(0).dtype,
                                                   .outer = shape.numel(0, axis),
                                                   .classes = shape.rank() == 0 ? 1 : shape[axis],
                                                   .inner = shape.numel(axis + 1, shape.rank()),
                                                   .log = log});
          }};
}

template <auto kLaunch>
std::unique_ptr<CudaKernel> create_lrn(DeviceState&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  const Attributes& a = p.attributes;
  const int64_t size = a.i("size", 1);
  return launches<kLaunch>(LrnParams{.dtype = p.in(0).dtype,
                                     .batch = x[0],
                                     .channels = x[1],
                                     .inner = x.numel(2, x.rank()),
                                     .before = (size - 1) / 2,
                                     .after = size / 2,
                                     .alpha = a.f("alpha", 1e-4f) / static_cast<float>(size),
                                     .beta = a.f("beta", 0.75f),
                                     .bias = a.f("bias", 1.0f)});
}

}  // namespace

void add_norms(CudaImplementations& list) {
  list.insert(
      list.end(),
      {rows("LayerNormalization", true),
       rows("com.microsoft.LayerNormalization", true),
       rows("RMSNormalization", false),
       rows("SimplifiedLayerNormalization", false),
       rows("com.microsoft.SimplifiedLayerNormalization", false),
       skip("com.microsoft.SkipLayerNormalization", {true}),
       skip("com.microsoft.SkipSimplifiedLayerNormalization", {false}),
       {"ofsdp.LayerNormalizationGrad", "own", accepts_rows_grad, create_rows_grad},
       {"BatchNormalization", "own", accepts_batch, create_batch},
       {"ofsdp.BatchNormalizationGrad", "own", accepts_batch_grad, create_batch_grad},
       {"ofsdp.ChannelStatistics", "own", accepts_statistics, create_statistics},
       {"ofsdp.JoinedStatistics", "own", accepts_joined_statistics, create_joined_statistics},
       {"ofsdp.ChannelDots", "own", accepts_parts, create_dots},
       {"ofsdp.JoinedNormalizationGrad", "own", accepts_joined_grad, create_joined_grad},
       groups("GroupNormalization", false),
       groups("InstanceNormalization", true),
       {"ofsdp.GroupNormalizationGrad", "own", accepts_groups_grad, create_groups_grad},
       softmax_of<softmax>("Softmax", false),
       softmax_of<softmax>("LogSoftmax", true),
       softmax_of<softmax_grad>("ofsdp.SoftmaxGrad", false),
       softmax_of<softmax_grad>("ofsdp.LogSoftmaxGrad", true),
       {"LRN", "own", accepts_plain_floats, create_lrn<lrn>},
       {"ofsdp.LRNGrad", "own", accepts_plain_floats, create_lrn<lrn_grad>}});
}

}  // namespace ofsdp::kernels::cuda
