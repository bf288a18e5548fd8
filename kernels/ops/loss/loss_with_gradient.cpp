// Cross entropy and the gradient by what it is computed from, in one operator: by the scores, or by
// the operands of the product that makes the scores, in chunks of rows.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <type_traits>

#include "kernels/core/memory.h"
#include "kernels/core/planned_operands.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// ofsdp.SoftmaxCrossEntropyLossWithGradient(dloss, scores, labels, weights) returns both the loss
// that SoftmaxCrossEntropyLoss or ofsdp.NarrowCrossEntropyLoss computes, in float32, and d scores,
// for scores [N, C] in float32, bfloat16 or float16. Same attributes, except reduction none. It
// reads and writes each row once, with one exponential per class. importer/passes/joined_nodes.cpp
// makes it; class_loss.h has the formulas.

namespace loss_with_gradient {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc loss, infer_class_loss(c, 2, 3));
  if (c.inputs[1].shape.rank() != 2 || loss.shape.rank() != 0 || c.inputs[0].shape.rank() != 0) {
    return input_error("expected scores [N, C] and a scalar loss, found {}", c.inputs[1].text());
  }
  loss.dtype = DType::kFloat32;
  return std::vector{loss, c.inputs[1]};
}

// --- reference ---

std::vector<double> log_probabilities(const ClassLoss& l, std::vector<double> x) {
  for (auto row = x.begin(); row != x.end(); row += l.classes) {
    const double max = *std::max_element(row, row + l.classes);
    double sum = 0;
    for (int64_t c = 0; c < l.classes; ++c) sum += std::exp(row[c] - max);
    for (int64_t c = 0; c < l.classes; ++c) row[c] -= max + std::log(sum);
  }
  return x;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[1].desc.shape, c.attributes);
  const auto log_prob = log_probabilities(l, c.inputs[1].values);
  const std::vector<double>& labels = c.inputs[2].values;
  return {{c.output_descs[0], reference_class_loss(l, log_prob, labels, values_of(c, 3))},
          {c.output_descs[1],
           reference_class_loss_grad(l, c.inputs[0].values, log_prob, labels, values_of(c, 3))}};
}

// --- kernel ---

struct Exponentials {
  float max, sum;
};

// e[i] = e^(x[i] - max); returns max and sum. e may be x.
template <typename A>
[[gnu::always_inline]] inline Exponentials exponentials_by(const float* x, float* e, int64_t n) {
  constexpr int64_t kBlock = 1024;  // summed from the first-level cache
  Exponentials found{lane_max(x, n), 0};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) e[i] = vector_exp_flushed<A>(x[i] - found.max);
    found.sum += lane_sum(end - begin, [&](int64_t i) { return e[begin + i]; });
  }
  return found;
}
const auto exponentials =
    fastest_version<exponentials_by<SeparateMultiplyAdd>, exponentials_by<FusedMultiplyAdd>>();

