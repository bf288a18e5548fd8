// Share of the card's copy bandwidth that each memory-bound kernel in kernels/cuda reaches, at
// sizes that fill it:
//
//   build/cuda/bench/cuda_kernels [PART]  norms, losses, pointwises, movements, embeddings, updates
//
// Copy bandwidth: cudaMemcpyAsync on the device, 512 MiB read and written. A kernel's bytes are the
// bytes that it must read and write (see kernels/cuda/*.h). Time is the median of 20 runs
// by events, after 5 for warmth. Wanted: 85 %.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/random/random.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/shape/movement.h"

namespace {

using namespace ofsdp;
using namespace ofsdp::kernels::cuda;

using kernels::DType;
constexpr DType kHalf = DType::kBFloat16;
constexpr DType kFull = DType::kFloat32;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

// One buffer for a benchmark's lifetime, filled with zeros by default.
class Memory {
 public:
  explicit Memory(double bytes) {
    check(cudaMalloc(&at_, static_cast<size_t>(bytes) + 256), "cudaMalloc");
    check(cudaMemset(at_, 0, static_cast<size_t>(bytes) + 256), "cudaMemset");
  }
  ~Memory() { cudaFree(at_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <typename T = void>
  T* as() const {
    return static_cast<T*>(at_);
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    check(cudaMemcpy(at_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }

 private:
  void* at_ = nullptr;
};

double median_seconds(const std::function<cudaError_t(cudaStream_t)>& run, cudaStream_t stream,
                      const char* name) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), name);
  check(cudaEventCreate(&end), name);
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    check(cudaEventRecord(begin, stream), name);
    check(run(stream), name);
    check(cudaEventRecord(end, stream), name);
    check(cudaEventSynchronize(end), name);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), name);
    if (i >= 5) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e-3;
}

struct Bench {
  std::string only;
  cudaStream_t stream = nullptr;
  double copy = 0;  // bytes a second

  void operator()(const char* name, double bytes,
                  const std::function<cudaError_t(cudaStream_t)>& run) const {
    const double seconds = median_seconds(run, stream, name);
    std::printf("%-28s %8.0f MB %9.1f us %8.0f GB/s %6.1f %% of copy\n", name, bytes / 1e6,
                seconds * 1e6, bytes / seconds / 1e9, 100 * bytes / seconds / copy);
  }
  bool wants(const char* name) const {
    return only.empty() || std::strstr(name, only.c_str()) != nullptr;
  }
};

void copy_bandwidth(Bench& b) {
  const double bytes = 512.0 * (1 << 20);
  const Memory from(bytes), to(bytes);
  const double seconds = median_seconds(
      [&](cudaStream_t s) {
        return cudaMemcpyAsync(to.as(), from.as(), static_cast<size_t>(bytes),
                               cudaMemcpyDeviceToDevice, s);
      },
      b.stream, "copy");
  b.copy = 2 * bytes / seconds;
  std::printf("copy bandwidth %.0f GB/s (read and written)\n", b.copy / 1e9);
}

void norms(const Bench& b) {
  for (int64_t width : {768, 1024, 4096}) {
    const int64_t rows = (int64_t{1} << 26) / width;
    const double n = static_cast<double>(rows * width);
    Memory x(n * 2), y(n * 2), z(n * 2), scale(1 << 16), bias(1 << 16),
        mean(static_cast<double>(rows) * 4), inv(static_cast<double>(rows) * 4),
        scratch(static_cast<double>(norm_backward_scratch(rows, width)));
    const NormForward f{.dtype = kHalf,
                        .rows = rows,
                        .width = width,
                        .x = x.as(),
                        .scale = scale.as(),
                        .bias = bias.as(),
                        .y = y.as(),
                        .mean = mean.as<float>(),
                        .inv = inv.as<float>()};
    b(("layer_norm " + std::to_string(width)).c_str(), n * 4,
      [&](auto s) { return norm_forward(f, s); });
    NormBackward g{.dtype = kHalf,
                   .rows = rows,
                   .width = width,
                   .dy = y.as(),
                   .x = x.as(),
                   .scale = scale.as(),
                   .mean = mean.as<float>(),
                   .inv = inv.as<float>(),
                   .dx = z.as(),
                   .dscale = scale.as(),
                   .dbias = bias.as(),
                   .scratch = scratch.as()};
    b(("layer_norm_grad " + std::to_string(width)).c_str(), n * 6,
      [&](auto s) { return norm_backward(g, s); });
    g.addend = z.as();
    b(("layer_norm_grad and addend " + std::to_string(width)).c_str(), n * 8,
      [&](auto s) { return norm_backward(g, s); });
  }
}

