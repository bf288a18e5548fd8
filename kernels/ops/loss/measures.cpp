// Rows of numbers that an evaluation turns into metrics, in double; no gradient.
//
// ofsdp.MeasureClasses(prediction [..., C], labels [...], int64): float64[k, 5], a row per label:
// the label, or -1 and then zeros if it is attribute ignore_index or no class; the first class with
// the largest score; how many classes rank before the label's by score, ties by class; -log
// p(label); class 1's score minus class 0's. Attribute `likelihood`: 0 none, 1 scores are logits, 2
// scores are log-probabilities. If the row has a NaN, no class is the largest (-1), and all C rank
// before.
//
// ofsdp.MeasureValues(prediction, labels), equally many elements, attribute columns:
// float64[k, 2 x columns], which alternates prediction and label for each column.

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kClassFacts = 5;
constexpr int64_t kMeasuredGrain = 1 << 14;  // elements that are worth a thread

Result<std::vector<TensorDesc>> infer_classes(const InferContext& c) {
  const Shape& scores = c.inputs[0].shape;
  const int64_t classes = scores.rank() == 0 ? 0 : scores[scores.rank() - 1];
  const int64_t rows = c.inputs[1].numel();
  if (c.inputs[1].dtype != DType::kInt64 || classes < 1 || c.inputs[0].numel() != rows * classes) {
    return input_error("expected scores [..., C] and int64 labels [...], found {} and {}",
                       c.inputs[0].text(), c.inputs[1].text());
  }
  return std::vector{TensorDesc{DType::kFloat64, {rows, kClassFacts}}};
}

// Writes one row's five numbers.
void measure_row(const auto* scores, int64_t classes, int64_t label, int64_t likelihood,
                 double* facts) {
  int64_t largest = 0, before = 0;
  bool ordered = true;
  for (int64_t c = 0; c < classes; ++c) {
    if (scores[c] != scores[c]) ordered = false;
    if (scores[c] > scores[largest]) largest = c;
    if (scores[c] > scores[label] || (c < label && scores[c] == scores[label])) ++before;
  }
  facts[0] = static_cast<double>(label);
  facts[1] = ordered ? static_cast<double>(largest) : -1.0;
  facts[2] = static_cast<double>(ordered ? before : classes);
  facts[3] = 0;
  if (likelihood == 2) facts[3] = -static_cast<double>(scores[label]);
  if (likelihood == 1) {
    const auto most = static_cast<double>(scores[largest]);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(scores[c]) - most);
    facts[3] = std::log(sum) + (most - static_cast<double>(scores[label]));
  }
  facts[4] = classes < 2 ? 0 : static_cast<double>(scores[1]) - static_cast<double>(scores[0]);
}

void measure_classes(const auto* scores, const auto* labels, int64_t begin, int64_t end,
                     int64_t classes, const Attributes& attributes, double* facts) {
  const bool ignores = attributes.has("ignore_index");
  const int64_t ignore = attributes.i("ignore_index", 0);
  const int64_t likelihood = attributes.i("likelihood", 0);
  for (int64_t row = begin; row < end; ++row) {
    const auto label = static_cast<int64_t>(labels[row]);
    double* out = facts + row * kClassFacts;
    if ((ignores && label == ignore) || label < 0 || label >= classes) {
      std::fill_n(out, kClassFacts, 0.0);
      out[0] = -1;
    } else {
      measure_row(scores + row * classes, classes, label, likelihood, out);
    }
  }
}

std::vector<RefTensor> reference_of_classes(const ReferenceContext& c) {
  RefTensor facts = zeros(c.output_descs[0]);
  const Shape& scores = c.inputs[0].desc.shape;
  measure_classes(c.inputs[0].values.data(), c.inputs[1].values.data(), 0, facts.desc.shape[0],
                  scores[scores.rank() - 1], c.attributes, facts.values.data());
  return {facts};
}

Acceptance accepts_measured(const Problem& p) {
  if (p.in(0).dtype != DType::kFloat32)
    return Acceptance::refuse("a prediction that is not float32");
  return accept_if(p.all_plain(), "not the plain layout");
}

std::unique_ptr<Kernel> create_classes(const Problem& p) {
  const Shape& scores = p.in(0).shape;
  return make_kernel([rows = p.out(0).shape[0], classes = scores[scores.rank() - 1],
                      attributes = p.attributes](const KernelArgs& a) {
    parallel_for(rows, std::max<int64_t>(1, kMeasuredGrain / classes),
                 [&](int64_t begin, int64_t end) {
                   measure_classes(a.in<float>(0), a.in<int64_t>(1), begin, end, classes,
                                   attributes, a.out<double>(0));
                 });
  });
}

