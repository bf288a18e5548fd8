// Sums, means and extremes over axes: kernels/cuda/reduce.h.
#include "kernels/cuda/library/implementations.h"
#include "kernels/cuda/library/operands.h"
#include "kernels/cuda/reduce.h"

namespace ofsdp::cuda {
namespace {

bool accepts(const Problem& p) {
  return p.all_plain() && is_float(p.in(0).dtype) && (!p.has_in(1) || p.constant(1) != nullptr);
}

std::unique_ptr<CudaKernel> make_reduction(const Problem& p, const std::vector<bool>& reduced,
                                           ReduceKind kind, bool mean) {
  const std::vector<int64_t>& shape = p.in(0).shape.axes();
  const auto passes = std::make_shared<const std::vector<ReducePass>>(plan_reduce(shape, reduced));
  ReduceCall call;
  call.kind = kind;
  call.dtype = call.out_dtype = p.in(0).dtype;
  if (mean) {
    const auto count = static_cast<double>(p.in(0).numel()) / static_cast<double>(p.out(0).numel());
    call.scale = static_cast<float>(1.0 / count);
  }
  return make_cuda_kernel(
      [passes, call](cudaStream_t stream, const ofsdp_launch& l) {
        ReduceCall c = call;
        c.x = l.inputs[0];
        c.y = l.outputs[0];
        c.scratch = l.workspace;
        return reduce(*passes, c, stream);
      },
      reduce_scratch(*passes));
}

// The axes along which the output was broadcast to the input.
std::unique_ptr<CudaKernel> create_sum_to(ofsdp_device&, const Problem& p) {
  const std::vector<int64_t>&from = p.in(0).shape.axes(), &to = p.out(0).shape.axes();
  std::vector<bool> reduced(from.size(), true);
  const size_t missing = from.size() - to.size();
  for (size_t i = 0; i < to.size(); ++i) reduced[missing + i] = to[i] != from[missing + i];
  return make_reduction(p, reduced, ReduceKind::kSum, false);
}

std::vector<bool> reduced_axes(const Problem& p) {
  const std::vector<int64_t> axes = known_ints(p, 1);
  const bool all = axes.empty() && p.attributes.i("noop_with_empty_axes", 0) == 0;
  std::vector<bool> reduced(static_cast<size_t>(p.in(0).shape.rank()), all);
  for (const int64_t axis : axes) {
    reduced[static_cast<size_t>(axis < 0 ? axis + p.in(0).shape.rank() : axis)] = true;
  }
  return reduced;
}

CudaImplementation reduction(const char* op, ReduceKind kind, bool mean = false) {
  return {op, "own", accepts, [=](ofsdp_device&, const Problem& p) {
            return make_reduction(p, reduced_axes(p), kind, mean);
          }};
}

}  // namespace

void add_reductions(CudaImplementations& list) {
  list.push_back({"ofsdp.SumTo", "own", accepts, create_sum_to});
  list.push_back(reduction("ReduceSum", ReduceKind::kSum));
  list.push_back(reduction("ReduceMean", ReduceKind::kSum, true));
  list.push_back(reduction("ReduceL1", ReduceKind::kSumAbs));
  list.push_back(reduction("ReduceSumSquare", ReduceKind::kSumSquares));
  list.push_back(reduction("ReduceProd", ReduceKind::kProduct));
  list.push_back(reduction("ReduceMax", ReduceKind::kMax));
  list.push_back(reduction("ReduceMin", ReduceKind::kMin));
}

}  // namespace ofsdp::cuda
