// A contrastive loss between row pairs, with every other row as a negative (InfoNCE in both
// directions: Radford et al., "Learning Transferable Visual Models From Natural Language
// Supervision", 2021). All operands are float32.
//
// ofsdp.UnitRows(x [rows, width]) divides each row by max(2-norm, 1e-12), as
// torch.nn.functional.normalize does. ofsdp.UnitRowsGrad(du, x): dx = (du - u (u . du)) / norm, or
// du / 1e-12 below that norm.
//
// ofsdp.ContrastiveLoss(a, b, joined a, joined b) -> loss, statistics [rows, 2]. Attributes:
// temperature T and ofsdp.JoinRows' attributes. a and b are this rank's rows; row i of a pairs with
// row i of b. The joined inputs hold all ranks' rows (if absent: a and b themselves). With S_ij =
// a_i . b_j / T over all rows, the statistics are r_i = ln sum_j e^S_ij and c_j = ln sum_i e^S_ij,
// and the loss is the mean of (r_i + c_i) / 2 - S_ii over this rank's rows.
//
// The gradient is that of all ranks' losses together. ofsdp.ContrastiveTerms(dloss, statistics) ->
// [rows, 3] holds the terms that other ranks need: r, c, and g = dloss / rows. Then
// ofsdp.ContrastiveLossGrad(a, b, terms, joined a, joined b, joined terms) returns, with d_ij = 1
// if i = j and else 0,
//
//   da_i = sum_j (g_i (e^(S_ij - r_i) - d_ij) + g_j (e^(S_ij - c_j) - d_ij)) b_j / 2T
//   db_i = sum_j (g_i (e^(S_ji - c_i) - d_ij) + g_j (e^(S_ji - r_j) - d_ij)) a_j / 2T
//
// The workspace holds this rank's logits, one side after the other. Each row is computed by one
// thread, so the thread count does not change the bits.
#include <algorithm>
#include <cmath>

#include "kernels/core/planned_operands.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace contrastive_loss {
namespace {

constexpr double kMinNorm = 1e-12;

double temperature_of(const Attributes& attributes) {
  return static_cast<double>(attributes.f("temperature", 0.07f));
}

// --- infer ---

Status pairs_of_rows(const TensorDesc& a, const TensorDesc& b) {
  const bool fits = a.dtype == DType::kFloat32 && a.shape.rank() == 2 && a == b;
  if (fits) return ok_status();
  return input_error("expected two alike float32 [rows, width], found {} and {}", a.text(),
                     b.text());
}

Result<std::vector<TensorDesc>> infer_unit(const InferContext& c) {
  if (c.inputs[0].shape.rank() == 2) return std::vector{c.inputs[0]};
  return input_error("expected [rows, width], found {}", c.inputs[0].text());
}

Result<std::vector<TensorDesc>> infer_loss(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(pairs_of_rows(c.inputs[0], c.inputs[1]));
  return std::vector{TensorDesc{DType::kFloat32, {}},
                     TensorDesc{DType::kFloat32, Shape{c.inputs[0].shape[0], 2}}};
}

Result<std::vector<TensorDesc>> infer_terms(const InferContext& c) {
  return std::vector{TensorDesc{DType::kFloat32, Shape{c.inputs[1].shape[0], 3}}};
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(pairs_of_rows(c.inputs[0], c.inputs[1]));
  return std::vector{c.inputs[0], c.inputs[1]};
}

// --- gradients ---

void unit_rows_grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.UnitRowsGrad", {b.grad_output(0), b.input(0)}));
}

void loss_grad(GradBuilder& b) {
  const Ref terms = b.emit1("ofsdp.ContrastiveTerms", {b.grad_output(0), b.output(1)});
  std::vector<Ref> inputs{b.input(0), b.input(1), terms};
  Attributes join;
  for (const char* name : {"ranks", "rank", "most"}) {
    if (b.attributes().has(name)) join.set(name, b.attributes().i(name, 0));
  }
  if (b.num_inputs() > 2) {
    const Ref joined = b.emit1("ofsdp.JoinRows", {terms}, join);
    inputs.insert(inputs.end(), {b.input(2), b.input(3), joined});
  }
  join.set("temperature", b.attributes().f("temperature", 0.07f));
  const auto made = b.emit("ofsdp.ContrastiveLossGrad", inputs, join, 2);
  b.set_grad(0, made[0]);
  b.set_grad(1, made[1]);
}

