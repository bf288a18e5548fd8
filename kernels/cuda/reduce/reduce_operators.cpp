// Sums, means and extremes over axes, and running sums: kernels/cuda/reduce/reduce.h, scan.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/reduce/scan.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts(const Problem& p) {
  return p.all_plain() && is_float(p.in(0).dtype) && (!p.has_in(1) || p.constant(1) != nullptr);
}

bool accepts_float32(const Problem& p) { return accepts(p) && p.in(0).dtype == DType::kFloat32; }

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

// A reduction and then a function of its results, in place; 16-bit results would be rounded twice.
CudaImplementation function_of(const char* op, ReduceKind kind, Pointwise function) {
  return {
      op, "own", accepts_float32, [=](ofsdp_device&, const Problem& p) {
        std::shared_ptr<CudaKernel> inner = make_reduction(p, reduced_axes(p), kind, false);
        return make_cuda_kernel(
            [inner, function, n = p.out(0).numel()](cudaStream_t stream, const ofsdp_launch& l) {
              OFSDP_CUDA_TRY(inner->run(stream, l));
              return pointwise(function, DType::kFloat32, l.outputs[0], nullptr, l.outputs[0], n,
                               {}, stream);
            },
            inner->workspace_bytes());
      }};
}

bool accepts_scan(const Problem& p) {
  return p.all_plain() && has_running_sum(p.in(0).dtype) && p.constant(1) != nullptr;
}

std::unique_ptr<CudaKernel> create_scan(const Problem& p, bool product) {
  const Shape& x = p.in(0).shape;
  const int64_t given = known_ints(p, 1)[0];
  const int axis = static_cast<int>(given < 0 ? given + x.rank() : given);
  ScanExtent e;
  e.dtype = p.in(0).dtype;
  e.outer = x.numel(0, axis);
  e.n = x[axis];
  e.inner = x.numel(axis + 1, x.rank());
  e.exclusive = p.attributes.i("exclusive", 0) != 0;
  e.reverse = p.attributes.i("reverse", 0) != 0;
  e.product = product;
  return make_cuda_kernel([e](cudaStream_t stream, const ofsdp_launch& l) {
    return running_sum(e, l.inputs[0], l.outputs[0], stream);
  });
}

// The bytes of y are the same in both layouts; those of x are [N, C, n] or [N, n, C].
bool accepts_global(const Problem& p) { return is_float(p.in(0).dtype); }

std::unique_ptr<CudaKernel> create_global_average(ofsdp_device&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  const int64_t size = x.numel(2, x.rank());
  const bool last = p.in(0).layout == Layout::kChannelsLast;
  Problem flat = p;
  flat.inputs = {{p.in(0).dtype, last ? Shape{x[0], size, x[1]} : Shape{x[0], x[1], size}}};
  return make_reduction(flat, {false, last, !last}, ReduceKind::kSum, true);
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
  for (const bool product : {false, true}) {
    list.push_back({product ? "CumProd" : "CumSum", "own", accepts_scan,
                    [=](ofsdp_device&, const Problem& p) { return create_scan(p, product); }});
  }
  list.push_back(function_of("ReduceL2", ReduceKind::kSumSquares, Pointwise::kSqrt));
  list.push_back(function_of("ReduceLogSum", ReduceKind::kSum, Pointwise::kLog));
  list.push_back({"GlobalAveragePool", "own", accepts_global, create_global_average});
}

}  // namespace ofsdp::kernels::cuda