void losses(const Bench& b) {
  for (int64_t classes : {128, 1024, 32768, 50257}) {
    const int64_t rows = (int64_t{1} << 27) / classes;
    const double n = static_cast<double>(rows * classes);
    Memory x(n * 2), y(n * 2);
    const SoftmaxParams e{kHalf, rows, classes, 1, false};
    b(("softmax " + std::to_string(classes)).c_str(), n * 4,
      [&](auto s) { return softmax(e, x.as(), y.as(), s); });
    b(("softmax_grad " + std::to_string(classes)).c_str(), n * 6,
      [&](auto s) { return softmax_grad(e, x.as(), y.as(), x.as(), s); });
  }
  for (int64_t classes : {30522, 50257, 50304}) {
    const int64_t rows = 8192;
    const double n = static_cast<double>(rows * classes);
    Memory x(n * 2), labels(rows * 8.0), lse(rows * 4.0), loss(64), slope(64);
    CrossEntropy c{.dtype = kHalf, .samples = rows, .classes = classes, .labels = labels.as()};
    Memory scratch(static_cast<double>(cross_entropy_scratch(c)));
    const CrossEntropyForward f{
        .scores = x.as(), .lse = lse.as<float>(), .loss = loss.as(), .scratch = scratch.as()};
    b(("cross_entropy " + std::to_string(classes)).c_str(), n * 2,
      [&](auto s) { return cross_entropy_forward(c, f, s); });
    const CrossEntropyBackward g{.scores = x.as(),
                                 .lse = lse.as<float>(),
                                 .diff_loss = slope.as(),
                                 .diff_scores = x.as(),
                                 .scratch = scratch.as()};
    b(("cross_entropy_grad " + std::to_string(classes)).c_str(), n * 4,
      [&](auto s) { return cross_entropy_backward(c, g, s); });
  }
}

void pointwises(const Bench& b) {
  const int64_t n = int64_t{1} << 27;
  const double d = static_cast<double>(n);
  Memory x(d * 4), y(d * 4), z(d * 4);
  for (DType dtype : {kHalf, kFull}) {
    const double size = dtype == kHalf ? 2 : 4;
    const std::string suffix = dtype == kHalf ? " bfloat16" : " float32";
    for (Pointwise op : {Pointwise::kRelu, Pointwise::kGelu, Pointwise::kGeluTanh,
                         Pointwise::kSwish, Pointwise::kSqrt}) {
      const std::string name = "unary " + std::to_string(static_cast<int>(op)) + suffix;
      b(name.c_str(), d * 2 * size, [&](auto s) {
        return pointwise(op, dtype, x.as(), nullptr, y.as(), n, {1, 0}, s);
      });
    }
    for (Pointwise op : {Pointwise::kAdd, Pointwise::kGeluGrad, Pointwise::kGeluTanhGrad}) {
      const std::string name = "binary " + std::to_string(static_cast<int>(op)) + suffix;
      b(name.c_str(), d * 3 * size,
        [&](auto s) { return pointwise(op, dtype, x.as(), y.as(), z.as(), n, {}, s); });
    }
    const std::vector<int64_t> shape = {n / 1024, 1024};
    const StridedIndex row =
        merge_dense_axes(shape, {dense_strides(shape), broadcast_strides({1024}, shape)});
    b(("add a row" + suffix).c_str(), d * 2 * size, [&](auto s) {
      return pointwise({Pointwise::kAdd, dtype, {}, row, x.as(), y.as(), z.as()}, s);
    });
  }
  b("cast bfloat16 to float32", d * 6,
    [&](auto s) { return cast(kHalf, x.as(), kFull, y.as(), n, s); });
  b("cast float32 to bfloat16", d * 6,
    [&](auto s) { return cast(kFull, x.as(), kHalf, y.as(), n, s); });
  Memory random(sizeof(RandomInput)), mask(d);
  DropoutCall c{kHalf,  64,     n / 64,         0.1, 7, random.as<RandomInput>(), nullptr,
                x.as(), y.as(), mask.as<bool>()};
  b("dropout with mask", d * 5, [&](auto s) { return dropout(c, s); });
  c.mask = nullptr;
  b("dropout", d * 4, [&](auto s) { return dropout(c, s); });
  b("dropout_grad", d * 5,
    [&](auto s) { return dropout_grad(kHalf, y.as(), mask.as<bool>(), z.as(), n, 0.1, s); });
}

