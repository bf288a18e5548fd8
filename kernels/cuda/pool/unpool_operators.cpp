// Col2Im and its gradient (kernels/cuda/conv/window.h), and MaxUnpool (kernels/cuda/indexing/scatter.h).
#include <algorithm>

#include "kernels/cuda/conv/window_extent.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/scatter.h"

namespace ofsdp::kernels::cuda {
namespace {

WindowExtent columns_of(const Problem& p, const Shape& image) {
  const ops::Window window = ops::known_window(p.attributes, image, known_ints(p, 2));
  return window_extent(window, image[0], image[1], p.in(0).dtype, false);
}

bool accepts_columns(const Problem& p) {
  return p.all_plain() && is_float(p.in(0).dtype) && p.constant(2) != nullptr &&
         p.in(0).numel() > 0;
}

CudaImplementation columns(const char* op, bool back) {
  return {op, "own", accepts_columns, [back](ofsdp_device&, const Problem& p) {
            const Shape& image = back ? p.in(0).shape : p.out(0).shape;
            return make_cuda_kernel(
                [back, w = columns_of(p, image), step = image.numel(1, image.rank())](
                    cudaStream_t stream, const ofsdp_launch& l) {
                  return back ? im2col(w, step, l.inputs[0], l.outputs[0], stream)
                              : col2im(w, step, l.inputs[0], l.outputs[0], stream);
                });
          }};
}

// The shape that the indices count in, as kernels/ops/pool/max_unpool.cpp.
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

ScatterExtent unpooled(const Problem& p) {
  return {ScatterKind::kNone, p.in(0).dtype, p.out(0).numel(), 1, p.in(0).numel()};
}

bool accepts_unpool(const Problem& p) { return p.all_plain() && can_scatter(unpooled(p)); }

std::unique_ptr<CudaKernel> create_unpool(ofsdp_device&, const Problem& p) {
  const ScatterExtent e = unpooled(p);
  const Walk walk = collapsed(counted(p), {dense_strides(p.out(0).shape.axes())});
  if (walk.rank < 0) return nullptr;
  const size_t rows = (static_cast<size_t>(e.count) * sizeof(int64_t) + 255) / 256 * 256;
  const bool any = e.count > 0;
  return make_cuda_kernel(
      [=, bytes = p.out(0).bytes()](cudaStream_t stream, const ofsdp_launch& l) {
        OFSDP_CUDA_TRY(cudaMemsetAsync(l.outputs[0], 0, bytes, stream));
        if (!any) return cudaSuccess;
        auto* const found = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(moved_rows(walk, static_cast<const int64_t*>(l.inputs[1]), e.count,
                                  fault_of(l), found, stream));
        return scatter(e, found, l.inputs[0], l.outputs[0],
                       static_cast<std::byte*>(l.workspace) + rows, stream);
      },
      any ? rows + scatter_scratch(e) : 0);
}

}  // namespace

void add_unpools(CudaImplementations& list) {
  list.push_back(columns("Col2Im", false));
  list.push_back(columns("ofsdp.Col2ImGrad", true));
  list.push_back({"MaxUnpool", "own", accepts_unpool, create_unpool});
}

}  // namespace ofsdp::kernels::cuda
