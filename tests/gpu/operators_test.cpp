// Every operator with a kernel in a device library, against the operator's reference and sample
// cases: the conformance test of the CPU (tests/ops/conformance_test.cpp) through the library's
// table. Run as gpu.operators on a GPU, and as unit.cuda_operators on the emulated device
// (tests/device/emulated), which OFSDP_CUDA_LIBRARY names then.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string_view>

#include "kernels/core/device.h"
#include "kernels/core/device_operators.h"
#include "kernels/core/op_def.h"
#include "kernels/ops/attention/device_attention.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_check.h"
#include "tests/support/op_values.h"
#include "tests/support/operator_names.h"
#include "tests/support/samples.h"

namespace ofsdp {
namespace {

constexpr size_t kGuard =
    192;  // bytes around all data on the device; keeps it at odd multiples of 64
constexpr std::byte kGuarded{0xA5};

// Operands in device memory, with guards between them.
class Block {
 public:
  size_t take(const void* bytes, size_t count) {
    image_.resize(image_.size() + kGuard, kGuarded);
    image_.resize((image_.size() + 63) / 64 * 64, kGuarded);
    const size_t offset = image_.size();
    image_.resize(offset + count);
    if (count > 0) std::memcpy(image_.data() + offset, bytes, count);
    spans_.push_back({offset, count});
    return offset;
  }
  void finish() { image_.resize(image_.size() + kGuard, kGuarded); }
  std::vector<std::byte>& image() { return image_; }

  bool guards_hold() const {
    size_t next = 0;
    for (size_t i = 0; i < image_.size(); ++i) {
      while (next < spans_.size() && i >= spans_[next].first + spans_[next].second) ++next;
      const bool inside = next < spans_.size() && i >= spans_[next].first;
      if (!inside && image_[i] != kGuarded) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> image_;
  std::vector<std::pair<size_t, size_t>> spans_;
};

// A device kernel with operands in host memory: all operands travel both ways.
class Travelling final : public Kernel {
 public:
  Travelling(Device& device, std::unique_ptr<Kernel> kernel)
      : device_(device), kernel_(std::move(kernel)) {}
  size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

  Status run(const KernelArgs& args) override {
    Block block;
    std::vector<size_t> inputs, outputs;
    for (const TensorView& view : args.inputs) inputs.push_back(block.take(view.data, bytes(view)));
    for (const TensorView& view : args.outputs) {
      size_t same = args.inputs.size();
      for (size_t i = 0; i < same; ++i) {
        if (view.data != nullptr && view.data == args.inputs[i].data) same = i;
      }
      outputs.push_back(same < inputs.size() ? inputs[same] : block.take(view.data, bytes(view)));
    }
    const size_t workspace = block.take(args.workspace, workspace_bytes());
    const std::vector<std::byte> numbers = numbers_of(*args.step);
    const size_t at_numbers = block.take(numbers.data(), numbers.size());
    block.finish();
    MemoryLedger ledger;
    using Place = DeviceMemory::Place;
    const size_t size = block.image().size();
    OFSDP_ASSIGN_OR_RETURN(const DeviceMemory memory,
                           DeviceMemory::allocate(device_, ledger, size, Place::kDevice, "test"));
    OFSDP_ASSIGN_OR_RETURN(const DeviceMemory pinned,
                           DeviceMemory::allocate(device_, ledger, size, Place::kPinned, "test"));
    std::memcpy(pinned.data(), block.image().data(), size);
    OFSDP_RETURN_IF_ERROR(copy(memory.data(), pinned.data(), size));
    DeviceStepContext step;
    step.numbers = reinterpret_cast<const ofsdp_step_numbers*>(memory.data() + at_numbers);
    step.samples = static_cast<int64_t>(args.step->sample_index.size());
    const auto moved = [&](std::span<const TensorView> views, const std::vector<size_t>& offsets) {
      std::vector<TensorView> made(views.begin(), views.end());
      for (size_t i = 0; i < made.size(); ++i) {
        if (made[i].data != nullptr) made[i].data = memory.data() + offsets[i];
      }
      return made;
    };
    const auto in = moved(args.inputs, inputs), out = moved(args.outputs, outputs);
    OFSDP_RETURN_IF_ERROR(kernel_->run({in, out, memory.data() + workspace, &step}));
    OFSDP_RETURN_IF_ERROR(copy(pinned.data(), memory.data(), size));
    std::memcpy(block.image().data(), pinned.data(), size);
    const auto back = [&](std::span<const TensorView> views, const std::vector<size_t>& offsets) {
      for (size_t i = 0; i < views.size(); ++i) {
        if (bytes(views[i]) == 0) continue;
        std::memcpy(views[i].data, block.image().data() + offsets[i], bytes(views[i]));
      }
    };
    back(args.inputs, inputs);
    back(args.outputs, outputs);
    return block.guards_hold() ? Status{} : fault("wrote outside of its operands on the device");
  }

 private:
  static size_t bytes(const TensorView& view) {
    return view.data == nullptr ? 0 : view.desc.bytes();
  }
  static std::vector<std::byte> numbers_of(const StepContext& step) {
    ofsdp_step_numbers head{};
    head.seed = step.seed;
    head.step = step.step;
    head.samples = static_cast<int64_t>(step.sample_index.size());
    std::vector<std::byte> made(sizeof(head) + step.sample_index.size_bytes());
    std::memcpy(made.data(), &head, sizeof(head));
    std::memcpy(made.data() + sizeof(head), step.sample_index.data(),
                step.sample_index.size_bytes());
    return made;
  }
  Status copy(void* to, const void* from, size_t size) {
    OFSDP_RETURN_IF_ERROR(device_.synchronize().with_prefix("synchronize"));
    OFSDP_RETURN_IF_ERROR(device_.copy(device_.compute(), to, from, size).with_prefix("copy"));
    return device_.synchronize().with_prefix("synchronize");
  }

  Device& device_;
  std::unique_ptr<Kernel> kernel_;
};

std::vector<std::string> computing_operators() {
  return operator_names([](const OpDef& op) { return !op.view; });
}

// One device for all tests: opening a GPU takes time.
class OnDevice : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto found = find_device(0);
    if (found.ok()) device_ = std::move(*found).release();
    if (!found.ok()) why_ = found.error().message();
  }
  static void TearDownTestSuite() {
    delete device_;
    device_ = nullptr;
  }
  void SetUp() override {
    if (device_ != nullptr) return;
    ASSERT_EQ(std::getenv("OFSDP_TEST_DEVICE"), nullptr) << why_;
    GTEST_SKIP() << why_;
  }

