// Kernels at shapes from the MNIST CNN (batch 64), from BERT-mini's attention and loss (batch 8)
// and from one large matrix product, one thread: `build/release/bench/kernels`. Convolutions and
// poolings run plain and channels last. Besides time, GF/s where multiplications are counted, and
// GB/s where bytes are.
#include <benchmark/benchmark.h>

#include <random>

#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"
#include "kernels/cpu/parallel.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

using Ints = std::vector<int64_t>;

TensorDesc tensor(Shape shape, Layout layout = Layout::kPlain, DType dtype = DType::kFloat32) {
  return {dtype, std::move(shape), layout};
}

// One problem with memory for the operands.
class Bench {
 public:
  Bench(const std::string& op, Attributes attributes, std::vector<TensorDesc> inputs,
        std::vector<TensorDesc> outputs)
      : registry_(make_registry()) {
    Problem problem;
    problem.attributes = std::move(attributes);
    problem.inputs = std::move(inputs);
    problem.outputs = std::move(outputs);
    problem.constants.resize(problem.inputs.size());
    for (const TensorDesc& desc : problem.inputs) inputs_.push_back(view(desc));
    for (const TensorDesc& desc : problem.outputs) outputs_.push_back(view(desc));
    Result<std::unique_ptr<Kernel>> kernel = create_kernel(registry_.get(op), problem);
    OFSDP_CHECK(kernel.ok(), "{}", kernel.error().message());
    kernel_ = *std::move(kernel);
    workspace_ = map(kernel_->workspace_bytes());
  }

