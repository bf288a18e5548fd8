// Attention on CUDA cores and on tensor cores against the operators' references, on the operators'
// sample cases and wider ones: the statistics that the forward pass keeps, and the gradient with
// and without them.
#include "kernels/cuda/attention/attention.h"

#include <map>

#include "kernels/cuda/attention/attention_operands.h"
#include "tests/gpu/kernels/filled.h"
#include "tests/support/namespaces.h"
#include "tests/support/samples.h"

namespace ofsdp::kernels::cuda {
namespace attention_test {

class CudaAttention : public DeviceTest {};

// float16 differs from bfloat16 only in conversions, and the emulator takes minutes: there the
// operators' own cases and a few wide ones are enough. AddressSanitizer looks at indices, which are
// the same.
std::vector<DType> types([[maybe_unused]] const SampleCase& sample) {
  std::vector list = {DType::kFloat32, DType::kBFloat16};
#if defined(__SANITIZE_ADDRESS__)
  return list;
#elif defined(OFSDP_EMULATOR_EXPECT)
  const bool own = !sample.name.starts_with("tensor_");
  if (!own && sample.name != "tensor_plain" && sample.name != "tensor_bias") return list;
#endif
  list.push_back(DType::kFloat16);
  return list;
}

// The fewest cases in a type that the tensor cores must take.
int least_narrow(DType dtype) {
  if (dtype == DType::kBFloat16) return 24;
#if defined(__SANITIZE_ADDRESS__)
  return 0;
#elif defined(OFSDP_EMULATOR_EXPECT)
  return 17;
#else
  return 24;
#endif
}

void expect_narrow(std::map<DType, int> cases) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16})
    EXPECT_GE(cases[dtype], least_narrow(dtype)) << dtype_name(dtype);
}

AttentionParams with_memory(AttentionParams e, const void* mask, const void* lengths) {
  e.mask = mask;
  e.lengths = static_cast<const int64_t*>(lengths);
  return e;
}

// Wider than the operator's samples, and with more keys than a tile. Every width of the tensor
// cores' kernels, and 8, which is none; causal with fewer and with more queries than keys; masks of
// keys and of queries; windows.
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
      made.fill = [at = made.inputs.size() - 1, lengths](size_t i, std::vector<double>& values) {
        if (i == at) values = lengths;
      };
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

// Enough for the kernels on CUDA cores, with smaller tiles; all cases would take minutes.
bool small(const SampleCase& sample) { return !sample.name.starts_with("tensor_"); }

// Distances from an aligned address to the results, in elements.
std::vector<int> shifts(const SampleCase& sample) {
  return small(sample) || sample.name == "tensor_bias" ? std::vector{0, 1} : std::vector{0};
}
// The shifts, each with and without a gradient that reads the results kept by the forward pass.
std::vector<std::pair<int, bool>> variants(const SampleCase& sample) {
  std::vector<std::pair<int, bool>> list;
  for (int shift : shifts(sample)) list.insert(list.end(), {{shift, false}, {shift, true}});
  return list;
}

// Replaces infinity, for queries that see no key, by a number that occurs nowhere else.
std::vector<double> finite(std::vector<double> values) {
  for (double& v : values) v = v == INFINITY ? 1e6 : v;
  return values;
}

// The two launchers in each direction; the tensor cores' launchers tell which problems they take.
constexpr std::pair<const char*, decltype(&attention)> kForward[] = {
    {"cuda cores", attention}, {"tensor cores", tensor_attention}};
struct Backward {
  const char* name;
  decltype(&attention_grad) launch;
  decltype(&attention_grad_scratch) scratch;
};
constexpr Backward kBackward[] = {{"cuda cores", attention_grad, attention_grad_scratch},
                                  {"tensor cores", tensor_attention_grad, attention_grad_scratch}};

