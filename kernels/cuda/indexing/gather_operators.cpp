// Gather, GatherND and their gradients: kernels/cuda/indexing/embedding.h.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/embedding.h"

namespace ofsdp::kernels::cuda {
namespace {

GatherExtent extent_of(const Problem& p, const Shape& data) {
  const int axis = axis_of(p.attributes, "axis", 0, data.rank());
  GatherExtent e;
  e.outer = data.numel(0, axis);
  e.n = data[axis];
  e.inner = data.numel(axis + 1, data.rank());
  e.count = p.in(1).numel();
  e.index_dtype = p.in(1).dtype;
  return e;
}

bool accepts(const Problem& p) { return p.all_plain() && is_index(p.in(1).dtype); }

std::unique_ptr<CudaKernel> create(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([e = extent_of(p, p.in(0).shape), size = dtype_size(p.in(0).dtype)](
                              cudaStream_t stream, const ofsdp_launch& l) {
    GatherExtent call = e;
    call.indices = l.inputs[1];
    call.fault = fault_of(l);
    return gather(call, size, l.inputs[0], l.outputs[0], stream);
  });
}

bool accepts_grad(const Problem& p) { return accepts(p) && is_float(p.in(0).dtype); }

// (dy, indices, base): base, whose place dx may take, is what dx begins as.
std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  const GatherExtent e = extent_of(p, p.out(0).shape);
  const bool base = p.has_in(2), any = e.count > 0;
  return make_cuda_kernel(
      [=, dtype = p.in(0).dtype, bytes = p.out(0).bytes()](cudaStream_t stream,
                                                           const ofsdp_launch& l) {
        if (base && l.inputs[2] != l.outputs[0]) {
          const cudaError_t error =
              cudaMemcpyAsync(l.outputs[0], l.inputs[2], bytes, cudaMemcpyDeviceToDevice, stream);
          if (error != cudaSuccess) return error;
        }
        if (!any) return base ? cudaSuccess : cudaMemsetAsync(l.outputs[0], 0, bytes, stream);
        GatherExtent call = e;
        call.indices = l.inputs[1];
        call.fault = fault_of(l);
        return gather_grad(call, dtype, l.inputs[0], l.outputs[0], base, l.workspace, stream);
      },
      any ? gather_grad_scratch(e) : 0);
}

// GatherND as a Gather of rows that the tuples name.
struct Tuples {
  TupleExtent tuples;
  GatherExtent rows;
  size_t row_bytes = 0;  // of the workspace
};

Tuples tuples_of(const Problem& p, const Shape& data) {
  const Shape& indices = p.in(1).shape;
  const auto batch = static_cast<int>(p.attributes.i("batch_dims", 0));
  const auto depth = static_cast<int>(indices[indices.rank() - 1]);
  Tuples t;
  t.tuples.tuples = indices.numel(0, indices.rank() - 1);
  t.tuples.per_batch = std::max<int64_t>(indices.numel(batch, indices.rank() - 1), 1);
  t.tuples.depth = depth;
  for (int a = 0; a < depth; ++a) t.tuples.sizes[a] = data[batch + a];
  t.rows.n = data.numel(0, batch + depth);
  t.rows.inner = data.numel(batch + depth, data.rank());
  t.rows.count = t.tuples.tuples;
  t.rows.index_dtype = DType::kInt64;
  t.row_bytes = (static_cast<size_t>(t.rows.count) * sizeof(int64_t) + 255) / 256 * 256;
  return t;
}

bool accepts_tuples(const Problem& p) {
  const Shape& indices = p.in(1).shape;
  return p.all_plain() && p.in(1).dtype == DType::kInt64 &&
         indices[indices.rank() - 1] <= kMostAxes;
}

// The rows that tuples name, at the beginning of the workspace.
cudaError_t find_rows(Tuples& t, cudaStream_t stream, const ofsdp_launch& l) {
  t.tuples.indices = static_cast<const int64_t*>(l.inputs[1]);
  t.tuples.fault = fault_of(l);
  t.rows.indices = l.workspace;
  return tuple_rows(t.tuples, static_cast<int64_t*>(l.workspace), stream);
}

std::unique_ptr<CudaKernel> create_tuples(ofsdp_device&, const Problem& p) {
  const Tuples t = tuples_of(p, p.in(0).shape);
  return make_cuda_kernel(
      [t, size = dtype_size(p.in(0).dtype)](cudaStream_t stream, const ofsdp_launch& l) {
        Tuples call = t;
        OFSDP_CUDA_TRY(find_rows(call, stream, l));
        return gather(call.rows, size, l.inputs[0], l.outputs[0], stream);
      },
      t.row_bytes);
}

bool accepts_tuples_grad(const Problem& p) { return accepts_tuples(p) && is_float(p.in(0).dtype); }

std::unique_ptr<CudaKernel> create_tuples_grad(ofsdp_device&, const Problem& p) {
  const Tuples t = tuples_of(p, p.out(0).shape);
  const bool any = t.rows.count > 0;
  return make_cuda_kernel(
      [=, dtype = p.in(0).dtype, bytes = p.out(0).bytes()](cudaStream_t stream,
                                                           const ofsdp_launch& l) {
        if (!any) return cudaMemsetAsync(l.outputs[0], 0, bytes, stream);
        Tuples call = t;
        OFSDP_CUDA_TRY(find_rows(call, stream, l));
        return gather_grad(call.rows, dtype, l.inputs[0], l.outputs[0], false,
                           static_cast<std::byte*>(l.workspace) + t.row_bytes, stream);
      },
      t.row_bytes + (any ? gather_grad_scratch(t.rows) : 0));
}

}  // namespace

void add_gathers(CudaImplementations& list) {
  list.push_back({"Gather", "own", accepts, create});
  list.push_back({"ofsdp.GatherGrad", "own", accepts_grad, create_grad});
  list.push_back({"GatherND", "own", accepts_tuples, create_tuples});
  list.push_back({"ofsdp.GatherNDGrad", "own", accepts_tuples_grad, create_tuples_grad});
}

}  // namespace ofsdp::kernels::cuda
