// Pooling operators and their gradients (conv/window.h), Col2Im, and MaxUnpool as a scatter.
#include "kernels/cuda/conv/conv_parts.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::cuda {
namespace {

Condition at_most_3d(const TensorDesc& x) {
  return {x.shape.rank() <= 5, "there are more than three spatial axes"};
}

// The extent of a forward pass on x, or of a gradient with dx as `x`.
WindowParams extent_of(const Problem& p, const TensorDesc& x) {
  return window_params(ops::known_pool(p.attributes, x.shape), x.shape[0], x.shape[1], x.dtype,
                       x.layout == Layout::kChannelsLast);
}

// A single window over each plane.
WindowParams global_extent(const TensorDesc& x) {
  WindowParams w{.dtype = x.dtype, .images = x.shape[0], .channels = x.shape[1]};
  w.channels_last = x.layout == Layout::kChannelsLast;
  const int rank = x.shape.rank();
  for (int axis = 2; axis < rank; ++axis) {
    w.in[3 - rank + axis] = w.kernel[3 - rank + axis] = x.shape[axis];
  }
  return w;
}

// --- Max ---

// Winners have the output's layout; Indices need the plain layout.
Acceptance accepts_max(const Problem& p) {
  const Layout layout = p.in(0).layout;
  const bool indices =
      !p.has_out(1) || (layout == Layout::kPlain && p.out(1).layout == Layout::kPlain);
  return accept({floats(p.in(0).dtype),
                 at_most_3d(p.in(0)),
                 {has_relu(p) || p.attributes.s("ofsdp_activation", "").empty(),
                  "the fused activation is not relu"},
                 same_layout(p.out(0).layout == layout && indices &&
                             (!p.has_out(2) || p.out(2).layout == layout))});
}

std::unique_ptr<CudaKernel> create_max(DeviceState&, const Problem& p) {
  return make_cuda_kernel([w = extent_of(p, p.in(0)), relu = has_relu(p),
                           column_major = p.attributes.i("storage_order", 0) != 0](
                              cudaStream_t stream, const Launch& l) {
    return max_pool(w, l.in(0), l.out(0), l.out(2), l.out<int64_t>(1), column_major, relu, stream);
  });
}

// Output 1 is ours: the winning taps. A 1 x 1 plane has the same bytes in both layouts.
std::unique_ptr<CudaKernel> create_global_max(DeviceState&, const Problem& p) {
  return make_cuda_kernel([w = global_extent(p.in(0))](cudaStream_t stream, const Launch& l) {
    return max_pool(w, l.in(0), l.out(0), l.out(1), nullptr, false, false, stream);
  });
}

// Inputs dy and winners; output dx.
Acceptance accepts_max_grad(const Problem& p) {
  const Layout layout = p.out(0).layout;
  return accept({floats(p.out(0).dtype), at_most_3d(p.out(0)),
                 same_layout(p.in(0).layout == layout && p.in(1).layout == layout)});
}

std::unique_ptr<CudaKernel> create_max_grad(DeviceState&, const Problem& p) {
  return launches<max_pool_grad>(extent_of(p, p.out(0)));
}

// --- Average ---

Acceptance accepts_average(const Problem& p) {
  return accept(
      {floats(p.in(0).dtype), at_most_3d(p.in(0)), same_layout(p.in(0).layout == p.out(0).layout)});
}

CudaImplementation average(const char* op, bool back) {
  return {op, "own", accepts_average, [back](DeviceState&, const Problem& p) {
            return make_cuda_kernel([back, w = extent_of(p, back ? p.out(0) : p.in(0)),
                                     pad = p.attributes.i("count_include_pad", 0) != 0](
                                        cudaStream_t stream, const Launch& l) {
              return average_pool(w, back, pad, l.in(0), l.out(0), stream);
            });
          }};
}

// --- LpPool ---

Acceptance accepts_lp(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), at_most_3d(p.in(0))});
}

CudaImplementation lp(const char* op, bool global) {
  return {op, "own", accepts_lp, [global](DeviceState&, const Problem& p) {
            const TensorDesc& x = p.in(0);
            return make_cuda_kernel(
                [w = global ? global_extent(x) : extent_of(p, x), power = p.attributes.i("p", 2)](
                    cudaStream_t stream, const Launch& l) {
                  return lp_pool(w, power, l.in(0), l.out(0), stream);
                });
          }};
}