// Y and statistics in double, from the operands of Attention.
std::vector<RefTensor> kept_by(const Registry& registry, const Attributes& attributes,
                               const Filled& in, const TensorDesc& y, const AttentionShape& s) {
  std::vector<RefTensor> operands = in.refs;
  if (operands.size() > 6) operands[4] = operands[6];  // lengths, after the cached keys
  operands.resize(std::min<size_t>(operands.size(), 5));
  const TensorDesc statistics{DType::kFloat32, {s.batch, s.heads, s.queries}};
  const OpDef& op = registry.get("ofsdp.AttentionWithStatistics");
  return op.reference({attributes, operands, {y, statistics}, 0, {}});
}

TEST_F(CudaAttention, ForwardAgreesWithTheOperator) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("Attention");
  std::map<DType, int> narrow;
  for (const SampleCase& sample : with_wide(testing::samples_of(op), false)) {
    if (!is_16_or_32(sample.inputs[0].dtype) || sample.num_outputs > 1) continue;
    for (DType dtype : types(sample)) {
      const Filled in(sample, dtype);
      const ops::AttentionInputs operands{in.desc(0), in.desc(1),           in.desc(2),
                                          in.desc(3), in.desc(6).present(), 0};
      const AttentionShape s = ops::attention_shape(operands, sample.attributes);
      const TensorDesc out{dtype, ops::result_shape(operands, s, sample.attributes)};
      const auto at = places_of(s, operands).of(in.data(0), in.data(1), in.data(2));
      const AttentionParams e = with_memory(extent_of(s, dtype), in.data(3), in.data(6));
      const auto expected = kept_by(registry, sample.attributes, in, out, s);
      for (const auto& [name, launch] : kForward) {
        const bool tensor = launch == tensor_attention;
        if (!(tensor ? takes_tensor_attention(e) : small(sample))) continue;
        narrow[dtype] += tensor;
        for (int shift : shifts(sample)) {
          SCOPED_TRACE(sample.name + " " + std::string(dtype_name(dtype)) + " " + name);
          Tensor y(dtype, Tensor::blank(out.numel()), shift),
              alone(dtype, Tensor::blank(out.numel()));
          Tensor statistics(DType::kFloat32, Tensor::blank(s.batch * s.heads * s.queries));
          same_twice({&y, &statistics}, [&] {
            return launch(e, at[0], at[1], at[2], y.data(), static_cast<float*>(statistics.data()),
                          nullptr);
          });
          expect_close(y.values(), expected[0].values, rounding(dtype), "y");
          expect_close(finite(statistics.values()), finite(expected[1].values),
                       rounding(DType::kFloat32), "statistics");
          ASSERT_EQ(launch(e, at[0], at[1], at[2], alone.data(), nullptr, nullptr), cudaSuccess);
          EXPECT_EQ(alone.values(), y.values()) << "what is kept changed the result";
        }
      }
    }
  }
  expect_narrow(narrow);
}

// The gradient's output memory.
struct Slopes {
  Tensor dq, dk, dv, dmask, scratch;
  Slopes(DType dtype, const std::vector<TensorDesc>& d, size_t bytes, int shift)
      : dq(dtype, Tensor::blank(d[0].numel()), shift),
        dk(dtype, Tensor::blank(d[1].numel()), shift),
        dv(dtype, Tensor::blank(d[2].numel()), shift),
        dmask(dtype, Tensor::blank(d.size() > 3 ? d[3].numel() : 0), shift),
        scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(bytes))) {}
};

// Results of a sample's forward pass that the gradient reads: kept by `launch`.
struct Saved {
  Tensor y, statistics;
  // qkv: addresses of the first heads.
  Saved(const AttentionParams& e, const std::array<void*, 3>& qkv, int64_t elements,
        decltype(&attention) launch)
      : y(e.dtype, Tensor::blank(elements)),
        statistics(DType::kFloat32, Tensor::blank(e.batch * e.heads * e.queries)) {
    EXPECT_EQ(launch(e, qkv[0], qkv[1], qkv[2], y.data(), static_cast<float*>(statistics.data()),
                     nullptr),
              cudaSuccess);
  }
  void put(AttentionGradient& g, const AttentionParams& e) {
    g.y = y.data();
    g.y_strides = e.y;
    g.statistics = static_cast<const float*>(statistics.data());
  }
};