OFSDP_MULTIARCH void scale_row(float* x, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

// Returns one label's loss; diff, which may be x, gets factor times the gradient.
double loss_row(const ClassLoss& l, const float* x, int64_t label, const float* weights,
                double factor, float* diff) {
  const ClassTargets t = class_targets(l, label, weights);
  double aimed = t.hit * static_cast<double>(x[label]);
  for (int64_t c = 0; t.spread != 0 && c < l.classes; ++c) {
    aimed += t.spread * weight_of(weights, c) * static_cast<double>(x[c]);
  }
  const auto [max, sum] = exponentials(x, diff, l.classes);
  scale_row(diff, static_cast<float>(factor * t.total / static_cast<double>(sum)), l.classes);
  for (int64_t c = 0; t.spread != 0 && c < l.classes; ++c) {
    diff[c] -= static_cast<float>(factor * t.spread * weight_of(weights, c));
  }
  diff[label] -= static_cast<float>(factor * t.hit);
  return t.total * (static_cast<double>(max) + std::log(static_cast<double>(sum))) - aimed;
}

// Labels are cut into parts, one thread each. A row of 16-bit floats is computed in float32, in the
// part's workspace row. No sum crosses parts, so the thread count does not change the bits.
struct RowParts {
  int64_t parts, wide_row;  // wide_row: floats per part

  template <typename T>
  static RowParts of(const ClassLoss& l) {
    const int64_t grain = 4096 / std::max<int64_t>(l.classes, 1) + 1;
    const int64_t parts = std::clamp<int64_t>(l.samples / grain, 1, pool_threads());
    return {parts, std::is_same_v<T, float> ? 0 : l.classes};
  }
  size_t workspace(const ClassLoss& l) const {
    return static_cast<size_t>(l.samples) * sizeof(double) +
           static_cast<size_t>(parts * wide_row) * sizeof(float);
  }
};

template <typename T>
double loss_row_of(const ClassLoss& l, const T* x, int64_t label, const float* weights,
                   double factor, float* wide, T* diff) {
  if constexpr (std::is_same_v<T, float>) {
    return loss_row(l, x, label, weights, factor, diff);
  } else {
    widen(dtype_of<T>(), x, wide, l.classes);
    const double loss = loss_row(l, wide, label, weights, factor, wide);
    narrow(wide, dtype_of<T>(), diff, l.classes);
    return loss;
  }
}

// A micro-batch's labels, and the numbers that all rows share.
template <typename T, typename Index>
struct LossOfRows {
  const ClassLoss& l;
  const Index* labels;
  const float* weights;
  double mean, factor;  // of a row's loss, of its gradient
  double* losses;       // [samples]

  LossOfRows(const ClassLoss& loss, const Index* given, const float* class_weights,
             float loss_weight, double* room)
      : l(loss),
        labels(given),
        weights(class_weights),
        mean(mean_scale(loss, given, class_weights)),
        factor(mean * static_cast<double>(loss_weight)),
        losses(room) {}

  // Rows first .. first + n - 1, which begin at x and diff; `wide`: the workspace of `rows`.
  void run(const RowParts& rows, int64_t first, int64_t n, const T* x, float* wide, T* diff) const {
    parallel_each(rows.parts, 1, [&](int64_t part) {
      float* const row = wide + part * rows.wide_row;
      const int64_t end = n * (part + 1) / rows.parts;
      for (int64_t i = n * part / rows.parts; i < end; ++i) {
        const int64_t label = labels[first + i], at = i * l.classes;
        const bool counts = mean != 0 && !l.ignored(label);
        if (!counts) std::fill_n(diff + at, l.classes, T{0});
        losses[first + i] =
            counts ? loss_row_of(l, x + at, label, weights, factor, row, diff + at) : 0.0;
      }
    });
  }

  // Returns the loss of the first n rows.
  float sum(int64_t n) const {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += losses[i];
    return static_cast<float>(sum * mean);
  }
};

template <typename T, typename Index>
std::unique_ptr<Kernel> create_of(const Problem& p) {
  const ClassLoss l = class_loss(p.in(1).shape, p.attributes);
  const RowParts rows = RowParts::of<T>(l);
  auto run = [l, rows, weighted = p.has_in(3)](const KernelArgs& a) -> Status {
    OFSDP_RETURN_IF_ERROR(check_labels(l, a.in<Index>(2)));
    auto* const losses = reinterpret_cast<double*>(a.workspace);
    const LossOfRows<T, Index> all(l, a.in<Index>(2), weighted ? a.in<float>(3) : nullptr,
                                   a.in<float>(0)[0], losses);
    all.run(rows, 0, l.samples, a.in<T>(1), reinterpret_cast<float*>(losses + l.samples),
            a.out<T>(1));
    *a.out<float>(0) = all.sum(l.samples);
    return ok_status();
  };
  return make_kernel(run, rows.workspace(l));
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_stored_float(p.in(1).dtype, [&](auto score) {
    return with_labels(p.in(2).dtype,
                       [&](auto label) { return create_of<decltype(score), decltype(label)>(p); });
  });
}

Acceptance accepts(const Problem& p) {
  if (!is_32_or_16_bit_float(p.in(1).dtype)) return Acceptance::refuse("scores of another type");
  if (p.in(1).shape.rank() != 2) return Acceptance::refuse("scores that are not [N, C]");
  return accepts_class_loss(p, 2, p.in(1).dtype);
}

}  // namespace
}  // namespace loss_with_gradient

