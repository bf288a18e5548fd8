// Rows of windows and the way back: 16-byte packs of channels against single elements, which
// operands with less alignment take. Convolutions compare both with the reference
// (tests/gpu/operators_test.cpp).
#include "kernels/cuda/conv/window.h"

#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace window_test {

class WindowTest : public DeviceTest {};

// 3 images with 7 x 6 positions, windows 3 x 2 that overlap, leave gaps and begin outside.
WindowParams extent(DType dtype, int64_t channels) {
  WindowParams w;
  w.dtype = dtype;
  w.images = 3;
  w.channels = channels;
  w.channels_last = true;
  const int64_t in[] = {1, 7, 6}, kernel[] = {1, 3, 2}, strides[] = {1, 2, 3};
  const int64_t pads[] = {0, 1, 1}, out[] = {1, 4, 3};
  for (int a = 0; a < 3; ++a) {
    w.in[a] = in[a];
    w.out[a] = out[a];
    w.kernel[a] = kernel[a];
    w.strides[a] = strides[a];
    w.pads_begin[a] = w.pads_end[a] = pads[a];
    w.dilations[a] = 1;
  }
  return w;
}

TEST_F(WindowTest, PacksOfChannelsAreTheSameAsSingleElements) {
  for (const DType dtype : kFloats) {
    for (const int64_t channels : {8, 24}) {
      const WindowParams w = extent(dtype, channels);
      const int64_t positions = 3 * 7 * 6 * channels, columns = 3 * 4 * 3 * 3 * 2 * channels;
      const Tensor x(dtype, numbers(positions, 1)), moved(dtype, numbers(positions, 1), 1);
      Tensor rows(dtype, Tensor::blank(columns)), singly(dtype, Tensor::blank(columns), 1);
      same_twice({&rows}, [&] { return move_rows(w, false, x.data(), rows.data(), nullptr); });
      EXPECT_CUDA(move_rows(w, false, moved.data(), singly.data(), nullptr));
      EXPECT_TRUE(rows.bytes() == singly.bytes()) << channels;

      Tensor back(dtype, Tensor::blank(positions)), one(dtype, Tensor::blank(positions), 1);
      same_twice({&back}, [&] { return move_rows(w, true, rows.data(), back.data(), nullptr); });
      EXPECT_CUDA(move_rows(w, true, singly.data(), one.data(), nullptr));
      EXPECT_TRUE(back.bytes() == one.bytes()) << channels;
      EXPECT_NE(back.values(), Tensor::blank(positions));
    }
  }
}

// A stride beyond 32 bits, along an axis where nothing moves.
TEST_F(WindowTest, PlacesOf64BitsAreTheSame) {
  constexpr int64_t kChannels = 3;
  for (const bool last : {false, true}) {
    WindowParams narrow = extent(DType::kFloat32, kChannels);
    narrow.channels_last = last;
    WindowParams wide = narrow;
    wide.strides[0] = int64_t{1} << 40;
    const int64_t in = 3 * 7 * 6 * kChannels, out = 3 * 4 * 3 * kChannels;
    const Tensor x(DType::kFloat32, numbers(in, 1)), dy(DType::kFloat32, numbers(out, 2)),
        columns(DType::kFloat32, numbers(out * 6, 3));
    const auto all = [&](const WindowParams& w) {
      const Tensor y(DType::kFloat32, Tensor::blank(out)), dx(DType::kFloat32, Tensor::blank(in)),
          mean(DType::kFloat32, Tensor::blank(out)), back(DType::kFloat32, Tensor::blank(in)),
          rows(DType::kFloat32, Tensor::blank(out * 6)), sums(DType::kFloat32, Tensor::blank(in)),
          winners(DType::kUInt8, Tensor::blank(out));
      EXPECT_CUDA(max_pool(w, x.data(), y.data(), winners.data(), nullptr, false, false, nullptr));
      EXPECT_CUDA(max_pool_grad(w, dy.data(), winners.data(), dx.data(), nullptr));
      EXPECT_CUDA(average_pool(w, false, false, x.data(), mean.data(), nullptr));
      EXPECT_CUDA(average_pool(w, true, false, dy.data(), back.data(), nullptr));
      if (last) {
        EXPECT_CUDA(move_rows(w, false, x.data(), rows.data(), nullptr));
        EXPECT_CUDA(move_rows(w, true, columns.data(), sums.data(), nullptr));
      } else {
        EXPECT_CUDA(move_columns(w, false, in / 3, x.data(), rows.data(), nullptr));
        EXPECT_CUDA(move_columns(w, true, in / 3, columns.data(), sums.data(), nullptr));
      }
      return std::vector{y.values(),    dx.values(),   mean.values(),   back.values(),
                         rows.values(), sums.values(), winners.values()};
    };
    EXPECT_EQ(all(narrow), all(wide)) << last;
  }
}

}  // namespace window_test
}  // namespace ofsdp::kernels::cuda
