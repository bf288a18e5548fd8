// Layer and RMS normalization and their gradients against loops in double.
#include "kernels/cuda/norm/norm.h"

#include <set>

#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace norm_test {

using Doubles = std::vector<double>;

struct Case {
  DType dtype;
  int64_t rows, width;
  bool centred;
  int shift;
  std::string text() const {
    return std::string(dtype_name(dtype)) + " " + std::to_string(rows) + "x" +
           std::to_string(width) + (centred ? " layer" : " rms") + " shift " +
           std::to_string(shift);
  }
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (DType dtype : kFloats) {
    for (int64_t width : {1, 31, 33, 264, 768, 1023, 1024, 4097, 4096, 8200}) {
      for (int shift : {0, 1})
        list.push_back({dtype, width > 500 ? 5 : 19, width, width % 2 == 0, shift});
    }
  }
  list.push_back({DType::kFloat32, 4500, 9, true, 0});  // more rows than blocks
  list.push_back({DType::kFloat32, 70, 8200, true, 0});
  return list;
}

size_t at(const Case& c, int64_t row, int64_t i) { return static_cast<size_t>(row * c.width + i); }

class CudaNorm : public DeviceTest {};

TEST_F(CudaNorm, Forward) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    Tensor x(c.dtype, numbers(c.rows * c.width, 1), c.shift),
        scale(c.dtype, numbers(c.width, 2), c.shift), bias(c.dtype, numbers(c.width, 3), c.shift),
        y(c.dtype, Tensor::blank(c.rows * c.width), c.shift),
        mean(DType::kFloat32, Tensor::blank(c.rows)), inv(DType::kFloat32, Tensor::blank(c.rows));
    NormForward n{.dtype = c.dtype,
                  .rows = c.rows,
                  .width = c.width,
                  .epsilon = 1e-3f,
                  .centred = c.centred,
                  .x = x.data(),
                  .scale = scale.data(),
                  .bias = bias.data(),
                  .y = y.data(),
                  .mean = mean.as<float>(),
                  .inv = inv.as<float>()};
    same_twice({&y, &mean, &inv}, [&] { return norm_forward(n, nullptr); });
    const Doubles vx = x.values(), vs = scale.values(), vb = bias.values();
    Doubles ey(vx.size()), em, ei;
    for (int64_t r = 0; r < c.rows; ++r) {
      double m = 0, v = 0;
      for (int64_t i = 0; i < c.width && c.centred; ++i)
        m += vx[at(c, r, i)] / static_cast<double>(c.width);
      for (int64_t i = 0; i < c.width; ++i)
        v += std::pow(vx[at(c, r, i)] - m, 2) / static_cast<double>(c.width);
      em.push_back(m);
      ei.push_back(1 / std::sqrt(v + 1e-3));
      for (int64_t i = 0; i < c.width; ++i) {
        const auto k = static_cast<size_t>(i);
        ey[at(c, r, i)] = (vx[at(c, r, i)] - m) * ei.back() * vs[k] + vb[k];
      }
    }
    expect_close(y.values(), ey, rounding(c.dtype), "y");
    expect_close(mean.values(), em, 1e-5, "mean");
    expect_close(inv.values(), ei, 1e-4, "inv");
  }
}

TEST_F(CudaNorm, ResidualIsAddedFirst) {
  for (DType dtype : kFloats) {
    for (int64_t width : {33, 768, 9000}) {
      const Case c{dtype, 6, width, true, 0};
      SCOPED_TRACE(c.text());
      Tensor x(dtype, numbers(c.rows * width, 1)), residual(dtype, numbers(3 * width, 2)),
          bias(dtype, numbers(width, 3)), y(dtype, Tensor::blank(c.rows * width)),
          sum(dtype, Tensor::blank(c.rows * width));
      NormForward n{.dtype = dtype,
                    .rows = c.rows,
                    .width = width,
                    .x = x.data(),
                    .residual = residual.data(),
                    .residual_rows = 3,
                    .residual_bias = bias.data(),
                    .y = y.data(),
                    .sum = sum.data()};
      same_twice({&y, &sum}, [&] { return norm_forward(n, nullptr); });
      const Doubles vx = x.values(), vr = residual.values(), vb = bias.values();
      Doubles es(vx.size()), ey(vx.size());
      for (int64_t r = 0; r < c.rows; ++r) {
        double m = 0, v = 0;
        for (int64_t i = 0; i < width; ++i) {
          double& s = es[at(c, r, i)];
          s = vx[at(c, r, i)] + vr[at(c, r % 3, i)] + vb[static_cast<size_t>(i)];
          m += s / static_cast<double>(width);
        }
        for (int64_t i = 0; i < width; ++i)
          v += std::pow(es[at(c, r, i)] - m, 2) / static_cast<double>(width);
        for (int64_t i = 0; i < width; ++i)
          ey[at(c, r, i)] = (es[at(c, r, i)] - m) / std::sqrt(v + 1e-5);
      }
      expect_close(sum.values(), es, rounding(dtype), "sum");
      expect_close(y.values(), ey, rounding(dtype), "y");
    }
  }
}

struct BackwardOperands {
  explicit BackwardOperands(const Case& c)
      : dy(c.dtype, numbers(c.rows * c.width, 1), c.shift),
        x(c.dtype, numbers(c.rows * c.width, 2), c.shift),
        scale(c.dtype, numbers(c.width, 3), c.shift),
        mean(DType::kFloat32, numbers(c.rows, 4, 0.1)),
        inv(DType::kFloat32, numbers(c.rows, 5, 0.4)),
        dx(c.dtype, Tensor::blank(c.rows * c.width), c.shift),
        dscale(c.dtype, Tensor::blank(c.width)),
        dbias(c.dtype, Tensor::blank(c.width)),
        scratch(DType::kUInt8,
                Tensor::blank(static_cast<int64_t>(norm_backward_scratch(c.rows, c.width)))) {}

