// Softmax, log-softmax and cross entropy with their gradients, against loops in double.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/norm/norm.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace softmax_test {

using Doubles = std::vector<double>;

struct Extent {
  int64_t outer, classes, inner;
  size_t at(int64_t i, int64_t c) const {
    return static_cast<size_t>(i / inner * classes * inner + i % inner + c * inner);
  }
  int64_t rows() const { return outer * inner; }
  int64_t numel() const { return outer * classes * inner; }
};

std::vector<Extent> extents() {
  return {{3, 1, 1},    {9, 10, 1},   {5, 31, 1},   {5, 33, 1},   {4, 768, 1},
          {3, 1023, 1}, {2, 4097, 1}, {2, 4096, 1}, {2, 9001, 1}, {1, 9000, 1},
          {2, 4, 15},   {1, 6, 150},  {0, 4, 1},    {3, 0, 1}};
}

Doubles log_softmax(const Extent& e, Doubles x) {
  for (int64_t i = 0; i < e.rows(); ++i) {
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < e.classes; ++c) max = std::max(max, x[e.at(i, c)]);
    for (int64_t c = 0; c < e.classes; ++c) sum += std::exp(x[e.at(i, c)] - max);
    for (int64_t c = 0; c < e.classes; ++c) x[e.at(i, c)] -= max + std::log(sum);
  }
  return x;
}

class CudaSoftmax : public DeviceTest {};

TEST_F(CudaSoftmax, ForwardAndBackward) {
  for (DType dtype : kFloats) {
    for (const Extent& e : extents()) {
      for (int mode = 0; mode < 4; ++mode) {
        const bool log = mode % 2 == 1;
        const int shift = mode / 2;
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(e.outer) + "," +
                     std::to_string(e.classes) + "," + std::to_string(e.inner) +
                     (log ? " log" : ""));
        Tensor x(dtype, numbers(e.numel(), 1, 4), shift), y(dtype, Tensor::blank(e.numel()), shift);
        const SoftmaxParams s{dtype, e.outer, e.classes, e.inner, log};
        same_twice({&y}, [&] { return softmax(s, x.data(), y.data(), nullptr); });
        Doubles expected = log_softmax(e, x.values());
        if (!log) {
          for (double& v : expected) v = std::exp(v);
        }
        expect_close(y.values(), expected, rounding(dtype), "y");

        Tensor dy(dtype, numbers(e.numel(), 2), shift);
        const Doubles vd = dy.values(), vy = y.values();
        Doubles dx(vd.size());
        for (int64_t i = 0; i < e.rows(); ++i) {
          double sum = 0;
          for (int64_t c = 0; c < e.classes; ++c)
            sum += vd[e.at(i, c)] * (log ? 1 : vy[e.at(i, c)]);
          for (int64_t c = 0; c < e.classes; ++c) {
            const double d = vd[e.at(i, c)], v = vy[e.at(i, c)];
            dx[e.at(i, c)] = log ? d - std::exp(v) * sum : v * (d - sum);
          }
        }
        same_twice({&dy}, [&] { return softmax_grad(s, dy.data(), y.data(), dy.data(), nullptr); });
        expect_close(dy.values(), dx, 2 * rounding(dtype), "dx, over dy");
      }
    }
  }
}

struct Loss {
  Extent e;
  LossReduction reduction = LossReduction::kMean;
  bool weighted = false, ignores = false, through_softmax = true, narrow = false;
  double smoothing = 0;
};

std::vector<Loss> losses() {
  const auto none = LossReduction::kNone, sum = LossReduction::kSum, mean = LossReduction::kMean;
  return {{{6, 10, 1}},
          {{6, 10, 1}, sum, false, false, true, true},
          {{37, 33, 1}, none, true, true},
          {{6, 10, 1}, mean, true, true, true, false, 0.125},
          {{5, 1025, 1}, mean, false, true},
          {{3, 9001, 1}, mean, true, true, true, true, 0.125},
          {{2, 4, 15}, mean, true, true, true, false, 0.125},
          {{2, 4, 15}, none, false, true, false},
          {{6, 10, 1}, mean, true, true, false},
          {{0, 10, 1}}};
}

