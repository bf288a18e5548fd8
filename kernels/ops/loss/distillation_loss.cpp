// ofsdp.DistillationLoss(student [N, C], teacher [N, C], labels [N]): KL(p || q), averaged over
// kept rows, with p = softmax(teacher / T) and q = softmax(student / T) (Hinton et al., 2015,
// without the factor T^2). Attributes: temperature T (1), and ignore_index: a row with that label
// is not kept. Without labels every row is kept. With no kept rows, the loss is 0.
//
//   KL = sum_c p_c (ln p_c - ln q_c)         d KL / d student_c = (q_c - p_c) / T
//
// The gradient is ofsdp.DistillationLossGrad(dloss, student, teacher, labels); the teacher is
// frozen.
//
// With t = (teacher - max) / T and s = (student - max) / T, KL = sum e^t (t - s) / sum e^t - ln sum
// e^t + ln sum e^s, so one pass is enough. Each row is summed in double on one thread, then the
// rows in order, so the thread count does not change the bits.
#include <algorithm>
#include <cmath>

#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

struct Distillation {
  int64_t rows = 0, classes = 0;
  double temperature = 1;
  bool ignores = false;
  int64_t ignore_index = 0;

  Distillation(const Shape& logits, const Attributes& attributes)
      : rows(logits[0]),
        classes(logits[1]),
        temperature(static_cast<double>(attributes.f("temperature", 1.0f))),
        ignores(attributes.has("ignore_index")),
        ignore_index(attributes.i("ignore_index", 0)) {}

  bool kept(const auto* labels, int64_t row) const {
    return labels == nullptr || !ignores || static_cast<int64_t>(labels[row]) != ignore_index;
  }
  int64_t count(const auto* labels) const {
    int64_t count = 0;
    for (int64_t row = 0; row < rows; ++row) count += kept(labels, row);
    return count;
  }
};

Result<std::vector<TensorDesc>> check_logits(const InferContext& c, size_t student,
                                             TensorDesc made) {
  const TensorDesc& logits = c.inputs[student];
  const TensorDesc& teacher = c.inputs[student + 1];
  if (logits.shape.rank() != 2 || logits.shape != teacher.shape || logits.dtype != teacher.dtype) {
    return input_error("expected logits [N, C] of student and teacher alike, found {} and {}",
                       logits.text(), teacher.text());
  }
  if (c.has(student + 2)) {
    const TensorDesc& labels = c.inputs[student + 2];
    const bool integers = labels.dtype == DType::kInt64 || labels.dtype == DType::kInt32;
    if (!integers || labels.shape != Shape{logits.shape[0]}) {
      return input_error("expected {} labels of int64 or int32, found {}", logits.shape[0],
                         labels.text());
    }
  }
  return std::vector{std::move(made)};
}

Result<std::vector<TensorDesc>> distill_infer(const InferContext& c) {
  return check_logits(c, 0, {c.inputs[0].dtype, {}});
}

Result<std::vector<TensorDesc>> distill_infer_grad(const InferContext& c) {
  return check_logits(c, 1, c.inputs[1]);
}

void distill_grad(GradBuilder& b) {
  std::vector<Ref> inputs = {b.grad_output(0), b.input(0), b.input(1)};
  if (b.num_inputs() > 2 && b.input(2)) inputs.push_back(b.input(2));
  b.set_grad(0, b.emit1("ofsdp.DistillationLossGrad", inputs, b.attributes()));
}

// --- kernels ---

OFSDP_MULTIARCH float most_of(const float* x, int64_t n) {
  float largest = x[0];
  for (int64_t i = 1; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// A row's sums over the classes.
struct RowSums {
  double student = 0;  // e^s
  double teacher = 0;  // e^t
  double cross = 0;    // e^t (t - s)
};

constexpr int64_t kLanes = 8;

[[gnu::always_inline]] inline void add_class(float s, float t, double& student, double& teacher,
                                             double& cross) {
  const float e = vector_exp(t);
  student += static_cast<double>(vector_exp(s));
  teacher += static_cast<double>(e);
  // A class with probability 0 adds nothing, even if both logits are infinite.
  cross +=
      e > 0.0f ? static_cast<double>(e) * (static_cast<double>(t) - static_cast<double>(s)) : 0;
}

OFSDP_MULTIARCH void sum_row(const float* student, float most_s, const float* teacher, float most_t,
                             float scale, int64_t n, RowSums* sums) {
  double s[kLanes] = {}, t[kLanes] = {}, cross[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      add_class((student[i + lane] - most_s) * scale, (teacher[i + lane] - most_t) * scale, s[lane],
                t[lane], cross[lane]);
    }
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) {
    add_class((student[i] - most_s) * scale, (teacher[i] - most_t) * scale, s[lane], t[lane],
              cross[lane]);
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    sums->student += s[lane];
    sums->teacher += t[lane];
    sums->cross += cross[lane];
  }
}

OFSDP_MULTIARCH void diff_row(const float* student, float most_s, float by_s, const float* teacher,
                              float most_t, float by_t, float scale, float* diff, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    diff[i] = vector_exp((student[i] - most_s) * scale) * by_s -
              vector_exp((teacher[i] - most_t) * scale) * by_t;
  }
}

