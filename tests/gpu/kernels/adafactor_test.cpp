// Adafactor's sums, factors, squares and step against the CPU's (kernels/core/optimizer.h):
// sums to rounding, the step bit for bit, with the lengths that follow from the device's squares.
#include "kernels/core/optimizer.h"
#include "kernels/cuda/device/arithmetic.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace adafactor_test {

using Doubles = std::vector<double>;
constexpr double kRate = 0.03, kDecay = 0.1;
constexpr int64_t kStep = 4;

class CudaAdafactor : public DeviceTest {};

Doubles squared(Doubles values) {
  for (double& v : values) v = v * v + 0.01;
  return values;
}

struct Numbers {
  explicit Numbers(bool skip) {
    ofsdp_run_state s{};
    s.optimizer_step = kStep;
    s.skip = skip ? 1 : 0;
    ofsdp_step_numbers n{};
    n.lr = kRate;
    state = on_device(s);
    numbers = on_device(n);
  }
  std::unique_ptr<Tensor> state, numbers;
};

void check_sums(const MatrixSpan& span) {
  const MatrixShape& shape = span.shape;
  const int64_t rows = shape.matrices * shape.rows, columns = shape.matrices * shape.columns;
  Tensor gradient(DType::kFloat32, numbers(span.count, 1)),
      row_sums(DType::kFloat32, Doubles(rows)), column_sums(DType::kFloat32, Doubles(columns));
  const ofsdp_matrix_squares m{
      shape.rows,           shape.columns,          span.first, span.count, gradient.as<float>(),
      row_sums.as<float>(), column_sums.as<float>()};
  same_twice({&row_sums, &column_sums}, [&] { return sum_matrix_squares(m, nullptr); });
  std::vector<float> of_rows(static_cast<size_t>(rows)), of_columns(static_cast<size_t>(columns));
  const std::vector<float> values = floats(gradient.values());
  sums_of_squares(span, values.data(), of_rows.data(), of_columns.data());
  expect_close(row_sums.values(), {of_rows.begin(), of_rows.end()}, 2e-7, "rows");
  expect_close(column_sums.values(), {of_columns.begin(), of_columns.end()}, 2e-7, "columns");
}

TEST_F(CudaAdafactor, SumsTheSquaresOfASpanOfMatrices) {
  check_sums({{1, 1, 1}, 0, 1});
  check_sums({{1, 37, 65}, 0, 37 * 65});
  check_sums({{1, 37, 65}, 100, 1000});
  check_sums({{3, 9, 31}, 30, 2 * 9 * 31});
  check_sums({{200, 3, 3}, 5, 1700});
  check_sums({{2, 300, 2}, 1, 1198});
}

TEST_F(CudaAdafactor, AdvancesFactorsAndTakesTheirMeans) {
  for (const bool skip : {false, true}) {
    const Numbers n(skip);
    Tensor factors(DType::kFloat32, squared(numbers(700, 1))),
        sums(DType::kFloat32, squared(numbers(700, 2))), means(DType::kFloat32, Doubles(7));
    std::vector<float> expected = floats(factors.values());
    if (!skip)
      kernels::advance_factors(expected.data(), floats(sums.values()).data(), 700, 65, kStep);
    EXPECT_CUDA(advance_factors(
        {factors.as<float>(), sums.as<float>(), 700, 65, n.state->as<ofsdp_run_state>()}, nullptr));
    EXPECT_EQ(floats(factors.values()), expected);
    same_twice({&means},
               [&] { return mean_rows(factors.as<float>(), 100, 7, means.as<float>(), nullptr); });
    for (size_t m = 0; m < 7; ++m) {
      const float mean = mean_row_factor(expected.data() + 100 * m, 100);
      EXPECT_NEAR(means.values()[m], mean, 1e-7 * static_cast<double>(mean));
    }
  }
}

