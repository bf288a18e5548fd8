// Reductions, running sums, and operators built on them: norms and logarithms, LpNormalization,
// MeanVarianceNormalization, GlobalAveragePool, ReduceProd's gradient.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/in_float32.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/reduce/reduce.h"

namespace ofsdp::kernels::cuda {
namespace {

std::vector<bool> named(const Shape& shape, const std::vector<int64_t>& axes) {
  std::vector<bool> list(static_cast<size_t>(shape.rank()), false);
  for (const int64_t axis : axes) {
    list[static_cast<size_t>(axis < 0 ? axis + shape.rank() : axis)] = true;
  }
  return list;
}

std::vector<bool> reduced_axes(const Problem& p) {
  const std::vector<int64_t> axes = known_ints(p, 1);
  const bool all = axes.empty() && p.attributes.i("noop_with_empty_axes", 0) == 0;
  return all ? std::vector<bool>(static_cast<size_t>(p.in(0).shape.rank()), true)
             : named(p.in(0).shape, axes);
}

// --- Fast reductions (reduce.h) ---

Acceptance accepts_floats(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), known(p, 1)});
}

std::unique_ptr<CudaKernel> make_reduction(const Problem& p, const std::vector<bool>& reduced,
                                           ReduceKind kind, bool mean) {
  const std::vector<int64_t>& shape = p.in(0).shape.axes();
  const auto passes = std::make_shared<const std::vector<ReducePass>>(plan_reduce(shape, reduced));
  ReduceCall call{.kind = kind, .dtype = p.in(0).dtype, .out_dtype = p.in(0).dtype};
  if (mean) {
    const auto count = static_cast<double>(p.in(0).numel()) / static_cast<double>(p.out(0).numel());
    call.scale = static_cast<float>(1.0 / count);
  }
  return make_cuda_kernel(
      [passes, call](cudaStream_t stream, const Launch& l) mutable {
        call.x = l.in(0);
        call.y = l.out(0);
        call.scratch = l.workspace;
        return reduce(*passes, call, stream);
      },
      reduce_scratch(*passes));
}

CudaImplementation reduction(const char* op, ReduceKind kind, bool mean = false) {
  return {op, "own", accepts_floats, [=](DeviceState&, const Problem& p) {
            return make_reduction(p, reduced_axes(p), kind, mean);
          }};
}

// Sums over the axes along which y would be broadcast to x.
std::unique_ptr<CudaKernel> create_sum_to(DeviceState&, const Problem& p) {
  const std::vector<int64_t>&from = p.in(0).shape.axes(), &to = p.out(0).shape.axes();
  std::vector<bool> reduced(from.size(), true);
  const size_t missing = from.size() - to.size();
  for (size_t i = 0; i < to.size(); ++i) reduced[missing + i] = to[i] != from[missing + i];
  return make_reduction(p, reduced, ReduceKind::kSum, false);
}

// A reduction, then a function of the results in place; float32 only, since 16-bit results would be
// rounded twice.
CudaImplementation function_of(const char* op, ReduceKind kind, Pointwise function) {
  return {op, "own",
          [](const Problem& p) {
            return accept(accepts_floats(p), {{p.in(0).dtype == DType::kFloat32,
                                               "results of 16 bits would be rounded twice"}});
          },
          [=](DeviceState&, const Problem& p) {
            std::shared_ptr<CudaKernel> inner = make_reduction(p, reduced_axes(p), kind, false);
            return make_cuda_kernel(
                [inner, function, n = p.out(0).numel()](cudaStream_t stream, const Launch& l) {
                  OFSDP_CUDA_TRY(inner->run(stream, l));
                  return pointwise(function, DType::kFloat32, l.out(0), nullptr, l.out(0), n, {},
                                   stream);
                },
                inner->workspace_bytes());
          }};
}

// x is [N, C, n], or [N, n, C] if channels are last; y has the same bytes in both layouts.
std::unique_ptr<CudaKernel> create_global_average(DeviceState&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  const int64_t size = x.numel(2, x.rank());
  const bool last = p.in(0).layout == Layout::kChannelsLast;
  Problem flat = p;
  flat.inputs = {{p.in(0).dtype, last ? Shape{x[0], size, x[1]} : Shape{x[0], x[1], size}}};
  return make_reduction(flat, {false, last, !last}, ReduceKind::kSum, true);
}

// --- Other dtypes and functions (general_reduce.cu) ---

GeneralReduceParams general_extent(const Problem& p) {
  return general_reduce_params(p.in(0).dtype, p.in(0).shape.axes(), reduced_axes(p));
}

CudaImplementation general_reduction(const char* op, GeneralReduceKind kind) {
  return {op, "own",
          [kind](const Problem& p) {
            return accept({plain(p), supported(has_general_reduce(kind, p.in(0).dtype)),
                           known(p, 1), up_to(general_extent(p).kept.rank >= 0)});
          },
          [kind](DeviceState&, const Problem& p) {
            return make_cuda_kernel(
                [kind, e = general_extent(p)](cudaStream_t stream, const Launch& l) {
                  return fold(kind, e, l.in(0), l.out(0), stream);
                });
          }};
}