// ofsdp.LinearCrossEntropy(dloss, X, W, labels, bias, weights, rows) -> loss, dX, dW, dbias: the
// loss of scores = X W' + bias, with the gradients by X, W and bias. Makes the scores of `chunk`
// rows at a time, their gradient in their place, and multiplies that: scores are never whole.
//
//   X       [N, K] in float32, bfloat16 or float16
//   W       [V, K] if transB = 1, else [K, V]; bias: V elements, or absent
//   dW      is float32 if wide_weights = 1
//   labels, weights, attributes   as above
//   rows    the kept rows (kernels/core/planned_operands.h), which X and labels have first; later
//           rows have ignored labels, zeros in dX and cost nothing. Absent: all rows are computed
//
// A gradient may be absent. The sums of dW and dbias over chunks are float32 and double, in row
// order, and are rounded once. One chunk has the bits of Gemm and
// ofsdp.SoftmaxCrossEntropyLossWithGradient, but for dW in 16 bits and dbias.
// importer/passes/joined_nodes.cpp makes it (chunk_losses).

namespace linear_cross_entropy {
namespace {

using loss_with_gradient::LossOfRows;
using loss_with_gradient::RowParts;

using namespace linear_loss;

TensorDesc scores_of(const Attributes& attributes, const TensorDesc& x, const TensorDesc& w,
                     int64_t rows) {
  return {x.dtype, {rows, w.shape[is_turned(attributes) ? 0 : 1]}};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc &x = c.inputs[kX], &w = c.inputs[kW];
  const int inner = is_turned(c.attributes) ? 1 : 0;
  if (x.shape.rank() != 2 || w.shape.rank() != 2 || x.dtype != w.dtype ||
      x.shape[1] != w.shape[inner]) {
    return input_error("X {} and W {} disagree", x.text(), w.text());
  }
  const TensorDesc scores = scores_of(c.attributes, x, w, x.shape[0]);
  const TensorDesc bias = c.has(kBias) ? c.inputs[kBias] : TensorDesc{};
  if (c.has(kBias) && (bias.dtype != x.dtype || bias.numel() != scores.shape[1])) {
    return input_error("expected a bias of {} {}, found {}", scores.shape[1], dtype_name(x.dtype),
                       bias.text());
  }
  if (c.has(kRows) && !are_kept_rows(c.inputs[kRows], x.shape[0])) {
    return input_error("expected int64 [N + 1], found {}", c.inputs[kRows].text());
  }
  if (c.attributes.i("chunk", 0) < 1) return input_error("attribute 'chunk': expected 1 or more");
  InferContext loss = c;
  loss.inputs = {scores, c.inputs[kLabels], {}};
  if (c.has(kClassWeights)) loss.inputs[2] = c.inputs[kClassWeights];
  OFSDP_ASSIGN_OR_RETURN(const TensorDesc made, infer_class_loss(loss, 1, 2));
  if (made.shape.rank() != 0) return input_error("attribute 'reduction': expected mean or sum");
  const bool wide = c.attributes.i("wide_weights", 0) != 0;
  const TensorDesc dw{wide ? DType::kFloat32 : w.dtype, w.shape};
  return std::vector{TensorDesc{DType::kFloat32, {}}, x, dw, bias};
}

// --- reference ---

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool turned = is_turned(c.attributes);
  const RefTensor &x = c.inputs[kX], &w = c.inputs[kW];
  const RefTensor* const bias = given(c.inputs, kBias);
  const bool biased = bias != nullptr;
  const int64_t n = x.desc.shape[0], k = x.desc.shape[1], v = w.desc.shape[turned ? 0 : 1];
  const auto at = [&](int64_t inner, int64_t column) {
    return turned ? column * k + inner : inner * v + column;
  };
  ReferenceContext loss = c;
  RefTensor scores = zeros({x.desc.dtype, {n, v}});
  for (int64_t i = 0; i < n * v; ++i) {
    scores[i] = biased ? (*bias)[i % v] : 0;
    for (int64_t j = 0; j < k; ++j) scores[i] += x[i / v * k + j] * w[at(j, i % v)];
  }
  loss.inputs = {c.inputs[kLossWeight], scores, c.inputs[kLabels]};
  if (given(c.inputs, kClassWeights) != nullptr) loss.inputs.push_back(c.inputs[kClassWeights]);
  loss.output_descs = {c.output_descs[kLoss], scores.desc};
  const std::vector<RefTensor> both = loss_with_gradient::reference(loss);
  const RefTensor& d = both[1];
  RefTensor dx = zeros(x.desc), dw = zeros(c.output_descs[kDW]), db;
  if (biased) db = zeros(bias->desc);
  for (int64_t i = 0; i < n * v; ++i) {
    if (biased) db[i % v] += d[i];
    for (int64_t j = 0; j < k; ++j) {
      dx[i / v * k + j] += d[i] * w[at(j, i % v)];
      dw[at(j, i % v)] += d[i] * x[i / v * k + j];
    }
  }
  return {both[0], dx, dw, db};
}

// --- kernel ---

// Products of n rows of X and of d scores.
MatrixProduct weight_product(const Problem& p, int64_t n, bool adds) {
  const TensorDesc scores = scores_of(p.attributes, p.in(kX), p.in(kW), n);
  const bool turned = is_turned(p.attributes);
  MatrixProduct made;
  made.rows = p.in(kW).shape[0];
  made.columns = p.in(kW).shape[1];
  made.inner = n;
  made.transpose_a = true;  // d scores' X, or X' d scores
  made.addend = adds ? MatrixProduct::Addend::kAccumulate : MatrixProduct::Addend::kNone;
  OFSDP_CHECK(scores.shape[1] == (turned ? made.rows : made.columns), "W {}", p.in(kW).text());
  return made;
}

Problem gemm_problem(const Problem& p, const TensorDesc& a, bool turned, bool biased,
                     const TensorDesc& y) {
  Problem made{.attributes = {{"transB", int64_t{turned}}},
               .inputs = {a, p.in(kW)},
               .outputs = {y},
               .constants = {},
               .node_seed = p.node_seed,
               .threads = p.threads};
  if (biased) made.inputs.push_back(p.in(kBias));
  return made;
}

TensorDesc x_rows(const Problem& p, int64_t n) { return {p.in(kX).dtype, {n, p.in(kX).shape[1]}}; }

Problem scores_problem(const Problem& p, int64_t n) {
  return gemm_problem(p, x_rows(p, n), is_turned(p.attributes), p.has_in(kBias),
                      scores_of(p.attributes, p.in(kX), p.in(kW), n));
}

Problem input_problem(const Problem& p, int64_t n) {
  return gemm_problem(p, scores_of(p.attributes, p.in(kX), p.in(kW), n), !is_turned(p.attributes),
                      false, x_rows(p, n));
}

int64_t chunk_of(const Problem& p) {
  return std::min(p.attributes.i("chunk", 1), p.in(kX).shape[0]);
}

// Returns every number of rows that a chunk may compute.
std::vector<int64_t> chunk_sizes(const Problem& p) {
  const int64_t n = p.in(kX).shape[0], chunk = chunk_of(p);
  std::vector<int64_t> sizes;
  for (const int64_t whole : {chunk, n % chunk}) {
    if (whole == 0) continue;
    for (size_t size = p.has_in(kRows) ? 0 : kRowSixteenths.size() - 1;
         size < kRowSixteenths.size(); ++size) {
      sizes.push_back(rows_of_size(size, whole));
    }
  }
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  return sizes;
}

// Adds rows of d, [rows, classes], to sums.
template <typename T>
OFSDP_MULTIARCH void add_rows(const T* d, int64_t rows, int64_t classes, int64_t begin, int64_t end,
                              double* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* const row = d + i * classes;
    for (int64_t c = begin; c < end; ++c) sums[c] += static_cast<double>(as_float(row[c]));
  }
}