  NormBackward of(const Case& c) {
    return {.dtype = c.dtype,
            .rows = c.rows,
            .width = c.width,
            .dy = dy.data(),
            .x = x.data(),
            .scale = scale.data(),
            .mean = c.centred ? mean.as<float>() : nullptr,
            .inv = inv.as<float>(),
            .dx = dx.data(),
            .dscale = dscale.data(),
            .dbias = dbias.data(),
            .scratch = scratch.data()};
  }

  Tensor dy, x, scale, mean, inv, dx, dscale, dbias, scratch;
};

TEST_F(CudaNorm, Backward) {
  for (const Case& c : cases()) {
    for (bool stats : {false, true}) {
      SCOPED_TRACE(c.text() + (stats ? " stats" : ""));
      BackwardOperands o(c);
      auto& [dy, x, scale, mean, inv, dx, dscale, dbias, scratch] = o;
      Tensor dmean(DType::kFloat32, numbers(c.rows, 6)), dinv(DType::kFloat32, numbers(c.rows, 7));
      NormBackward n = o.of(c);
      n.dmean = stats && c.centred ? dmean.as<float>() : nullptr;
      n.dinv = stats ? dinv.as<float>() : nullptr;
      same_twice({&dx, &dscale, &dbias}, [&] { return norm_backward(n, nullptr); });
      const Doubles vd = dy.values(), vx = x.values(), vs = scale.values(), vm = mean.values(),
                    vi = inv.values(), vdm = dmean.values(), vdi = dinv.values();
      const auto count = static_cast<double>(c.width);
      Doubles ex(vx.size()), es(vs.size()), eb(vs.size());
      for (int64_t r = 0; r < c.rows; ++r) {
        const auto row = static_cast<size_t>(r);
        const double m = c.centred ? vm[row] : 0, i_ = vi[row];
        double mg = 0, mgh = 0;
        for (int64_t i = 0; i < c.width; ++i) {
          const auto k = static_cast<size_t>(i);
          const double d = vd[at(c, r, i)], h = (vx[at(c, r, i)] - m) * i_;
          es[k] += d * h;
          eb[k] += d;
          mg += c.centred ? d * vs[k] / count : 0;
          mgh += d * vs[k] * h / count;
        }
        for (int64_t i = 0; i < c.width; ++i) {
          const double h = (vx[at(c, r, i)] - m) * i_;
          double& e = ex[at(c, r, i)];
          e = i_ * (vd[at(c, r, i)] * vs[static_cast<size_t>(i)] - mg - h * mgh);
          if (stats && c.centred) e += vdm[row] / count;
          if (stats) e -= vdi[row] * i_ * i_ * h / count;
        }
      }
      expect_close(dx.values(), ex, rounding(c.dtype), "dx");
      expect_close(dscale.values(), es, 4 * rounding(c.dtype), "dscale");
      expect_close(dbias.values(), eb, 4 * rounding(c.dtype), "dbias");
    }
  }
}

// In float32 the bits of a second pass; in 16 bits at most one rounding away.
TEST_F(CudaNorm, AnAddendGivesTheSumOfTwoPasses) {
  const std::set<int64_t> widths{33, 768, 1023, 4096, 8200};
  for (const Case& c : cases()) {
    if (!widths.contains(c.width) || c.rows > 19) continue;
    SCOPED_TRACE(c.text());
    BackwardOperands o(c);
    Tensor addend(c.dtype, numbers(c.rows * c.width, 6), c.shift);
    auto& [dy, x, scale, mean, inv, dx, dscale, dbias, scratch] = o;
    NormBackward n = o.of(c);
    EXPECT_CUDA(norm_backward(n, nullptr));
    const Doubles alone = dx.values(), more = addend.values(), sums = dscale.values();
    n.addend = addend.data();
    n.dx = addend.data();
    same_twice({&addend, &dscale, &dbias}, [&] { return norm_backward(n, nullptr); });
    EXPECT_EQ(dscale.values(), sums);
    const Doubles joined = addend.values();
    const double unit = c.dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    for (size_t i = 0; i < joined.size(); ++i) {
      const double sum = alone[i] + more[i];
      if (c.dtype == DType::kFloat32) {
        ASSERT_EQ(joined[i], static_cast<double>(static_cast<float>(sum))) << i;
      } else {
        const double most = unit * (std::abs(alone[i]) + std::abs(joined[i])) + 1e-7;
        ASSERT_LE(std::abs(joined[i] - sum), most) << i;
      }
    }
  }
}

TEST_F(CudaNorm, NoRowsGiveZeroSums) {
  Tensor dscale(DType::kFloat32, Tensor::blank(5)), dbias(DType::kFloat32, Tensor::blank(5)),
      scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(norm_backward_scratch(0, 5))));
  NormBackward n{.rows = 0,
                 .width = 5,
                 .dscale = dscale.data(),
                 .dbias = dbias.data(),
                 .scratch = scratch.data()};
  EXPECT_CUDA(norm_backward(n, nullptr));
  EXPECT_EQ(dscale.values(), Doubles(5, 0.0));
  EXPECT_EQ(dbias.values(), Doubles(5, 0.0));
}

}  // namespace norm_test
}  // namespace ofsdp::kernels::cuda