TEST_F(CudaAttention, BackwardAgreesWithTheOperator) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("ofsdp.AttentionGrad");
  std::map<DType, int> narrow;
  for (const SampleCase& sample : with_wide(testing::samples_of(op), true)) {
    if (!is_16_or_32(sample.inputs[0].dtype) || sample.inputs.size() > 6) continue;
    for (DType dtype : types(sample)) {
      const Filled in(sample, dtype);
      const ops::AttentionInputs operands{
          in.desc(1), in.desc(2),           in.desc(3),
          in.desc(4), in.desc(5).present(), sample.attributes.i("past_length", 0)};
      const AttentionShape s = ops::attention_shape(operands, sample.attributes);
      const HeadOffsets places = places_of(s, operands);
      const auto at = places.of(in.data(1), in.data(2), in.data(3));
      const AttentionParams e = with_memory(extent_of(s, dtype), in.data(4), in.data(5));
      std::vector<TensorDesc> descs = {in.desc(1), in.desc(2), in.desc(3)};
      if (sample.num_outputs > 3)
        descs.push_back({dtype, {s.batch, s.heads, s.queries, s.mask_keys}});
      const auto expected = op.reference({sample.attributes, in.refs, descs, 0, {}});
      for (const Backward& kernel : kBackward) {
        const bool tensor = kernel.launch == tensor_attention_grad;
        if (!(tensor ? takes_tensor_attention(e) : small(sample))) continue;
        narrow[dtype] += tensor;
        Saved saved(e, at, in.desc(0).numel(), tensor ? tensor_attention : attention);
        for (const auto& [shift, kept] : variants(sample)) {
          SCOPED_TRACE(sample.name + " " + std::string(dtype_name(dtype)) + " " + kernel.name +
                       (kept ? " kept" : ""));
          Slopes d(dtype, descs, kernel.scratch(e, kept), shift);
          const auto to = places.of(d.dq.data(), d.dk.data(), d.dv.data());
          AttentionGradient g{
              in.data(0),      at[0], at[1], at[2],
              to[0],           to[1], to[2], descs.size() > 3 ? d.dmask.data() : nullptr,
              d.scratch.data()};
          if (kept) saved.put(g, e);
          same_twice({&d.dq, &d.dk, &d.dv, &d.dmask}, [&] { return kernel.launch(e, g, nullptr); });
          expect_close(d.dq.values(), expected[0].values, 2 * rounding(dtype), "dq");
          if (places.has_k)
            expect_close(d.dk.values(), expected[1].values, 2 * rounding(dtype), "dk");
          if (places.has_v)
            expect_close(d.dv.values(), expected[2].values, 2 * rounding(dtype), "dv");
          if (descs.size() > 3)
            expect_close(d.dmask.values(), expected[3].values, 2 * rounding(dtype), "dmask");
        }
      }
    }
  }
  expect_narrow(narrow);
}

// If the statistics are log 2 too large, every probability is halved, and so is dv; and dy times a
// Y of zeros takes nothing off dp. So the kernel reads both, and finds neither again.
TEST_F(CudaAttention, BackwardReadsWhatWasKept) {
  const Registry registry = make_registry();
  for (const SampleCase& sample : with_wide({}, true)) {
    if (sample.name != "tensor_plain") continue;
    for (const Backward& kernel : kBackward) {
      const Filled in(sample, DType::kBFloat16);
      const AttentionShape s =
          ops::attention_shape({in.desc(1), in.desc(2), in.desc(3), {}, false, 0}, {});
      const AttentionParams e = extent_of(s, DType::kBFloat16);
      const std::vector<TensorDesc> descs = {in.desc(1), in.desc(2), in.desc(3)};
      Saved saved(e, {in.data(1), in.data(2), in.data(3)}, in.desc(0).numel(), attention);
      const auto slopes = [&](Slopes& d) {
        AttentionGradient g{in.data(0),  in.data(1),  in.data(2), in.data(3),      d.dq.data(),
                            d.dk.data(), d.dv.data(), nullptr,    d.scratch.data()};
        saved.put(g, e);
        EXPECT_EQ(kernel.launch(e, g, nullptr), cudaSuccess);
      };
      Slopes before(DType::kBFloat16, descs, kernel.scratch(e, true), 0);
      slopes(before);
      std::vector<double> shifted = saved.statistics.values();
      for (double& v : shifted) v += std::log(2.0);
      saved.statistics.assign(Tensor(DType::kFloat32, shifted).bytes());
      Slopes halved(DType::kBFloat16, descs, kernel.scratch(e, true), 0);
      slopes(halved);
      std::vector<double> expected = before.dv.values();
      for (double& v : expected) v /= 2;
      expect_close(halved.dv.values(), expected, rounding(DType::kBFloat16), kernel.name);
      saved.y.assign(std::vector<std::byte>(saved.y.bytes().size()));
      Slopes without(DType::kBFloat16, descs, kernel.scratch(e, true), 0);
      slopes(without);
      EXPECT_EQ(without.dv.values(), halved.dv.values());
      EXPECT_NE(without.dq.values(), halved.dq.values());
    }
  }
}