template <typename T>
void add_all_rows(const T* d, int64_t rows, int64_t classes, double* sums) {
  parallel_for(classes, 1024,
               [&](int64_t begin, int64_t end) { add_rows(d, rows, classes, begin, end, sums); });
}

template <typename T, typename Index>
class LinearLoss final : public Kernel {
 public:
  LinearLoss(const OpDef& gemm, const Problem& p)
      : loss_(
            class_loss({p.in(kX).shape[0], scores_of(p.attributes, p.in(kX), p.in(kW), 0).shape[1]},
                       p.attributes)),
        x_(p.in(kX)),
        w_(p.in(kW)),
        chunk_(chunk_of(p)),
        turned_(is_turned(p.attributes)),
        has_rows_(p.has_in(kRows)),
        has_bias_(p.has_in(kBias)),
        has_weights_(p.has_in(kClassWeights)),
        wide_(p.has_out(kDW) && p.out(kDW).dtype == DType::kFloat32),
        wants_(p.outputs.size()) {
    for (size_t i = 0; i < wants_.size(); ++i) wants_[i] = p.has_out(i);
    for (const int64_t n : chunk_sizes(p)) add_part(gemm, p, n);
    lay_out();
  }

  size_t workspace_bytes() const override { return end_; }

  Status run(const KernelArgs& a) override {
    const auto* labels = a.in<Index>(kLabels);
    OFSDP_RETURN_IF_ERROR(check_labels(loss_, labels));
    const LossOfRows<T, Index> all(loss_, labels,
                                   has_weights_ ? a.in<float>(kClassWeights) : nullptr,
                                   a.in<float>(kLossWeight)[0], at<double>(a, losses_));
    const int64_t kept = has_rows_ ? kept_of(a.in<int64_t>(kRows), loss_.samples) : loss_.samples;
    if (wants(kDBias)) std::fill_n(at<double>(a, sums_), loss_.classes, 0.0);
    if (wants(kDW) && kept == 0) std::memset(weight_sums(a), 0, wide_bytes());
    int64_t done = 0;
    while (done < kept) {
      const int64_t whole = std::min(chunk_, loss_.samples - done);
      const int64_t n = has_rows_ ? rounded_rows(std::min(whole, kept - done), whole) : whole;
      OFSDP_RETURN_IF_ERROR(run_chunk(a, all, done, parts_.at(n)));
      done += n;
      if (n < whole) break;
    }
    *a.out<float>(kLoss) = all.sum(done);
    finish(a, done);
    return ok_status();
  }