void check_loss(const Loss& l, DType dtype, bool keep_lse) {
  const Extent& e = l.e;
  Tensor scores(dtype, numbers(e.numel(), 1, 4)), weights(dtype, numbers(e.classes, 2, 1.5));
  Doubles given;
  for (int64_t i = 0; i < e.rows(); ++i) {
    given.push_back(l.ignores && i % 3 == 1 ? -100 : static_cast<double>((i * 7 + 2) % e.classes));
  }
  const DType label_dtype = l.narrow ? DType::kInt32 : DType::kInt64;
  Tensor labels(label_dtype, given);
  const int64_t count = l.reduction == LossReduction::kNone ? e.rows() : 1;
  const CrossEntropy c{dtype,       e.outer,       e.classes,
                       e.inner,     l.reduction,   l.through_softmax,
                       l.ignores,   -100,          l.smoothing,
                       label_dtype, labels.data(), l.weighted ? weights.data() : nullptr,
                       nullptr};
  Tensor log_prob(dtype, Tensor::blank(e.numel())), lse(DType::kFloat32, Tensor::blank(e.rows())),
      loss(DType::kFloat32, Tensor::blank(count)),
      scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(cross_entropy_scratch(c))));
  const CrossEntropyForward f{.scores = scores.data(),
                              .log_prob = keep_lse ? nullptr : log_prob.data(),
                              .lse = lse.as<float>(),
                              .loss = loss.data(),
                              .scratch = scratch.data()};
  same_twice({&log_prob, &lse, &loss}, [&] { return cross_entropy_forward(c, f, nullptr); });

  const Doubles x = scores.values(), p = l.through_softmax ? log_softmax(e, x) : x,
                w = weights.values();
  auto weight = [&](int64_t k) { return l.weighted ? w[static_cast<size_t>(k)] : 1.0; };
  auto target = [&](int64_t label, int64_t k) {
    return l.smoothing / static_cast<double>(e.classes) * weight(k) +
           (k == label ? (1 - l.smoothing) * weight(k) : 0);
  };
  Doubles each;
  double sum = 0, kept = 0;
  for (int64_t i = 0; i < e.rows(); ++i) {
    const auto label = static_cast<int64_t>(given[static_cast<size_t>(i)]);
    each.push_back(0);
    for (int64_t k = 0; k < e.classes && label >= 0; ++k)
      each.back() -= target(label, k) * p[e.at(i, k)];
    sum += each.back();
    kept += label < 0 ? 0 : weight(label);
  }
  const double divisor = l.reduction == LossReduction::kMean ? kept : 1;
  const Doubles expected =
      l.reduction == LossReduction::kNone ? each : Doubles{divisor == 0 ? 0 : sum / divisor};
  expect_close(loss.values(), expected, 1e-4, "loss");
  if (!keep_lse) expect_close(log_prob.values(), p, rounding(dtype), "log_prob");

  Tensor diff_loss(DType::kFloat32, numbers(count, 9));
  const Doubles slopes = diff_loss.values();
  Doubles diff(x.size());
  for (int64_t i = 0; i < e.rows(); ++i) {
    const auto label = static_cast<int64_t>(given[static_cast<size_t>(i)]);
    if (label < 0 || divisor == 0) continue;
    double total = 0;
    for (int64_t k = 0; k < e.classes; ++k) total += target(label, k);
    const double scale =
        slopes[l.reduction == LossReduction::kNone ? static_cast<size_t>(i) : 0] / divisor;
    for (int64_t k = 0; k < e.classes; ++k) {
      const double chance = l.through_softmax ? std::exp(p[e.at(i, k)]) * total : 0;
      diff[e.at(i, k)] = scale * (chance - target(label, k));
    }
  }
  Tensor& kept_scores = keep_lse || !l.through_softmax ? scores : log_prob;
  const CrossEntropyBackward b{.scores = kept_scores.data(),
                               .lse = keep_lse && l.through_softmax ? lse.as<float>() : nullptr,
                               .diff_loss = diff_loss.data(),
                               .diff_scores = kept_scores.data(),
                               .scratch = scratch.data()};
  same_twice({&kept_scores}, [&] { return cross_entropy_backward(c, b, nullptr); });
  expect_close(kept_scores.values(), diff, 2 * rounding(dtype), "gradient, in place");
}

