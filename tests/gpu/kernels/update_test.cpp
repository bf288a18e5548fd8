// The optimizers and the other arithmetic of spans, bit for bit against the CPU's optimizers
// and plain loops.
#include <cstring>

#include "kernels/cuda/device/arithmetic.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace update_test {

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
  static const std::vector<OptimizerDef> defs = optimizer_list();  // owns the names below
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

Doubles doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// A span with n elements, `shift` elements after an aligned address. The gradient lies
// `gradient_shift` after one, the copy (kUndefined: none) `copy_shift`.
struct SpanCase {
  int64_t n;
  int shift = 0, gradient_shift = 0, copy_shift = 0;
  DType gradient = DType::kFloat32, copy = DType::kUndefined;
  bool onto = false;
  double decay = 0.1;

  std::string text() const {
    std::string made = std::to_string(n) + " at " + std::to_string(shift) + ", gradient " +
                       std::string(dtype_name(gradient)) + " at " + std::to_string(gradient_shift);
    if (copy != DType::kUndefined) {
      made += ", copy " + std::string(dtype_name(copy)) + " at " + std::to_string(copy_shift);
    }
    return made + (onto ? ", onto a sum" : "");
  }
};

void check_optimizer(const Optimizer& o, const SpanCase& c) {
  SCOPED_TRACE(std::string(o.name) + " of " + c.text());
  const int64_t n = c.n;
  const int shift = c.shift;
  const OptimizerDef& def = *find_optimizer(o.name);
  const bool copies = c.copy != DType::kUndefined;
  Tensor copy(copies ? c.copy : DType::kBFloat16, Tensor::blank(n), c.copy_shift),
      sum(DType::kFloat32, numbers(n, 9), shift);
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
    Tensor gradient(c.gradient, numbers(n, static_cast<uint64_t>(10 + step)), c.gradient_shift);
    const double lr = 0.01 / static_cast<double>(step);
    state.optimizer_step = step;
    device_state.put(state);
    ofsdp_step_numbers of_step{};
    of_step.step = step + 3;
    of_step.lr = lr;
    input.put(of_step);
    ofsdp_device_update u{};
    u.gradient = {gradient.data(), static_cast<int32_t>(c.gradient),
                  static_cast<int32_t>(DType::kFloat32), c.onto ? sum.as<float>() : nullptr};
    u.param = param.as<float>();
    if (num_states > 0) u.states[0] = a.as<float>();
    if (num_states > 1) u.states[1] = b.as<float>();
    u.count = n;
    u.weight_decay = c.decay;
    u.scaled = 1;
    if (copies) u.copy = copy.data();
    u.copy_dtype = static_cast<int32_t>(c.copy);
    u.state = device_state.at();
    u.numbers = input.at();
    same_twice({&param, &a, &b, &copy},
               [&] { return find_update(o.name)(o.settings, u, nullptr); });
    std::vector<float> g = floats(gradient.values()), earlier = floats(sum.values());
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] = (c.onto ? g[i] + earlier[i] : g[i]) * state.gradient_factor;
    }
    def.update(o.settings, {p.data(), g.data(), states, n, lr, c.decay, step});
  }
  EXPECT_EQ(param.values(), doubles(p));
  EXPECT_EQ(a.values(), doubles(s0));
  EXPECT_EQ(b.values(), doubles(s1));
  const bool moves = def.direction == nullptr;  // else the step comes later, with the copy
  const Tensor rounded(copies ? c.copy : DType::kBFloat16,
                       copies && moves ? doubles(p) : Tensor::blank(n));
  EXPECT_EQ(copy.values(), rounded.values());
}

TEST_F(CudaUpdate, OptimizersGiveTheBitsOfTheCpu) {
  for (const Optimizer& o : optimizers()) {
    for (int64_t n : kSizes) {
      for (double decay : {0.0, 0.1}) {
        const int shift = n % 2 == 0 ? 0 : 1;
        check_optimizer(o, {.n = n, .shift = shift, .gradient_shift = shift, .decay = decay});
      }
    }
    check_optimizer(o, {.n = 1024, .gradient = DType::kBFloat16});
    check_optimizer(o, {.n = 33, .gradient = DType::kFloat16, .onto = true});
  }
}

// Heads and tails of every length; operands at different offsets, so that no pack is aligned in
// all.
TEST_F(CudaUpdate, SpansThatBeginAnywhereGiveTheBitsOfTheCpuAndTheirCopies) {
  for (const Optimizer& o : optimizers()) {
    for (const int shift : {0, 1, 2, 3}) {
      for (const int64_t n : {1, 2, 5, 8, 67}) {
        check_optimizer(o, {.n = n,
                            .shift = shift,
                            .gradient_shift = shift,
                            .copy_shift = shift,
                            .gradient = DType::kBFloat16,
                            .copy = shift % 2 == 0 ? DType::kBFloat16 : DType::kFloat16,
                            .onto = n == 67});
      }
    }
    for (const int other : {1, 2, 3}) {
      check_optimizer(o, {.n = 21, .gradient_shift = other, .copy = DType::kBFloat16});
      check_optimizer(o, {.n = 21, .copy_shift = other, .copy = DType::kFloat16});
    }
  }
}

std::vector<float> rounded_to(DType dtype, const std::vector<float>& values) {
  return floats(Tensor(dtype, doubles(values)).values());
}

// A converted span, a sum, rounded values and a reduced gradient, against a loop.
void check_span(int64_t n, int shift, int other, DType from, DType to) {
  SCOPED_TRACE(std::to_string(n) + " at " + std::to_string(shift) + " and " +
               std::to_string(other) + ", " + std::string(dtype_name(from)) + " to " +
               std::string(dtype_name(to)));
  const auto number = [](DType dtype) { return static_cast<int32_t>(dtype); };
  const Tensor src(from, numbers(n, 1), other);
  const std::vector<float> x = floats(src.values());
  Tensor dst(to, Tensor::blank(n), shift);
  if (from != to) {
    same_twice({&dst}, [&] {
      return convert(src.data(), number(from), dst.data(), number(to), n, nullptr);
    });
    EXPECT_EQ(floats(dst.values()), rounded_to(to, x));
  }
  Tensor sum(DType::kFloat32, numbers(n, 2), shift);
  std::vector<float> sums = floats(sum.values());
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += x[i];
  same_twice({&sum},
             [&] { return add_onto(src.data(), number(from), sum.as<float>(), n, nullptr); });
  EXPECT_EQ(floats(sum.values()), sums);
  same_twice({&sum}, [&] { return round_values(sum.as<float>(), number(to), n, nullptr); });
  EXPECT_EQ(floats(sum.values()), rounded_to(to, sums));
  Tensor reduced(DType::kFloat32, Tensor::blank(n), other);
  ofsdp_reduce r{};
  r.gradient = {src.data(), number(from), number(to), sum.as<float>()};
  r.dst = reduced.as<float>();
  r.count = n;
  same_twice({&reduced}, [&] { return reduce_gradient(r, nullptr); });
  std::vector<float> expected = rounded_to(to, x), onto = floats(sum.values());
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += onto[i];
  EXPECT_EQ(floats(reduced.values()), expected);
}

TEST_F(CudaUpdate, SpansAreConvertedAddedAndRoundedAsByALoop) {
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      for (const int shift : {0, 1, 3}) {
        for (const int64_t n : {1, 3, 6, 41, 1030}) check_span(n, shift, shift, from, to);
      }
      check_span(41, 0, 2, from, to);
    }
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

}  // namespace update_test
}  // namespace ofsdp::kernels::cuda
