// ofsdp.FoundIndices, ofsdp.ScatterIndices, ofsdp.RequireCount and Compress: kernels/cuda/indexing/found.h.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/embedding.h"
#include "kernels/cuda/indexing/found.h"

namespace ofsdp::kernels::cuda {
namespace {

FoundExtent found_in(const TensorDesc& x, bool fills) {
  FoundExtent e;
  e.n = x.numel();
  e.size = dtype_size(x.dtype);
  e.floats = is_float(x.dtype) || x.dtype == DType::kFloat64;
  e.fills = fills;
  return e;
}

bool accepts_found(const Problem& p) {
  return p.all_plain() && p.in(0).shape.rank() <= kMostAxes && dtype_size(p.in(0).dtype) <= 8;
}

// Without an element there is nothing to find; the count is written all the same.
std::unique_ptr<CudaKernel> create_found(ofsdp_device&, const Problem& p) {
  const FoundExtent e = found_in(p.in(0), true);
  std::vector<int64_t> shape = p.in(0).shape.axes();
  if (shape.empty()) shape.push_back(1);
  const bool counts = p.has_out(1);
  const bool own = !p.has_out(0);
  const size_t scratch = (found_scratch(e) + 255) / 256 * 256;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        auto* const y =
            own ? reinterpret_cast<int64_t*>(static_cast<std::byte*>(l.workspace) + scratch)
                : static_cast<int64_t*>(l.outputs[0]);
        auto* const count = counts ? static_cast<int64_t*>(l.outputs[1]) : nullptr;
        OFSDP_CUDA_TRY(found_positions(e, l.inputs[0], y, count, l.workspace, stream));
        if (own) return cudaSuccess;
        return split_positions(e.n, shape.data(), static_cast<int>(shape.size()), y, stream);
      },
      scratch + (own ? static_cast<size_t>(e.n) * sizeof(int64_t) : 0));
}

bool accepts_indices(const Problem& p) {
  return p.all_plain() && p.attributes.ints("dims").size() <= size_t{kMostAxes};
}

std::unique_ptr<CudaKernel> create_indices(ofsdp_device&, const Problem& p) {
  const Lines lines = lines_along(p.in(0).shape, p.attributes.i("axis", 0));
  const std::vector<int64_t> dims = p.attributes.ints("dims");
  ScatterIndexExtent e;
  e.numel = p.in(0).numel();
  e.n = lines.n;
  e.inner = lines.inner;
  e.factor = p.attributes.i("factor", 1);
  e.components = static_cast<int>(dims.size());
  std::ranges::copy(dims, e.dims);
  return make_cuda_kernel([e](cudaStream_t stream, const ofsdp_launch& l) {
    return scatter_indices(e, static_cast<const int64_t*>(l.inputs[0]),
                           static_cast<const int64_t*>(l.inputs[1]),
                           static_cast<int64_t*>(l.outputs[0]), stream);
  });
}

bool accepts_plain(const Problem& p) { return p.all_plain(); }

std::unique_ptr<CudaKernel> create_required(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([factor = p.attributes.i("factor", 1),
                           expected = p.attributes.i("expected", 0),
                           bytes = p.in(0).bytes()](cudaStream_t stream, const ofsdp_launch& l) {
    OFSDP_CUDA_TRY(require_count(static_cast<const int64_t*>(l.inputs[1]), factor, expected,
                                 fault_of(l), stream));
    if (l.outputs[0] == l.inputs[0]) return cudaSuccess;
    return cudaMemcpyAsync(l.outputs[0], l.inputs[0], bytes, cudaMemcpyDeviceToDevice, stream);
  });
}

// As a Gather of what the condition names.
bool accepts_compress(const Problem& p) {
  return p.all_plain() && p.constant(1) != nullptr && p.in(0).numel() > 0;
}

std::unique_ptr<CudaKernel> create_compress(ofsdp_device&, const Problem& p) {
  const TensorDesc& x = p.in(0);
  const Lines lines = p.attributes.has("axis") ? lines_along(x.shape, p.attributes.i("axis", 0))
                                               : Lines{1, x.numel(), 1};
  const FoundExtent found = found_in(p.in(1), false);
  GatherExtent e;
  e.outer = lines.outer;
  e.n = lines.n;
  e.inner = lines.inner;
  e.count = p.out(0).numel() / std::max<int64_t>(lines.outer * lines.inner, 1);
  const auto positions = (static_cast<size_t>(found.n) * sizeof(int64_t) + 255) / 256 * 256;
  return make_cuda_kernel(
      [=, size = dtype_size(x.dtype)](cudaStream_t stream, const ofsdp_launch& l) {
        auto* const kept = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(found_positions(found, l.inputs[1], kept, nullptr,
                                       static_cast<std::byte*>(l.workspace) + positions, stream));
        GatherExtent call = e;
        call.indices = kept;
        return gather(call, size, l.inputs[0], l.outputs[0], stream);
      },
      positions + found_scratch(found));
}

}  // namespace

void add_found(CudaImplementations& list) {
  list.push_back({"ofsdp.FoundIndices", "own", accepts_found, create_found});
  list.push_back({"ofsdp.ScatterIndices", "own", accepts_indices, create_indices});
  list.push_back({"ofsdp.RequireCount", "own", accepts_plain, create_required});
  list.push_back({"Compress", "own", accepts_compress, create_compress});
}

}  // namespace ofsdp::kernels::cuda
