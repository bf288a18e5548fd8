// GridSample, RoiAlign and their gradients (sample.h). 16-bit operands are widened.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/in_float32.h"
#include "kernels/cuda/sample/sample.h"
#include "kernels/ops/pool/roi_align.h"
#include "kernels/ops/shape/grid_sample.h"

namespace ofsdp::kernels::cuda {
namespace {

GridSampling sampling_of(const Problem& p, const Shape& x, const Shape& grid) {
  const ops::GridParams given = ops::grid_extent(p.attributes, x, grid);
  GridSampling e;
  e.images = given.images;
  e.channels = given.channels;
  e.pixels = given.pixels;
  e.places = given.places;
  e.axes = static_cast<int>(given.axes.size());
  e.axis[0].size = 1;
  std::ranges::copy(given.axes, e.axis + 3 - e.axes);
  return e;
}

Acceptance accepts_pixels(const Problem& p) {
  return accept({plain(p), supported(p.all_dtype(DType::kFloat32))});
}

std::unique_ptr<CudaKernel> create_grid_sample(DeviceState&, const Problem& p) {
  return make_cuda_kernel(
      [e = sampling_of(p, p.in(0).shape, p.in(1).shape)](cudaStream_t stream, const Launch& l) {
        return grid_sample(e, l.in<float>(0), l.in<float>(1), l.out<float>(0), stream);
      });
}

std::unique_ptr<CudaKernel> create_grid_grad_input(DeviceState&, const Problem& p) {
  return make_cuda_kernel(
      [e = sampling_of(p, p.out(0).shape, p.in(1).shape)](cudaStream_t stream, const Launch& l) {
        return grid_sample_grad_input(e, l.in<float>(0), l.in<float>(1), l.out<float>(0), stream);
      });
}

std::unique_ptr<CudaKernel> create_grid_grad_grid(DeviceState&, const Problem& p) {
  return make_cuda_kernel(
      [e = sampling_of(p, p.in(1).shape, p.in(2).shape)](cudaStream_t stream, const Launch& l) {
        return grid_sample_grad_grid(e, l.in<float>(0), l.in<float>(1), l.in<float>(2),
                                     l.out<float>(0), stream);
      });
}

// `images`: the operand with the regions' images; all others are floats.
template <size_t images>
Acceptance accepts_regions(const Problem& p) {
  bool all = p.out(0).dtype == DType::kFloat32;
  for (size_t i = 0; i < images; ++i) all = all && p.in(i).dtype == DType::kFloat32;
  return accept({plain(p), supported(all && p.in(images).dtype == DType::kInt64)});
}

std::unique_ptr<CudaKernel> create_roi_align(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = ops::roi_extent(p.attributes, p.in(0).shape, p.in(1).shape)](
                              cudaStream_t stream, const Launch& l) {
    return roi_align(e, l.in<float>(0), l.in<float>(1), l.in<int64_t>(2), l.out<float>(0),
                     l.fault(), stream);
  });
}

std::unique_ptr<CudaKernel> create_roi_align_grad(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = ops::roi_extent(p.attributes, p.in(1).shape, p.in(2).shape)](
                              cudaStream_t stream, const Launch& l) {
    return roi_align_grad(e, l.in<float>(0), l.in<float>(1), l.in<float>(2), l.in<int64_t>(3),
                          l.out<float>(0), l.fault(), stream);
  });
}

}  // namespace

void add_samples(CudaImplementations& list) {
  for (const CudaImplementation& one : std::initializer_list<CudaImplementation>{
           {"GridSample", "own", accepts_pixels, create_grid_sample},
           {"ofsdp.GridSampleGradInput", "own", accepts_pixels, create_grid_grad_input},
           {"ofsdp.GridSampleGradGrid", "own", accepts_pixels, create_grid_grad_grid},
           {"RoiAlign", "own", accepts_regions<2>, create_roi_align},
           {"ofsdp.RoiAlignGrad", "own", accepts_regions<3>, create_roi_align_grad}}) {
    list.push_back(in_float32(one));
  }
}

}  // namespace ofsdp::kernels::cuda
