// Attention, pooling and im2col against the references of the operators, over the operators' own sample cases.
#include "kernels/core/registry.h"
#include "kernels/cuda/library/attention_extent.h"
#include "kernels/cuda/library/window_extent.h"
#include "kernels/cuda/tensor_attention.h"
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

// Wider than the samples of the operator, and with more keys than a tile: each width of the tensor cores' kernels, 8 that
// are none of them, causal with fewer and with more queries than keys, masks of keys and of queries, windows.
std::vector<SampleCase> with_wide(std::vector<SampleCase> list, bool gradient) {
  const DType f = DType::kFloat32, b = DType::kBool;
  const Attributes causal{{"is_causal", int64_t{1}}},
      window{{"left_window_size", int64_t{20}}, {"right_window_size", int64_t{9}}};
  const auto add = [&](const std::string& name, int64_t queries, int64_t keys, int64_t width,
                       const Attributes& attributes, const TensorDesc& mask = {},
                       const std::vector<double>& lengths = {}) {
    const int64_t samples = mask.present() || !lengths.empty() ? 2 : 1;
    const TensorDesc q{f, {samples, 2, queries, width}}, k{f, {samples, 1, keys, width}};
    SampleCase made{.name = name, .attributes = attributes};
    made.inputs = gradient ? std::vector{q, q, k, k} : std::vector{q, k, k};
    made.num_outputs = gradient ? (mask.dtype == f && mask.present() ? 4 : 3) : 1;
    if (mask.present()) made.inputs.push_back(mask);
    if (!lengths.empty()) {
      made.inputs.resize(gradient ? 5 : 6);
      made.inputs.push_back({DType::kInt64, {2}});
      made.fill = ops::fill_with(gradient ? 5 : 6, lengths);
    }
    list.push_back(made);
  };
  for (int64_t width : {64, 80, 200})
    add("wide" + std::to_string(width), 35, 41, width, width == 80 ? causal : Attributes{});
  for (int64_t width : {32, 96, 128})
    add("tensor_causal" + std::to_string(width), 139, 139, width, causal);
  add("tensor_plain", 64, 128, 64, {});
  add("tensor_ragged", 131, 77, 100, {});
  add("tensor_late", 70, 150, 64, causal);
  add("tensor_window", 150, 150, 32, window);
  add("tensor_padding", 67, 90, 64, {}, {b, {2, 1, 1, 90}});
  add("tensor_bias", 67, 90, 64, causal, {f, {2, 1, 1, 90}});
  add("tensor_scores", 67, 90, 32, {}, {f, {2, 67, 90}});
  add("tensor_lengths", 67, 90, 32, causal, {}, {30, 90});
  add("tensor_none", 67, 90, 64, {}, {}, {0, 65});
  return list;
}

// Enough for the kernels on CUDA cores, whose tiles are smaller; all of them would take minutes.
bool small(const SampleCase& sample) { return !sample.name.starts_with("tensor_"); }

// Elements that results lie behind an aligned address.
std::vector<int> shifts(const SampleCase& sample) {
  return small(sample) || sample.name == "tensor_bias" ? std::vector{0, 1} : std::vector{0};
}

// The two launchers of each direction; those of the tensor cores say which problems they take.
constexpr std::pair<const char*, decltype(&attention)> kForward[] = {
    {"cuda cores", attention}, {"tensor cores", tensor_attention}};
struct Backward {
  const char* name;
  decltype(&attention_grad) launch;
  decltype(&attention_grad_scratch) scratch;
};
constexpr Backward kBackward[] = {
    {"cuda cores", attention_grad, attention_grad_scratch},
    {"tensor cores", tensor_attention_grad, tensor_attention_grad_scratch}};

