// No kernel calls malloc when it runs (from the second run on): the executor promises that for the
// whole step, and oneDNN makes small objects at every run. See [Note: oneDNN and malloc]. This
// program counts calls by defining malloc itself; sanitizers do the same, so there it skips.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/core/memory.h"
#include "kernels/core/registry.h"
#include "kernels/cpu/parallel.h"
#include "tests/support/namespaces.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OFSDP_COUNTS_MALLOC 1
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}
namespace {
std::atomic<bool> counting{false};
std::atomic<int> calls{0};
}  // namespace

extern "C" void* malloc(size_t bytes) {
  if (counting) ++calls;
  return __libc_malloc(bytes);
}

extern "C" int posix_memalign(void** made, size_t alignment, size_t bytes) {
  if (counting) ++calls;
  *made = __libc_memalign(alignment, bytes);
  return *made == nullptr ? 12 : 0;  // ENOMEM
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

// malloc calls of the second and third run of a kernel.
int mallocs_of(Kernel& kernel, const Problem& problem) {
#ifdef OFSDP_COUNTS_MALLOC
  Buffers buffers;
  std::vector<TensorView> inputs, outputs;
  for (const TensorDesc& desc : problem.inputs) inputs.push_back(buffers.view(desc));
  // Zeros, but all bits set where the operand is a MaxPool's winners: no winner.
  for (const TensorView& view : inputs) {
    if (view.desc.dtype != DType::kFloat32) std::memset(view.data, 0xff, view.desc.bytes());
  }
  for (const TensorDesc& desc : problem.outputs) outputs.push_back(buffers.view(desc));
  const StepContext step;
  const KernelArgs args{inputs, outputs, buffers.bytes(kernel.workspace_bytes()), &step};
  EXPECT_TRUE(kernel.run(args).ok());
  calls = 0;
  counting = true;
  const bool ok = kernel.run(args).ok() && kernel.run(args).ok();
  counting = false;
  EXPECT_TRUE(ok);
  return calls;
#else
  (void)kernel, (void)problem;
  return 0;
#endif
}

Layout layout_of(const TensorDesc& desc, bool channels_last) {
  return channels_last && desc.shape.rank() == 4 ? Layout::kChannelsLast : Layout::kPlain;
}

TEST(OneDnn, KernelsRunWithoutMalloc) {
#ifndef OFSDP_COUNTS_MALLOC
  GTEST_SKIP() << "the sanitizer owns malloc";
#endif
  const Registry registry = make_registry();
  int kernels = 0;
  for (const char* name : {"Gemm", "MatMul", "ofsdp.MatMul", "Conv", "ofsdp.ConvGradInput",
                           "ofsdp.ConvGradWeights", "MaxPool", "ofsdp.MaxPoolGrad"}) {
    const OpDef& op = registry.get(name);
    for (const SampleCase& sample : op.samples()) {
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
        EXPECT_EQ(mallocs_of(**kernel, problem), 0)
            << name << " " << sample.name << (channels_last ? " channels last" : " plain");
        ++kernels;
      }
    }
  }
  EXPECT_GT(kernels, 80);
}

// An object made on one thread and freed on another comes back through the shared stack; without it
// this would take a megabyte a round from malloc for ever.
TEST(SmallObjects, FreedElsewhereComeBack) {
#ifdef OFSDP_COUNTS_MALLOC
  std::vector<std::map<int, int>*> made(1000);
  std::vector<int> per_round;
  for (int round = 0; round < 4; ++round) {
    calls = 0;
    counting = true;
    for (std::map<int, int>*& one : made) one = new std::map<int, int>{{1, 2}, {3, 4}};
    counting = false;
    per_round.push_back(calls);
    set_pool_threads(2);
#pragma omp parallel num_threads(2)
    {
#pragma omp for schedule(static, 1)
      for (int part = 0; part < 2; ++part) {
        if (part == 0) continue;  // the second thread frees them all
        for (std::map<int, int>* one : made) delete one;
      }
    }
  }
  EXPECT_GT(per_round[0], 10);
  // What the other thread's own lists hold back: at most two batches of each of two sizes.
  EXPECT_LE(per_round[3], 6);
#endif
}

}  // namespace
}  // namespace ofsdp
