// No kernel of ours calls malloc when it runs (from the second run on): the executor promises that
// for the whole step. oneDNN makes a bounded number of small objects in every run of a primitive.
// See [Note: oneDNN and malloc]. This program counts calls by defining malloc and
// dnnl_primitive_execute; sanitizers define malloc too, so there it skips.
#include <dlfcn.h>
#include <dnnl.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"
#include "kernels/cpu/parallel.h"
#include "tests/support/namespaces.h"
#include "tests/support/samples.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OFSDP_COUNTS_MALLOC 1
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}
namespace {

std::atomic<bool> counting{false};
std::atomic<int> ours{0}, onednn{0}, runs{0};
// A run outside a parallel region has all the pool's threads; a run inside has only its
// caller's.
std::atomic<bool> all_inside{false};
thread_local bool inside = false;

void count() {
  if (counting) ++(all_inside || inside ? onednn : ours);
}

}  // namespace

extern "C" void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}

extern "C" int posix_memalign(void** made, size_t alignment, size_t bytes) {
  count();
  *made = __libc_memalign(alignment, bytes);
  return *made == nullptr ? 12 : 0;  // ENOMEM
}

extern "C" dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                                dnnl_stream_t stream, int number,
                                                const dnnl_exec_arg_t* arguments) {
  static const auto real = reinterpret_cast<decltype(&dnnl_primitive_execute)>(
      dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  const bool alone = omp_in_parallel() == 0;
  inside = true;
  if (alone) all_inside = true;
  const dnnl_status_t status = real(primitive, stream, number, arguments);
  if (alone) all_inside = false;
  inside = false;
  ++runs;
  return status;
}
#endif

namespace ofsdp {
namespace {

class Buffers {
 public:
  TensorView view(const TensorDesc& desc) { return {bytes(desc.bytes()), desc}; }

  std::byte* bytes(size_t count) {
    Result<Region> region = Region::map(ledger_, count, Region::Sharing::kPrivate, "test");
    OFSDP_CHECK(region.ok());
    regions_.push_back(*std::move(region));
    return regions_.back().data();
  }

 private:
  MemoryLedger ledger_;
  std::vector<Region> regions_;
};

struct Calls {
  int ours = 0, onednn = 0, runs = 0;
};

// malloc calls in a kernel's second and third run.
Calls calls_of(Kernel& kernel, const Problem& problem) {
#ifdef OFSDP_COUNTS_MALLOC
  Buffers buffers;
  std::vector<TensorView> inputs, outputs;
  for (const TensorDesc& desc : problem.inputs) inputs.push_back(buffers.view(desc));
  // Zeros, but all bits set in a MaxPool's winners: no winner.
  for (const TensorView& view : inputs) {
    if (view.desc.dtype != DType::kFloat32) std::memset(view.data, 0xff, view.desc.bytes());
  }
  for (const TensorDesc& desc : problem.outputs) outputs.push_back(buffers.view(desc));
  const StepContext step;
  const KernelArgs args{inputs, outputs, buffers.bytes(kernel.workspace_bytes()), &step};
  EXPECT_TRUE(kernel.run(args).ok());
  ours = onednn = runs = 0;
  counting = true;
  const bool ok = kernel.run(args).ok() && kernel.run(args).ok();
  counting = false;
  EXPECT_TRUE(ok);
  return {ours, onednn, runs};
#else
  (void)kernel, (void)problem;
  return {};
#endif
}

Layout layout_of(const TensorDesc& desc, bool channels_last) {
  return channels_last && desc.shape.rank() == 4 ? Layout::kChannelsLast : Layout::kPlain;
}

// Runs of a primitive; seen: 9 with AVX-512, 13 with AVX2; for one with 16 products, AVX2: 55.
constexpr int kOneDnnCalls = 16, kOneDnnCallsOfWinograd = 64;

TEST(OneDnn, KernelsRunWithoutMallocOfOurs) {
#ifndef OFSDP_COUNTS_MALLOC
  GTEST_SKIP() << "the sanitizer owns malloc";
#endif
  // OpenBLAS allocates when it starts threads; with one thread this would not show.
  if (pool_threads() < 2) set_pool_threads(2);
  const Registry registry = make_registry();
  int kernels = 0;
  double most = 0;
  for (const char* name : {"Gemm", "MatMul", "ofsdp.MatMul", "Conv", "ofsdp.ConvGradInput",
                           "ofsdp.ConvGradWeights", "MaxPool", "ofsdp.MaxPoolGrad"}) {
    const OpDef& op = registry.get(name);
    for (const SampleCase& sample : testing::samples_of(op)) {
      for (const bool channels_last : {false, true}) {
        if (channels_last && op.layout != LayoutRule::kChannelsLast) continue;
        InferContext context{sample.attributes, sample.inputs, {}, {}};
        context.constants.resize(sample.inputs.size());
        context.wanted.assign(sample.num_outputs, true);
        Result<std::vector<TensorDesc>> outputs = op.infer(context);
        ASSERT_TRUE(outputs.ok()) << name << " " << sample.name;
        Problem problem;
        problem.attributes = sample.attributes;
        problem.inputs = sample.inputs;
        problem.outputs = *outputs;
        problem.outputs.resize(sample.num_outputs);
        problem.constants.resize(sample.inputs.size());
        for (int i : op.channels_last_inputs) {
          TensorDesc& desc = problem.inputs[static_cast<size_t>(i)];
          desc.layout = layout_of(desc, channels_last);
        }
        for (int i : op.channels_last_outputs) {
          if (static_cast<size_t>(i) >= problem.outputs.size()) continue;
          TensorDesc& desc = problem.outputs[static_cast<size_t>(i)];
          desc.layout = layout_of(desc, channels_last);
        }
        Result<std::unique_ptr<Kernel>> kernel = create_kernel(op, problem);
        ASSERT_TRUE(kernel.ok()) << kernel.error().message();
        const Calls calls = calls_of(**kernel, problem);
        const std::string what =
            name + (" " + sample.name) + (channels_last ? " channels last" : " plain");
        EXPECT_EQ(calls.ours, 0) << what;
        const bool winograd = sample.name.starts_with("winograd");
        EXPECT_LE(calls.onednn, (winograd ? kOneDnnCallsOfWinograd : kOneDnnCalls) * calls.runs)
            << what;
        if (calls.runs > 0) most = std::max(most, double(calls.onednn) / calls.runs);
        ++kernels;
      }
    }
  }
  EXPECT_GT(kernels, 80);
  std::printf("oneDNN: at most %.1f calls a run of a primitive\n", most);
}

}  // namespace
}  // namespace ofsdp