  static inline Device* device_ = nullptr;
  static inline std::string why_;
};

class DeviceOperators : public OnDevice, public ::testing::WithParamInterface<std::string> {
 protected:
  static Implementation on_device(const std::string& name) {
    const auto create = [name](const Problem& p) { return device_->make_kernel(name, p); };
    return {
        "device", [create](const Problem& p) { return create(p) != nullptr; },
        [create](const Problem& p) { return std::make_unique<Travelling>(*device_, create(p)); }};
  }
};

// The findings except the problems without a kernel.
std::string but_for_missing(const std::string& findings) {
  std::istringstream lines(findings);
  std::string left;
  for (std::string line; std::getline(lines, line);) {
    if (!line.ends_with("no implementation accepts it")) left += line + "\n";
  }
  return left;
}

// Problems without a kernel in the library are no failure here:
// tests/procs/device/emulated_device_test.cpp lists the needs of models.
TEST_P(DeviceOperators, AgreeWithTheReference) {
  const Registry registry = make_registry();
  OpDef op = registry.get(GetParam());
  const std::string name = op.full_name();
  op.cpu = {on_device(name)};
  const std::vector<SampleCase> samples = testing::samples_of(op);
  size_t missing = 0;
  for (const SampleCase& sample : samples) {
    const std::string findings = testing::check_kernels(op, sample);
    const std::string wrong = but_for_missing(findings);
    EXPECT_EQ(wrong, "") << sample.name;
    if (wrong != findings) ++missing;
  }
  const bool listed = kernels::has_device_kernel(name);
  EXPECT_EQ(missing < samples.size(), listed)
      << name << ": kernels for " << samples.size() - missing << " of " << samples.size()
      << " samples; kernels/core/device_operators.h says which operators have one";
}

// The operators that take rows with a pitch (importer/passes/epilogues.cpp).
constexpr std::string_view kPitched =
    " Gemm MatMul NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"
    " com.microsoft.FusedMatMul ofsdp.ArgmaxMatches ofsdp.GemmEpilogue ofsdp.MatMul"
    " ofsdp.NarrowCrossEntropyLoss ofsdp.NarrowCrossEntropyLossGrad ofsdp.NllLossGrad"
    " ofsdp.SoftmaxCrossEntropyLossGrad ofsdp.SoftmaxCrossEntropyLossWithGradient ";

// For a pitch, large samples show no more than small ones.
bool is_small(const SampleCase& sample) {
  return std::ranges::all_of(sample.inputs,
                             [](const TensorDesc& desc) { return desc.numel() < 20000; });
}

TEST_P(DeviceOperators, TakeRowsThatAreApartOrRefuseThem) {
  const Registry registry = make_registry();
  OpDef op = registry.get(GetParam());
  op.cpu = {on_device(op.full_name())};
  int taken = 0;
  for (const SampleCase& sample : testing::samples_of(op)) {
    if (!is_small(sample)) continue;
    EXPECT_EQ(testing::check_pitched(op, sample, taken), "");
  }
  const bool listed = kPitched.find(" " + op.full_name() + " ") != std::string_view::npos;
  EXPECT_EQ(taken > 0, listed) << taken << "; the list above says which operators take some";
}

// The device's outputs for a sample when the first element of the first operand is NaN.
std::vector<double> with_nan(Device& device, const OpDef& op, SampleCase sample) {
  sample.fill = [](size_t i, std::vector<double>& values) {
    if (i == 0 && !values.empty()) values[0] = std::nan("");
  };
  const testing::CaseValues values = testing::make_values(sample);
  Problem p{sample.attributes, sample.inputs, {}, values.constants};
  p.outputs = *op.infer({sample.attributes, sample.inputs, values.constants, {}});
  p.outputs.resize(sample.num_outputs);
  auto made = device.make_kernel(op.full_name(), p);
  if (made == nullptr || p.out(0).numel() == 0 || p.in(0).numel() == 0) return {};
  Travelling kernel(device, std::move(made));
  std::vector<testing::GuardedBytes> bytes;
  std::vector<TensorView> in, out;
  const auto place = [&bytes](const TensorDesc& desc, std::vector<TensorView>& views) {
    bytes.emplace_back(desc.present() ? desc.bytes() : 0, 0xFF);
    views.push_back({desc.present() ? bytes.back().data() : nullptr, desc});
  };
  bytes.reserve(p.inputs.size() + p.outputs.size() + 1);
  for (const TensorDesc& desc : p.inputs) place(desc, in);
  for (const TensorDesc& desc : p.outputs) place(desc, out);
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].data != nullptr) testing::encode(values.inputs[i].values, in[i].desc, in[i].data);
  }
  testing::GuardedBytes& workspace = bytes.emplace_back(kernel.workspace_bytes(), 0);
  const StepContext step = testing::check_step();
  EXPECT_TRUE(kernel.run({in, out, workspace.data(), &step}).ok());
  return testing::decode(out[0].desc, out[0].data);
}

