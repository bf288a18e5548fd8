// Softmax, log-softmax and cross entropy with their gradients, against loops in double.
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/norm/norm.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace {

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
        const SoftmaxExtent s{dtype, e.outer, e.classes, e.inner, log};
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

}  // namespace
}  // namespace ofsdp::kernels::cuda
