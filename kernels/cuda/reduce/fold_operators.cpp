// Reductions of float64 and whole numbers, ReduceLogSumExp, LpNormalization, MeanVarianceNormalization and the gradient of
// ReduceProd: kernels/cuda/reduce/fold.h. LRN and its gradient: kernels/cuda/norm/lrn.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/norm/lrn.h"
#include "kernels/cuda/reduce/fold.h"

namespace ofsdp::kernels::cuda {
namespace {

std::vector<bool> named(const Shape& shape, const std::vector<int64_t>& axes) {
  std::vector<bool> list(static_cast<size_t>(shape.rank()), false);
  for (const int64_t axis : axes) {
    list[static_cast<size_t>(axis < 0 ? axis + shape.rank() : axis)] = true;
  }
  return list;
}

FoldExtent reduction_of(const Problem& p) {
  const std::vector<int64_t> axes = known_ints(p, 1);
  const bool all = axes.empty() && p.attributes.i("noop_with_empty_axes", 0) == 0;
  const std::vector<int64_t>& shape = p.in(0).shape.axes();
  return fold_extent(p.in(0).dtype, shape,
                     all ? std::vector<bool>(shape.size(), true) : named(p.in(0).shape, axes));
}

CudaImplementation reduction(const char* op, FoldKind kind) {
  return {op, "own",
          [kind](const Problem& p) {
            return p.all_plain() && has_fold(kind, p.in(0).dtype) &&
                   (!p.has_in(1) || p.constant(1) != nullptr) && reduction_of(p).kept.rank >= 0;
          },
          [kind](ofsdp_device&, const Problem& p) {
            return make_cuda_kernel(
                [kind, e = reduction_of(p)](cudaStream_t stream, const ofsdp_launch& l) {
                  return fold(kind, e, l.inputs[0], l.outputs[0], stream);
                });
          }};
}

bool accepts_floats(const Problem& p) { return p.all_plain() && is_float(p.in(0).dtype); }

std::unique_ptr<CudaKernel> make_normalization(const Problem& p, Normalization kind,
                                               const std::vector<int64_t>& axes) {
  const FoldExtent e = fold_extent(p.in(0).dtype, p.in(0).shape.axes(), named(p.in(0).shape, axes));
  if (e.kept.rank < 0) return nullptr;
  return make_cuda_kernel([=](cudaStream_t stream, const ofsdp_launch& l) {
    return normalize(kind, e, l.inputs[0], l.outputs[0], stream);
  });
}

std::unique_ptr<CudaKernel> create_norm(ofsdp_device&, const Problem& p) {
  const bool absolute = p.attributes.i("p", 2) == 1;
  return make_normalization(p, absolute ? Normalization::kAbsolute : Normalization::kSquares,
                            {p.attributes.i("axis", -1)});
}

std::unique_ptr<CudaKernel> create_mean_variance(ofsdp_device&, const Problem& p) {
  return make_normalization(p, Normalization::kMeanVariance, p.attributes.ints("axes", {0, 2, 3}));
}

// (dy, x): axes of 1 in dy are those that were reduced.
std::unique_ptr<CudaKernel> create_product(ofsdp_device&, const Problem& p) {
  std::vector<bool> reduced;
  for (const int64_t size : p.in(0).shape.axes()) reduced.push_back(size == 1);
  const FoldExtent e = fold_extent(p.in(1).dtype, p.in(1).shape.axes(), reduced);
  if (e.kept.rank < 0) return nullptr;
  return make_cuda_kernel([e](cudaStream_t stream, const ofsdp_launch& l) {
    return product_gradient(e, l.inputs[0], l.inputs[1], l.outputs[0], stream);
  });
}

LrnExtent lrn_of(const Problem& p) {
  const Shape& x = p.in(0).shape;
  const Attributes& a = p.attributes;
  const int64_t size = a.i("size", 1);
  LrnExtent e;
  e.dtype = p.in(0).dtype;
  e.batch = x[0];
  e.channels = x[1];
  e.inner = x.numel(2, x.rank());
  e.before = (size - 1) / 2;
  e.after = size / 2;
  e.alpha = a.f("alpha", 1e-4f) / static_cast<float>(size);
  e.beta = a.f("beta", 0.75f);
  e.bias = a.f("bias", 1.0f);
  return e;
}

std::unique_ptr<CudaKernel> create_lrn(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([e = lrn_of(p)](cudaStream_t stream, const ofsdp_launch& l) {
    return lrn(e, l.inputs[0], l.outputs[0], stream);
  });
}

std::unique_ptr<CudaKernel> create_lrn_grad(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([e = lrn_of(p)](cudaStream_t stream, const ofsdp_launch& l) {
    return lrn_grad(e, l.inputs[0], l.inputs[1], l.outputs[0], stream);
  });
}

}  // namespace

void add_folds(CudaImplementations& list) {
  list.push_back(reduction("ReduceSum", FoldKind::kSum));
  list.push_back(reduction("ReduceMean", FoldKind::kMean));
  list.push_back(reduction("ReduceL1", FoldKind::kSumAbs));
  list.push_back(reduction("ReduceL2", FoldKind::kNorm));
  list.push_back(reduction("ReduceSumSquare", FoldKind::kSumSquares));
  list.push_back(reduction("ReduceProd", FoldKind::kProduct));
  list.push_back(reduction("ReduceMax", FoldKind::kMax));
  list.push_back(reduction("ReduceMin", FoldKind::kMin));
  list.push_back(reduction("ReduceLogSum", FoldKind::kLogSum));
  list.push_back(reduction("ReduceLogSumExp", FoldKind::kLogSumExp));
  list.push_back({"LpNormalization", "own", accepts_floats, create_norm});
  list.push_back({"MeanVarianceNormalization", "own", accepts_floats, create_mean_variance});
  list.push_back({"ofsdp.ReduceProdGrad", "own", accepts_floats, create_product});
  list.push_back({"LRN", "own", accepts_floats, create_lrn});
  list.push_back({"ofsdp.LRNGrad", "own", accepts_floats, create_lrn_grad});
}

}  // namespace ofsdp::kernels::cuda