// --- references ---

std::vector<RefTensor> unit_reference(const ReferenceContext& c) {
  RefTensor u{c.output_descs[0], c.inputs[0].values};
  const int64_t width = u.desc.shape[1];
  for (int64_t i = 0; i < u.desc.shape[0]; ++i) {
    double squares = 0;
    for (int64_t k = 0; k < width; ++k) squares += u[i * width + k] * u[i * width + k];
    const double norm = std::max(std::sqrt(squares), kMinNorm);
    for (int64_t k = 0; k < width; ++k) u[i * width + k] /= norm;
  }
  return {u};
}

std::vector<RefTensor> unit_grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], c.inputs[0].values};
  const RefTensor& x = c.inputs[1];
  const int64_t width = dx.desc.shape[1];
  for (int64_t i = 0; i < dx.desc.shape[0]; ++i) {
    double squares = 0, dot = 0;
    for (int64_t k = i * width; k < (i + 1) * width; ++k) {
      squares += x[k] * x[k];
      dot += x[k] * dx[k];
    }
    const double norm = std::sqrt(squares);
    for (int64_t k = i * width; k < (i + 1) * width; ++k) {
      dx[k] = norm > kMinNorm ? (dx[k] - x[k] * dot / squares) / norm : dx[k] / kMinNorm;
    }
  }
  return {dx};
}

using Rows = std::vector<std::vector<double>>;

// All ranks' rows, and where this rank's begin.
struct ReferenceRows {
  Rows rows;
  size_t first = 0;
};

ReferenceRows all_rows(const ReferenceContext& c, size_t own, size_t joined) {
  const RefTensor& mine = c.inputs[own];
  const int64_t width = mine.desc.shape[1];
  ReferenceRows all;
  const auto add = [&](const RefTensor& from, int64_t at, int64_t count) {
    for (int64_t i = 0; i < count; ++i, at += width) {
      all.rows.emplace_back(from.values.begin() + at, from.values.begin() + at + width);
    }
  };
  const RefTensor* others = given(c.inputs, joined);
  if (others == nullptr) {
    add(mine, 0, mine.desc.shape[0]);
    return all;
  }
  const int64_t part = others->desc.shape[1];
  for (int64_t r = 0; r < others->desc.shape[0]; ++r) {
    if (r == c.attributes.i("rank", 0)) all.first = all.rows.size();
    add(*others, r * part + JoinedRows::kHeader, static_cast<int64_t>((*others)[r * part]));
  }
  return all;
}

double reference_dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

Rows own_rows(const ReferenceContext& c, size_t input) {
  return all_rows(c, input, c.inputs.size()).rows;
}

std::vector<RefTensor> loss_reference(const ReferenceContext& c) {
  const double t = temperature_of(c.attributes);
  const Rows a = own_rows(c, 0), b = own_rows(c, 1);
  const ReferenceRows all_a = all_rows(c, 0, 2), all_b = all_rows(c, 1, 3);
  const auto log_sum = [t](const std::vector<double>& row, const Rows& others) {
    double sum = 0;
    for (const auto& other : others) sum += std::exp(reference_dot(row, other) / t);
    return std::log(sum);
  };
  RefTensor loss{{DType::kFloat32, {}}, {0}};
  RefTensor statistics = zeros({DType::kFloat32, Shape{static_cast<int64_t>(a.size()), 2}});
  for (size_t i = 0; i < a.size(); ++i) {
    const double r = log_sum(a[i], all_b.rows), k = log_sum(b[i], all_a.rows);
    statistics.values[2 * i] = r;
    statistics.values[2 * i + 1] = k;
    loss.values[0] += ((r + k) / 2 - reference_dot(a[i], b[i]) / t) / static_cast<double>(a.size());
  }
  std::vector<RefTensor> out{loss, statistics};
  out.resize(c.output_descs.size());
  return out;
}

