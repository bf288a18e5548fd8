// The CUDA library's table against the counting device (tests/device), call by call: a step's
// arithmetic and the optimizers on the same bytes, streams and events, captured graphs. Skipped
// without a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/core/device.h"
#include "kernels/core/update.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

constexpr int32_t kFloat = static_cast<int32_t>(DType::kFloat32);
constexpr int32_t kHalf = static_cast<int32_t>(DType::kFloat16);
constexpr int32_t kBrain = static_cast<int32_t>(DType::kBFloat16);
constexpr int64_t kCount = 10007;  // no multiple of a block

std::unique_ptr<Device> counting() {
  void* library = dlopen(OFSDP_COUNTING_DEVICE, RTLD_NOW | RTLD_LOCAL);
  OFSDP_CHECK(library != nullptr, "{}", dlerror());
  const auto* const found =
      static_cast<const DeviceLibrary*>(dlsym(library, "ofsdp_device_library"));
  auto device = with_streams(*found->open(0));
  OFSDP_CHECK(device.ok(), "{}", device.error().message());
  return *std::move(device);
}

// A device and a block of device memory that a test fills and reads.
class Bench {
 public:
  explicit Bench(std::unique_ptr<Device> device) : device_(std::move(device)) {
    memory_ = *DeviceMemory::allocate(*device_, ledger_, kBytes, DeviceMemory::Place::kDevice, "");
    pinned_ = *DeviceMemory::allocate(*device_, ledger_, kBytes, DeviceMemory::Place::kPinned, "");
  }

