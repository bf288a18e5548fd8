// Pooling, parts of convolutions, and pixels at computed positions.
#include "kernels/cuda/conv/window.h"
#include "kernels/cuda/sample/sample.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using namespace kernels::cuda;

struct Images {
  WindowParams window;
  int64_t in, out, columns;  // elements

  Images(DType dtype, bool last) {
    WindowParams& w = window;
    w.dtype = dtype;
    w.images = 2;
    w.channels = 8;
    w.channels_last = last;
    w.in[1] = w.in[2] = 9;
    w.kernel[1] = w.kernel[2] = 3;
    w.strides[1] = w.strides[2] = 2;
    w.pads_begin[1] = w.pads_begin[2] = w.pads_end[1] = w.pads_end[2] = 1;
    w.out[1] = w.out[2] = 5;
    in = 2 * 8 * 9 * 9;
    out = 2 * 8 * 5 * 5;
    columns = out * 9;
  }
};

void add_pools(Table& table, DType dtype, bool last) {
  const char* const layout = last ? "channels last" : "plain";
  const Images images(dtype, last);
  const WindowParams& w = images.window;
  table.row(named("max pool", dtype, layout), [=](Buffers& m) {
    void* const winners = m.zeros(static_cast<size_t>(images.out));
    if (const cudaError_t error =
            max_pool(w, m.floats(dtype, images.in), m.floats(dtype, images.out), winners,
                     last ? nullptr : m.blank<int64_t>(images.out), false, true, nullptr)) {
      return error;
    }
    return max_pool_grad(w, m.floats(dtype, images.out), winners, m.floats(dtype, images.in),
                         nullptr);
  });
  table.row(named("average pool", dtype, layout), [=](Buffers& m) {
    void *const x = m.floats(dtype, images.in), *const y = m.floats(dtype, images.out);
    if (const cudaError_t error = average_pool(w, false, true, x, y, nullptr)) return error;
    return average_pool(w, true, true, y, x, nullptr);
  });
}

void add_columns(Table& table, DType dtype) {
  for (const bool last : {false, true}) {
    const Images images(dtype, last);
    table.row(named(last ? "rows of windows" : "columns of windows", dtype), [=](Buffers& m) {
      void *const x = m.floats(dtype, images.in), *const made = m.floats(dtype, images.columns);
      for (const bool back : {false, true}) {
        void *const from = back ? made : x, *const to = back ? x : made;
        const cudaError_t error =
            last ? move_rows(images.window, back, from, to, nullptr)
                 : move_columns(images.window, back, images.in / 2, from, to, nullptr);
        if (error != cudaSuccess) return error;
      }
      return cudaSuccess;
    });
  }
}

void add_grids(Table& table) {
  table.row("grid sample", [](Buffers& m) -> cudaError_t {
    GridSampling e;
    e.images = 2;
    e.channels = 3;
    e.pixels = 5 * 6;
    e.places = 40;
    e.axis[0].size = 1;
    e.axis[1] = {5, kernels::GridMode::kCubic, kernels::GridPadding::kReflection, false};
    e.axis[2] = {6, kernels::GridMode::kLinear, kernels::GridPadding::kBorder, true};
    const float *x = m.floats(6 * e.pixels), *grid = m.floats(2 * e.places * 2);
    float* const y = m.floats(6 * e.places);
    OFSDP_CUDA_TRY(grid_sample(e, x, grid, y, nullptr));
    OFSDP_CUDA_TRY(grid_sample_grad_input(e, y, grid, m.floats(6 * e.pixels), nullptr));
    return grid_sample_grad_grid(e, y, x, grid, m.floats(2 * e.places * 2), nullptr);
  });
}

void add_regions(Table& table, bool largest) {
  table.row(named("regions", largest ? "largest" : "mean"), [=](Buffers& m) -> cudaError_t {
    kernels::RoiParams e;
    e.images = 2;
    e.channels = 3;
    e.height = e.width = 7;
    e.rois = 5;
    e.bins_y = e.bins_x = 2;
    e.ratio = 2;
    e.largest = largest;
    const float *x = m.floats(6 * 49), *rois = m.positive(20);
    const int64_t* const images = m.whole(5, 2);
    float* const y = m.floats(5 * 3 * 4);
    OFSDP_CUDA_TRY(roi_align(e, x, rois, images, y, {}, nullptr));
    return roi_align_grad(e, y, x, rois, images, m.floats(6 * 49), {}, nullptr);
  });
}

}  // namespace

void add_image_rows(Table& table) {
  for (const DType dtype : table.floats()) {
    for (const bool last : {false, true}) add_pools(table, dtype, last);
    add_columns(table, dtype);
  }
  add_grids(table);
  add_regions(table, false);
  add_regions(table, true);
  table.row("lp pool", [](Buffers& m) {
    const Images images(DType::kFloat32, false);
    const float* const x = m.floats(images.in);
    float* const y = m.floats(images.out);
    if (const cudaError_t error = lp_pool(images.window, 2, x, y, nullptr)) return error;
    return lp_pool_grad(images.window, 2, m.floats(images.out), x, y, m.floats(images.in), nullptr);
  });
}

}  // namespace ofsdp::races
