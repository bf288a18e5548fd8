// TopK, ArgMax, ArgMin and Hardmax: kernels/cuda/indexing/top_k.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/top_k.h"

namespace ofsdp::kernels::cuda {
namespace {

TopExtent extent_of(const TensorDesc& x, int64_t axis) {
  const Lines lines = lines_along(x.shape, axis);
  TopExtent e;
  e.dtype = x.dtype;
  e.outer = lines.outer;
  e.n = lines.n;
  e.inner = lines.inner;
  return e;
}

bool accepts_top(const Problem& p) {
  return p.all_plain() && has_top(p.in(0).dtype) && p.constant(1) != nullptr;
}

std::unique_ptr<CudaKernel> create_top(ofsdp_device&, const Problem& p) {
  TopExtent e = extent_of(p.in(0), p.attributes.i("axis", -1));
  e.k = known_ints(p, 1)[0];
  e.largest = p.attributes.i("largest", 1) != 0;
  const bool values = p.has_out(0), indices = p.has_out(1);
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        return top(e, l.inputs[0], values ? l.outputs[0] : nullptr,
                   indices ? static_cast<int64_t*>(l.outputs[1]) : nullptr, l.workspace, stream);
      },
      top_scratch(e));
}

bool accepts_arg(const Problem& p) {
  return p.all_plain() && has_top(p.in(0).dtype) && p.in(0).numel() > 0;
}

CudaImplementation arg_extreme(const char* op, bool largest) {
  return {op, "own", accepts_arg, [=](ofsdp_device&, const Problem& p) {
            TopExtent e = extent_of(p.in(0), p.attributes.i("axis", 0));
            e.largest = largest;
            e.last = p.attributes.i("select_last_index", 0) != 0;
            e.nan_first = true;
            return make_cuda_kernel(
                [e](cudaStream_t stream, const ofsdp_launch& l) {
                  return top(e, l.inputs[0], nullptr, static_cast<int64_t*>(l.outputs[0]),
                             l.workspace, stream);
                },
                top_scratch(e));
          }};
}

bool accepts_hardmax(const Problem& p) { return p.all_plain() && is_float(p.in(0).dtype); }

std::unique_ptr<CudaKernel> create_hardmax(ofsdp_device&, const Problem& p) {
  const TopExtent e = extent_of(p.in(0), p.attributes.i("axis", -1));
  return make_cuda_kernel(
      [e](cudaStream_t stream, const ofsdp_launch& l) {
        auto* const indices = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(top(e, l.inputs[0], nullptr, indices, nullptr, stream));
        return mark_index(e, indices, l.outputs[0], stream);
      },
      static_cast<size_t>(e.outer * e.inner) * sizeof(int64_t));
}

}  // namespace

void add_top_k(CudaImplementations& list) {
  list.push_back({"TopK", "own", accepts_top, create_top});
  list.push_back(arg_extreme("ArgMax", true));
  list.push_back(arg_extreme("ArgMin", false));
  list.push_back({"Hardmax", "own", accepts_hardmax, create_hardmax});
}

}  // namespace ofsdp::kernels::cuda