  Device& device() { return *device_; }
  template <typename T>
  T* at(size_t place) {  // one of eight places
    return reinterpret_cast<T*>(memory_.data() + place * kPlace);
  }
  template <typename T>
  void put(size_t place, const std::vector<T>& values) {
    std::memcpy(pinned_.data(), values.data(), values.size() * sizeof(T));
    move(at<std::byte>(place), pinned_.data(), values.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> get(size_t place, size_t count) {
    std::vector<T> values(count);
    move(pinned_.data(), at<std::byte>(place), count * sizeof(T));
    std::memcpy(values.data(), pinned_.data(), count * sizeof(T));
    return values;
  }
  static void check(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

 private:
  static constexpr size_t kPlace = size_t{1} << 18, kBytes = 8 * kPlace;

  void move(void* to, const void* from, size_t bytes) {
    check(device_->synchronize());
    check(device_->copy(device_->compute(), to, from, bytes));
    check(device_->synchronize());
  }

  MemoryLedger ledger_;
  std::unique_ptr<Device> device_;
  DeviceMemory memory_, pinned_;
};

// A device's update operation and the operands.
class UpdateCall {
 public:
  UpdateCall(const UpdateSpec& spec, std::vector<UpdateRow> rows) {
    problem_.attributes = update_attributes(spec, rows);
    problem_.inputs.resize(UpdateIn::kCount);
    problem_.outputs.resize(UpdateOut::kStates + 2);
    in_.resize(problem_.inputs.size());
    out_.resize(problem_.outputs.size());
  }
  template <typename T>
  void in(size_t i, DType dtype, T* data, int64_t count = kCount) {
    problem_.inputs[i] = {dtype, Shape{count}};
    in_[i].data = reinterpret_cast<std::byte*>(data);
  }
  template <typename T>
  void out(size_t i, DType dtype, T* data, int64_t count = kCount) {
    problem_.outputs[i] = {dtype, Shape{count}};
    out_[i].data = reinterpret_cast<std::byte*>(data);
  }
  // The numbers are at place 6, the run's state at 5, two states from `states` on.
  void place(Bench& d, size_t states) {
    in(UpdateIn::kNumbers, DType::kUInt8, d.at<std::byte>(6), sizeof(ofsdp_step_numbers));
    in(UpdateIn::kRunState, DType::kUInt8, d.at<std::byte>(5), sizeof(ofsdp_run_state));
    out(UpdateOut::kParam, DType::kFloat32, d.at<float>(0));
    out(UpdateOut::kStates, DType::kFloat32, d.at<float>(states));
    out(UpdateOut::kStates + 1, DType::kFloat32, d.at<float>(states + 1));
  }
  std::unique_ptr<Kernel> make(Bench& d, const std::string& op) const {
    return d.device().make_kernel(op, problem_);
  }
  Status run(Bench& d, Kernel& kernel, ofsdp_stream* stream) const {
    DeviceStepContext step;
    step.numbers = d.at<ofsdp_step_numbers>(6);
    step.stream = stream;
    return kernel.run({in_, out_, nullptr, &step});
  }

 private:
  Problem problem_;
  std::vector<TensorView> in_, out_;
};

// Elements [begin, end) of a shard, with two states.
UpdateRow row(int64_t begin, int64_t end, int64_t parameter, double decay) {
  UpdateRow made{.begin = begin, .end = end, .parameter = parameter, .weight_decay = decay};
  made.numel = end - begin;
  made.num_states = 2;
  made.states[1] = 1;
  return made;
}

class DeviceTableTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = find_device(0);
    if (!gpu.ok()) GTEST_SKIP() << gpu.error().message();
    gpu_ = std::make_unique<Bench>(*std::move(gpu));
    other_ = std::make_unique<Bench>(counting());
  }

  std::vector<float> values(float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> made(kCount);
    for (float& v : made) v = normal(random_);
    return made;
  }
  // Runs `work` on both devices.
  template <typename F>
  void on_both(const F& work) {
    work(*gpu_);
    work(*other_);
  }

  std::mt19937 random_{5};
  std::unique_ptr<Bench> gpu_, other_;
};

TEST_F(DeviceTableTest, ConvertsAddsAndRoundsToTheSameBits) {
  for (const int32_t type : {kHalf, kBrain}) {
    const auto a = values(100), b = values();
    on_both([&](Bench& d) {
      d.put(0, a);
      d.put(1, b);
      ofsdp_stream* stream = d.device().compute();
      d.check(d.device().convert(stream, d.at<float>(0), kFloat, d.at<float>(2), type, kCount));
      d.check(d.device().add(stream, d.at<float>(2), type, d.at<float>(1), kCount));
      d.check(d.device().round(stream, d.at<float>(1), type, kCount));
    });
    EXPECT_EQ(gpu_->get<uint16_t>(2, kCount), other_->get<uint16_t>(2, kCount));
    EXPECT_EQ(gpu_->get<float>(1, kCount), other_->get<float>(1, kCount));
  }
}

TEST_F(DeviceTableTest, ReducesToTheSameBitsAndTheNormToRounding) {
  const auto a = values(), b = values();
  on_both([&](Bench& d) {
    d.put(0, a);
    d.put(1, b);
    d.put(5, std::vector<ofsdp_run_state>(1));
    ofsdp_reduce r{};
    r.gradient = {d.at<float>(0), kFloat, kBrain, d.at<float>(1)};
    r.dst = d.at<float>(2);
    r.count = kCount;
    r.norm_first = 3;
    r.norm_count = kCount - 100;
    r.partials = d.at<double>(3);
    r.state = d.at<ofsdp_run_state>(5);
    d.check(d.device().reduce(d.device().communication(), &r));
  });
  EXPECT_EQ(gpu_->get<float>(2, kCount), other_->get<float>(2, kCount));
  const double norm = gpu_->get<ofsdp_run_state>(5, 1)[0].squared_norm;
  const double expected = other_->get<ofsdp_run_state>(5, 1)[0].squared_norm;
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(norm, expected, 1e-12 * expected);
}

// Three updates, the second skipped: moments, corrections and the count of skips.
TEST_F(DeviceTableTest, OptimizersUpdateAsOnTheCpu) {
  std::vector<std::pair<std::string, int>> runs{
      {"adamw", 1}, {"adamw_transformers", 1}, {"assign", 0}};
  for (const OptimizerDef& def : optimizer_list()) {
    if (!def.keeps_gradient()) runs.emplace_back(def.name, 0);
  }
  for (const auto& [name, uncorrected] : runs) {
    UpdateSpec spec;
    spec.settings = {.momentum = 0.9, .nesterov = true, .bias_correction = uncorrected == 0};
    spec.scaled = true;
    const auto param = values(), grad = values(0.1f);
    on_both([&](Bench& d) {
      UpdateCall call(spec, {row(0, kCount, 0, 0.01)});
      call.place(d, 2);
      call.in(UpdateIn::kGradient, DType::kFloat32, d.at<float>(1));
      call.out(UpdateOut::kCopy, DType::kBFloat16, d.at<uint16_t>(4));
      const auto kernel = call.make(d, update_op(name, "advance"));
      ASSERT_NE(kernel, nullptr);
      d.put(0, param);
      d.put(1, grad);
      d.put(2, std::vector<float>(kCount));
      d.put(3, std::vector<float>(kCount));
      d.put(4, std::vector<uint16_t>(kCount));
      std::vector<ofsdp_run_state> state(1);
      state[0].steps_before = 2;
      d.put(5, state);
      for (int step = 0; step < 3; ++step) {
        ofsdp_step_numbers numbers{};
        numbers.step = step;
        numbers.lr = 0.01;
        d.put(6, std::vector{numbers});
        ofsdp_stream* stream = d.device().compute();
        d.check(
            d.device().begin(stream, d.at<ofsdp_run_state>(5), d.at<ofsdp_step_numbers>(6), 1, 0));
        if (step == 1) {
          auto state = d.get<ofsdp_run_state>(5, 1);
          state[0].skip = 1;
          state[0].skipped_updates = 1;
          d.put(5, state);
        }
        d.check(call.run(d, *kernel, stream));
      }
      d.check(d.device().synchronize());
    });
    for (size_t place : {size_t{0}, size_t{2}, size_t{3}}) {
      EXPECT_EQ(gpu_->get<float>(place, kCount), other_->get<float>(place, kCount))
          << name << " " << place;
    }
    EXPECT_EQ(gpu_->get<uint16_t>(4, kCount), other_->get<uint16_t>(4, kCount)) << name;
  }
}

// The sums are in another order, so lengths and parameters agree to rounding.
TEST_F(DeviceTableTest, LambsStepsDependOnNormsOfParameters) {
  UpdateSpec spec;
  spec.settings.eps = 1e-6;
  const auto param = values(), average = values(0.1f);
  auto square = values();
  for (float& v : square) v *= v;
  const std::vector<UpdateRow> rows{row(0, 5000, 1, 0.1), row(5000, kCount, 0, 0)};
  on_both([&](Bench& d) {
    UpdateCall call(spec, rows);
    call.place(d, 1);
    call.out(UpdateOut::kSquares, DType::kFloat64, d.at<double>(3), 4);
    call.out(UpdateOut::kPartials, DType::kFloat64, d.at<double>(4), 1);
    const auto norms = call.make(d, update_op("lamb", "norms"));
    const auto step = call.make(d, update_op("lamb", "step"));
    ASSERT_NE(norms, nullptr);
    ASSERT_NE(step, nullptr);
    d.put(0, param);
    d.put(1, average);
    d.put(2, square);
    d.put(3, std::vector<double>(4));
    ofsdp_run_state state{};
    state.optimizer_step = 3;
    d.put(5, std::vector{state});
    ofsdp_step_numbers numbers{};
    numbers.lr = 0.01;
    d.put(6, std::vector{numbers});
    ofsdp_stream* stream = d.device().communication();
    d.check(call.run(d, *norms, stream));
    d.check(call.run(d, *step, stream));
    d.check(d.device().synchronize());
  });
  const auto squares = gpu_->get<double>(3, 4), expected = other_->get<double>(3, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(squares[i], expected[i], 1e-12 * expected[i]) << i;
  const auto moved = gpu_->get<float>(0, kCount), wanted = other_->get<float>(0, kCount);
  EXPECT_NE(moved, param);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(moved[i], wanted[i], 1e-6f * (1 + std::abs(wanted[i]))) << i;
  }
}

// Twice: a sum becomes 0 when it is taken.
TEST_F(DeviceTableTest, ExactNormsAreThoseOfTheCpu) {
  for (const float scale : {1.0f, 1e-20f, 1e15f}) {
    const auto a = values(scale);
    on_both([&](Bench& d) {
      d.put(0, a);
      d.put(1, std::vector<ofsdp_exact_sum>(1));
      d.put(2, std::vector<double>(OFSDP_EXACT_LIMBS));
      d.put(3, std::vector<ofsdp_run_state>(1));
      ofsdp_stream* const stream = d.device().communication();
      for (int twice = 0; twice < 2; ++twice) {
        d.check(d.device().add_exact_squares(stream, d.at<float>(0), int64_t{kCount},
                                             d.at<ofsdp_exact_sum>(1)));
        d.check(d.device().take_exact_sum(stream, d.at<ofsdp_exact_sum>(1), d.at<double>(2)));
      }
      d.check(d.device().exact_norm(stream, d.at<double>(2), d.at<ofsdp_run_state>(3)));
    });
    const double norm = gpu_->get<ofsdp_run_state>(3, 1)[0].squared_norm;
    EXPECT_GT(norm, 0);
    EXPECT_EQ(norm, other_->get<ofsdp_run_state>(3, 1)[0].squared_norm) << scale;
  }
}

TEST_F(DeviceTableTest, ClipsAndScalesAsOnTheCpu) {
  for (const double squared : {4.0, 1e-6, HUGE_VAL}) {
    ofsdp_run_state state{};
    state.squared_norm = squared;
    state.scale_used = state.loss_scale = 65536;
    state.good_updates = 1999;
    on_both([&](Bench& d) {
      d.put(0, std::vector{state});
      d.check(d.device().clip(d.device().communication(), d.at<ofsdp_run_state>(0), 0.5, 1));
    });
    const auto mine = gpu_->get<std::byte>(0, sizeof(state));
    EXPECT_EQ(mine, other_->get<std::byte>(0, sizeof(state))) << squared;
  }
}

// Two streams in one graph, launched three times: each launch adds once more.
TEST_F(DeviceTableTest, ACapturedGraphRunsAgain) {
  const auto a = values();
  on_both([&](Bench& d) {
    d.put(0, a);
    d.put(1, std::vector<float>(kCount));
    const auto fork = *DeviceEvent::make(d.device()), join = *DeviceEvent::make(d.device());
    ofsdp_stream* const first = d.device().compute();
    ofsdp_stream* const second = d.device().communication();
    d.check(d.device().capture_begin(first));
    d.check(d.device().record(fork.get(), first));
    d.check(d.device().wait(second, fork.get()));
    d.check(d.device().add(second, d.at<float>(0), kFloat, d.at<float>(1), kCount));
    d.check(d.device().record(join.get(), second));
    d.check(d.device().wait(first, join.get()));
    const auto captured = d.device().capture_end(first);
    ASSERT_TRUE(captured.ok()) << captured.error().message();
    ofsdp_device_graph* const graph = *captured;
    for (int i = 0; i < 3; ++i) d.check(d.device().launch(graph, first));
    d.check(d.device().synchronize());
    d.device().drop_graph(graph);
  });
  const auto sum = gpu_->get<float>(1, kCount);
  EXPECT_EQ(sum, other_->get<float>(1, kCount));
  EXPECT_EQ(sum[1], a[1] + a[1] + a[1]);
}

TEST_F(DeviceTableTest, ATimedEventSaysWhen) {
  on_both([&](Bench& d) {
    d.put(0, values());
    d.put(1, std::vector<float>(kCount));
    const auto before = *DeviceEvent::make(d.device(), true),
               behind = *DeviceEvent::make(d.device(), true);
    ofsdp_stream* const stream = d.device().compute();
    d.check(d.device().record(before.get(), stream));
    for (int i = 0; i < 100; ++i) {
      d.check(d.device().add(stream, d.at<float>(0), kFloat, d.at<float>(1), kCount));
    }
    d.check(d.device().record(behind.get(), stream));
    d.check(d.device().await(behind.get()));
    double took = 0, back = 0;
    d.check(d.device().elapsed(before.get(), behind.get(), &took));
    d.check(d.device().elapsed(behind.get(), before.get(), &back));
    EXPECT_GT(took, 10);  // microseconds; a launch is one or two
    EXPECT_NEAR(back, -took, 1e-3 * took);
  });
}

// Whether the host sees the mark in time. An event in a graph may still be the launch before's, so
// awaiting it is not enough (runtime/engine/device/device_offload.cpp).
bool arrives(Device& device, ofsdp_event* event, int64_t& mark) {
  constexpr std::chrono::microseconds kPause{50};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end) {
    if (!device.await(event).ok()) return false;
    if (std::atomic_ref(mark).load(std::memory_order_acquire) != 0) return true;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

// The host waits for a copy inside a graph while the graph may go on, in each launch anew.
TEST_F(DeviceTableTest, ASignalInAGraphReachesTheHostWithEachLaunch) {
  const auto a = values();
  on_both([&](Bench& d) {
    d.put(0, a);
    d.put(1, std::vector<float>(kCount));
    constexpr size_t kBytes = kCount * sizeof(float), kMark = (kBytes + 63) / 64 * 64;
    MemoryLedger ledger;
    const auto pinned = *DeviceMemory::allocate(d.device(), ledger, kMark + sizeof(int64_t),
                                                DeviceMemory::Place::kPinned, "");
    auto* const mark = reinterpret_cast<int64_t*>(pinned.data() + kMark);
    const auto fork = *DeviceEvent::make(d.device()), join = *DeviceEvent::make(d.device()),
               arrived = *DeviceEvent::make(d.device());
    ofsdp_stream* const first = d.device().compute();
    ofsdp_stream* const second = d.device().upload();
    d.check(d.device().capture_begin(first));
    d.check(d.device().add(first, d.at<float>(0), kFloat, d.at<float>(1), kCount));
    d.check(d.device().record(fork.get(), first));
    d.check(d.device().wait(second, fork.get()));
    d.check(d.device().copy(second, pinned.data(), d.at<float>(1), kBytes));
    d.check(d.device().mark(second, mark, 1));
    d.check(d.device().signal(arrived.get(), second));
    d.check(d.device().record(join.get(), second));
    d.check(d.device().wait(first, join.get()));
    const auto captured = d.device().capture_end(first);
    ASSERT_TRUE(captured.ok()) << captured.error().message();
    ofsdp_device_graph* const graph = *captured;
    float sum = 0;
    for (int i = 0; i < 3; ++i) {
      std::atomic_ref(*mark).store(0);
      d.check(d.device().launch(graph, first));
      ASSERT_TRUE(arrives(d.device(), arrived.get(), *mark)) << i;
      sum += a[1];
      EXPECT_EQ(reinterpret_cast<const float*>(pinned.data())[1], sum) << i;
    }
    d.check(d.device().signal(arrived.get(), second));  // outside of a capture a record
    d.check(d.device().await(arrived.get()));
    d.check(d.device().synchronize());
    d.device().drop_graph(graph);
  });
}

}  // namespace
}  // namespace ofsdp
