// Group normalization, folds over axes, and axis maps at sizes that need more than one chunk or
// block, against loops in double; gradients of axis maps as their transposes.
#include "kernels/cuda/indexing/axis_map.h"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/reduce/reduce.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace axes_test {

using Doubles = std::vector<double>;

class CudaAxes : public DeviceTest {};

struct Moments {
  Doubles mean, inv;
};
Moments moments(const GroupNormParams& e, const Doubles& x, double epsilon) {
  Moments made;
  const auto width = static_cast<size_t>(e.each * e.inner);
  for (size_t first = 0; first < x.size(); first += width) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < width; ++i) mean += x[first + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) square += (x[first + i] - mean) * (x[first + i] - mean);
    made.mean.push_back(mean);
    made.inv.push_back(1 / std::sqrt(square / static_cast<double>(width) + epsilon));
  }
  return made;
}

// Far from 0, so that a variance from plain squares would show.
TEST_F(CudaAxes, GroupNormalization) {
  for (DType dtype : kFloats) {
    for (const GroupNormParams& given :
         {GroupNormParams{dtype, 2, 3, 2, 4097}, {dtype, 3, 2, 5, 64}, {dtype, 1, 1, 3, 1}}) {
      for (int shift : {0, 1}) {
        const GroupNormParams& e = given;
        const int64_t n = e.batch * e.groups * e.each * e.inner, channels = e.groups * e.each;
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(e.inner));
        Doubles far = numbers(n, 1, 1);
        for (double& v : far) v += dtype == DType::kFloat32 ? 100 : 3;
        Tensor x(dtype, far, shift), scale(dtype, numbers(channels, 2)),
            bias(dtype, numbers(channels, 3)), y(dtype, Tensor::blank(n), shift),
            mean(DType::kFloat32, Tensor::blank(e.batch * e.groups)),
            inv(DType::kFloat32, Tensor::blank(e.batch * e.groups)),
            scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(group_norm_scratch(e))));
        GroupNorm f{e, 1e-5f, x.data(), scale.data(), bias.data(), y.data()};
        f.mean = mean.as<float>();
        f.inv = inv.as<float>();
        f.scratch = scratch.data();
        same_twice({&y, &mean, &inv}, [&] { return group_norm(f, nullptr); });
        const Doubles vx = x.values(), vs = scale.values(), vb = bias.values();
        const Moments m = moments(e, vx, 1e-5);
        expect_close(mean.values(), m.mean, 1e-6, "mean");
        expect_close(inv.values(), m.inv, 1e-5, "inv");
        Doubles expected(vx.size());
        for (size_t i = 0; i < vx.size(); ++i) {
          const size_t segment = i / static_cast<size_t>(e.inner),
                       row = segment / static_cast<size_t>(e.each),
                       c = segment % static_cast<size_t>(channels);
          expected[i] = (vx[i] - m.mean[row]) * m.inv[row] * vs[c] + vb[c];
        }
        expect_close(y.values(), expected, 3 * rounding(dtype), "y");
      }
    }
  }
}

