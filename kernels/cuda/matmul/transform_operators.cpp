// DFT, Det and its gradient (transform.h). 16-bit operands are widened.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/transform.h"
#include "kernels/cuda/pointwise/in_float32.h"
#include "kernels/ops/matmul/dft_extent.h"

namespace ofsdp::kernels::cuda {
namespace {

Acceptance accepts_signal(const Problem& p) {
  return accept({plain(p), supported(p.in(0).dtype == DType::kFloat32), known(p, 1), known(p, 2)});
}

std::unique_ptr<CudaKernel> create_dft(DeviceState&, const Problem& p) {
  const auto number = [&](size_t i) {
    return p.has_in(i) ? std::optional(known_ints(p, i)[0]) : std::nullopt;
  };
  const ops::DftExtent extent =
      *ops::dft_extent(p.attributes, p.in(0), number(1), number(2).value_or(-2));
  const DftParams e{.outer = extent.outer,
                    .in = extent.in,
                    .inner = extent.inner,
                    .x_parts = extent.x_parts,
                    .n = extent.n,
                    .out = extent.out,
                    .y_parts = extent.y_parts,
                    .used = extent.used(),
                    .inverse = extent.inverse,
                    .mirrors = extent.makes_real()};
  std::vector<DftStage> stages;
  for (const ops::DftPass& pass : ops::dft_passes(e.n)) {
    stages.push_back({pass.radix, pass.before, pass.after});
  }
  return make_cuda_kernel(
      [e, stages](cudaStream_t stream, const Launch& l) {
        return dft(e, stages, l.in<float>(0), l.out<float>(0), l.workspace, stream);
      },
      dft_scratch(e));
}

Acceptance accepts_square(const Problem& p) {
  return accept({plain(p), supported(p.all_dtype(DType::kFloat32))});
}

int64_t matrix_size(const TensorDesc& x) { return x.shape[x.shape.rank() - 1]; }

std::unique_ptr<CudaKernel> create_det(DeviceState&, const Problem& p) {
  const int64_t n = matrix_size(p.in(0)), count = p.out(0).numel();
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        return determinant(n, count, l.in<float>(0), l.out<float>(0), l.workspace, stream);
      },
      determinant_scratch(n, count));
}

std::unique_ptr<CudaKernel> create_det_grad(DeviceState&, const Problem& p) {
  const int64_t n = matrix_size(p.in(1)), count = p.in(0).numel();
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        return determinant_grad(n, count, l.in<float>(0), l.in<float>(1), l.out<float>(0),
                                l.workspace, stream);
      },
      determinant_scratch(n, count));
}

}  // namespace

void add_transforms(CudaImplementations& list) {
  for (const CudaImplementation& one : std::initializer_list<CudaImplementation>{
           {"DFT", "own", accepts_signal, create_dft},
           {"Det", "own", accepts_square, create_det},
           {"ofsdp.DetGrad", "own", accepts_square, create_det_grad}}) {
    list.push_back(in_float32(one));
  }
}

}  // namespace ofsdp::kernels::cuda
