// Normalizations, softmax, and their gradients: rows for a warp, for a block, or
// walked.
#include "kernels/cuda/norm/norm.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using namespace kernels::cuda;

constexpr int64_t kRows = 9, kMaxRegisterRow = 8192;  // longer rows are walked

void add_layer_norm(Table& table, DType dtype, int64_t width) {
  table.row(named("layer norm", dtype, width), [=](Buffers& m) {
    NormForward n;
    n.dtype = dtype;
    n.rows = n.residual_rows = kRows;
    n.width = width;
    n.x = m.floats(dtype, kRows * width);
    n.scale = m.floats(dtype, width);
    n.bias = m.floats(dtype, width);
    n.residual = m.floats(dtype, kRows * width);
    n.residual_bias = m.floats(dtype, width);
    n.sum = const_cast<void*>(n.x);
    n.y = m.floats(dtype, kRows * width);
    n.mean = m.floats(kRows);
    n.inv = m.floats(kRows);
    return norm_forward(n, nullptr);
  });
  for (const bool parameters : {true, false}) {
    const char* const which = parameters ? "of all" : "of x";
    table.row(named("layer norm gradient", which, dtype, width), [=](Buffers& m) {
      NormBackward n;
      n.dtype = dtype;
      n.rows = kRows;
      n.width = width;
      n.dy = m.floats(dtype, kRows * width);
      n.x = m.floats(dtype, kRows * width);
      n.scale = m.floats(dtype, width);
      n.mean = m.floats(kRows);
      n.inv = m.positive(kRows);
      n.dx = const_cast<void*>(n.dy);
      n.dscale = parameters ? m.floats(dtype, width) : nullptr;
      n.dbias = parameters ? m.floats(dtype, width) : nullptr;
      n.scratch = m.zeros(norm_backward_scratch(kRows, width));
      return norm_backward(n, nullptr);
    });
  }
}

void add_softmax(Table& table, DType dtype, int64_t width, int64_t inner, bool log) {
  const SoftmaxParams e{dtype, inner > 1 ? 2 : kRows, width, inner, log};
  const int64_t numel = e.outer * width * inner;
  table.row(named(log ? "log softmax" : "softmax", dtype, width, inner), [=](Buffers& m) {
    void* const x = m.floats(dtype, numel);
    return softmax(e, x, x, nullptr);
  });
  table.row(named(log ? "log softmax gradient" : "softmax gradient", dtype, width, inner),
            [=](Buffers& m) {
              void* const dy = m.floats(dtype, numel);
              return softmax_grad(e, dy, m.floats(dtype, numel), dy, nullptr);
            });
}

void add_batch_norm(Table& table, DType dtype, bool last, bool training) {
  constexpr int64_t kChannels = 5, kSamples = 3, kInner = 1500;
  const ChannelNormParams e{dtype, DType::kFloat32, kSamples, kChannels, kInner, last};
  const char* const layout = last ? "channels last" : "plain";
  const char* const mode = training ? "training" : "evaluation";
  table.row(named("batch norm", dtype, layout, mode), [=](Buffers& m) {
    ChannelNorm n;
    n.extent = e;
    n.training = training;
    n.x = m.floats(dtype, kSamples * kChannels * kInner);
    n.y = const_cast<void*>(n.x);
    n.scale = m.floats(dtype, kChannels);
    n.bias = m.floats(dtype, kChannels);
    n.mean = n.running_mean = m.floats(kChannels);
    n.variance = n.running_variance = m.positive(kChannels);
    n.batch_mean = m.floats(kChannels);
    n.batch_variance = m.floats(kChannels);
    n.scratch = m.zeros(channel_norm_scratch(e));
    return channel_norm(n, nullptr);
  });
  table.row(named("batch norm gradient", dtype, layout, mode), [=](Buffers& m) {
    ChannelNormGradient n;
    n.extent = e;
    n.training = training;
    n.dy = m.floats(dtype, kSamples * kChannels * kInner);
    n.x = m.floats(dtype, kSamples * kChannels * kInner);
    n.scale = m.floats(dtype, kChannels);
    n.mean = m.floats(kChannels);
    n.variance = m.positive(kChannels);
    n.dx = const_cast<void*>(n.dy);
    n.dscale = m.floats(dtype, kChannels);
    n.dbias = m.floats(dtype, kChannels);
    n.scratch = m.zeros(channel_norm_scratch(e));
    return channel_norm_grad(n, nullptr);
  });
}

// A row from each of two ranks.
GatheredRows two_ranks(Buffers& m, int64_t width) {
  constexpr int64_t kHeader = 16;
  const int64_t part = kHeader + width;
  float* const data = m.positive(2 * part);
  data[0] = data[part] = 1;
  return {data, 2, part, kHeader, 1, width};
}