std::vector<RefTensor> terms_reference(const ReferenceContext& c) {
  RefTensor terms = zeros(c.output_descs[0]);
  const int64_t rows = terms.desc.shape[0];
  for (int64_t i = 0; i < rows; ++i) {
    terms[3 * i] = c.inputs[1][2 * i];
    terms[3 * i + 1] = c.inputs[1][2 * i + 1];
    terms[3 * i + 2] = c.inputs[0][0] / static_cast<double>(rows);
  }
  return {terms};
}

// `own_sum` is the index of the term that is the logarithm over `other`'s rows.
RefTensor side_reference(const ReferenceContext& c, const Rows& own, const ReferenceRows& other,
                         size_t own_sum) {
  const double t = temperature_of(c.attributes);
  const Rows terms = own_rows(c, 2);
  const ReferenceRows all_terms = all_rows(c, 2, 5);
  RefTensor d = zeros(c.output_descs[0]);
  for (size_t i = 0; i < own.size(); ++i) {
    for (size_t j = 0; j < other.rows.size(); ++j) {
      const auto& theirs = all_terms.rows[j];
      const double s = reference_dot(own[i], other.rows[j]) / t, same = j == other.first + i;
      const double weight = terms[i][2] * (std::exp(s - terms[i][own_sum]) - same) +
                            theirs[2] * (std::exp(s - theirs[1 - own_sum]) - same);
      for (size_t k = 0; k < own[i].size(); ++k) {
        d.values[i * own[i].size() + k] += weight * other.rows[j][k] / (2 * t);
      }
    }
  }
  return d;
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return {side_reference(c, own_rows(c, 0), all_rows(c, 1, 4), 0),
          side_reference(c, own_rows(c, 1), all_rows(c, 0, 3), 1)};
}

// --- kernels ---

OFSDP_MULTIARCH float row_dot(const float* a, const float* b, int64_t n) {
  return lane_sum(n, [=](int64_t i) { return a[i] * b[i]; });
}

int64_t row_grain(int64_t width) { return 4096 / std::max<int64_t>(width, 1) + 1; }

std::unique_ptr<Kernel> create_unit(const Problem& p) {
  const int64_t rows = p.in(0).shape[0], width = p.in(0).shape[1];
  return make_kernel([=](const KernelArgs& a) {
    parallel_each(rows, row_grain(width), [&](int64_t i) {
      const float* const x = a.in<float>(0) + i * width;
      float* const u = a.out<float>(0) + i * width;
      const float norm = std::max(std::sqrt(row_dot(x, x, width)), static_cast<float>(kMinNorm));
      for (int64_t k = 0; k < width; ++k) u[k] = x[k] / norm;
    });
  });
}

std::unique_ptr<Kernel> create_unit_grad(const Problem& p) {
  const int64_t rows = p.in(0).shape[0], width = p.in(0).shape[1];
  return make_kernel([=](const KernelArgs& a) {
    parallel_each(rows, row_grain(width), [&](int64_t i) {
      const float *const du = a.in<float>(0) + i * width, *const x = a.in<float>(1) + i * width;
      float* const dx = a.out<float>(0) + i * width;
      const float squares = row_dot(x, x, width), norm = std::sqrt(squares);
      const bool divides = norm > static_cast<float>(kMinNorm);
      const float along = divides ? row_dot(x, du, width) / squares : 0.0f;
      const float inverse = 1.0f / (divides ? norm : static_cast<float>(kMinNorm));
      for (int64_t k = 0; k < width; ++k) dx[k] = (du[k] - x[k] * along) * inverse;
    });
  });
}

// All ranks' rows, in adjacent blocks; `own` are this rank's.
class RowBlocks {
 public:
  RowBlocks(const float* own, int64_t rows, int64_t width)
      : joined_(own, Shape{1, 0}, 0, width), own_(own), rows_(rows), alone_(true) {}
  explicit RowBlocks(const JoinedRows& joined) : joined_(joined) {}

  // Calls f(first, rows, count) for each block; `first` counts from the first row of rank 0.
  void each(const auto& f) const {
    if (alone_ && rows_ > 0) f(int64_t{0}, own_, rows_);
    if (alone_) return;
    int64_t first = 0;
    for (int64_t r = 0; r < joined_.ranks(); ++r) {
      const int64_t count = joined_.rows(r);
      if (count > 0) f(first, joined_.row(r), count);
      first += count;
    }
  }
  int64_t rows() const { return alone_ ? rows_ : joined_.rows(); }
  int64_t first_of(int64_t rank) const {
    int64_t first = 0;
    for (int64_t r = 0; !alone_ && r < rank; ++r) first += joined_.rows(r);
    return first;
  }

