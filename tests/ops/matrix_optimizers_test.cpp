// Optimizers of whole matrices: Adafactor as in torch.optim, Muon's orthogonal matrices against a
// plain loop in double.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/core/optimizer.h"
#include "kernels/optimizers/parameter_updates.h"
#include "runtime/engine/orthogonal_plan.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_values.h"

namespace ofsdp {
namespace matrix_optimizers_test {

using kernels::updates::Muon;

double norm(const auto& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// ---- Adafactor ----

// A parameter of matrices under Adafactor. It sums squares in spans that end at `cuts`, as ranks
// do.
class FactoredParameter {
 public:
  FactoredParameter(const MatrixShape& shape, std::vector<float> start)
      : shape_(shape),
        param_(std::move(start)),
        rows_(static_cast<size_t>(shape.matrices * shape.rows)),
        columns_(static_cast<size_t>(shape.matrices * shape.columns)) {}

  void step(const std::vector<float>& grad, double lr, double decay, int64_t t,
            const std::vector<int64_t>& cuts = {}) {
    std::vector<float> row_sums(rows_.size()), column_sums(columns_.size());
    int64_t begin = 0;
    std::vector<int64_t> ends = cuts;
    ends.push_back(shape_.numel());
    for (const int64_t end : ends) {
      std::vector<float> rows(rows_.size()), columns(columns_.size());
      sums_of_squares({shape_, begin, end - begin}, grad.data() + begin, rows.data(),
                      columns.data());
      for (size_t i = 0; i < rows.size(); ++i) row_sums[i] += rows[i];
      for (size_t i = 0; i < columns.size(); ++i) column_sums[i] += columns[i];
      begin = end;
    }
    advance_factors(rows_.data(), row_sums.data(), std::ssize(rows_), shape_.columns, t);
    advance_factors(columns_.data(), column_sums.data(), std::ssize(columns_), shape_.rows, t);
    std::vector<float> direction(param_.size());
    for (int64_t m = 0; m < shape_.matrices; ++m) {
      const float* const rows = rows_.data() + m * shape_.rows;
      factored_direction({shape_, 0, shape_.size()}, grad.data() + m * shape_.size(), rows,
                         columns_.data() + m * shape_.columns, mean_row_factor(rows, shape_.rows),
                         direction.data() + m * shape_.size());
    }
    const auto length = static_cast<float>(
        find_optimizer("adafactor")
            ->step_length({}, {norm(param_), norm(direction), shape_.numel(), lr, t}));
    const auto keep = static_cast<float>(1 - lr * decay);
    for (size_t i = 0; i < param_.size(); ++i) param_[i] = param_[i] * keep - length * direction[i];
  }
  const std::vector<float>& param() const { return param_; }

 private:
  MatrixShape shape_;
  std::vector<float> param_, rows_, columns_;
};

float torch_gradient(size_t i, int t, float param) {
  return static_cast<float>((static_cast<int>(i) * 7 + t * 3) % 11 - 5) / 4.0f + 0.5f * param;
}

// 20 updates by torch.optim.Adafactor(lr=0.05, weight_decay=0.1) for a tensor [2, 3, 4].
TEST(Adafactor, FollowsTorch) {
  const std::vector<float> torch = {
      -0.551029682f, -0.112494469f, 0.354124069f,   -0.361350954f,  0.0581949502f,   0.584843338f,
      -0.210541919f, 0.280200094f,  -0.444750011f,  -0.0214554369f, 0.44886598f,     -0.277953982f,
      0.160330057f,  -0.544238448f, -0.0919908062f, 0.331994474f,   -0.32561177f,    0.0961077958f,
      0.554410934f,  -0.160557896f, 0.252274126f,   -0.449213356f,  -0.00645895442f, 0.431886941f};
  std::vector<float> start(24);
  for (size_t i = 0; i < 24; ++i)
    start[i] = static_cast<float>(static_cast<int>(i) * 5 % 13 - 6) / 8;
  FactoredParameter whole({2, 3, 4}, start), cut({2, 3, 4}, start);
  for (int t = 0; t < 20; ++t) {
    std::vector<float> grad(24);
    for (size_t i = 0; i < 24; ++i) grad[i] = torch_gradient(i, t, whole.param()[i]);
    whole.step(grad, 0.05, 0.1, t + 1);
    cut.step(grad, 0.05, 0.1, t + 1, {5, 6, 17});
  }
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_NEAR(whole.param()[i], torch[i], 1e-6f) << i;
    EXPECT_NEAR(cut.param()[i], torch[i], 1e-6f) << i;
  }
}

// The same for a tensor with one axis: the second moment has an element each.
TEST(Adafactor, FollowsTorchOnOneAxis) {
  const float torch[] = {0.287856311f, -0.786490917f, 1.22898686f, 0.0761059448f, -0.49682346f};
  const OptimizerDef& adafactor = *find_optimizer("adafactor");
  std::vector<float> param{0.5f, -1.25f, 2.0f, 0.125f, -0.75f}, variance(5);
  std::vector<double> exact(param.begin(), param.end()), exact_variance(5);
  for (int t = 0; t < 20; ++t) {
    std::vector<float> grad(5), direction(5);
    for (size_t i = 0; i < 5; ++i) grad[i] = torch_gradient(i, t, param[i]);
    const std::vector<double> exact_grad(grad.begin(), grad.end());
    float* state[] = {variance.data()};
    double* exact_state[] = {exact_variance.data()};
    const OptimizerSpan<float> span{param.data(), grad.data(), state, 5, 0.05, 0.1, t + 1};
    adafactor.update({}, span);
    adafactor.direction({}, span, direction.data());
    const auto length = static_cast<float>(
        adafactor.step_length({}, {norm(param), norm(direction), 5, 0.05, t + 1}));
    for (size_t i = 0; i < 5; ++i) param[i] = param[i] * 0.995f - length * direction[i];
    adafactor.reference({}, {exact.data(), exact_grad.data(), exact_state, 5, 0.05, 0.1, t + 1});
  }
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(param[i], torch[i], 1e-6f) << i;
    EXPECT_NEAR(exact[i], torch[i], 2e-6) << i;
  }
}

// Sums by rows and columns for spans that begin and end anywhere, against a plain loop; sums
// outside the span stay.
TEST(Adafactor, SumsTheSquaresOfAnySpan) {
  const MatrixShape shape{3, 7, 300};
  const std::vector<float> grad = testing::normal_floats(static_cast<size_t>(shape.numel()), 3);
  for (const auto& [first, last] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 6300}, {0, 1}, {299, 301}, {1000, 5000}, {2100, 4200}, {6299, 6300}}) {
    std::vector<float> rows(21, -1.0f), columns(900, -1.0f);
    std::vector<double> exact_rows(21, -1), exact_columns(900, -1);
    sums_of_squares({shape, first, last - first}, grad.data() + first, rows.data(), columns.data());
    for (int64_t e = first; e < last; ++e) {
      const auto row = static_cast<size_t>(e / 300);
      const auto column = static_cast<size_t>(e / 2100 * 300 + e % 300);
      const double square =
          static_cast<double>(grad[static_cast<size_t>(e)]) * grad[static_cast<size_t>(e)];
      exact_rows[row] = std::max(exact_rows[row], 0.0) + square;
      exact_columns[column] = std::max(exact_columns[column], 0.0) + square;
    }
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_FLOAT_EQ(rows[i], static_cast<float>(exact_rows[i]));
    const bool whole = last - first >= 2100;  // else untouched columns in the matrix are 0
    for (size_t i = 0; i < columns.size(); ++i) {
      if (!whole && exact_columns[i] < 0) continue;
      EXPECT_FLOAT_EQ(columns[i], static_cast<float>(exact_columns[i])) << i;
    }
  }
}

