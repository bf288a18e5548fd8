// Sums, norms, clipping and loss scale, and the optimizers bit for bit against those of the CPU.
#include "kernels/cuda/training/update.h"

#include <cstring>

#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::cuda {
namespace {

using Doubles = std::vector<double>;
constexpr int64_t kSizes[] = {1, 31, 33, 1023, 1024, 4097};

class CudaUpdate : public DeviceTest {};

// A struct in device memory.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const T& value) : bytes_(DType::kUInt8, Doubles(sizeof(T))) { put(value); }
  void put(const T& value) {
    std::vector<std::byte> bytes(sizeof(T));
    std::memcpy(bytes.data(), &value, sizeof(T));
    bytes_.assign(bytes);
  }
  T value() const {
    T made;
    std::memcpy(static_cast<void*>(&made), bytes_.bytes().data(), sizeof(T));
    return made;
  }
  T* at() { return bytes_.template as<T>(); }

 private:
  Tensor bytes_;
};

struct Optimizer {
  OptimizerKind kind;
  const char* name;
  OptimizerSettings settings;
};

std::vector<Optimizer> optimizers() {
  OptimizerSettings plain, moving, nesterov, far, delta;
  moving.momentum = 0.9;
  nesterov = moving;
  nesterov.nesterov = true;
  far.beta1 = 0.4;
  delta.eps = 1e-6;
  return {
      {OptimizerKind::kAdamW, "adamw", plain},       {OptimizerKind::kAdamW, "adamw", far},
      {OptimizerKind::kAdam, "adam", plain},         {OptimizerKind::kSgd, "sgd", plain},
      {OptimizerKind::kSgd, "sgd", moving},          {OptimizerKind::kSgd, "sgd", nesterov},
      {OptimizerKind::kAdadelta, "adadelta", delta}, {OptimizerKind::kAdagrad, "adagrad", delta},
      {OptimizerKind::kLion, "lion", plain}};
}

std::vector<float> floats(const Doubles& values) { return {values.begin(), values.end()}; }
Doubles doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

void check_optimizer(const Optimizer& o, int64_t n, int shift, DType gradient_dtype, double decay) {
  Tensor param(DType::kFloat32, numbers(n, 1), shift),
      a(DType::kFloat32, Doubles(static_cast<size_t>(n)), shift),
      b(DType::kFloat32, Doubles(static_cast<size_t>(n)), shift),
      copy(DType::kBFloat16, Tensor::blank(n), shift);
  std::vector<float> p = floats(param.values()), s0(static_cast<size_t>(n)),
                     s1(static_cast<size_t>(n));
  float* states[] = {s0.data(), s1.data()};
  const float factor = 0.37f;
  UpdateState state;
  state.gradient_factor = factor;
  state.skipped_updates = 3;
  OnDevice<UpdateState> device_state(state);
  OnDevice<StepInput> input(StepInput{});
  for (int64_t step = 1; step <= 3; ++step) {
    Tensor gradient(gradient_dtype, numbers(n, static_cast<uint64_t>(10 + step)), shift);
    input.put({0.01 / static_cast<double>(step), step + 3, 1});
    const OptimizerUpdate u{.kind = o.kind,
                            .settings = o.settings,
                            .weight_decay = decay,
                            .param = param.as<float>(),
                            .state = {a.as<float>(), b.as<float>()},
                            .gradient = gradient.data(),
                            .gradient_dtype = gradient_dtype,
                            .copy = copy.data(),
                            .numel = n,
                            .input = input.at(),
                            .update_state = device_state.at()};
    same_twice({&param, &a, &b, &copy}, [&] { return update(u, nullptr); });
    std::vector<float> g = floats(gradient.values());
    for (float& v : g) v *= factor;
    find_optimizer(o.name)->update(
        o.settings, {p.data(), g.data(), states, n, 0.01 / static_cast<double>(step), decay, step});
  }
  EXPECT_EQ(param.values(), doubles(p));
  EXPECT_EQ(a.values(), doubles(s0));
  EXPECT_EQ(b.values(), doubles(s1));
  Doubles rounded;
  for (float v : p) rounded.push_back(bfloat16_to_float(float_to_bfloat16(v)));
  EXPECT_EQ(copy.values(), rounded);
}

TEST_F(CudaUpdate, OptimizersGiveTheBitsOfTheCpu) {
  for (const Optimizer& o : optimizers()) {
    for (int64_t n : kSizes) {
      for (double decay : {0.0, 0.1}) {
        SCOPED_TRACE(std::string(o.name) + " of " + std::to_string(n));
        check_optimizer(o, n, n % 2 == 0 ? 0 : 1, DType::kFloat32, decay);
      }
    }
    check_optimizer(o, 1024, 0, DType::kBFloat16, 0.1);
    check_optimizer(o, 33, 0, DType::kFloat16, 0.1);
  }
}

