// Batch normalization and the gradient in 16-byte packs against single elements, which operands
// with less alignment take: the same bits. The operators' samples compare them with the reference
// (tests/gpu/operators_test.cpp).
#include "kernels/cuda/norm/norm.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace channel_norm_test {

class ChannelNormTest : public DeviceTest {};

// x, y and the gradient's operands, `shift` elements past an aligned address.
struct Operands {
  Operands(const ChannelNormParams& e, int shift)
      : Operands(e, shift, numbers(e.samples * e.channels * e.inner, 1)) {}
  Operands(const ChannelNormParams& e, int shift, const std::vector<double>& values)
      : extent(e),
        x(e.dtype, values, shift),
        dy(e.dtype, numbers(numel(), 2), shift),
        y(e.dtype, Tensor::blank(numel()), shift),
        dx(e.dtype, Tensor::blank(numel()), shift),
        scale(e.dtype, numbers(e.channels, 3)),
        bias(e.dtype, numbers(e.channels, 4)),
        mean(e.dtype, numbers(e.channels, 5)),
        variance(e.dtype, std::vector<double>(static_cast<size_t>(e.channels), 0.5)),
        scratch(DType::kFloat32,
                Tensor::blank(static_cast<int64_t>(channel_norm_scratch(e) / sizeof(float)))) {}
  int64_t numel() const { return extent.samples * extent.channels * extent.inner; }

  ChannelNorm norm(bool training) const {
    ChannelNorm n;
    n.extent = extent;
    n.training = training;
    n.x = x.data();
    n.scale = scale.data();
    n.bias = bias.data();
    n.mean = mean.data();
    n.variance = variance.data();
    n.y = y.data();
    n.scratch = scratch.data();
    return n;
  }

  void run(bool training) {
    const ChannelNorm n = norm(training);
    same_twice({&y}, [&] { return channel_norm(n, nullptr); });
    ChannelNormGradient g;
    g.extent = extent;
    g.training = training;
    g.dy = dy.data();
    g.x = x.data();
    g.scale = scale.data();
    g.mean = mean.data();
    g.variance = variance.data();
    g.dx = dx.data();
    g.scratch = scratch.data();
    same_twice({&dx}, [&] { return channel_norm_grad(g, nullptr); });
  }

  ChannelNormParams extent;
  Tensor x, dy, y, dx, scale, bias, mean, variance, scratch;
};

TEST_F(ChannelNormTest, PacksAreTheSameAsSingleElements) {
  for (const DType dtype : kFloats) {
    for (const bool last : {false, true}) {
      for (const bool training : {false, true}) {
        const ChannelNormParams extent{dtype, dtype, 3, 16, 40, last};
        Operands packs(extent, 0), singly(extent, 1);
        packs.run(training);
        singly.run(training);
        EXPECT_TRUE(packs.y.bytes() == singly.y.bytes()) << last << training;
        EXPECT_TRUE(packs.dx.bytes() == singly.dx.bytes()) << last << training;
        EXPECT_NE(packs.y.values(), Tensor::blank(packs.numel()));
      }
    }
  }
}

// Several chunks, and thread windows that end inside a sample.
TEST_F(ChannelNormTest, AMeanFarFromZeroCostsTheVarianceNothing) {
  constexpr int64_t kSamples = 30, kChannels = 3, kInner = 300;
  constexpr double kFar = 16384;
  for (const bool last : {false, true}) {
    std::vector<double> values(kSamples * kChannels * kInner), sums(kChannels), squares(kChannels);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t channel = last ? i % kChannels : i / kInner % kChannels;
      const double noise = static_cast<double>(i * 7919 % 257) / 128 - 1;
      values[i] = kFar + noise;
      sums[channel] += noise;
      squares[channel] += noise * noise;
    }
    const std::vector<double> zeros(kChannels);
    const Tensor found_mean(DType::kFloat32, zeros), found_variance(DType::kFloat32, zeros);
    const Operands operands({DType::kFloat32, DType::kFloat32, kSamples, kChannels, kInner, last},
                            0, values);
    ChannelNorm n = operands.norm(true);
    n.batch_mean = found_mean.data();
    n.batch_variance = found_variance.data();
    EXPECT_CUDA(channel_norm(n, nullptr));
    for (size_t c = 0; c < kChannels; ++c) {
      const double off = sums[c] / (kSamples * kInner);
      const double expected = squares[c] / (kSamples * kInner) - off * off;
      EXPECT_NEAR(found_mean.values()[c], kFar + off, 1e-3);
      EXPECT_NEAR(found_variance.values()[c], expected, 1e-6 * expected);
    }
  }
}

}  // namespace channel_norm_test
}  // namespace ofsdp::kernels::cuda