// ---- Muon ----

using Matrix = std::vector<std::vector<double>>;

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix made(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) made[i][j] += a[i][k] * b[k][j];
    }
  }
  return made;
}

Matrix turned(const Matrix& a) {
  Matrix made(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) made[j][i] = a[i][j];
  }
  return made;
}

// As in torch.optim.Muon, with a transposition if there are more rows than columns.
Matrix orthogonal(Matrix x) {
  const bool tall = x.size() > x[0].size();
  if (tall) x = turned(x);
  double squares = 0;
  for (const auto& row : x) squares += norm(row) * norm(row);
  for (auto& row : x) {
    for (double& value : row) value /= std::max(std::sqrt(squares), 1e-7);
  }
  for (int i = 0; i < 5; ++i) {
    const Matrix gram = times(x, turned(x));
    Matrix polynomial = times(gram, gram);
    for (size_t r = 0; r < gram.size(); ++r) {
      for (size_t c = 0; c < gram.size(); ++c) {
        polynomial[r][c] = -4.775 * gram[r][c] + 2.0315 * polynomial[r][c];
      }
    }
    Matrix next = times(polynomial, x);
    for (size_t r = 0; r < x.size(); ++r) {
      for (size_t c = 0; c < x[0].size(); ++c) next[r][c] += 3.4445 * x[r][c];
    }
    x = next;
  }
  return tall ? turned(x) : x;
}

