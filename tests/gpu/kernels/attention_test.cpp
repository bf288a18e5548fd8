// Attention, pooling and im2col against the references of the operators, over the operators' own sample cases.
#include "kernels/core/registry.h"
#include "kernels/cuda/library/attention_extent.h"
#include "kernels/cuda/library/window_extent.h"
#include "kernels/ops/pool_shape.h"
#include "tests/gpu/kernels/device.h"

namespace ofsdp::cuda {
namespace {

using Doubles = std::vector<double>;

class CudaAttention : public DeviceTest {};

bool is_16_or_32(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// A sample's inputs, rounded to their dtypes, on the device and for the reference.
struct Filled {
  std::vector<std::unique_ptr<Tensor>> tensors;  // null: absent
  std::vector<RefTensor> refs;

  Filled(const SampleCase& sample, DType dtype) {
    for (size_t i = 0; i < sample.inputs.size(); ++i) {
      TensorDesc desc = sample.inputs[i];
      if (is_16_or_32(desc.dtype)) desc.dtype = dtype;
      Doubles values;
      if (desc.present()) values = numbers(desc.numel(), i + 1);
      if (desc.dtype == DType::kBool) {
        for (double& v : values) v = v > -1;
      }
      if (sample.fill) sample.fill(i, values);
      tensors.push_back(desc.present() ? std::make_unique<Tensor>(desc.dtype, values) : nullptr);
      refs.push_back({desc, desc.present() ? tensors.back()->values() : Doubles{}});
    }
  }
  TensorDesc desc(size_t i) const { return i < refs.size() ? refs[i].desc : TensorDesc{}; }
  void* data(size_t i) const {
    return i < tensors.size() && tensors[i] ? tensors[i]->data() : nullptr;
  }
};

AttentionExtent with_memory(AttentionExtent e, const void* mask, const void* lengths) {
  e.mask = mask;
  e.lengths = static_cast<const int64_t*>(lengths);
  return e;
}

// Wider than the samples of the operator, and with more keys than a tile.
std::vector<SampleCase> with_wide(std::vector<SampleCase> list, bool gradient) {
  for (int64_t width : {64, 80, 200}) {
    const DType f = DType::kFloat32;
    const TensorDesc q{f, {1, 2, 35, width}}, k{f, {1, 1, 41, width}};
    SampleCase made{.name = "wide" + std::to_string(width),
                    .attributes = {{"is_causal", int64_t{width == 80}}}};
    made.inputs = gradient ? std::vector{q, q, k, k} : std::vector{q, k, k};
    made.num_outputs = gradient ? 3 : 1;
    list.push_back(made);
  }
  return list;
}

TEST_F(CudaAttention, ForwardAgreesWithTheOperator) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("Attention");
  for (const SampleCase& sample : with_wide(op.samples(), false)) {
    if (!is_16_or_32(sample.inputs[0].dtype) || sample.num_outputs > 1) continue;
    for (DType dtype : kFloats) {
      SCOPED_TRACE(sample.name + " " + std::string(dtype_name(dtype)));
      const Filled in(sample, dtype);
      const AttentionShape s = ops::attention_shape(
          {in.desc(0), in.desc(1), in.desc(2), in.desc(3), in.desc(6).present(), 0},
          sample.attributes);
      const TensorDesc out{dtype, in.desc(0).shape.rank() == 3
                                      ? Shape{s.batch, s.queries, s.heads * s.v_width}
                                      : Shape{s.batch, s.heads, s.queries, s.v_width}};
      const AttentionExtent e = with_memory(extent_of(s, dtype), in.data(3), in.data(6));
      Tensor y(dtype, Tensor::blank(out.numel()));
      same_twice({&y}, [&] {
        return attention(e, in.data(0), in.data(1), in.data(2), y.data(), nullptr);
      });
      expect_close(y.values(), op.reference({sample.attributes, in.refs, {out}, 0, {}})[0].values,
                   rounding(dtype), "y");
    }
  }
}

TEST_F(CudaAttention, BackwardAgreesWithTheOperator) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("ofsdp.AttentionGrad");
  for (const SampleCase& sample : with_wide(op.samples(), true)) {
    if (!is_16_or_32(sample.inputs[0].dtype)) continue;
    for (DType dtype : kFloats) {
      SCOPED_TRACE(sample.name + " " + std::string(dtype_name(dtype)));
      const Filled in(sample, dtype);
      const AttentionShape s =
          ops::attention_shape({in.desc(1), in.desc(2), in.desc(3), in.desc(4),
                                in.desc(5).present(), sample.attributes.i("past_length", 0)},
                               sample.attributes);
      const AttentionExtent e = with_memory(extent_of(s, dtype), in.data(4), in.data(5));
      std::vector<TensorDesc> descs = {in.desc(1), in.desc(2), in.desc(3)};
      if (sample.num_outputs > 3)
        descs.push_back({dtype, {s.batch, s.heads, s.queries, s.mask_keys}});
      Tensor dq(dtype, Tensor::blank(descs[0].numel())), dk(dtype, Tensor::blank(descs[1].numel())),
          dv(dtype, Tensor::blank(descs[2].numel())),
          dmask(dtype, Tensor::blank(descs.size() > 3 ? descs[3].numel() : 0)),
          scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(attention_grad_scratch(e))));
      const AttentionGradient g{
          in.data(0),    in.data(1), in.data(2), in.data(3),
          dq.data(),     dk.data(),  dv.data(),  descs.size() > 3 ? dmask.data() : nullptr,
          scratch.data()};
      same_twice({&dq, &dk, &dv, &dmask}, [&] { return attention_grad(e, g, nullptr); });
      const auto expected = op.reference({sample.attributes, in.refs, descs, 0, {}});
      expect_close(dq.values(), expected[0].values, 2 * rounding(dtype), "dq");
      expect_close(dk.values(), expected[1].values, 2 * rounding(dtype), "dk");
      expect_close(dv.values(), expected[2].values, 2 * rounding(dtype), "dv");
      if (descs.size() > 3)
        expect_close(dmask.values(), expected[3].values, 2 * rounding(dtype), "dmask");
    }
  }
}

