// Batch normalization and its gradient in 16-byte packs against single elements, which operands that
// are less aligned take: the same bits. The operators' samples compare them with their reference
// (tests/gpu/operators_test.cpp).
#include "kernels/cuda/channel_norm.h"

#include "tests/gpu/kernels/device.h"

namespace ofsdp::cuda {
namespace {

class ChannelNormTest : public DeviceTest {};

// x, y and the gradient's operands, `shift` elements behind an aligned address.
struct Operands {
  Operands(const ChannelExtent& e, int shift)
      : extent(e),
        x(e.dtype, numbers(numel(), 1), shift),
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

  void run(bool training) {
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

  ChannelExtent extent;
  Tensor x, dy, y, dx, scale, bias, mean, variance, scratch;
};

TEST_F(ChannelNormTest, PacksAreTheSameAsSingleElements) {
  for (const DType dtype : kFloats) {
    for (const bool last : {false, true}) {
      for (const bool training : {false, true}) {
        const ChannelExtent extent{dtype, dtype, 3, 16, 40, last};
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

}  // namespace
}  // namespace ofsdp::cuda
