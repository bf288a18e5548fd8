// RoiAlign and its gradient (sample.h). kernels/formulas/roi_samples.h has the samples.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/sample/sample.h"

namespace ofsdp::kernels::cuda {
namespace {

// A thread per element of y [rois, channels, bins].
OFSDP_CUDA_KERNEL roi_bins(RoiParams e, const float* x, const float* rois, const int64_t* images,
                           float* y, Fault fault) {
  OFSDP_CUDA_ITEM(i, e.rois * e.channels * e.bins());
  const int64_t r = i / (e.channels * e.bins()), channel = i / e.bins() % e.channels;
  const int64_t bin = i % e.bins();
  const bool known = images[r] >= 0 && images[r] < e.images;
  if (!known) note(fault, images[r], e.images);
  const float* const plane = x + ((known ? images[r] : 0) * e.channels + channel) * e.pixels();
  const RoiRegion region = roi_region(e, rois, r);
  double sum = 0;
  if (e.largest) {
    const RoiLargest best = roi_largest(e, region, bin, plane);
    if (best.pixel >= 0) sum = best.weight * static_cast<double>(plane[best.pixel]);
  } else {
    for (int64_t s = 0; s < region.down.samples * region.across.samples; ++s) {
      const RoiSample sample = roi_sample(e, region, bin, s);
      for (int k = 0; k < sample.count; ++k) {
        sum += sample.weight[k] * static_cast<double>(plane[sample.pixel[k]]);
      }
    }
    sum /= region.samples();
  }
  y[i] = static_cast<float>(sum);
}

__device__ inline void add_to(float* pixel, double slope) {
  *pixel = static_cast<float>(static_cast<double>(*pixel) + slope);
}

// A thread per plane; dx was cleared.
OFSDP_CUDA_KERNEL roi_planes(RoiParams e, const float* dy, const float* x, const float* rois,
                             const int64_t* images, float* dx, Fault fault) {
  OFSDP_CUDA_ITEM(plane, e.images * e.channels);
  const int64_t image = plane / e.channels, channel = plane % e.channels;
  float* const to = dx + plane * e.pixels();
  for (int64_t r = 0; r < e.rois; ++r) {
    if (images[r] < 0 || images[r] >= e.images) note(fault, images[r], e.images);
    if (images[r] != image) continue;
    const RoiRegion region = roi_region(e, rois, r);
    for (int64_t bin = 0; bin < e.bins(); ++bin) {
      const double d = static_cast<double>(dy[(r * e.channels + channel) * e.bins() + bin]);
      if (e.largest) {
        const RoiLargest best = roi_largest(e, region, bin, x + plane * e.pixels());
        if (best.pixel >= 0) add_to(to + best.pixel, d * best.weight);
        continue;
      }
      const double share = d / region.samples();
      for (int64_t s = 0; s < region.down.samples * region.across.samples; ++s) {
        const RoiSample sample = roi_sample(e, region, bin, s);
        for (int k = 0; k < sample.count; ++k) {
          add_to(to + sample.pixel[k], sample.weight[k] * share);
        }
      }
    }
  }
}

}  // namespace

cudaError_t roi_align(const RoiParams& e, const float* x, const float* rois, const int64_t* images,
                      float* y, Fault fault, cudaStream_t stream) {
  return over(e.rois * e.channels * e.bins(), stream, roi_bins, e, x, rois, images, y, fault);
}

cudaError_t roi_align_grad(const RoiParams& e, const float* dy, const float* x, const float* rois,
                           const int64_t* images, float* dx, Fault fault, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(e.images * e.channels * e.pixels()) * sizeof(float);
  OFSDP_CUDA_TRY(cudaMemsetAsync(dx, 0, bytes, stream));
  return over(e.images * e.channels, stream, roi_planes, e, dy, x, rois, images, dx, fault);
}

}  // namespace ofsdp::kernels::cuda
