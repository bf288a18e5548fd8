// Squares of parameters and directions against sums in double. And the step bit for bit
// against kernels/optimizers/parameter_updates.h, with lengths from the device's own
// squares.
#include "kernels/core/optimizer.h"
#include "kernels/cuda/device/arithmetic.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace lamb_test {

using Doubles = std::vector<double>;
constexpr double kRate = 0.03;
constexpr int64_t kStep = 4;

class CudaLamb : public DeviceTest {};

Doubles squared(Doubles values) {
  for (double& v : values) v *= v;
  return values;
}

// A shard of parts one after the other, with gaps; parameters in another order than parts.
struct Shard {
  explicit Shard(const std::vector<int64_t>& counts) {
    int64_t at = 3;
    for (size_t i = 0; i < counts.size(); ++i) {
      parts.push_back(
          {at, counts[i], static_cast<int64_t>(counts.size() - 1 - i), i % 2 == 0 ? 0.1 : 0.0});
      at += counts[i] + 2;
      partials += 2 * (counts[i] / 4096 + 1);
    }
    numel = at;
  }
  std::vector<ofsdp_parameter_part> parts;
  int64_t numel = 0, partials = 0;
};

void check(const Shard& shard, bool skip) {
  const OptimizerSettings settings;
  Tensor param(DType::kFloat32, numbers(shard.numel, 1)),
      average(DType::kFloat32, numbers(shard.numel, 2)),
      square(DType::kFloat32, squared(numbers(shard.numel, 3))),
      squares(DType::kFloat64, Doubles(2 * shard.parts.size())),
      partials(DType::kFloat64, Tensor::blank(shard.partials));
  ofsdp_run_state state{};
  state.optimizer_step = kStep;
  state.skip = skip ? 1 : 0;
  ofsdp_step_numbers numbers_now{};
  numbers_now.lr = kRate;
  const auto on_gpu_state = on_device(state), on_gpu_numbers = on_device(numbers_now);
  const ofsdp_parameter_parts p{param.as<float>(),
                                {average.as<float>(), square.as<float>()},
                                shard.parts.data(),
                                static_cast<int64_t>(shard.parts.size()),
                                squares.as<double>(),
                                partials.as<double>(),
                                on_gpu_state->as<ofsdp_run_state>(),
                                on_gpu_numbers->as<ofsdp_step_numbers>()};
  std::vector<float> before = floats(param.values()), expected = before;
  std::vector<float> m = floats(average.values()), v = floats(square.values());
  same_twice({&squares, &partials}, [&] { return add_lamb_squares(settings, p, nullptr); });
  const Doubles found = squares.values();
  EXPECT_CUDA(take_lamb_step(settings, p, nullptr));
  const OptimizerDef& lamb = *find_optimizer("lamb");
  for (const ofsdp_parameter_part& part : shard.parts) {
    const auto at = static_cast<size_t>(part.begin), count = static_cast<size_t>(part.count);
    std::vector<float> d(count);
    float* states[] = {m.data() + at, v.data() + at};
    lamb.direction(
        settings,
        {before.data() + at, nullptr, states, part.count, kRate, part.weight_decay, kStep},
        d.data());
    double of_param = 0, of_direction = 0;
    for (size_t i = 0; i < count; ++i) {
      of_param += static_cast<double>(before[at + i]) * before[at + i];
      of_direction += static_cast<double>(d[i]) * d[i];
    }
    const double* mine = &found[2 * static_cast<size_t>(part.parameter)];
    if (skip) of_param = of_direction = 0;
    EXPECT_NEAR(mine[0], of_param, 1e-12 * of_param);
    EXPECT_NEAR(mine[1], of_direction, 1e-12 * of_direction);
    const auto length = static_cast<float>(lamb.step_length(
        settings, {std::sqrt(mine[0]), std::sqrt(mine[1]), part.count, kRate, kStep}));
    for (size_t i = 0; !skip && i < count; ++i) expected[at + i] -= length * d[i];
  }
  EXPECT_EQ(floats(param.values()), expected);
}

TEST_F(CudaLamb, SumsSquaresAndTakesTheStepOfTheCpu) {
  check(Shard({1}), false);
  check(Shard({4096, 1, 0, 4097, 31}), false);
  check(Shard({20000, 5}), false);
}

TEST_F(CudaLamb, TakesMorePartsThanALaunchHolds) {
  std::vector<int64_t> counts;
  for (int i = 0; i < 2 * kMaxLambParts + 5; ++i) counts.push_back(i % 7 == 0 ? 0 : 1 + i);
  check(Shard(counts), false);
}

TEST_F(CudaLamb, ASkippedUpdateTakesNone) { check(Shard({100, 5000}), true); }

// With |p| or |d| 0 the step is the rate.
TEST_F(CudaLamb, AParameterOfZeroesMovesByTheRate) {
  OptimizerSettings given;
  given.eps = 0;
  Tensor param(DType::kFloat32, Doubles(2)), average(DType::kFloat32, {0.1, -0.1}),
      square(DType::kFloat32, {0.001, 0.001}), squares(DType::kFloat64, Doubles(2)),
      partials(DType::kFloat64, Tensor::blank(2));
  ofsdp_run_state state{};
  state.optimizer_step = 1;
  ofsdp_step_numbers numbers_now{};
  numbers_now.lr = kRate;
  const auto on_gpu_state = on_device(state), on_gpu_numbers = on_device(numbers_now);
  const ofsdp_parameter_part part{0, 2, 0, 0.1};
  const ofsdp_parameter_parts p{param.as<float>(),
                                {average.as<float>(), square.as<float>()},
                                &part,
                                1,
                                squares.as<double>(),
                                partials.as<double>(),
                                on_gpu_state->as<ofsdp_run_state>(),
                                on_gpu_numbers->as<ofsdp_step_numbers>()};
  EXPECT_CUDA(add_lamb_squares(given, p, nullptr));
  EXPECT_CUDA(take_lamb_step(given, p, nullptr));
  expect_close(param.values(), {-kRate, kRate}, 1e-6, "p");
}

}  // namespace lamb_test
}  // namespace ofsdp::kernels::cuda