TEST_F(CudaSoftmax, CrossEntropy) {
  for (DType dtype : kFloats) {
    for (const Loss& l : losses()) {
      for (bool keep_lse : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(l.e.classes) +
                     " classes, inner " + std::to_string(l.e.inner) + (keep_lse ? " lse" : ""));
        check_loss(l, dtype, keep_lse);
      }
    }
  }
}

// Rows with `width` elements and room between them.
Doubles apart(const Doubles& rows, int64_t width, int64_t pitch) {
  Doubles made(rows.size() / static_cast<size_t>(width) * static_cast<size_t>(pitch), -5.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    made[static_cast<size_t>(at / width * pitch + at % width)] = rows[i];
  }
  return made;
}

// The bytes written by a loss and a loss gradient.
struct LossBytes {
  std::vector<std::byte> loss, rows;
  bool operator==(const LossBytes&) const = default;
};

struct Operands {
  Tensor scores, weights, labels, loss, slope;
  CrossEntropy c;

  Operands(const Loss& l, DType dtype, int64_t pitch)
      : scores(dtype, apart(numbers(l.e.numel(), 1, 4), l.e.classes, pitch)),
        weights(dtype, numbers(l.e.classes, 2, 1.5)),
        labels(l.narrow ? DType::kInt32 : DType::kInt64, given(l)),
        loss(DType::kFloat32, {7}),
        slope(DType::kFloat32, {-1.75}),
        c{.dtype = dtype,
          .samples = l.e.outer,
          .classes = l.e.classes,
          .reduction = l.reduction,
          .ignores = l.ignores,
          .ignore_index = -100,
          .smoothing = l.smoothing,
          .label_dtype = l.narrow ? DType::kInt32 : DType::kInt64,
          .labels = labels.data(),
          .weights = l.weighted ? weights.data() : nullptr,
          .pitch = pitch} {}

  static Doubles given(const Loss& l) {
    Doubles made;
    for (int64_t i = 0; i < l.e.outer; ++i) {
      made.push_back(l.ignores && i % 3 == 1 ? -100 : static_cast<double>((i * 7) % l.e.classes));
    }
    return made;
  }
};

LossBytes loss_then_gradient(const Loss& l, DType dtype, int64_t pitch) {
  Operands o(l, dtype, pitch);
  const bool keeps_lse = dtype != DType::kFloat32;
  Tensor lse(DType::kFloat32, Tensor::blank(l.e.outer)),
      scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(cross_entropy_scratch(o.c))));
  EXPECT_CUDA(cross_entropy_forward(o.c,
                                    {.scores = o.scores.data(),
                                     .log_prob = keeps_lse ? nullptr : o.scores.data(),
                                     .lse = keeps_lse ? lse.as<float>() : nullptr,
                                     .loss = o.loss.data(),
                                     .scratch = scratch.data()},
                                    nullptr));
  EXPECT_CUDA(cross_entropy_backward(o.c,
                                     {.scores = o.scores.data(),
                                      .lse = keeps_lse ? lse.as<float>() : nullptr,
                                      .diff_loss = o.slope.data(),
                                      .diff_scores = o.scores.data(),
                                      .scratch = scratch.data()},
                                     nullptr));
  return {o.loss.bytes(), o.scores.bytes()};
}

LossBytes both_at_once(const Loss& l, DType dtype, int64_t pitch, bool in_place) {
  Operands o(l, dtype, pitch);
  Tensor elsewhere(dtype, apart(Tensor::blank(l.e.numel()), l.e.classes, pitch)),
      scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(cross_entropy_scratch(o.c))));
  Tensor& gradient = in_place ? o.scores : elsewhere;
  const CrossEntropyJoined j{.scores = o.scores.data(),
                             .diff_loss = o.slope.as<float>(),
                             .loss = o.loss.as<float>(),
                             .diff_scores = gradient.data(),
                             .scratch = scratch.data()};
  same_twice({&o.loss, &gradient}, [&] { return cross_entropy_joined(o.c, j, nullptr); });
  return {o.loss.bytes(), gradient.bytes()};
}