template <typename Label>
std::unique_ptr<Kernel> distill_kernel(const Problem& p) {
  const Distillation d(p.in(0).shape, p.attributes);
  const bool labelled = p.has_in(2);
  auto run = [d, labelled](const KernelArgs& a) {
    const Label* const labels = labelled ? a.in<Label>(2) : nullptr;
    const auto scale = static_cast<float>(1 / d.temperature);
    auto* const each = reinterpret_cast<double*>(a.workspace);
    parallel_each(d.rows, 4096 / std::max<int64_t>(d.classes, 1) + 1, [&](int64_t row) {
      each[row] = 0;
      if (!d.kept(labels, row) || d.classes == 0) return;
      const float* const s = a.in<float>(0) + row * d.classes;
      const float* const t = a.in<float>(1) + row * d.classes;
      RowSums sums;
      sum_row(s, most_of(s, d.classes), t, most_of(t, d.classes), scale, d.classes, &sums);
      each[row] = sums.cross / sums.teacher - std::log(sums.teacher) + std::log(sums.student);
    });
    double sum = 0;
    for (int64_t row = 0; row < d.rows; ++row) sum += each[row];
    const int64_t count = d.count(labels);
    *a.out<float>(0) = count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
    return ok_status();
  };
  return make_kernel(run, static_cast<size_t>(d.rows) * sizeof(double));
}