// A plan with units of matrices in these shapes, all for Muon.
struct Planned {
  explicit Planned(const std::vector<std::vector<std::pair<int64_t, int64_t>>>& units, int world) {
    updates.groups.push_back({find_optimizer("muon"), {}});
    plan.world = plan.shard_size = world;
    for (const auto& shapes : units) {
      Unit& unit = plan.units.emplace_back();
      unit.id = static_cast<int>(plan.units.size()) - 1;
      unit.plan.shards = world;
      for (const auto& [rows, columns] : shapes) {
        const auto number = static_cast<int>(updates.parameters.size());
        updates.parameters.push_back({.shape = {1, rows, columns}});
        unit.params.push_back({number, "w", unit.padded_numel, rows * columns});
        unit.padded_numel += rows * columns;
      }
    }
    auto made = plan_orthogonal(updates, plan, registry, kernels);
    OFSDP_CHECK(made.ok(), "{}", made.error().message());
    orthogonal = *std::move(made);
  }

  Registry registry = make_registry();
  KernelCache kernels;
  UpdatePlan updates;
  Plan plan;
  std::vector<OrthogonalUnit> orthogonal;
};

TEST(Muon, MatricesFollowAPlainLoopInDouble) {
  Planned planned({{{12, 30}, {30, 12}, {16, 16}, {1, 9}, {9, 1}}}, 1);
  for (OrthogonalMatrix& m : planned.orthogonal[0]) {
    SCOPED_TRACE(format_text("{} x {}", m.rows, m.columns));
    std::vector<float> values = testing::normal_floats(static_cast<size_t>(m.numel()), 5);
    Matrix expected(static_cast<size_t>(m.rows));
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto begin = values.begin() + static_cast<ptrdiff_t>(i) * m.columns;
      expected[i].assign(begin, begin + m.columns);
    }
    expected = orthogonal(expected);
    testing::GuardedBytes work(m.work_bytes, 0x5a);
    ASSERT_TRUE(orthogonalize(m, values.data(), work.data(), {}).ok());
    EXPECT_TRUE(work.intact());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto columns = static_cast<size_t>(m.columns);
      EXPECT_NEAR(values[i], expected[i / columns][i % columns], 2e-5) << i;
    }
  }
}

TEST(Muon, AMatrixOfZerosStaysOne) {
  Planned planned({{{4, 6}}}, 1);
  std::vector<float> values(24);
  testing::GuardedBytes work(planned.orthogonal[0][0].work_bytes, 0);
  ASSERT_TRUE(orthogonalize(planned.orthogonal[0][0], values.data(), work.data(), {}).ok());
  EXPECT_EQ(values, std::vector<float>(24));
}

TEST(Muon, MatricesAreDealtByTheirCost) {
  const Planned planned({{{64, 64}, {8, 8}, {48, 48}, {40, 40}}, {{8, 8}}, {{8, 8}}}, 3);
  const auto owner = [&](size_t unit, size_t i) { return planned.orthogonal[unit][i].owner; };
  EXPECT_EQ(owner(0, 0), 0);  // the costliest
  EXPECT_EQ(owner(0, 2), 1);
  EXPECT_EQ(owner(0, 3), 2);
  EXPECT_EQ(owner(0, 1), 2);  // has the least so far
  EXPECT_EQ(owner(1, 0), 2);  // has the least in all units so far
  EXPECT_EQ(owner(2, 0), 2);
}

}  // namespace matrix_optimizers_test
}  // namespace ofsdp