 private:
  JoinedRows joined_;
  const float* own_ = nullptr;
  int64_t rows_ = 0;
  bool alone_ = false;
};

struct Pairs {
  int64_t rows, width, most;  // most: rows per rank
  int64_t all;                // most rows over all ranks
  int64_t rank;
  float inverse_temperature;
  Shape joined, joined_terms;  // rank 0 if absent

  static Pairs of(const Problem& p, size_t joined, size_t joined_terms) {
    const int64_t rows = p.in(0).shape[0];
    Pairs made{.rows = rows,
               .width = p.in(0).shape[1],
               .most = p.attributes.i("most", rows),
               .all = rows,
               .rank = p.attributes.i("rank", 0),
               .inverse_temperature = static_cast<float>(1 / temperature_of(p.attributes)),
               .joined = {},
               .joined_terms = {}};
    if (!p.has_in(joined)) return made;
    made.joined = p.in(joined).shape;
    if (p.has_in(joined_terms)) made.joined_terms = p.in(joined_terms).shape;
    made.all = made.joined[0] * made.most;
    return made;
  }
  size_t workspace() const { return static_cast<size_t>(rows * all) * sizeof(float); }

  RowBlocks blocks(const KernelArgs& a, size_t own, size_t other) const {
    if (joined.rank() == 0) return {a.in<float>(own), rows, width};
    return RowBlocks(JoinedRows(a.in<float>(other), joined, most, width));
  }
  RowBlocks terms(const KernelArgs& a, size_t own, size_t other) const {
    if (joined.rank() == 0) return {a.in<float>(own), rows, 3};
    return RowBlocks(JoinedRows(a.in<float>(other), joined_terms, most, 3));
  }

  // logits[i, j] = own row i . row j / T.
  void logits(const float* own, const RowBlocks& others, float* out) const {
    others.each([&](int64_t first, const float* block, int64_t count) {
      blas_product_by_parts({rows, width, count}, inverse_temperature, {own, width, false},
                            {block, width, true}, false, out + first, all);
    });
  }
};

OFSDP_MULTIARCH float log_sum_exp(const float* x, int64_t n) {
  const float most = lane_max(x, n);
  return most + std::log(lane_sum(n, [=](int64_t i) { return vector_exp(x[i] - most); }));
}

double mean_of(const float* losses, int64_t rows) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) sum += static_cast<double>(losses[i]);
  return rows == 0 ? 0 : sum / static_cast<double>(rows);
}

Acceptance accepts_product(const Problem& p) {
  return accept_with_blas(accepts_plain_of<float>(p));
}

std::unique_ptr<Kernel> create_loss(const Problem& p) {
  const Pairs pairs = Pairs::of(p, 2, 3);
  const bool keeps = p.has_out(1);
  const auto count = static_cast<size_t>(pairs.rows);
  const auto run = [=](const KernelArgs& a) {
    float* const losses = reinterpret_cast<float*>(a.workspace);
    float* const logits = losses + pairs.rows;
    const float *const own_a = a.in<float>(0), *const own_b = a.in<float>(1);
    const auto side = [&](const float* own, const RowBlocks& others, int64_t k) {
      pairs.logits(own, others, logits);
      const int64_t n = others.rows();
      parallel_each(pairs.rows, row_grain(n), [&](int64_t i) {
        const float sum = log_sum_exp(logits + i * pairs.all, n);
        if (keeps) a.out<float>(1)[2 * i + k] = sum;
        losses[i] += sum / 2;
      });
    };
    for (int64_t i = 0; i < pairs.rows; ++i) {
      const int64_t at = i * pairs.width;
      losses[i] = -row_dot(own_a + at, own_b + at, pairs.width) * pairs.inverse_temperature;
    }
    side(own_a, pairs.blocks(a, 1, 3), 0);
    side(own_b, pairs.blocks(a, 0, 2), 1);
    *a.out<float>(0) = static_cast<float>(mean_of(losses, pairs.rows));
  };
  return make_kernel(run, count * sizeof(float) + pairs.workspace());
}

