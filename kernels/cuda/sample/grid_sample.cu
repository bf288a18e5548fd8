// GridSample and its gradients (sample.h). kernels/ops/shape/grid_sample.cpp has the formulas.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/sample/sample.h"

namespace ofsdp::kernels::cuda {
namespace {

// The pixels of a place along each axis.
struct PlaceTaps {
  GridTaps axis[3];

  __device__ PlaceTaps(const GridSampling& e, const float* grid, int64_t row) {
    const float* const coordinates = grid + row * e.axes;
    for (int a = 0; a < 3; ++a) {
      const int from_last = 2 - a;
      if (from_last < e.axes) {
        axis[a] = grid_taps(e.axis[a], static_cast<double>(coordinates[from_last]));
      } else {
        axis[a].count = 1;
        axis[a].weight[0] = 1;
      }
    }
  }
  __device__ int reads() const { return axis[0].count * axis[1].count * axis[2].count; }
};

// One of a place's pixels: where it is in the plane, and each axis's weight and slope.
struct GridRead {
  int64_t pixel;
  double weight[3], slope[3];

  __device__ GridRead(const GridSampling& e, const PlaceTaps& taps, int read) {
    const int last = taps.axis[2].count, middle = taps.axis[1].count;
    const int at[3] = {read / (last * middle), read / last % middle, read % last};
    pixel = 0;
    for (int a = 0; a < 3; ++a) {
      pixel = pixel * e.axis[a].size + taps.axis[a].index[at[a]];
      weight[a] = taps.axis[a].weight[at[a]];
      slope[a] = taps.axis[a].slope[at[a]];
    }
  }
  __device__ float product() const { return static_cast<float>(weight[0] * weight[1] * weight[2]); }
  // With the slope of axis `derived` in place of its weight.
  __device__ float derivative(int derived) const {
    double made = 1;
    for (int a = 0; a < 3; ++a) made *= a == derived ? slope[a] : weight[a];
    return static_cast<float>(made);
  }
};

// A thread per place.
OFSDP_CUDA_KERNEL grid_places(GridSampling e, const float* x, const float* grid, float* y) {
  OFSDP_CUDA_ITEM(row, e.images * e.places);
  const PlaceTaps taps(e, grid, row);
  const int64_t first = row / e.places * e.channels, place = row % e.places;
  for (int64_t plane = first; plane < first + e.channels; ++plane) {
    float sum = 0;
    for (int r = 0; r < taps.reads(); ++r) {
      const GridRead read(e, taps, r);
      sum += read.product() * x[plane * e.pixels + read.pixel];
    }
    y[plane * e.places + place] = sum;
  }
}

// A thread per plane; dx was cleared.
OFSDP_CUDA_KERNEL grid_planes(GridSampling e, const float* dy, const float* grid, float* dx) {
  OFSDP_CUDA_ITEM(plane, e.images * e.channels);
  const int64_t image = plane / e.channels;
  for (int64_t place = 0; place < e.places; ++place) {
    const PlaceTaps taps(e, grid, image * e.places + place);
    for (int r = 0; r < taps.reads(); ++r) {
      const GridRead read(e, taps, r);
      dx[plane * e.pixels + read.pixel] += read.product() * dy[plane * e.places + place];
    }
  }
}

// A thread per place.
OFSDP_CUDA_KERNEL grid_slopes(GridSampling e, const float* dy, const float* x, const float* grid,
                              float* dgrid) {
  OFSDP_CUDA_ITEM(row, e.images * e.places);
  const PlaceTaps taps(e, grid, row);
  const int64_t first = row / e.places * e.channels, place = row % e.places;
  float sums[3] = {};
  for (int r = 0; r < taps.reads(); ++r) {
    const GridRead read(e, taps, r);
    float of_channels = 0;
    for (int64_t plane = first; plane < first + e.channels; ++plane) {
      of_channels += dy[plane * e.places + place] * x[plane * e.pixels + read.pixel];
    }
    for (int a = 0; a < 3; ++a) sums[a] += read.derivative(a) * of_channels;
  }
  for (int a = 0; a < 3; ++a) {
    if (2 - a < e.axes) dgrid[row * e.axes + 2 - a] = sums[a];
  }
}

}  // namespace

cudaError_t grid_sample(const GridSampling& e, const float* x, const float* grid, float* y,
                        cudaStream_t stream) {
  return over(e.images * e.places, stream, grid_places, e, x, grid, y);
}

cudaError_t grid_sample_grad_input(const GridSampling& e, const float* dy, const float* grid,
                                   float* dx, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(e.images * e.channels * e.pixels) * sizeof(float);
  OFSDP_CUDA_TRY(cudaMemsetAsync(dx, 0, bytes, stream));
  return over(e.images * e.channels, stream, grid_planes, e, dy, grid, dx);
}

cudaError_t grid_sample_grad_grid(const GridSampling& e, const float* dy, const float* x,
                                  const float* grid, float* dgrid, cudaStream_t stream) {
  return over(e.images * e.places, stream, grid_slopes, e, dy, x, grid, dgrid);
}

}  // namespace ofsdp::kernels::cuda