TEST_F(CudaAxes, FoldsOfWholeNumbersAndOfMany) {
  const std::vector<int64_t> shape{3, 5000, 2};
  const std::vector<bool> reduced{false, true, false};
  for (DType dtype : {DType::kInt32, DType::kInt64, DType::kFloat64}) {
    for (const GeneralReduceKind kind :
         {GeneralReduceKind::kSum, GeneralReduceKind::kMax, GeneralReduceKind::kMin,
          GeneralReduceKind::kSumSquares, GeneralReduceKind::kSumAbs}) {
      Doubles given = numbers(30000, 4, 50);
      for (double& v : given) v = std::floor(v);
      Tensor x(dtype, given), y(dtype, Tensor::blank(6));
      const GeneralReduceParams e = general_reduce_params(dtype, shape, reduced);
      same_twice({&y}, [&] { return fold(kind, e, x.data(), y.data(), nullptr); });
      Doubles expected;
      for (size_t at : {0u, 1u, 10000u, 10001u, 20000u, 20001u}) {
        double v = kind == GeneralReduceKind::kMax   ? -1e9
                   : kind == GeneralReduceKind::kMin ? 1e9
                                                     : 0;
        for (size_t k = 0; k < 5000; ++k) {
          const double next = given[at + 2 * k];
          v = kind == GeneralReduceKind::kMax          ? std::max(v, next)
              : kind == GeneralReduceKind::kMin        ? std::min(v, next)
              : kind == GeneralReduceKind::kSumSquares ? v + next * next
              : kind == GeneralReduceKind::kSumAbs     ? v + std::abs(next)
                                                       : v + next;
        }
        expected.push_back(v);
      }
      EXPECT_EQ(y.values(), expected) << dtype_name(dtype);
    }
  }
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// dy . (M x) = (M^T dy) . x
void expect_transposed(const std::vector<int64_t>& shape, const std::vector<AxisNumbers>& maps,
                       const std::string& what) {
  SCOPED_TRACE(what);
  std::vector<int64_t> out;
  int64_t from = 1, to = 1;
  for (size_t a = 0; a < shape.size(); ++a) {
    out.push_back(maps[a].out);
    from *= shape[a];
    to *= maps[a].out;
  }
  const auto passes = plan_axes(shape, maps), back = plan_axes_back(out, maps);
  const auto f = DType::kFloat32;
  Tensor x(f, numbers(from, 1)), y(f, Tensor::blank(to)), dy(f, numbers(to, 2)),
      dx(f, Tensor::blank(from)),
      scratch(DType::kUInt8,
              Tensor::blank(static_cast<int64_t>(
                                std::max(axes_scratch(passes, false), axes_scratch(back, true))) +
                            1));
  same_twice({&y}, [&] {
    return apply_axes(passes, false, f, x.data(), y.data(), scratch.data(), nullptr);
  });
  same_twice({&dx}, [&] {
    return apply_axes(back, true, f, dy.data(), dx.data(), scratch.data(), nullptr);
  });
  const double forward = dot(dy.values(), y.values()), backward = dot(dx.values(), x.values());
  EXPECT_NEAR(forward, backward, 1e-4 * (10 + std::abs(forward)));
}

TEST_F(CudaAxes, GradientsOfMapsAreTheirTransposes) {
  AxisNumbers same;
  same.in = same.out = 3;
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{40, 97}, {97, 40}, {50, 9}, {9, 50}}) {
    for (const AxisMapKind kind :
         {AxisMapKind::kNearest, AxisMapKind::kLinear, AxisMapKind::kCubic}) {
      for (const Coordinates place :
           {Coordinates::kHalfPixel, Coordinates::kAlignCorners, Coordinates::kAsymmetric,
            Coordinates::kHalfPixelSymmetric, Coordinates::kCrop}) {
        for (const bool antialias : {false, true}) {
          AxisNumbers m;
          m.kind = kind;
          m.in = in;
          m.out = out;
          m.scale = static_cast<double>(out) / static_cast<double>(in);
          m.coordinates = place;
          m.antialias = antialias;
          m.roi_begin = 0.1;
          m.roi_end = 0.8;
          expect_transposed({3, in, 2}, {same, m, {.in = 2, .out = 2}},
                            std::to_string(in) + " to " + std::to_string(out) + ", " +
                                std::to_string(static_cast<int>(kind)) + ", " +
                                std::to_string(static_cast<int>(place)));
        }
      }
    }
  }
  for (const AxisMapKind kind : {AxisMapKind::kReflect, AxisMapKind::kEdge, AxisMapKind::kWrap}) {
    for (const auto& [before, after] :
         {std::pair<int64_t, int64_t>{3, 4}, {50, 70}, {-2, 5}, {0, 31}, {30, -9}}) {
      AxisNumbers m;
      m.kind = kind;
      m.in = 20;
      m.out = 20 + before + after;
      m.before = std::max<int64_t>(before, 0);
      m.first = std::max<int64_t>(-before, 0);
      m.kept = 20 + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
      expect_transposed({3, 20}, {same, m}, "pad " + std::to_string(before));
    }
  }
}

}  // namespace axes_test
}  // namespace ofsdp::kernels::cuda
