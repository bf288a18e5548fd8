// The optimizers bit for bit against those of the CPU.
#include <cstring>

#include "kernels/cuda/device/arithmetic.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
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
  const char* name;
  OptimizerSettings settings;
};

std::vector<Optimizer> optimizers() {
  static const std::vector<OptimizerDef> defs = optimizer_list();  // their names are used
  OptimizerSettings plain, moving, nesterov, far, delta;
  moving.momentum = 0.9;
  nesterov = moving;
  nesterov.nesterov = true;
  far.beta1 = 0.4;
  delta.eps = 1e-6;
  std::vector<Optimizer> list = {
      {"adamw", far}, {"sgd", nesterov}, {"adadelta", delta}, {"adagrad", delta}};
  for (const OptimizerDef& def : defs) {
    list.push_back({def.name.c_str(), plain});
    if ((def.traits.takes & kTakesMomentum) != 0) list.push_back({def.name.c_str(), moving});
  }
  return list;
}

std::vector<float> floats(const Doubles& values) { return {values.begin(), values.end()}; }
Doubles doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

void check_optimizer(const Optimizer& o, int64_t n, int shift, DType gradient_dtype, double decay) {
  const OptimizerDef& def = *find_optimizer(o.name);
  const size_t num_states = def.state_names(o.settings).size();
  Tensor param(DType::kFloat32, numbers(n, 1), shift),
      a(DType::kFloat32, Doubles(static_cast<size_t>(n)), shift),
      b(DType::kFloat32, Doubles(static_cast<size_t>(n)), shift);
  std::vector<float> p = floats(param.values()), s0(static_cast<size_t>(n)),
                     s1(static_cast<size_t>(n));
  float* states[] = {s0.data(), s1.data()};
  ofsdp_run_state state{};
  state.gradient_factor = 0.37f;
  OnDevice<ofsdp_run_state> device_state(state);
  OnDevice<ofsdp_step_numbers> input(ofsdp_step_numbers{});
  for (int64_t step = 1; step <= 3; ++step) {
    Tensor gradient(gradient_dtype, numbers(n, static_cast<uint64_t>(10 + step)), shift);
    const double lr = 0.01 / static_cast<double>(step);
    state.optimizer_step = step;
    device_state.put(state);
    ofsdp_step_numbers of_step{};
    of_step.step = step + 3;
    of_step.lr = lr;
    input.put(of_step);
    ofsdp_device_update u{};
    u.gradient = {gradient.data(), static_cast<int32_t>(gradient_dtype),
                  static_cast<int32_t>(DType::kFloat32), nullptr};
    u.param = param.as<float>();
    if (num_states > 0) u.states[0] = a.as<float>();
    if (num_states > 1) u.states[1] = b.as<float>();
    u.count = n;
    u.weight_decay = decay;
    u.scaled = 1;
    u.state = device_state.at();
    u.numbers = input.at();
    same_twice({&param, &a, &b}, [&] { return find_update(o.name)(o.settings, u, nullptr); });
    std::vector<float> g = floats(gradient.values());
    for (float& v : g) v *= state.gradient_factor;
    def.update(o.settings, {p.data(), g.data(), states, n, lr, decay, step});
  }
  EXPECT_EQ(param.values(), doubles(p));
  EXPECT_EQ(a.values(), doubles(s0));
  EXPECT_EQ(b.values(), doubles(s1));
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
  ofsdp_run_state state{};
  state.skip = 1;
  OnDevice<ofsdp_run_state> device_state(state);
  OnDevice<ofsdp_step_numbers> input(ofsdp_step_numbers{});
  const Doubles before = param.values();
  ofsdp_device_update u{};
  u.gradient = {gradient.data(), static_cast<int32_t>(DType::kFloat32),
                static_cast<int32_t>(DType::kFloat32), nullptr};
  u.param = param.as<float>();
  u.count = 64;
  u.state = device_state.at();
  u.numbers = input.at();
  EXPECT_CUDA(find_update("sgd")({}, u, nullptr));
  EXPECT_EQ(param.values(), before);
}

TEST_F(CudaUpdate, AnUnknownOptimizerHasNoUpdate) { EXPECT_EQ(find_update("adamax"), nullptr); }

}  // namespace
}  // namespace ofsdp::kernels::cuda