TEST_F(CudaAttention, ForwardAgreesWithTheOperator) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("Attention");
  int narrow = 0;
  for (const SampleCase& sample : with_wide(op.samples(), false)) {
    if (!is_16_or_32(sample.inputs[0].dtype) || sample.num_outputs > 1) continue;
    for (DType dtype : kFloats) {
      const Filled in(sample, dtype);
      const AttentionShape s = ops::attention_shape(
          {in.desc(0), in.desc(1), in.desc(2), in.desc(3), in.desc(6).present(), 0},
          sample.attributes);
      const TensorDesc out{dtype, in.desc(0).shape.rank() == 3
                                      ? Shape{s.batch, s.queries, s.heads * s.v_width}
                                      : Shape{s.batch, s.heads, s.queries, s.v_width}};
      const AttentionExtent e = with_memory(extent_of(s, dtype), in.data(3), in.data(6));
      const auto expected = op.reference({sample.attributes, in.refs, {out}, 0, {}})[0].values;
      for (const auto& [name, launch] : kForward) {
        const bool tensor = launch == tensor_attention;
        if (!(tensor ? takes_tensor_attention(e) : small(sample))) continue;
        narrow += tensor;
        for (int shift : shifts(sample)) {
          SCOPED_TRACE(sample.name + " " + std::string(dtype_name(dtype)) + " " + name);
          Tensor y(dtype, Tensor::blank(out.numel()), shift);
          same_twice({&y}, [&] {
            return launch(e, in.data(0), in.data(1), in.data(2), y.data(), nullptr);
          });
          expect_close(y.values(), expected, rounding(dtype), "y");
        }
      }
    }
  }
  EXPECT_GE(narrow, 48);
}

// Memory that a gradient writes.
struct Slopes {
  Tensor dq, dk, dv, dmask, scratch;
  Slopes(DType dtype, const std::vector<TensorDesc>& d, size_t bytes, int shift)
      : dq(dtype, Tensor::blank(d[0].numel()), shift),
        dk(dtype, Tensor::blank(d[1].numel()), shift),
        dv(dtype, Tensor::blank(d[2].numel()), shift),
        dmask(dtype, Tensor::blank(d.size() > 3 ? d[3].numel() : 0), shift),
        scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(bytes))) {}
};

TEST_F(CudaAttention, BackwardAgreesWithTheOperator) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("ofsdp.AttentionGrad");
  int narrow = 0;
  for (const SampleCase& sample : with_wide(op.samples(), true)) {
    if (!is_16_or_32(sample.inputs[0].dtype)) continue;
    for (DType dtype : kFloats) {
      const Filled in(sample, dtype);
      const AttentionShape s =
          ops::attention_shape({in.desc(1), in.desc(2), in.desc(3), in.desc(4),
                                in.desc(5).present(), sample.attributes.i("past_length", 0)},
                               sample.attributes);
      const AttentionExtent e = with_memory(extent_of(s, dtype), in.data(4), in.data(5));
      std::vector<TensorDesc> descs = {in.desc(1), in.desc(2), in.desc(3)};
      if (sample.num_outputs > 3)
        descs.push_back({dtype, {s.batch, s.heads, s.queries, s.mask_keys}});
      const auto expected = op.reference({sample.attributes, in.refs, descs, 0, {}});
      for (const Backward& kernel : kBackward) {
        const bool tensor = kernel.launch == tensor_attention_grad;
        if (!(tensor ? takes_tensor_attention(e) : small(sample))) continue;
        narrow += tensor;
        for (int shift : shifts(sample)) {
          SCOPED_TRACE(sample.name + " " + std::string(dtype_name(dtype)) + " " + kernel.name);
          Slopes d(dtype, descs, kernel.scratch(e), shift);
          const AttentionGradient g{in.data(0),      in.data(1),
                                    in.data(2),      in.data(3),
                                    d.dq.data(),     d.dk.data(),
                                    d.dv.data(),     descs.size() > 3 ? d.dmask.data() : nullptr,
                                    d.scratch.data()};
          same_twice({&d.dq, &d.dk, &d.dv, &d.dmask}, [&] { return kernel.launch(e, g, nullptr); });
          expect_close(d.dq.values(), expected[0].values, 2 * rounding(dtype), "dq");
          expect_close(d.dk.values(), expected[1].values, 2 * rounding(dtype), "dk");
          expect_close(d.dv.values(), expected[2].values, 2 * rounding(dtype), "dv");
          if (descs.size() > 3)
            expect_close(d.dmask.values(), expected[3].values, 2 * rounding(dtype), "dmask");
        }
      }
    }
  }
  EXPECT_GE(narrow, 48);
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