TEST_F(CudaUpdate, NothingIsUpdatedAfterOverflow) {
  Tensor param(DType::kFloat32, numbers(64, 1)), gradient(DType::kFloat32, numbers(64, 2));
  UpdateState state;
  state.skip = 1;
  OnDevice<UpdateState> device_state(state);
  OnDevice<StepInput> input(StepInput{});
  const Doubles before = param.values();
  const OptimizerUpdate u{.kind = OptimizerKind::kSgd,
                          .param = param.as<float>(),
                          .gradient = gradient.data(),
                          .numel = 64,
                          .input = input.at(),
                          .update_state = device_state.at()};
  EXPECT_CUDA(update(u, nullptr));
  EXPECT_EQ(param.values(), before);
}

TEST_F(CudaUpdate, SumsSlotsInOrder) {
  for (DType dtype : kFloats) {
    for (int64_t n : kSizes) {
      for (bool kept : {false, true}) {
        Tensor a(dtype, numbers(n, 1)), b(dtype, numbers(n, 2)), c(dtype, numbers(n, 3)),
            out(DType::kFloat32, numbers(n, 4));
        GradientSum s{.slots = {a.data(), b.data(), c.data()},
                      .count = 3,
                      .dtype = dtype,
                      .round_to = DType::kBFloat16,
                      .kept = kept ? out.as<float>() : nullptr,
                      .out = out.as<float>(),
                      .numel = n};
        const Doubles va = a.values(), vb = b.values(), vc = c.values(), vo = out.values();
        same_twice({&out}, [&] { return sum_gradients(s, nullptr); });
        Doubles expected;
        for (size_t i = 0; i < va.size(); ++i) {
          const float sum =
              static_cast<float>(va[i]) + static_cast<float>(vb[i]) + static_cast<float>(vc[i]);
          const float rounded = bfloat16_to_float(float_to_bfloat16(sum));
          expected.push_back(
              static_cast<double>(kept ? rounded + static_cast<float>(vo[i]) : rounded));
        }
        EXPECT_EQ(out.values(), expected);
      }
    }
  }
}

TEST_F(CudaUpdate, SquaredNorm) {
  for (DType dtype : kFloats) {
    for (int64_t n : {1, 33, 4097, 70000}) {
      Tensor g(dtype, numbers(n, 1), n % 2 == 0 ? 0 : 1), sum(DType::kFloat64, {0}),
          partials(DType::kFloat64, Tensor::blank(squared_norm_partials(n)));
      same_twice({&sum, &partials}, [&] {
        EXPECT_CUDA(squared_norm(dtype, g.data(), n, partials.as<double>(), nullptr));
        return add_partials(partials.as<double>(), squared_norm_partials(n), sum.as<double>(),
                            nullptr);
      });
      double expected = 0;
      for (double v : g.values()) expected += v * v;
      expect_close(sum.values(), {expected}, 1e-12, "squares");
    }
  }
}

TEST_F(CudaUpdate, ClipFactorAndLossScale) {
  Tensor squares(DType::kFloat64, {9, 16});
  UpdateState before;
  before.loss_scale = 4;
  before.good_updates = 1999;
  OnDevice<UpdateState> state(before);
  EXPECT_CUDA(finish_norm(squares.as<double>(), 2, 0.5, true, state.at(), nullptr));
  EXPECT_EQ(state.value().global_norm, 1.25);
  EXPECT_EQ(state.value().gradient_factor, 0.5f / (1.25f + 1e-6f) / 4.0f);
  EXPECT_EQ(state.value().skip, 0);
  EXPECT_EQ(state.value().loss_scale, 8);
  EXPECT_EQ(state.value().good_updates, 0);
  Tensor bad(DType::kFloat64, {INFINITY});
  EXPECT_CUDA(finish_norm(bad.as<double>(), 1, 0, true, state.at(), nullptr));
  EXPECT_EQ(state.value().skip, 1);
  EXPECT_EQ(state.value().loss_scale, 4);
  EXPECT_EQ(state.value().skipped_updates, 1);
  EXPECT_CUDA(finish_norm(squares.as<double>(), 2, 0, false, state.at(), nullptr));
  EXPECT_EQ(state.value().gradient_factor, 1.0f);
  EXPECT_EQ(state.value().skip, 0);
}

}  // namespace
}  // namespace ofsdp::cuda