 private:
  // The kernels of a chunk of `rows` rows.
  struct Part {
    int64_t rows = 0;
    RowParts loss{};
    std::unique_ptr<Kernel> scores, input, first, next;  // null: not wanted
  };

  bool wants(Out output) const { return output < wants_.size() && wants_[output]; }

  template <typename U>
  static U* at(const KernelArgs& a, size_t offset) {
    return reinterpret_cast<U*>(a.workspace + offset);
  }

  size_t wide_bytes() const { return static_cast<size_t>(w_.numel()) * sizeof(float); }

  // dW's sums in float32: dW itself, unless it has 16 bits.
  float* weight_sums(const KernelArgs& a) const {
    if constexpr (std::is_same_v<T, float>) return a.out<float>(kDW);
    return wide_ ? a.out<float>(kDW) : at<float>(a, wide_weights_);
  }

  void add_part(const OpDef& gemm, const Problem& p, int64_t n) {
    const auto made = [&](const Problem& problem) {
      Result<std::unique_ptr<Kernel>> kernel = create_kernel(gemm, problem);
      OFSDP_CHECK(kernel.ok(), "{}", kernel.error().message());
      return *std::move(kernel);
    };
    Part part;
    part.rows = n;
    ClassLoss chunk = loss_;
    chunk.samples = n;
    part.loss = RowParts::of<T>(chunk);
    part.scores = made(scores_problem(p, n));
    if (wants(kDX)) part.input = made(input_problem(p, n));
    if (wants(kDW)) {
      part.first = make_matrix_product(weight_product(p, n, false));
      part.next = make_matrix_product(weight_product(p, n, true));
    }
    for (const auto* kernel : {&part.scores, &part.input, &part.first, &part.next}) {
      if (*kernel != nullptr) work_bytes_ = std::max(work_bytes_, (*kernel)->workspace_bytes());
    }
    wide_rows_ = std::max(wide_rows_, part.loss.parts * part.loss.wide_row);
    parts_.emplace(n, std::move(part));
  }