std::unique_ptr<CudaKernel> make_normalization(const Problem& p, Normalization kind,
                                               const std::vector<int64_t>& axes) {
  const GeneralReduceParams e =
      general_reduce_params(p.in(0).dtype, p.in(0).shape.axes(), named(p.in(0).shape, axes));
  if (e.kept.rank < 0) return nullptr;
  return make_cuda_kernel([=](cudaStream_t stream, const Launch& l) {
    return normalize(kind, e, l.in(0), l.out(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_norm(DeviceState&, const Problem& p) {
  const bool absolute = p.attributes.i("p", 2) == 1;
  return make_normalization(p, absolute ? Normalization::kAbsolute : Normalization::kSquares,
                            {p.attributes.i("axis", -1)});
}

std::unique_ptr<CudaKernel> create_mean_variance(DeviceState&, const Problem& p) {
  return make_normalization(p, Normalization::kMeanVariance, p.attributes.ints("axes", {0, 2, 3}));
}

// Inputs dy and x; reduced axes have size 1 in dy.
std::unique_ptr<CudaKernel> create_product_grad(DeviceState&, const Problem& p) {
  std::vector<bool> reduced;
  for (const int64_t size : p.in(0).shape.axes()) reduced.push_back(size == 1);
  const GeneralReduceParams e = general_reduce_params(p.in(1).dtype, p.in(1).shape.axes(), reduced);
  return e.kept.rank < 0 ? nullptr : launches<product_gradient>(e);
}

// --- Running sums ---

Acceptance accepts_scan(const Problem& p) {
  return accept({plain(p), supported(has_running_sum(p.in(0).dtype)), known(p, 1)});
}

// `axis`: the operand that names it.
ScanParams scan_of(const Problem& p, size_t axis) {
  const Lines lines = lines_along(p.in(0).shape, known_ints(p, axis)[0]);
  return {.dtype = p.in(0).dtype,
          .outer = lines.outer,
          .n = lines.n,
          .inner = lines.inner,
          .exclusive = p.attributes.i("exclusive", 0) != 0,
          .reverse = p.attributes.i("reverse", 0) != 0};
}

CudaImplementation scan(const char* op, bool product) {
  return {op, "own", accepts_scan, [product](DeviceState&, const Problem& p) {
            ScanParams e = scan_of(p, 1);
            e.product = product;
            return launches<running_sum>(e);
          }};
}

Acceptance accepts_product_scan_grad(const Problem& p) {
  const bool floats = p.in(0).dtype == DType::kFloat32 && p.in(1).dtype == DType::kFloat32;
  return accept({plain(p), supported(floats), known(p, 2)});
}

std::unique_ptr<CudaKernel> create_product_scan_grad(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = scan_of(p, 2)](cudaStream_t stream, const Launch& l) {
    return running_product_grad(e, l.in<float>(0), l.in<float>(1), l.out<float>(0), stream);
  });
}

}  // namespace

void add_reductions(CudaImplementations& list) {
  const auto any_layout = [](const Problem& p) { return accept({floats(p.in(0).dtype)}); };
  list.insert(list.end(),
              {{"ofsdp.SumTo", "own", accepts_floats, create_sum_to},
               reduction("ReduceSum", ReduceKind::kSum),
               reduction("ReduceMean", ReduceKind::kSum, true),
               reduction("ReduceL1", ReduceKind::kSumAbs),
               reduction("ReduceSumSquare", ReduceKind::kSumSquares),
               reduction("ReduceProd", ReduceKind::kProduct),
               reduction("ReduceMax", ReduceKind::kMax),
               reduction("ReduceMin", ReduceKind::kMin),
               scan("CumSum", false),
               scan("CumProd", true),
               in_float32({"ofsdp.CumProdGrad", "own", accepts_product_scan_grad,
                           create_product_scan_grad}),
               function_of("ReduceL2", ReduceKind::kSumSquares, Pointwise::kSqrt),
               function_of("ReduceLogSum", ReduceKind::kSum, Pointwise::kLog),
               {"GlobalAveragePool", "own", any_layout, create_global_average},
               general_reduction("ReduceSum", GeneralReduceKind::kSum),
               general_reduction("ReduceMean", GeneralReduceKind::kMean),
               general_reduction("ReduceL1", GeneralReduceKind::kSumAbs),
               general_reduction("ReduceL2", GeneralReduceKind::kNorm),
               general_reduction("ReduceSumSquare", GeneralReduceKind::kSumSquares),
               general_reduction("ReduceProd", GeneralReduceKind::kProduct),
               general_reduction("ReduceMax", GeneralReduceKind::kMax),
               general_reduction("ReduceMin", GeneralReduceKind::kMin),
               general_reduction("ReduceLogSum", GeneralReduceKind::kLogSum),
               general_reduction("ReduceLogSumExp", GeneralReduceKind::kLogSumExp),
               {"LpNormalization", "own", accepts_plain_floats, create_norm},
               {"MeanVarianceNormalization", "own", accepts_plain_floats, create_mean_variance},
               {"ofsdp.ReduceProdGrad", "own", accepts_plain_floats, create_product_grad}});
}

}  // namespace ofsdp::kernels::cuda