// Only one of two samples is needed; the other's results stay unchanged.
TEST_F(CudaAttention, LeavesSamplesOutThatAreNotWanted) {
  AttentionParams e;
  e.dtype = DType::kBFloat16;
  e.batch = e.heads = 2;
  e.kv_heads = 1;
  e.queries = e.keys = 40;
  e.width = e.v_width = 16;
  e.q = e.y = {2 * 40 * 16, 40 * 16, 16};
  e.k = e.v = {40 * 16, 40 * 16, 16};
  e.scale = 0.25F;
  const int64_t many = e.q.batch * 2, few = e.k.batch * 2;
  const Tensor q(e.dtype, numbers(many, 1)), k(e.dtype, numbers(few, 2)),
      v(e.dtype, numbers(few, 3)), dy(e.dtype, numbers(many, 4)), wanted(DType::kInt32, {0, 1});
  const auto second = [](const Tensor& whole) {
    const std::vector<double> all = whole.values();
    return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2),
                               all.end());
  };
  const auto expect_half = [&](const Tensor& half, const Tensor& whole, const char* what) {
    std::vector<double> expected = Tensor::blank(static_cast<int64_t>(whole.values().size() / 2));
    for (const double x : second(whole)) expected.push_back(x);
    EXPECT_EQ(half.values(), expected) << what;
  };
  for (size_t which = 0; which < std::size(kForward); ++which) {
    SCOPED_TRACE(kForward[which].first);
    AttentionParams some = e;
    some.wanted = wanted.as<int32_t>();
    const std::array<void*, 3> at{q.data(), k.data(), v.data()};
    Saved all(e, at, many, kForward[which].second), half(some, at, many, kForward[which].second);
    expect_half(half.y, all.y, "y");
    expect_half(half.statistics, all.statistics, "statistics");
    const TensorDesc large{e.dtype, {many}}, small{e.dtype, {few}};
    const Backward& backward = kBackward[which];
    Slopes whole(e.dtype, {large, small, small}, backward.scratch(e, true), 0);
    Slopes part(e.dtype, {large, small, small}, backward.scratch(e, true), 0);
    for (Slopes* d : {&whole, &part}) {
      AttentionGradient g{dy.data(),    at[0],        at[1],
                          at[2],        d->dq.data(), d->dk.data(),
                          d->dv.data(), nullptr,      d->scratch.data()};
      all.put(g, e);
      ASSERT_EQ(backward.launch(d == &whole ? e : some, g, nullptr), cudaSuccess);
    }
    expect_half(part.dq, whole.dq, "dq");
    expect_half(part.dk, whole.dk, "dk");
    expect_half(part.dv, whole.dv, "dv");
  }
}