void movements(const Bench& b) {
  const double bytes = 256.0 * (1 << 20);
  Memory x(bytes), y(bytes), scratch(64 << 20);
  const std::vector<int64_t> heads = {32, 12, 1024, 64};
  b("heads bfloat16", 4.0 * 32 * 12 * 1024 * 64, [&](auto s) {
    return strided_copy(2, heads, {1024 * 768, 64, 768, 1}, dense_strides(heads), x.as(), y.as(),
                        s);
  });
  for (size_t size : {2, 4}) {
    const std::vector<int64_t> shape = {8192, 8192};
    b(size == 2 ? "transpose bfloat16" : "transpose float32",
      2.0 * 8192 * 8192 * static_cast<double>(size), [&](auto s) {
        return strided_copy(size, shape, {1, 8192}, {8192, 1}, x.as(), y.as(), s);
      });
  }
  for (bool rows : {false, true}) {
    const std::vector<int64_t> shape = {131072, 768};
    const auto passes = plan_reduce(shape, {!rows, rows});
    const ReduceCall c{ReduceKind::kSum, kHalf, kHalf, 1, x.as(), y.as(), scratch.as()};
    b(rows ? "sum of rows" : "sum of columns", 2.0 * 131072 * 768,
      [&](auto s) { return reduce(passes, c, s); });
  }
}

void embeddings(const Bench& b) {
  const int64_t n = 50257, inner = 768, count = 32768;
  std::vector<int64_t> index;
  for (int64_t i = 0; i < count; ++i) index.push_back((i * 2654435761 >> 7) % n);
  Memory indices(count * 8.0), table(static_cast<double>(n * inner) * 2),
      rows(static_cast<double>(count * inner) * 2);
  indices.put(index);
  const GatherParams e{1, n, inner, count, DType::kInt64, indices.as(), nullptr};
  Memory scratch(static_cast<double>(gather_grad_scratch(e)));
  const double moved = static_cast<double>(count * inner) * 2,
               all = static_cast<double>(n * inner) * 2;
  b("gather", 2 * moved, [&](auto s) { return gather(e, 2, table.as(), rows.as(), s); });
  b("gather_grad of random indices", 2 * moved + all,
    [&](auto s) { return gather_grad(e, kHalf, rows.as(), table.as(), false, scratch.as(), s); });
  // Token types: two rows of the table, all indices 0.
  indices.put(std::vector<int64_t>(static_cast<size_t>(count)));
  GatherParams types = e;
  types.n = 2;
  b("gather_grad of one index", moved, [&](auto s) {
    return gather_grad(types, kHalf, rows.as(), table.as(), false, scratch.as(), s);
  });
}

void updates(const Bench& b) {
  const int64_t n = int64_t{1} << 27;
  const double d = static_cast<double>(n);
  Memory param(d * 4), first(d * 4), second(d * 4), gradient(d * 4), copy(d * 2),
      numbers(sizeof(ofsdp_step_numbers)), state(sizeof(ofsdp_run_state));
  numbers.put(std::vector<ofsdp_step_numbers>(1));
  state.put(std::vector<ofsdp_run_state>(1));
  struct Kind {
    const char* name;
    int states;
  };
  b("convert to bfloat16", d * 6, [&](auto s) {
    return convert(param.as(), static_cast<int32_t>(kFull), copy.as(), static_cast<int32_t>(kHalf),
                   n, s);
  });
  for (const Kind& k : {Kind{"adamw", 2}, Kind{"adadelta", 2}, Kind{"lion", 1}, Kind{"sgd", 0}}) {
    ofsdp_device_update u{};
    u.gradient = {gradient.as(), static_cast<int32_t>(kHalf), static_cast<int32_t>(DType::kFloat32),
                  nullptr};
    u.param = param.as<float>();
    if (k.states > 0) u.states[0] = first.as<float>();
    if (k.states > 1) u.states[1] = second.as<float>();
    u.count = n;
    u.state = state.as<ofsdp_run_state>();
    u.numbers = numbers.as<ofsdp_step_numbers>();
    b(k.name, d * (10 + 8 * k.states), [&](auto s) { return find_update(k.name)({}, u, s); });
    u.copy = copy.as();
    u.copy_dtype = static_cast<int32_t>(kHalf);
    b((std::string(k.name) + " and its copy").c_str(), d * (12 + 8 * k.states),
      [&](auto s) { return find_update(k.name)({}, u, s); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no CUDA device\n");
    return 77;
  }
  Bench b{argc > 1 ? argv[1] : ""};
  check(cudaStreamCreate(&b.stream), "stream");
  copy_bandwidth(b);
  struct Part {
    const char* name;
    void (*run)(const Bench&);
  };
  for (const Part& p :
       {Part{"norms", norms}, Part{"losses", losses}, Part{"pointwises", pointwises},
        Part{"movements", movements}, Part{"embeddings", embeddings}, Part{"updates", updates}}) {
    if (b.wants(p.name)) p.run(b);
  }
  return 0;
}
