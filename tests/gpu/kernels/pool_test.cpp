// Pooling and im2col against the operators' references, on the operators' sample cases.
#include "kernels/cuda/conv/conv_parts.h"
#include "kernels/ops/pool/pool_shape.h"
#include "tests/gpu/kernels/filled.h"
#include "tests/support/namespaces.h"
#include "tests/support/samples.h"

namespace ofsdp::kernels::cuda {
namespace pool_test {

class CudaWindow : public DeviceTest {};

// Plain values [images, channels, positions] in channels-last order, and back.
Doubles turned(const Doubles& values, int64_t images, int64_t from, int64_t to) {
  Doubles made(values.size());
  for (int64_t i = 0; i < images; ++i) {
    for (int64_t a = 0; a < from; ++a) {
      for (int64_t b = 0; b < to; ++b) {
        made[static_cast<size_t>((i * to + b) * from + a)] =
            values[static_cast<size_t>((i * from + a) * to + b)];
      }
    }
  }
  return made;
}

TEST_F(CudaWindow, MaxPoolAndItsGradient) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("MaxPool");
  for (const SampleCase& sample : testing::samples_of(op)) {
    if (sample.inputs[0].dtype != DType::kFloat32) continue;
    for (bool last : {false, true}) {
      SCOPED_TRACE(sample.name + (last ? " channels last" : ""));
      const Filled in(sample, DType::kFloat32);
      const Shape& x = in.desc(0).shape;
      const ops::Window w = ops::known_pool(sample.attributes, x);
      const Shape out = ops::pool_output(w, x);
      const WindowParams e = window_params(w, x[0], x[1], DType::kFloat32, last);
      const DType winner = ops::winner_dtype(w.taps());
      const bool relu = sample.attributes.has("ofsdp_activation");
      auto laid = [&](const Doubles& v, int64_t size) {
        return last ? turned(v, x[0], x[1], size) : v;
      };
      Tensor src(DType::kFloat32, laid(in.refs[0].values, w.in_size())),
          y(DType::kFloat32, Tensor::blank(out.numel())),
          winners(winner, Tensor::blank(out.numel())),
          indices(DType::kInt64, Tensor::blank(out.numel()));
      same_twice({&y, &winners, &indices}, [&] {
        return max_pool(e, src.data(), y.data(), winners.data(),
                        last ? nullptr : indices.as<int64_t>(),
                        sample.attributes.i("storage_order", 0) != 0, relu, nullptr);
      });
      const auto expected =
          op.reference({sample.attributes,
                        in.refs,
                        {{DType::kFloat32, out}, {DType::kInt64, out}, {winner, out}},
                        0,
                        {}});
      EXPECT_EQ(y.values(), laid(expected[0].values, w.out_size()));
      EXPECT_EQ(winners.values(), laid(expected[2].values, w.out_size()));
      if (!last && !relu) {
        EXPECT_EQ(indices.values(), expected[1].values);
      }
      const Doubles dy = numbers(out.numel(), 5);
      Tensor diff(DType::kFloat32, laid(dy, w.out_size())),
          dx(DType::kFloat32, Tensor::blank(x.numel()));
      same_twice({&dx},
                 [&] { return max_pool_grad(e, diff.data(), winners.data(), dx.data(), nullptr); });
      const auto slopes =
          registry.get("ofsdp.MaxPoolGrad")
              .reference({ops::pool_attributes(sample.attributes, w, x),
                          {{{DType::kFloat32, out}, dy}, {{winner, out}, expected[2].values}},
                          {{DType::kFloat32, x}},
                          0,
                          {}});
      expect_close(dx.values(), laid(slopes[0].values, w.in_size()), 1e-5, "dx");
    }
  }
}

TEST_F(CudaWindow, AveragePoolAndItsGradient) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("AveragePool");
  for (const SampleCase& sample : testing::samples_of(op)) {
    if (!is_16_or_32(sample.inputs[0].dtype)) continue;
    for (bool last : {false, true}) {
      SCOPED_TRACE(sample.name + (last ? " channels last" : ""));
      const DType dtype = sample.inputs[0].dtype;
      const Filled in(sample, dtype);
      const Shape& x = in.desc(0).shape;
      const ops::Window w = ops::known_pool(sample.attributes, x);
      const Shape out = ops::pool_output(w, x);
      const WindowParams e = window_params(w, x[0], x[1], dtype, last);
      const bool count_pad = sample.attributes.i("count_include_pad", 0) != 0;
      auto laid = [&](const Doubles& v, int64_t size) {
        return last ? turned(v, x[0], x[1], size) : v;
      };
      Tensor src(dtype, laid(in.refs[0].values, w.in_size())), y(dtype, Tensor::blank(out.numel()));
      same_twice({&y},
                 [&] { return average_pool(e, false, count_pad, src.data(), y.data(), nullptr); });
      const auto expected = op.reference({sample.attributes, in.refs, {{dtype, out}}, 0, {}});
      expect_close(y.values(), laid(expected[0].values, w.out_size()), rounding(dtype), "y");
      Attributes attributes = ops::pool_attributes(sample.attributes, w, x);
      attributes.set("count_include_pad", int64_t{count_pad});
      Tensor plain(dtype, numbers(out.numel(), 5));
      Tensor diff(dtype, laid(plain.values(), w.out_size())), dx(dtype, Tensor::blank(x.numel()));
      same_twice({&dx},
                 [&] { return average_pool(e, true, count_pad, diff.data(), dx.data(), nullptr); });
      const auto slopes =
          registry.get("ofsdp.AveragePoolGrad")
              .reference({attributes, {{{dtype, out}, plain.values()}}, {{dtype, x}}, 0, {}});
      expect_close(dx.values(), laid(slopes[0].values, w.in_size()), rounding(dtype), "dx");
    }
  }
}