// Inputs dy, x and y; output dx.
std::unique_ptr<CudaKernel> create_lp_grad(DeviceState&, const Problem& p) {
  return make_cuda_kernel([w = extent_of(p, p.in(1)), power = p.attributes.i("p", 2)](
                              cudaStream_t stream, const Launch& l) {
    return lp_pool_grad(w, power, l.in(0), l.in(1), l.in(2), l.out(0), stream);
  });
}

// --- Col2Im and MaxUnpool ---

Acceptance accepts_columns(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), known(p, 2), some(p.in(0))});
}

CudaImplementation columns(const char* op, bool back) {
  return {op, "own", accepts_columns, [back](DeviceState&, const Problem& p) {
            const Shape& image = back ? p.in(0).shape : p.out(0).shape;
            const ops::Window window = ops::known_window(p.attributes, image, known_ints(p, 2));
            return make_cuda_kernel(
                [back, w = window_params(window, image[0], image[1], p.in(0).dtype, false),
                 step = image.numel(1, image.rank())](cudaStream_t stream, const Launch& l) {
                  return move_columns(w, !back, step, l.in(0), l.out(0), stream);
                });
          }};
}

// The shape that Indices refer to, as in kernels/ops/pool/max_pool.cpp.
std::vector<int64_t> counted(const Problem& p) {
  using Ints = std::vector<int64_t>;
  const Ints kernel = p.attributes.ints("kernel_shape");
  const size_t count = kernel.size();
  const Ints strides = p.attributes.ints("strides", Ints(count, 1)),
             pads = p.attributes.ints("pads", Ints(2 * count, 0));
  Ints y = p.in(0).shape.axes();
  for (size_t i = 0; i < count; ++i) {
    y[i + 2] = (y[i + 2] - 1) * strides[i] - pads[i] - pads[count + i] + kernel[i];
  }
  return y;
}

ScatterParams unpooled(const Problem& p) {
  return {ScatterKind::kNone, p.in(0).dtype, p.out(0).numel(), 1, p.in(0).numel()};
}

Acceptance accepts_unpool(const Problem& p) {
  return accept({plain(p), supported(can_scatter(unpooled(p)))});
}

std::unique_ptr<CudaKernel> create_unpool(DeviceState&, const Problem& p) {
  const ScatterParams e = unpooled(p);
  const StridedIndex walk = merge_dense_axes(counted(p), {dense_strides(p.out(0).shape.axes())});
  if (walk.rank < 0) return nullptr;
  const size_t rows = row_bytes(e.count);
  return make_cuda_kernel(
      [=, bytes = p.out(0).bytes()](cudaStream_t stream, const Launch& l) {
        OFSDP_CUDA_TRY(cudaMemsetAsync(l.out(0), 0, bytes, stream));
        if (e.count == 0) return cudaSuccess;
        auto* const found = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(mapped_rows(walk, l.in<int64_t>(1), e.count, l.fault(), found, stream));
        return scatter(e, found, l.in(0), l.out(0), at(l.workspace, rows), stream);
      },
      e.count > 0 ? rows + scatter_scratch(e) : 0);
}

}  // namespace

void add_pools(CudaImplementations& list) {
  const auto accepts_global = [](const Problem& p) {
    return accept({floats(p.in(0).dtype), at_most_3d(p.in(0))});
  };
  list.insert(list.end(), {{"MaxPool", "own", accepts_max, create_max},
                           {"ofsdp.MaxPoolGrad", "own", accepts_max_grad, create_max_grad},
                           {"GlobalMaxPool", "own", accepts_global, create_global_max},
                           average("AveragePool", false),
                           average("ofsdp.AveragePoolGrad", true),
                           lp("LpPool", false),
                           lp("GlobalLpPool", true),
                           {"ofsdp.LpPoolGrad", "own", accepts_lp, create_lp_grad},
                           columns("Col2Im", false),
                           columns("ofsdp.Col2ImGrad", true),
                           {"MaxUnpool", "own", accepts_unpool, create_unpool}});
}

}  // namespace ofsdp::kernels::cuda