void add_joined_norm(Table& table, DType dtype, bool last) {
  constexpr int64_t kChannels = 300, kSamples = 3, kInner = 40, kNumel = 300 * 3 * 40;
  const ChannelNormParams e{dtype, DType::kFloat32, kSamples, kChannels, kInner, last};
  table.row(
      named("batch norm of ranks", dtype, last ? "channels last" : "plain"),
      [=](Buffers& m) -> cudaError_t {
        void* const x = m.floats(dtype, kNumel);
        void* const scratch = m.zeros(channel_norm_scratch(e));
        OFSDP_CUDA_TRY(channel_statistics(e, x, m.floats(1 + 2 * kChannels), scratch, nullptr));
        JoinedStatistics s;
        s.channels = kChannels;
        s.rows = two_ranks(m, 1 + 2 * kChannels);
        s.running_mean = s.next_mean = m.floats(kChannels);
        s.running_variance = s.next_variance = m.positive(kChannels);
        s.mean = m.floats(kChannels);
        s.variance = m.positive(kChannels);
        OFSDP_CUDA_TRY(joined_statistics(s, nullptr));
        ChannelNormGradient n;
        n.extent = e;
        n.training = true;
        n.dy = m.floats(dtype, kNumel);
        n.x = x;
        n.scale = m.floats(dtype, kChannels);
        n.mean = s.mean;
        n.variance = s.variance;
        n.dx = const_cast<void*>(n.dy);
        n.dscale = m.floats(dtype, kChannels);
        n.dbias = m.floats(dtype, kChannels);
        n.scratch = scratch;
        OFSDP_CUDA_TRY(channel_dots(n, m.floats(2 * kChannels), nullptr));
        return joined_gradient(n, s.rows, two_ranks(m, 2 * kChannels), nullptr);
      });
}

void add_group_norm(Table& table, DType dtype) {
  const GroupNormParams e{dtype, 2, 3, 4, 700};
  constexpr int64_t kNumel = 2 * 3 * 4 * 700, kChannels = 12, kGroups = 6;
  table.row(named("group norm", dtype), [=](Buffers& m) {
    GroupNorm n;
    n.extent = e;
    n.x = m.floats(dtype, kNumel);
    n.y = const_cast<void*>(n.x);
    n.scale = m.floats(dtype, kChannels);
    n.bias = m.floats(dtype, kChannels);
    n.mean = m.floats(kGroups);
    n.inv = m.floats(kGroups);
    n.scratch = m.zeros(group_norm_scratch(e));
    return group_norm(n, nullptr);
  });
  table.row(named("group norm gradient", dtype), [=](Buffers& m) {
    GroupNormGradient n;
    n.extent = e;
    n.dy = m.floats(dtype, kNumel);
    n.x = m.floats(dtype, kNumel);
    n.scale = m.floats(dtype, kChannels);
    n.mean = m.floats(kGroups);
    n.inv = m.positive(kGroups);
    n.dx = const_cast<void*>(n.dy);
    n.dscale = m.floats(dtype, kChannels);
    n.dbias = m.floats(dtype, kChannels);
    n.scratch = m.zeros(group_norm_scratch(e));
    return group_norm_grad(n, nullptr);
  });
}

void add_lrn(Table& table) {
  const LrnParams e{DType::kFloat32, 2, 7, 30, 2, 2, 1e-4f, 0.75f, 1};
  table.row("local response norm", [=](Buffers& m) {
    const float* const x = m.floats(2 * 7 * 30);
    if (const cudaError_t error = lrn(e, x, m.floats(2 * 7 * 30), nullptr)) return error;
    return lrn_grad(e, m.floats(2 * 7 * 30), x, m.floats(2 * 7 * 30), nullptr);
  });
}

}  // namespace

void add_norm_rows(Table& table) {
  const std::vector<int64_t> widths =
      table.all() ? std::vector<int64_t>{33, 96, 768, 1000, 1500, 4000, 8200}
                  : std::vector<int64_t>{96, 1500, 8200};
  for (const DType dtype : table.floats()) {
    for (const int64_t width : widths) {
      if (width > kMaxRegisterRow && dtype != DType::kFloat32 && !table.all()) continue;
      add_layer_norm(table, dtype, width);
      add_softmax(table, dtype, width, 1, false);
    }
    add_softmax(table, dtype, 20, 70, false);
    add_softmax(table, dtype, 96, 1, true);
    for (const bool last : {false, true}) {
      add_batch_norm(table, dtype, last, true);
      add_joined_norm(table, dtype, last);
    }
    add_group_norm(table, dtype);
  }
  add_batch_norm(table, DType::kFloat32, false, false);
  add_lrn(table);
}

}  // namespace ofsdp::races