// [heads, rows, width] as [rows, parts, heads, width], in place `part`.
void put_rows(const std::vector<double>& from, const AttentionParams& e, int64_t part,
              int64_t parts, std::vector<double>& to) {
  to.resize(static_cast<size_t>(e.queries * parts * e.heads * e.width));
  for (int64_t i = 0; i < e.heads * e.queries * e.width; ++i) {
    const int64_t h = i / (e.queries * e.width), row = i / e.width % e.queries;
    const int64_t at = ((row * parts + part) * e.heads + h) * e.width + i % e.width;
    to[static_cast<size_t>(at)] = from[static_cast<size_t>(i)];
  }
}

// With q, k and v in one tensor, as a product writes it, heads have the same bits as separate ones.
// The gradients fill one tensor too.
TEST_F(CudaAttention, HeadsInOneTensorGiveTheBitsOfHeadsApart) {
  AttentionParams apart;
  apart.heads = apart.kv_heads = 2;
  apart.batch = 1;
  apart.queries = apart.keys = 70;
  apart.width = apart.v_width = 64;
  apart.q = apart.k = apart.v = apart.y = {0, 70 * 64, 64};
  apart.scale = 0.125F;
  apart.causal = true;
  const int64_t count = apart.heads * apart.queries * apart.width;
  for (size_t which = 0; which < std::size(kForward); ++which) {
    SCOPED_TRACE(kForward[which].first);
    apart.dtype = which == 0 ? DType::kFloat32 : DType::kBFloat16;
    AttentionParams one = apart;
    one.q = one.k = one.v = {0, 64, 3 * 2 * 64};
    one.y = {0, 64, 2 * 64};
    std::vector<double> joined, joined_dy;
    std::vector<std::unique_ptr<Tensor>> parts;
    for (int64_t i = 0; i < 4; ++i) {  // q, k, v, dy
      parts.push_back(std::make_unique<Tensor>(apart.dtype, numbers(count, i + 1)));
      const std::vector<double> values = parts.back()->values();
      i < 3 ? put_rows(values, apart, i, 3, joined) : put_rows(values, apart, 0, 1, joined_dy);
    }
    Tensor qkv(apart.dtype, joined), dy(apart.dtype, joined_dy);
    const HeadOffsets places{0, 2 * 64 * dtype_size(apart.dtype), 4 * 64 * dtype_size(apart.dtype),
                             false, false};
    const std::array<void*, 3> at{parts[0]->data(), parts[1]->data(), parts[2]->data()};
    const std::array<void*, 3> inside = places.of(qkv.data(), nullptr, nullptr);
    Saved first(apart, at, count, kForward[which].second);
    Saved second(one, inside, count, kForward[which].second);
    std::vector<double> expected;
    put_rows(first.y.values(), apart, 0, 1, expected);
    EXPECT_EQ(second.y.values(), expected);
    EXPECT_EQ(second.statistics.values(), first.statistics.values());

    const Backward& backward = kBackward[which];
    const TensorDesc part{apart.dtype, {count}}, all{apart.dtype, {3 * count}};
    Slopes d(apart.dtype, {part, part, part}, backward.scratch(apart, true), 0);
    Slopes joint(apart.dtype, {all, part, part}, backward.scratch(one, true), 0);
    AttentionGradient g{parts[3]->data(), at[0],       at[1],   at[2],           d.dq.data(),
                        d.dk.data(),      d.dv.data(), nullptr, d.scratch.data()};
    first.put(g, apart);
    ASSERT_EQ(backward.launch(apart, g, nullptr), cudaSuccess);
    const std::array<void*, 3> to = places.of(joint.dq.data(), nullptr, nullptr);
    g = {dy.data(), inside[0], inside[1], inside[2],           to[0],
         to[1],     to[2],     nullptr,   joint.scratch.data()};
    second.put(g, one);
    ASSERT_EQ(backward.launch(one, g, nullptr), cudaSuccess);
    expected.clear();
    put_rows(d.dq.values(), apart, 0, 3, expected);
    put_rows(d.dk.values(), apart, 1, 3, expected);
    put_rows(d.dv.values(), apart, 2, 3, expected);
    EXPECT_EQ(joint.dq.values(), expected);
  }
}

}  // namespace attention_test
}  // namespace ofsdp::kernels::cuda