// A span of factored matrices after a parameter with one axis, in one shard.
void check_steps(bool skip) {
  constexpr int64_t kVector = 4100, kGap = 12, kFirst = 40;
  const MatrixShape shape{3, 60, 33};
  const int64_t held = shape.numel() - kFirst - 25, numel = kVector + kGap + held;
  const Numbers n(skip);
  Tensor param(DType::kFloat32, numbers(numel, 1)), gradient(DType::kFloat32, numbers(numel, 2)),
      variance(DType::kFloat32, squared(numbers(kVector, 3))),
      rows(DType::kFloat32, squared(numbers(shape.matrices * shape.rows, 4))),
      columns(DType::kFloat32, squared(numbers(shape.matrices * shape.columns, 5))),
      means(DType::kFloat32, squared(numbers(shape.matrices, 6))),
      squares(DType::kFloat64, Doubles(4)), partials(DType::kFloat64, Tensor::blank(12));
  ofsdp_parameter_part parts[2] = {{0, kVector, 1, kDecay}, {kVector + kGap, held, 0, 0}};
  parts[0].numel = kVector;
  parts[0].states[0] = variance.as<float>();
  parts[1].numel = shape.numel();
  parts[1].first = kFirst;
  parts[1].rows = shape.rows;
  parts[1].columns = shape.columns;
  parts[1].states[0] = rows.as<float>();
  parts[1].states[1] = columns.as<float>();
  parts[1].means = means.as<float>();
  ofsdp_parameter_parts p{param.as<float>(),
                          {},
                          parts,
                          2,
                          squares.as<double>(),
                          partials.as<double>(),
                          n.state->as<ofsdp_run_state>(),
                          n.numbers->as<ofsdp_step_numbers>()};
  p.gradient = gradient.as<float>();
  std::vector<float> expected = floats(param.values()), g = floats(gradient.values());
  same_twice({&squares, &partials}, [&] { return add_adafactor_squares({}, p, nullptr); });
  const Doubles found = squares.values();
  EXPECT_CUDA(take_adafactor_step({}, p, nullptr));
  const OptimizerDef& adafactor = *find_optimizer("adafactor");
  std::vector<float> d(static_cast<size_t>(numel)),
      v = floats(variance.values()), r = floats(rows.values()), c = floats(columns.values());
  float* states[] = {v.data()};
  adafactor.direction({}, {expected.data(), g.data(), states, kVector, kRate, kDecay, kStep},
                      d.data());
  for (int64_t at = 0; at < held;) {
    const int64_t matrix = (kFirst + at) / shape.size(), from = (kFirst + at) % shape.size();
    const int64_t count = std::min(held - at, shape.size() - from), of_shard = kVector + kGap + at;
    factored_direction({shape, from, count}, g.data() + of_shard, r.data() + matrix * shape.rows,
                       c.data() + matrix * shape.columns,
                       static_cast<float>(means.values()[static_cast<size_t>(matrix)]),
                       d.data() + of_shard);
    at += count;
  }
  for (const ofsdp_parameter_part& part : parts) {
    double of_param = 0, of_direction = 0;
    for (int64_t i = part.begin; i < part.begin + part.count; ++i) {
      const auto at = static_cast<size_t>(i);
      of_param += static_cast<double>(expected[at]) * static_cast<double>(expected[at]);
      of_direction += static_cast<double>(d[at]) * static_cast<double>(d[at]);
    }
    if (skip) of_param = of_direction = 0;
    const double* mine = &found[2 * static_cast<size_t>(part.parameter)];
    EXPECT_NEAR(mine[0], of_param, 1e-12 * of_param);
    EXPECT_NEAR(mine[1], of_direction, 1e-12 * of_direction);
    const auto length = static_cast<float>(adafactor.step_length(
        {}, {std::sqrt(mine[0]), std::sqrt(mine[1]), part.numel, kRate, kStep}));
    const auto keep = part.weight_decay != 0 ? static_cast<float>(1 - kRate * kDecay) : 1.0f;
    for (int64_t i = part.begin; !skip && i < part.begin + part.count; ++i) {
      const auto at = static_cast<size_t>(i);
      expected[at] = expected[at] * keep - length * d[at];
    }
  }
  EXPECT_EQ(floats(param.values()), expected);
}

TEST_F(CudaAdafactor, SumsSquaresAndTakesTheStepOfTheCpu) { check_steps(false); }

TEST_F(CudaAdafactor, ASkippedUpdateTakesNone) { check_steps(true); }

}  // namespace adafactor_test
}  // namespace ofsdp::kernels::cuda