// Against for_each_tap in the CPU's convolution.
TEST_F(CudaWindow, Im2ColAndCol2Im) {
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>{3, 2}},
                              {"strides", std::vector<int64_t>{2, 1}},
                              {"dilations", std::vector<int64_t>{1, 2}},
                              {"pads", std::vector<int64_t>{1, 0, 2, 1}}};
  const Shape x{2, 6, 7, 9};
  const ops::Window w = ops::known_pool(attributes, x);
  for (DType dtype : kFloats) {
    WindowParams e = window_params(w, x[0], x[1], dtype, false);
    e.channels = 3;  // the second of two groups
    const int64_t step = 6 * w.in_size(), first = 3 * w.in_size(), rows = 3 * w.taps();
    Tensor src(dtype, numbers(x.numel(), 1)),
        columns(dtype, Tensor::blank(2 * rows * w.out_size())), dx(dtype, Tensor::blank(x.numel()));
    const auto* from =
        static_cast<std::byte*>(src.data()) + first * static_cast<int64_t>(dtype_size(dtype));
    same_twice({&columns},
               [&] { return move_columns(e, false, step, from, columns.data(), nullptr); });
    Doubles expected(columns.values().size()), sums = dx.values();
    const Doubles values = src.values();
    auto at_column = [&](int64_t n, int64_t c, int64_t tap, int64_t out) {
      return static_cast<size_t>(((n * 3 + c) * w.taps() + tap) * w.out_size() + out);
    };
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t c = 0; c < 3; ++c) {
        for (int64_t i = 0; i < w.in_size(); ++i)
          sums[static_cast<size_t>(n * step + first + c * w.in_size() + i)] = 0;
        ops::for_each_tap(w, [&](int64_t out, int64_t tap, int64_t in) {
          const auto at = static_cast<size_t>(n * step + first + c * w.in_size() + in);
          expected[at_column(n, c, tap, out)] = values[at];
          sums[at] += values[at];
        });
      }
    }
    EXPECT_EQ(columns.values(), expected);
    auto* to = static_cast<std::byte*>(dx.data()) + first * static_cast<int64_t>(dtype_size(dtype));
    same_twice({&dx}, [&] { return move_columns(e, true, step, columns.data(), to, nullptr); });
    expect_close(dx.values(), sums, rounding(dtype), "col2im");
  }
}

}  // namespace pool_test
}  // namespace ofsdp::kernels::cuda