// --- windows ---

// Plain values of [images, channels, positions] as they lie channels last, and back.
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

TEST_F(CudaAttention, MaxPoolAndItsGradient) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("MaxPool");
  for (const SampleCase& sample : op.samples()) {
    if (sample.inputs[0].dtype != DType::kFloat32) continue;
    for (bool last : {false, true}) {
      SCOPED_TRACE(sample.name + (last ? " channels last" : ""));
      const Filled in(sample, DType::kFloat32);
      const Shape& x = in.desc(0).shape;
      const ops::Window w = ops::known_pool(sample.attributes, x);
      const Shape out = ops::pool_output(w, x);
      const WindowExtent e = window_extent(w, x[0], x[1], DType::kFloat32, last);
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

TEST_F(CudaAttention, AveragePoolAndItsGradient) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("AveragePool");
  for (const SampleCase& sample : op.samples()) {
    if (!is_16_or_32(sample.inputs[0].dtype)) continue;
    for (bool last : {false, true}) {
      SCOPED_TRACE(sample.name + (last ? " channels last" : ""));
      const DType dtype = sample.inputs[0].dtype;
      const Filled in(sample, dtype);
      const Shape& x = in.desc(0).shape;
      const ops::Window w = ops::known_pool(sample.attributes, x);
      const Shape out = ops::pool_output(w, x);
      const WindowExtent e = window_extent(w, x[0], x[1], dtype, last);
      const bool count_pad = sample.attributes.i("count_include_pad", 0) != 0;
      auto laid = [&](const Doubles& v, int64_t size) {
        return last ? turned(v, x[0], x[1], size) : v;
      };
      Tensor src(dtype, laid(in.refs[0].values, w.in_size())), y(dtype, Tensor::blank(out.numel()));
      same_twice({&y}, [&] { return average_pool(e, count_pad, src.data(), y.data(), nullptr); });
      const auto expected = op.reference({sample.attributes, in.refs, {{dtype, out}}, 0, {}});
      expect_close(y.values(), laid(expected[0].values, w.out_size()), rounding(dtype), "y");
      Attributes attributes = ops::pool_attributes(sample.attributes, w, x);
      attributes.set("count_include_pad", int64_t{count_pad});
      Tensor plain(dtype, numbers(out.numel(), 5));
      Tensor diff(dtype, laid(plain.values(), w.out_size())), dx(dtype, Tensor::blank(x.numel()));
      same_twice({&dx},
                 [&] { return average_pool_grad(e, count_pad, diff.data(), dx.data(), nullptr); });
      const auto slopes =
          registry.get("ofsdp.AveragePoolGrad")
              .reference({attributes, {{{dtype, out}, plain.values()}}, {{dtype, x}}, 0, {}});
      expect_close(dx.values(), laid(slopes[0].values, w.in_size()), rounding(dtype), "dx");
    }
  }
}

// Through for_each_tap of the CPU's convolution.
TEST_F(CudaAttention, Im2ColAndCol2Im) {
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>{3, 2}},
                              {"strides", std::vector<int64_t>{2, 1}},
                              {"dilations", std::vector<int64_t>{1, 2}},
                              {"pads", std::vector<int64_t>{1, 0, 2, 1}}};
  const Shape x{2, 6, 7, 9};
  const ops::Window w = ops::known_pool(attributes, x);
  for (DType dtype : kFloats) {
    WindowExtent e = window_extent(w, x[0], x[1], dtype, false);
    e.channels = 3;  // the second group of two
    const int64_t step = 6 * w.in_size(), first = 3 * w.in_size(), rows = 3 * w.taps();
    Tensor src(dtype, numbers(x.numel(), 1)),
        columns(dtype, Tensor::blank(2 * rows * w.out_size())), dx(dtype, Tensor::blank(x.numel()));
    const auto* from =
        static_cast<std::byte*>(src.data()) + first * static_cast<int64_t>(dtype_size(dtype));
    same_twice({&columns}, [&] { return im2col(e, step, from, columns.data(), nullptr); });
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
    same_twice({&dx}, [&] { return col2im(e, step, columns.data(), to, nullptr); });
    expect_close(dx.values(), sums, rounding(dtype), "col2im");
  }
}

}  // namespace
}  // namespace ofsdp::cuda