  // The workspace: offsets of what a chunk makes and of the sums.
  void lay_out() {
    const bool narrow = !std::is_same_v<T, float>;
    const auto take = [&](int64_t elements, size_t size) {
      const size_t offset = end_;
      end_ += align_up(static_cast<size_t>(elements) * size, kTensorAlignment);
      return offset;
    };
    scores_ = take(chunk_ * loss_.classes, sizeof(T));
    losses_ = take(loss_.samples, sizeof(double));
    wide_row_ = take(wide_rows_, sizeof(float));
    if (wants(kDBias)) sums_ = take(loss_.classes, sizeof(double));
    if (wants(kDW) && narrow) {
      if (!wide_) wide_weights_ = take(w_.numel(), sizeof(float));
      wide_scores_ = take(chunk_ * loss_.classes, sizeof(float));
      wide_x_ = take(chunk_ * x_.shape[1], sizeof(float));
    }
    work_ = take(static_cast<int64_t>(work_bytes_), 1);
  }

  Status run_chunk(const KernelArgs& a, const LossOfRows<T, Index>& all, int64_t first,
                   const Part& part) {
    const int64_t from = first * x_.shape[1];
    T* const scores = at<T>(a, scores_);
    const TensorView x{a.inputs[kX].data + static_cast<size_t>(from) * sizeof(T),
                       {x_.dtype, {part.rows, x_.shape[1]}}};
    const TensorView made{a.workspace + scores_, {x_.dtype, {part.rows, loss_.classes}}};
    OFSDP_RETURN_IF_ERROR(call(a, *part.scores,
                               {x, a.inputs[kW], has_bias_ ? a.inputs[kBias] : TensorView{}},
                               has_bias_ ? 3 : 2, made));
    all.run(part.loss, first, part.rows, scores, at<float>(a, wide_row_), scores);
    if (wants(kDBias)) add_all_rows(scores, part.rows, loss_.classes, at<double>(a, sums_));
    if (wants(kDW)) {
      OFSDP_RETURN_IF_ERROR(add_to_weights(a, first == 0 ? *part.first : *part.next, x, made));
    }
    if (!wants(kDX)) return ok_status();
    const TensorView dx{reinterpret_cast<std::byte*>(a.out<T>(kDX) + from), x.desc};
    return call(a, *part.input, {made, a.inputs[kW], {}}, 2, dx);
  }

  Status call(const KernelArgs& a, Kernel& kernel, const std::array<TensorView, 3>& inputs,
              size_t count, const TensorView& output) {
    return kernel.run({.inputs = std::span(inputs).first(count),
                       .outputs = std::span(&output, 1),
                       .workspace = a.workspace + work_,
                       .step = a.step});
  }

  Status add_to_weights(const KernelArgs& a, Kernel& kernel, TensorView x, TensorView d) {
    if constexpr (!std::is_same_v<T, float>) {
      const auto widened = [&](TensorView& from, size_t offset) {
        widen(from.desc.dtype, from.data, at<float>(a, offset), from.desc.numel());
        from = {a.workspace + offset, {DType::kFloat32, from.desc.shape}};
      };
      widened(x, wide_x_);
      widened(d, wide_scores_);
    }
    const TensorView sums{reinterpret_cast<std::byte*>(weight_sums(a)),
                          {DType::kFloat32, w_.shape}};
    return call(a, kernel, {turned_ ? d : x, turned_ ? x : d, {}}, 2, sums);
  }