std::vector<Loss> joinable() {
  const auto sum = LossReduction::kSum, mean = LossReduction::kMean;
  return {{{6, 10, 1}},
          {{6, 16, 1}, sum, false, true, true, true},
          {{37, 33, 1}, mean, true, true},
          {{6, 24, 1}, mean, true, true, true, false, 0.125},
          {{5, 1025, 1}, mean, false, true},
          {{4, 1032, 1}, sum, true, true, true, false, 0.125},
          {{3, 9001, 1}, mean, true, true, true, true, 0.125},
          {{2, 9008, 1}},
          {{4099, 2, 1}, mean, true, true},
          {{0, 10, 1}}};
}

TEST_F(CudaSoftmax, CrossEntropyWithItsGradientHasTheBitsOfTheTwo) {
  for (DType dtype : kFloats) {
    for (const Loss& l : joinable()) {
      if (l.e.outer > 4096 && dtype != DType::kBFloat16) continue;  // several blocks add: slow here
      for (const int64_t pitch : {l.e.classes, l.e.classes + 64 - l.e.classes % 64}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(l.e.classes) +
                     " classes in rows of " + std::to_string(pitch));
        const LossBytes expected = loss_then_gradient(l, dtype, pitch);
        EXPECT_TRUE(both_at_once(l, dtype, pitch, true) == expected) << "in place";
        EXPECT_TRUE(both_at_once(l, dtype, pitch, false) == expected) << "elsewhere";
      }
    }
  }
}

// Packs begin at 16 bytes: threads share all such rows in the same way, whatever lies between them.
TEST_F(CudaSoftmax, RowsApartGiveTheBitsOfRowsSideBySide) {
  for (DType dtype : kFloats) {
    for (const Loss& l : joinable()) {
      if (l.e.classes % 8 != 0) continue;
      const int64_t pitch = l.e.classes + 64;
      const LossBytes dense = both_at_once(l, dtype, l.e.classes, true);
      const LossBytes found = both_at_once(l, dtype, pitch, true);
      EXPECT_TRUE(found.loss == dense.loss) << l.e.classes;
      const auto row = static_cast<size_t>(l.e.classes) * dtype_size(dtype);
      const size_t next = static_cast<size_t>(pitch) * dtype_size(dtype);
      for (size_t i = 0; i < static_cast<size_t>(l.e.outer); ++i) {
        EXPECT_EQ(std::memcmp(&found.rows[i * next], &dense.rows[i * row], row), 0) << "row " << i;
      }
    }
  }
}

TEST_F(CudaSoftmax, MatchesAreCountedInRowsApart) {
  const int64_t rows = 9, classes = 45;
  const Doubles x = numbers(rows * classes, 1);
  Doubles given;  // every third is right, every third ignored
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = x.begin() + i * classes;
    const auto best = static_cast<double>(std::max_element(row, row + classes) - row);
    given.push_back(i % 3 == 0 ? best : i % 3 == 1 ? -1 : best == 0 ? 1 : 0);
  }
  for (const int64_t pitch : {classes, int64_t{64}}) {
    Tensor prediction(DType::kFloat32, apart(x, classes, pitch)), labels(DType::kInt64, given),
        found(DType::kInt64, {0, 0});
    const MatchCount count{
        .rows = rows, .classes = classes, .ignores = true, .ignore_index = -1, .pitch = pitch};
    Tensor scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(match_scratch(count))));
    EXPECT_CUDA(count_matches(count, prediction.as<float>(), labels.as<int64_t>(),
                              found.as<int64_t>(), scratch.data(), nullptr));
    EXPECT_EQ(found.values(), (Doubles{3, 6})) << pitch;
  }
}

TEST_F(CudaSoftmax, LabelsOutOfRangeAreNoted) {
  Tensor scores(DType::kFloat32, numbers(30, 1)), labels(DType::kInt64, {1, 12, 3}),
      loss(DType::kFloat32, {0}), fault(DType::kInt64, {0, 0, 0});
  CrossEntropy c{.samples = 3,
                 .classes = 10,
                 .labels = labels.data(),
                 .fault = {fault.as<ofsdp_data_fault>(), 7}};
  Tensor scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(cross_entropy_scratch(c))));
  EXPECT_CUDA(cross_entropy_forward(
      c, {.scores = scores.data(), .loss = loss.data(), .scratch = scratch.data()}, nullptr));
  EXPECT_EQ(fault.values(), (Doubles{7, 12, 10}));
}

}  // namespace softmax_test
}  // namespace ofsdp::kernels::cuda
