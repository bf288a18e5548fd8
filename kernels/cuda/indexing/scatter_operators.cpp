// GatherElements, ScatterElements and ScatterND, which are gradients too: kernels/cuda/indexing/scatter.h.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/embedding.h"
#include "kernels/cuda/indexing/scatter.h"

namespace ofsdp::kernels::cuda {
namespace {

// (data, indices, ...); a rank of -1: too many axes.
ElementExtent elements_of(const Problem& p) {
  const Shape& data = p.in(0).shape;
  const int axis = axis_of(p.attributes, "axis", 0, data.rank());
  std::vector<int64_t> strides = dense_strides(data.axes());
  ElementExtent e;
  e.n = data[axis];
  e.step = strides[static_cast<size_t>(axis)];
  e.index_dtype = p.in(1).dtype;
  strides[static_cast<size_t>(axis)] = 0;
  e.walk = collapsed(p.in(1).shape.axes(), {strides});
  return e;
}

bool accepts_gather(const Problem& p) {
  return p.all_plain() && is_index(p.in(1).dtype) && elements_of(p).walk.rank >= 0;
}

std::unique_ptr<CudaKernel> create_gather(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel([e = elements_of(p), size = dtype_size(p.in(0).dtype)](
                              cudaStream_t stream, const ofsdp_launch& l) {
    ElementExtent call = e;
    call.indices = l.inputs[1];
    call.fault = fault_of(l);
    return gather_elements(call, size, l.inputs[0], l.outputs[0], stream);
  });
}

ScatterKind kind_of(const Problem& p) {
  const std::string name = p.attributes.s("reduction", "none");
  if (name == "add") return ScatterKind::kAdd;
  if (name == "mul") return ScatterKind::kMul;
  if (name == "max") return ScatterKind::kMax;
  return name == "min" ? ScatterKind::kMin : ScatterKind::kNone;
}

size_t row_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(int64_t) + 255) / 256 * 256;
}

// find(l, stream, rows) writes the rows of the updates.
template <typename Find>
std::unique_ptr<CudaKernel> make_scatter(const Problem& p, const ScatterExtent& e, Find find) {
  const bool any = e.count * e.inner > 0;
  return make_cuda_kernel(
      [=, bytes = p.in(0).bytes()](cudaStream_t stream, const ofsdp_launch& l) {
        if (l.outputs[0] != l.inputs[0]) {
          OFSDP_CUDA_TRY(
              cudaMemcpyAsync(l.outputs[0], l.inputs[0], bytes, cudaMemcpyDeviceToDevice, stream));
        }
        if (!any) return cudaSuccess;
        auto* rows = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(find(l, rows, stream));
        return scatter(e, rows, l.inputs[2], l.outputs[0],
                       static_cast<std::byte*>(l.workspace) + row_bytes(e.count), stream);
      },
      any ? row_bytes(e.count) + scatter_scratch(e) : 0);
}

ScatterExtent of_elements(const Problem& p) {
  return {kind_of(p), p.in(0).dtype, p.in(0).numel(), 1, p.in(1).numel()};
}

bool accepts_elements(const Problem& p) { return accepts_gather(p) && can_scatter(of_elements(p)); }

std::unique_ptr<CudaKernel> create_elements(ofsdp_device&, const Problem& p) {
  const ElementExtent e = elements_of(p);
  return make_scatter(p, of_elements(p),
                      [e](const ofsdp_launch& l, int64_t* rows, cudaStream_t stream) {
                        ElementExtent call = e;
                        call.indices = l.inputs[1];
                        call.fault = fault_of(l);
                        return element_rows(call, rows, stream);
                      });
}

int depth_of(const Problem& p) {
  const Shape& indices = p.in(1).shape;
  return static_cast<int>(indices[indices.rank() - 1]);
}

ScatterExtent of_tuples(const Problem& p) {
  const Shape &data = p.in(0).shape, &indices = p.in(1).shape;
  const int depth = depth_of(p);
  return {kind_of(p), p.in(0).dtype, data.numel(0, depth), data.numel(depth, data.rank()),
          indices.numel(0, indices.rank() - 1)};
}

bool accepts_tuples(const Problem& p) {
  return p.all_plain() && p.in(1).dtype == DType::kInt64 && depth_of(p) <= kMostAxes &&
         can_scatter(of_tuples(p));
}

std::unique_ptr<CudaKernel> create_tuples(ofsdp_device&, const Problem& p) {
  TupleExtent t;
  t.depth = depth_of(p);
  t.tuples = of_tuples(p).count;
  t.per_batch = std::max<int64_t>(t.tuples, 1);
  for (int a = 0; a < t.depth; ++a) t.sizes[a] = p.in(0).shape[a];
  return make_scatter(p, of_tuples(p),
                      [t](const ofsdp_launch& l, int64_t* rows, cudaStream_t stream) {
                        TupleExtent call = t;
                        call.indices = static_cast<const int64_t*>(l.inputs[1]);
                        call.fault = fault_of(l);
                        return tuple_rows(call, rows, stream);
                      });
}

}  // namespace

void add_scatters(CudaImplementations& list) {
  list.push_back({"GatherElements", "own", accepts_gather, create_gather});
  list.push_back({"ScatterElements", "own", accepts_elements, create_elements});
  list.push_back({"ScatterND", "own", accepts_tuples, create_tuples});
}

}  // namespace ofsdp::kernels::cuda