// [Note: oneDNN's relu hides NaN] is for every library: no activation or sum may lose a NaN.
TEST_F(OnDevice, ANaNComesThroughEveryProduct) {
  const Registry registry = make_registry();
  for (const char* name : {"Gemm", "ofsdp.GemmEpilogue"}) {
    const OpDef& op = registry.get(name);
    for (const SampleCase& sample : testing::samples_of(op)) {
      if (!is_floating(sample.inputs[0].dtype)) continue;
      const std::vector<double> y = with_nan(*device_, op, sample);
      const int64_t row =
          y.empty() ? 0 : sample.inputs[1].shape[sample.attributes.i("transB", 0) ? 0 : 1];
      for (int64_t i = 0; i < row; ++i) {
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(i)]))
            << name << "/" << sample.name << " " << i;
      }
    }
  }
}

// Without a GPU, `plan` tells by the same rules which kernel an attention gets.
TEST_F(OnDevice, CudnnTakesTheMasksThatThePlanSays) {
  const char* const library = std::getenv("OFSDP_CUDNN_LIBRARY");
  if (library == nullptr || std::string_view(library) != "stand-in") {
    GTEST_SKIP() << "cuDNN may decline some, of its own";
  }
  const Registry registry = make_registry();
  std::map<std::string, int> taken;
  for (const char* name : {"Attention", "ofsdp.AttentionWithStatistics", "ofsdp.AttentionGrad"}) {
    const OpDef& op = registry.get(name);
    for (const SampleCase& sample : testing::samples_of(op)) {
      const testing::CaseValues values = testing::make_values(sample);
      Problem p{sample.attributes, sample.inputs, {}, values.constants};
      p.outputs = *op.infer({sample.attributes, sample.inputs, values.constants, {}});
      p.outputs.resize(sample.num_outputs);
      kernels::KernelChoice choice;
      const bool nothing =
          p.out(0).numel() == 0 || device_->make_kernel(name, p, &choice) == nullptr;
      const bool anew = op.name == "AttentionGrad" && !p.has_in(7);
      if (nothing || anew) continue;
      EXPECT_EQ(choice.taken, kernels::ops::device_choice(name, p).taken)
          << name << " " << sample.name;
      if (sample.name.starts_with("cudnn_")) {
        EXPECT_EQ(choice.taken.substr(0, 5), "cudnn") << name << " " << sample.name;
      }
      ++taken[choice.taken];
    }
  }
  for (const char* way : kernels::ops::kCudnnByMask) EXPECT_GE(taken[way], 12) << way;
}

INSTANTIATE_TEST_SUITE_P(Operators, DeviceOperators, ::testing::ValuesIn(computing_operators()),
                         operator_test_name);

}  // namespace
}  // namespace ofsdp
