// Pooling and the parts of convolutions.
#include "kernels/cuda/conv/window.h"
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

}  // namespace

void add_image_rows(Table& table) {
  for (const DType dtype : table.floats()) {
    for (const bool last : {false, true}) add_pools(table, dtype, last);
    add_columns(table, dtype);
  }
  table.row("lp pool", [](Buffers& m) {
    const Images images(DType::kFloat32, false);
    const float* const x = m.floats(images.in);
    float* const y = m.floats(images.out);
    if (const cudaError_t error = lp_pool(images.window, 2, x, y, nullptr)) return error;
    return lp_pool_grad(images.window, 2, m.floats(images.out), x, y, m.floats(images.in), nullptr);
  });
}

}  // namespace ofsdp::races