Result<std::vector<TensorDesc>> infer_values(const InferContext& c) {
  const int64_t columns = c.attributes.i("columns", 1);
  const int64_t count = c.inputs[0].numel();
  if (c.inputs[1].numel() != count || columns < 1 || count % columns != 0) {
    return input_error("expected as many labels as elements in whole rows of {}, found {} and {}",
                       columns, c.inputs[0].text(), c.inputs[1].text());
  }
  return std::vector{TensorDesc{DType::kFloat64, {count / columns, 2 * columns}}};
}

void measure_values(const auto* prediction, const auto* labels, int64_t count, double* facts) {
  for (int64_t i = 0; i < count; ++i) {
    facts[2 * i] = static_cast<double>(prediction[i]);
    facts[2 * i + 1] = static_cast<double>(labels[i]);
  }
}

std::vector<RefTensor> reference_of_values(const ReferenceContext& c) {
  RefTensor facts = zeros(c.output_descs[0]);
  measure_values(c.inputs[0].values.data(), c.inputs[1].values.data(), c.inputs[0].desc.numel(),
                 facts.values.data());
  return {facts};
}

Acceptance accepts_values(const Problem& p) {
  if (p.in(1).dtype != DType::kFloat32) return Acceptance::refuse("labels that are not float32");
  return accepts_measured(p);
}

std::unique_ptr<Kernel> create_values(const Problem& p) {
  return make_kernel([count = p.in(0).numel()](const KernelArgs& a) {
    measure_values(a.in<float>(0), a.in<float>(1), count, a.out<double>(0));
  });
}

}  // namespace

void add_measures(Registry& registry) {
  registry.add_own(make_op("MeasureClasses", {infer_classes, nullptr, reference_of_classes},
                           {{"loops", accepts_measured, create_classes}},
                           {.min_inputs = 2, .float32_only = true}));
  registry.add_own(make_op("MeasureValues", {infer_values, nullptr, reference_of_values},
                           {{"loops", accepts_values, create_values}},
                           {.min_inputs = 2, .float32_only = true}));
}

// ofsdp.ArgmaxMatches(prediction [k, C], labels [k]), attribute ignore_index: int64[2], how many
// kept rows have their first largest element at the label, and how many rows are kept: the numbers
// for an accuracy. A row with a NaN matches nothing. No gradient.

namespace argmax_matches {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& prediction = c.inputs[0];
  const TensorDesc& labels = c.inputs[1];
  if (prediction.shape.rank() != 2 || labels.dtype != DType::kInt64 ||
      labels.shape != Shape{prediction.shape[0]}) {
    return input_error("expected a prediction [k, C] and int64 labels [k], found {} and {}",
                       prediction.text(), labels.text());
  }
  return std::vector{TensorDesc{DType::kInt64, {2}}};
}

// Returns the index of the first largest element; -1 if there is a NaN or no element.
int64_t first_largest(const auto* row, int64_t classes) {
  int64_t best = classes > 0 ? 0 : -1;
  for (int64_t c = 0; c < classes; ++c) {
    if (row[c] != row[c]) return -1;
    if (row[c] > row[best]) best = c;
  }
  return best;
}

template <typename T, typename Label>
std::pair<int64_t, int64_t> count(const T* prediction, const Label* labels, const Shape& shape,
                                  const Attributes& attributes) {
  const bool ignores = attributes.has("ignore_index");
  const int64_t ignore = attributes.i("ignore_index", 0);
  int64_t matches = 0;
  int64_t kept = 0;
  for (int64_t row = 0; row < shape[0]; ++row) {
    const auto label = static_cast<int64_t>(labels[row]);
    if (ignores && label == ignore) continue;
    ++kept;
    if (first_largest(prediction + row * shape[1], shape[1]) == label) ++matches;
  }
  return {matches, kept};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto [matches, kept] = count(c.inputs[0].values.data(), c.inputs[1].values.data(),
                                     c.inputs[0].desc.shape, c.attributes);
  return {{c.output_descs[0], {static_cast<double>(matches), static_cast<double>(kept)}}};
}

Acceptance accepts(const Problem& p) {
  if (p.in(0).dtype != DType::kFloat32)
    return Acceptance::refuse("a prediction that is not float32");
  return accept_if(p.all_plain(), "not the plain layout");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([shape = p.in(0).shape, attributes = p.attributes](const KernelArgs& a) {
    const auto [matches, kept] = count(a.in<float>(0), a.in<int64_t>(1), shape, attributes);
    a.out<int64_t>(0)[0] = matches;
    a.out<int64_t>(0)[1] = kept;
  });
}

}  // namespace
}  // namespace argmax_matches

void add_argmax_matches(Registry& registry) {
  using namespace argmax_matches;
  registry.add_own(make_op("ArgmaxMatches", {infer, nullptr, reference},
                           {{"loops", accepts, create}}, {.min_inputs = 2, .float32_only = true}));
}

}  // namespace ofsdp::kernels::ops