template <typename Label>
std::unique_ptr<Kernel> distill_kernel_grad(const Problem& p) {
  const Distillation d(p.in(1).shape, p.attributes);
  const bool labelled = p.has_in(3);
  return make_kernel([d, labelled](const KernelArgs& a) {
    const Label* const labels = labelled ? a.in<Label>(3) : nullptr;
    const auto scale = static_cast<float>(1 / d.temperature);
    const int64_t count = d.count(labels);
    const double factor = static_cast<double>(*a.in<float>(0)) / d.temperature /
                          static_cast<double>(std::max<int64_t>(count, 1));
    parallel_each(d.rows, 4096 / std::max<int64_t>(d.classes, 1) + 1, [&](int64_t row) {
      float* const diff = a.out<float>(0) + row * d.classes;
      if (!d.kept(labels, row)) {
        std::fill_n(diff, d.classes, 0.0f);
        return;
      }
      const float* const s = a.in<float>(1) + row * d.classes;
      const float* const t = a.in<float>(2) + row * d.classes;
      if (d.classes == 0) return;
      const float most_s = most_of(s, d.classes), most_t = most_of(t, d.classes);
      RowSums sums;
      sum_row(s, most_s, t, most_t, scale, d.classes, &sums);
      diff_row(s, most_s, static_cast<float>(factor / sums.student), t, most_t,
               static_cast<float>(factor / sums.teacher), scale, diff, d.classes);
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> distill_create(const Problem& p) {
  const bool narrow = p.has_in(2) && p.in(2).dtype == DType::kInt32;
  return narrow ? distill_kernel<int32_t>(p) : distill_kernel<int64_t>(p);
}

std::unique_ptr<Kernel> distill_create_grad(const Problem& p) {
  const bool narrow = p.has_in(3) && p.in(3).dtype == DType::kInt32;
  return narrow ? distill_kernel_grad<int32_t>(p) : distill_kernel_grad<int64_t>(p);
}

template <size_t student>
Acceptance distill_accepts(const Problem& p) {
  for (size_t i = 0; i < student + 2; ++i) {
    if (p.in(i).dtype != DType::kFloat32) return Acceptance::refuse("not float32");
  }
  return accept_if(p.all_plain(), kNotPlain);
}

// --- references ---

std::vector<double> chances(const double* x, int64_t n, double temperature) {
  std::vector<double> y(x, x + n);
  const double most = n == 0 ? 0 : *std::ranges::max_element(y);
  double sum = 0;
  for (double& v : y) sum += v = std::exp((v - most) / temperature);
  for (double& v : y) v /= sum;
  return y;
}

// Calls f(row, p, q) for each kept row; returns how many there are.
int64_t for_each_kept(const ReferenceContext& c, size_t student, const auto& f) {
  const Distillation d(c.inputs[student].desc.shape, c.attributes);
  const bool labelled = c.inputs.size() > student + 2 && c.inputs[student + 2].desc.present();
  const double* const labels = labelled ? c.inputs[student + 2].values.data() : nullptr;
  for (int64_t row = 0; row < d.rows; ++row) {
    if (!d.kept(labels, row)) continue;
    const double* const s = c.inputs[student].values.data() + row * d.classes;
    const double* const t = c.inputs[student + 1].values.data() + row * d.classes;
    f(row, chances(t, d.classes, d.temperature), chances(s, d.classes, d.temperature));
  }
  return d.count(labels);
}

std::vector<RefTensor> distill_reference(const ReferenceContext& c) {
  double sum = 0;
  const int64_t count = for_each_kept(c, 0, [&](int64_t, const auto& p, const auto& q) {
    for (size_t k = 0; k < p.size(); ++k) sum += p[k] * (std::log(p[k]) - std::log(q[k]));
  });
  return {{c.output_descs[0], {count == 0 ? 0 : sum / static_cast<double>(count)}}};
}

std::vector<RefTensor> distill_grad_reference(const ReferenceContext& c) {
  const Distillation d(c.inputs[1].desc.shape, c.attributes);
  RefTensor diff{c.output_descs[0], std::vector<double>(static_cast<size_t>(d.rows * d.classes))};
  const int64_t count = for_each_kept(c, 1, [&](int64_t row, const auto& p, const auto& q) {
    for (size_t k = 0; k < p.size(); ++k) {
      diff[row * d.classes + static_cast<int64_t>(k)] = (q[k] - p[k]) / d.temperature;
    }
  });
  for (double& v : diff.values) {
    v *= c.inputs[0].values[0] / static_cast<double>(std::max<int64_t>(count, 1));
  }
  return {diff};
}

// --- standard bodies ---

// The logarithms of both probabilities, and each row's weight in the mean.
struct BodyTerms {
  Ref log_p, log_q, share;
};

BodyTerms body_terms(BodyBuilder& b, size_t student) {
  const TensorDesc logits = b.desc(b.input(student));
  const Distillation d(logits.shape, b.attributes());
  const auto log_softmax = [&](Ref x) {
    return b.emit1("LogSoftmax", {b.mul(x, 1 / d.temperature)}, {{"axis", int64_t{1}}});
  };
  BodyTerms t;
  t.log_p = log_softmax(b.input(student + 1));
  t.log_q = log_softmax(b.input(student));
  const Ref labels = b.input(student + 2);
  if (!labels || !d.ignores) {
    t.share = b.scalar(logits.dtype, 1.0 / static_cast<double>(std::max<int64_t>(d.rows, 1)));
    return t;
  }
  const Ref ignored = b.scalar(DType::kInt64, static_cast<double>(d.ignore_index));
  const Ref dropped = b.emit1("Equal", {b.cast(labels, DType::kInt64), ignored});
  const Ref one = b.scalar(logits.dtype, 1);
  const Ref kept = b.where(dropped, b.scalar(logits.dtype, 0), one);
  const Ref count = b.emit1("ReduceSum", {kept}, {{"keepdims", int64_t{0}}});
  t.share = b.reshape(b.div(kept, b.emit1("Max", {count, one})), Shape{d.rows, 1});
  return t;
}

void distill_body(BodyBuilder& b) {
  const BodyTerms t = body_terms(b, 0);
  const Ref p = b.emit1("Exp", {t.log_p});
  const Ref terms = b.mul(b.mul(p, b.sub(t.log_p, t.log_q)), t.share);
  b.set_output(0, b.emit1("ReduceSum", {terms}, {{"keepdims", int64_t{0}}}));
}

void distill_grad_body(BodyBuilder& b) {
  const BodyTerms t = body_terms(b, 1);
  const double temperature = Distillation(b.output_desc(0).shape, b.attributes()).temperature;
  const Ref p = b.emit1("Exp", {t.log_p});
  const Ref d = b.sub(b.emit1("Exp", {t.log_q}), p);
  const Ref scale = b.mul(b.input(0), 1 / temperature);
  b.set_output(0, b.mul(b.mul(d, t.share), scale));
}

}  // namespace

void add_distillation_loss(Registry& registry) {
  registry.add_own(make_op("DistillationLoss", {distill_infer, distill_grad, distill_reference},
                           {{"rows", distill_accepts<0>, distill_create}},
                           {.min_inputs = 2, .body = distill_body, .float32_only = true}));
  registry.add_own(make_op("DistillationLossGrad",
                           {distill_infer_grad, nullptr, distill_grad_reference},
                           {{"rows", distill_accepts<1>, distill_create_grad}},
                           {.min_inputs = 3, .body = distill_grad_body, .inplace_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