std::unique_ptr<Kernel> create_terms(const Problem& p) {
  return make_kernel([rows = p.in(1).shape[0]](const KernelArgs& a) {
    const float share = *a.in<float>(0) / static_cast<float>(std::max<int64_t>(rows, 1));
    for (int64_t i = 0; i < rows; ++i) {
      float* const terms = a.out<float>(0) + 3 * i;
      terms[0] = a.in<float>(1)[2 * i];
      terms[1] = a.in<float>(1)[2 * i + 1];
      terms[2] = share;
    }
  });
}

// Replaces the logits by weights[j] = g e^(logits[j] - sum) + g_j e^(logits[j] - sum_j); row j's
// terms lie at theirs + 3 j.
OFSDP_MULTIARCH void weigh(float* row, float g, float sum, const float* theirs, int64_t other_sum,
                           int64_t n) {
#pragma GCC ivdep
  for (int64_t j = 0; j < n; ++j) {
    const float own = g * vector_exp(row[j] - sum);
    row[j] = own + theirs[3 * j + 2] * vector_exp(row[j] - theirs[3 * j + other_sum]);
  }
}

std::unique_ptr<Kernel> create_loss_grad(const Problem& p) {
  const Pairs pairs = Pairs::of(p, 3, 5);
  const auto run = [=](const KernelArgs& a) {
    float* const weights = reinterpret_cast<float*>(a.workspace);
    const RowBlocks terms = pairs.terms(a, 2, 5);
    const int64_t first_own = terms.first_of(pairs.rank);
    const auto side = [&](const float* own, const RowBlocks& others, int64_t own_sum, float* d) {
      pairs.logits(own, others, weights);
      terms.each([&](int64_t first, const float* theirs, int64_t count) {
        parallel_each(pairs.rows, row_grain(count), [&](int64_t i) {
          const float* const mine = a.in<float>(2) + 3 * i;
          weigh(weights + i * pairs.all + first, mine[2], mine[own_sum], theirs, 1 - own_sum,
                count);
        });
      });
      for (int64_t i = 0; i < pairs.rows; ++i) {
        const int64_t same = std::min(first_own + i, pairs.all - 1);
        weights[i * pairs.all + same] -= 2 * a.in<float>(2)[3 * i + 2];
      }
      std::fill_n(d, pairs.rows * pairs.width, 0.0f);
      others.each([&](int64_t first, const float* block, int64_t count) {
        blas_product_by_parts({pairs.rows, count, pairs.width}, pairs.inverse_temperature / 2,
                              {weights + first, pairs.all, false}, {block, pairs.width, false},
                              true, d, pairs.width);
      });
    };
    side(a.in<float>(0), pairs.blocks(a, 1, 4), 0, a.out<float>(0));
    side(a.in<float>(1), pairs.blocks(a, 0, 3), 1, a.out<float>(1));
  };
  return make_kernel(run, pairs.workspace());
}

}  // namespace
}  // namespace contrastive_loss

void add_contrastive_loss(Registry& registry) {
  using namespace contrastive_loss;
  const auto add = [&registry](const char* name, const OpFunctions& functions,
                               std::unique_ptr<Kernel> (*create)(const Problem&), int inputs,
                               Acceptance (*accepts)(const Problem&) = accepts_plain_of<float>) {
    registry.add_own(make_op(name, functions, {{"loops", accepts, create}},
                             {.min_inputs = inputs, .float32_only = true}));
  };
  add("UnitRows", {infer_unit, unit_rows_grad, unit_reference}, create_unit, 1);
  add("UnitRowsGrad", {infer_like_inputs({1}), nullptr, unit_grad_reference}, create_unit_grad, 2);
  add("ContrastiveLoss", {infer_loss, loss_grad, loss_reference}, create_loss, 2, accepts_product);
  add("ContrastiveTerms", {infer_terms, nullptr, terms_reference}, create_terms, 2);
  add("ContrastiveLossGrad", {infer_grad, nullptr, grad_reference}, create_loss_grad, 3,
      accepts_product);
}

}  // namespace ofsdp::kernels::ops