  void run(benchmark::State& state, double flops) {
    const StepContext step;
    const KernelArgs args{inputs_, outputs_, workspace_, &step};
    for (auto unused : state) {
      (void)unused;
      OFSDP_CHECK(kernel_->run(args).ok());
    }
    double bytes = 0;
    for (const TensorView& v : inputs_) bytes += static_cast<double>(v.desc.bytes());
    for (const TensorView& v : outputs_) bytes += static_cast<double>(v.desc.bytes());
    const bool counted = flops > 0;
    state.counters[counted ? "GF/s" : "GB/s"] = benchmark::Counter(
        (counted ? flops : bytes) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["workspace_MB"] = static_cast<double>(kernel_->workspace_bytes()) * 1e-6;
  }

 private:
  std::byte* map(size_t bytes) {
    Result<Region> region = Region::map(ledger_, bytes, Region::Sharing::kPrivate, "bench");
    OFSDP_CHECK(region.ok());
    regions_.push_back(*std::move(region));
    return regions_.back().data();
  }

  TensorView view(const TensorDesc& desc) {
    TensorView made{map(desc.bytes()), desc};
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    if (desc.dtype != DType::kFloat32) return made;
    for (int64_t i = 0; i < desc.numel(); ++i) made.as<float>()[i] = uniform(generator);
    return made;
  }

  Registry registry_;
  MemoryLedger ledger_;
  std::vector<Region> regions_;
  std::vector<TensorView> inputs_, outputs_;
  std::unique_ptr<Kernel> kernel_;
  std::byte* workspace_ = nullptr;
};

enum class Pass { kForward, kForwardRelu, kInput, kWeights };

void conv(benchmark::State& state, Pass pass, int64_t channels, int64_t outputs, int64_t size) {
  const auto layout = state.range(0) != 0 ? Layout::kChannelsLast : Layout::kPlain;
  const TensorDesc x = tensor({64, channels, size, size}, layout);
  const TensorDesc w = tensor({outputs, channels, 3, 3}), b = tensor({outputs});
  const TensorDesc y = tensor({64, outputs, size - 2, size - 2}, layout);
  const Attributes grad{{"x_shape", x.shape.axes()}, {"w_shape", w.shape.axes()}};
  const double flops = 2.0 * static_cast<double>(y.numel() * channels * 9);
  const Attributes relu{{"ofsdp_activation", std::string("relu")}};
  if (pass == Pass::kForward) Bench("Conv", {}, {x, w, b}, {y}).run(state, flops);
  if (pass == Pass::kForwardRelu) Bench("Conv", relu, {x, w, b}, {y}).run(state, flops);
  if (pass == Pass::kInput) Bench("ofsdp.ConvGradInput", grad, {y, w}, {x}).run(state, flops);
  if (pass == Pass::kWeights) {
    Bench("ofsdp.ConvGradWeights", grad, {x, y}, {w, b}).run(state, flops);
  }
}

void max_pool(benchmark::State& state, bool gradient) {
  const auto layout = state.range(0) != 0 ? Layout::kChannelsLast : Layout::kPlain;
  const TensorDesc x = tensor({64, 64, 24, 24}, layout), y = tensor({64, 64, 12, 12}, layout);
  const TensorDesc winners = tensor(y.shape, layout, DType::kUInt8);
  Attributes window{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  if (!gradient) return Bench("MaxPool", window, {x}, {y, {}, winners}).run(state, 0);
  window.set("x_shape", x.shape.axes());
  Bench("ofsdp.MaxPoolGrad", window, {y, winners}, {x}).run(state, 0);
}

// [M, K] x [K, N], each operand stored transposed or not.
void gemm(benchmark::State& state, int64_t m, int64_t k, int64_t n, bool trans_a, bool trans_b) {
  const TensorDesc a = tensor(trans_a ? Shape{k, m} : Shape{m, k});
  const TensorDesc b = tensor(trans_b ? Shape{n, k} : Shape{k, n});
  const Attributes attributes{{"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}};
  Bench("Gemm", attributes, {a, b}, {tensor({m, n})})
      .run(state, 2.0 * static_cast<double>(m * k * n));
}

// Elements in one pass: sums, a gate, and the gate's gradient; then the members separately.
void chain(benchmark::State& state, const char* op, std::vector<std::string> steps, int64_t inputs,
           Ints results) {
  const TensorDesc x = tensor({state.range(0), 1024});
  const Attributes program{{"steps", std::move(steps)}, {"results", results}};
  Bench(op, program, std::vector(static_cast<size_t>(inputs), x), std::vector(results.size(), x))
      .run(state, 0);
}

void binary(benchmark::State& state, const char* op) {
  const TensorDesc x = tensor({state.range(0), 1024});
  Bench(op, {}, {x, x}, {x}).run(state, 0);
}

void unary(benchmark::State& state, const char* op) {
  const TensorDesc x = tensor({state.range(0), 1024});
  Bench(op, {}, {x}, {x}).run(state, 0);
}

// 128 tokens in 4 heads of 64, one head after the other in each row, as in BERT-mini.
void attention(benchmark::State& state, bool gradient) {
  const int64_t rows = state.range(0);
  const TensorDesc x = tensor({rows, 128, 256});
  const Attributes heads{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{4}}};
  const double product = 2.0 * 128 * 128 * 256 * static_cast<double>(rows);
  if (!gradient) return Bench("Attention", heads, {x, x, x}, {x}).run(state, 2 * product);
  Bench("ofsdp.AttentionGrad", heads, {x, x, x, x}, {x, x, x}).run(state, 5 * product);
}

// Labels are class 0.
void loss(benchmark::State& state, int64_t rows, int64_t classes) {
  const TensorDesc scores = tensor({rows, classes}), one = tensor({});
  Bench("ofsdp.SoftmaxCrossEntropyLossWithGradient", {{"reduction", std::string("mean")}},
        {one, scores, {DType::kInt64, {rows}}}, {one, scores})
      .run(state, 0);
}

// Argument 0: plain, 1: channels last.
BENCHMARK_CAPTURE(conv, first_forward, Pass::kForward, 1, 32, 28)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(conv, first_forward_relu, Pass::kForwardRelu, 1, 32, 28)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(conv, first_weights, Pass::kWeights, 1, 32, 28)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(conv, second_forward, Pass::kForward, 32, 64, 26)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(conv, second_forward_relu, Pass::kForwardRelu, 32, 64, 26)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(conv, second_input, Pass::kInput, 32, 64, 26)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(conv, second_weights, Pass::kWeights, 32, 64, 26)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(max_pool, forward, false)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(max_pool, gradient, true)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(gemm, fc1_forward, 64, 9216, 128, false, true);
BENCHMARK_CAPTURE(gemm, fc1_grad_input, 64, 128, 9216, false, false);
BENCHMARK_CAPTURE(gemm, fc1_grad_weights, 128, 64, 9216, true, false);
BENCHMARK_CAPTURE(gemm, wide_forward, 512, 768, 3072, false, false);
BENCHMARK_CAPTURE(gemm, wide_forward_transposed, 512, 768, 3072, false, true);

// Argument: rows of 1024.
const std::vector<std::string> kGate{"Sigmoid 0", "Mul 0 2", "Mul 3 1"};
const std::vector<std::string> kGateGrad{"Mul 2 1", "Mul 4 3", "Mul 4 0", "SigmoidGrad 6 3",
                                         "Add 5 7", "Mul 0 3", "Mul 2 9"};
BENCHMARK_CAPTURE(chain, one_add, "ofsdp.Chain", {"Add 0 1"}, 2, {2})
    ->RangeMultiplier(4)
    ->Range(64, 4096);
BENCHMARK_CAPTURE(chain, two_adds, "ofsdp.Chain", {"Add 0 1", "Add 2 3"}, 3, {4})
    ->Arg(64)
    ->Arg(4096);
BENCHMARK_CAPTURE(chain, gate, "ofsdp.Chain", kGate, 2, {4, 2})
    ->RangeMultiplier(4)
    ->Range(64, 4096);
BENCHMARK_CAPTURE(chain, gate_grad, "ofsdp.ChainGrad", kGateGrad, 4, {8, 10})
    ->RangeMultiplier(4)
    ->Range(64, 4096);
BENCHMARK_CAPTURE(binary, add, "Add")->RangeMultiplier(4)->Range(64, 4096);
BENCHMARK_CAPTURE(binary, mul, "Mul")->RangeMultiplier(4)->Range(64, 4096);
BENCHMARK_CAPTURE(binary, sigmoid_grad, "ofsdp.SigmoidGrad")->RangeMultiplier(4)->Range(64, 4096);
BENCHMARK_CAPTURE(binary, gelu_grad, "ofsdp.GeluGrad")->RangeMultiplier(4)->Range(64, 4096);
BENCHMARK_CAPTURE(unary, sigmoid, "Sigmoid")->RangeMultiplier(4)->Range(64, 4096);
BENCHMARK_CAPTURE(unary, gelu, "Gelu")->RangeMultiplier(4)->Range(64, 4096);

// Argument: sequences.
BENCHMARK_CAPTURE(attention, forward, false)->Arg(8);
BENCHMARK_CAPTURE(attention, gradient, true)->Arg(8);
BENCHMARK_CAPTURE(loss, vocabulary, 1024, 8192);

}  // namespace
}  // namespace ofsdp