  // Rounds the sums, and clears dX after the last row that was computed.
  void finish(const KernelArgs& a, int64_t done) const {
    if (wants(kDW) && !wide_ && !std::is_same_v<T, float>) {
      narrow(weight_sums(a), w_.dtype, a.outputs[kDW].data, w_.numel());
    }
    const double* const sums = at<double>(a, sums_);
    for (int64_t c = 0; wants(kDBias) && c < loss_.classes; ++c) {
      const auto sum = static_cast<float>(sums[c]);
      if constexpr (std::is_same_v<T, float>) a.out<T>(kDBias)[c] = sum;
      if constexpr (!std::is_same_v<T, float>) narrow(&sum, x_.dtype, a.out<T>(kDBias) + c, 1);
    }
    if (!wants(kDX)) return;
    const int64_t from = done * x_.shape[1];
    std::memset(a.out<T>(kDX) + from, 0, static_cast<size_t>(x_.numel() - from) * sizeof(T));
  }

  ClassLoss loss_;
  TensorDesc x_, w_;
  int64_t chunk_;
  bool turned_, has_rows_, has_bias_, has_weights_;
  bool wide_;  // dW is float32
  std::vector<bool> wants_;
  std::map<int64_t, Part> parts_;  // by the number of rows
  int64_t wide_rows_ = 0;
  size_t work_bytes_ = 0;
  size_t scores_ = 0, losses_ = 0, wide_row_ = 0, sums_ = 0, wide_weights_ = 0, wide_scores_ = 0,
         wide_x_ = 0, work_ = 0, end_ = 0;
};

Acceptance accepts_with(const OpDef& gemm, const Problem& p) {
  if (!is_32_or_16_bit_float(p.in(kX).dtype)) return Acceptance::refuse("X of another type");
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  if (p.in(kX).numel() == 0 || p.in(kW).numel() == 0) return Acceptance::refuse("nothing to do");
  const auto takes = [&](const Problem& part) {
    return std::ranges::any_of(
        gemm.cpu, [&](const Implementation& one) { return static_cast<bool>(one.accepts(part)); });
  };
  for (const int64_t n : chunk_sizes(p)) {
    const bool multiplies = takes(scores_problem(p, n)) && takes(input_problem(p, n)) &&
                            library_accepts(weight_product(p, n, false)) &&
                            library_accepts(weight_product(p, n, true));
    if (!multiplies) return Acceptance::refuse("no kernel for one of the products");
  }
  return true;
}

std::unique_ptr<Kernel> create_with(const OpDef& gemm, const Problem& p) {
  return with_stored_float(p.in(kX).dtype, [&](auto score) {
    return with_labels(p.in(kLabels).dtype, [&](auto label) -> std::unique_ptr<Kernel> {
      return std::make_unique<LinearLoss<decltype(score), decltype(label)>>(gemm, p);
    });
  });
}

}  // namespace
}  // namespace linear_cross_entropy

void add_loss_with_gradient(Registry& registry) {
  {
    using namespace loss_with_gradient;
    registry.add_own(make_op("SoftmaxCrossEntropyLossWithGradient", {infer, nullptr, reference},
                             {{"rows", accepts, create}},
                             {.min_inputs = 3, .inplace_inputs = {1}, .inplace_output = 1}));
  }
  using namespace linear_cross_entropy;
  const auto gemm = std::make_shared<const OpDef>(registry.get("Gemm"));
  const auto accepts = [gemm](const Problem& p) { return accepts_with(*gemm, p); };
  const auto create = [gemm](const Problem& p) { return create_with(*gemm, p); };
  registry.add_own(make_op("LinearCrossEntropy", {infer, nullptr, reference},
                           {{"chunks", accepts, create}},
                           {.min_inputs = 4, .inplace_inputs = {1}, .inplace_output = 1}));
}

}  // namespace ofsdp::kernels::ops
