// Gather and GatherND with gradients, GatherElements, ScatterElements and ScatterND
// (gather_scatter.h).
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/gather_scatter.h"

namespace ofsdp::kernels::cuda {
namespace {

Condition indexed(const Problem& p) {
  return {is_index(p.in(1).dtype), "indices are neither int32 nor int64"};
}

// --- Gather ---

GatherParams extent_of(const Problem& p, const Shape& data) {
  const Lines lines = lines_along(data, p.attributes.i("axis", 0));
  return {.outer = lines.outer,
          .n = lines.n,
          .inner = lines.inner,
          .count = p.in(1).numel(),
          .index_dtype = p.in(1).dtype};
}

Acceptance accepts_gather(const Problem& p) { return accept({plain(p), indexed(p)}); }

std::unique_ptr<CudaKernel> create_gather(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = extent_of(p, p.in(0).shape), size = dtype_size(p.in(0).dtype)](
                              cudaStream_t stream, const Launch& l) mutable {
    e.indices = l.in(1);
    e.fault = l.fault();
    return gather(e, size, l.in(0), l.out(0), stream);
  });
}

Acceptance accepts_gather_grad(const Problem& p) {
  return accept({plain(p), indexed(p), floats(p.in(0).dtype)});
}

// Inputs dy, indices, base (optional): dx starts as base, and may alias it, or as 0.
std::unique_ptr<CudaKernel> create_gather_grad(DeviceState&, const Problem& p) {
  const GatherParams e = extent_of(p, p.out(0).shape);
  const bool base = p.has_in(2), any = e.count > 0;
  return make_cuda_kernel(
      [=, call = e, dtype = p.in(0).dtype, bytes = p.out(0).bytes()](cudaStream_t stream,
                                                                     const Launch& l) mutable {
        if (base) OFSDP_CUDA_TRY(copy_bytes(l.out(0), l.in(2), bytes, stream));
        if (!any) return base ? cudaSuccess : cudaMemsetAsync(l.out(0), 0, bytes, stream);
        call.indices = l.in(1);
        call.fault = l.fault();
        return gather_grad(call, dtype, l.in(0), l.out(0), base, l.workspace, stream);
      },
      any ? gather_grad_scratch(e) : 0);
}

// --- GatherND: tuples become row indices for Gather ---

struct Tuples {
  TupleParams tuples;
  GatherParams rows;

  size_t bytes() const { return row_bytes(rows.count); }  // workspace for row indices
  // Writes row indices to the start of the workspace.
  cudaError_t find(cudaStream_t stream, const Launch& l) {
    tuples.indices = l.in<int64_t>(1);
    tuples.fault = l.fault();
    rows.indices = l.workspace;
    return tuple_rows(tuples, static_cast<int64_t*>(l.workspace), stream);
  }
};

int tuple_depth(const Problem& p) {
  const Shape& indices = p.in(1).shape;
  return static_cast<int>(indices[indices.rank() - 1]);
}

Tuples make_tuples(const Problem& p, const Shape& data) {
  const Shape& indices = p.in(1).shape;
  const auto batch = static_cast<int>(p.attributes.i("batch_dims", 0));
  Tuples t;
  t.tuples.depth = tuple_depth(p);
  t.tuples.tuples = t.rows.count = indices.numel(0, indices.rank() - 1);
  t.tuples.per_batch = std::max<int64_t>(indices.numel(batch, indices.rank() - 1), 1);
  for (int a = 0; a < t.tuples.depth; ++a) t.tuples.sizes[a] = data[batch + a];
  t.rows.n = data.numel(0, batch + t.tuples.depth);
  t.rows.inner = data.numel(batch + t.tuples.depth, data.rank());
  return t;
}

Acceptance accepts_tuples(const Problem& p) {
  return accept({plain(p),
                 {p.in(1).dtype == DType::kInt64, "indices are not int64"},
                 up_to(tuple_depth(p) <= kMaxAxes)});
}

std::unique_ptr<CudaKernel> create_tuples(DeviceState&, const Problem& p) {
  const Tuples t = make_tuples(p, p.in(0).shape);
  return make_cuda_kernel(
      [call = t, size = dtype_size(p.in(0).dtype)](cudaStream_t stream, const Launch& l) mutable {
        OFSDP_CUDA_TRY(call.find(stream, l));
        return gather(call.rows, size, l.in(0), l.out(0), stream);
      },
      t.bytes());
}

Acceptance accepts_tuples_grad(const Problem& p) {
  return accept(accepts_tuples(p), {floats(p.in(0).dtype)});
}

std::unique_ptr<CudaKernel> create_tuples_grad(DeviceState&, const Problem& p) {
  const Tuples t = make_tuples(p, p.out(0).shape);
  const bool any = t.rows.count > 0;
  return make_cuda_kernel(
      [any, call = t, dtype = p.in(0).dtype, bytes = p.out(0).bytes()](cudaStream_t stream,
                                                                       const Launch& l) mutable {
        if (!any) return cudaMemsetAsync(l.out(0), 0, bytes, stream);
        OFSDP_CUDA_TRY(call.find(stream, l));
        return gather_grad(call.rows, dtype, l.in(0), l.out(0), false,
                           at(l.workspace, call.bytes()), stream);
      },
      t.bytes() + (any ? gather_grad_scratch(t.rows) : 0));
}

// --- GatherElements, ScatterElements and ScatterND ---

// Inputs data, indices, ... The walk has rank -1 if there are too many axes.
ElementParams element_params(const Problem& p) {
  const Shape& data = p.in(0).shape;
  const int axis = axis_of(p.attributes, "axis", 0, data.rank());
  std::vector<int64_t> strides = dense_strides(data.axes());
  ElementParams e{.n = data[axis], .step = strides[static_cast<size_t>(axis)]};
  e.index_dtype = p.in(1).dtype;
  strides[static_cast<size_t>(axis)] = 0;
  e.walk = merge_dense_axes(p.in(1).shape.axes(), {strides});
  return e;
}

Acceptance accepts_elements(const Problem& p) {
  return accept({plain(p), indexed(p), up_to(element_params(p).walk.rank >= 0)});
}

std::unique_ptr<CudaKernel> create_gather_elements(DeviceState&, const Problem& p) {
  return make_cuda_kernel([e = element_params(p), size = dtype_size(p.in(0).dtype)](
                              cudaStream_t stream, const Launch& l) mutable {
    e.indices = l.in(1);
    e.fault = l.fault();
    return gather_elements(e, size, l.in(0), l.out(0), stream);
  });
}

ScatterKind parse_reduction(const Problem& p) {
  const std::string name = p.attributes.s("reduction", "none");
  if (name == "add") return ScatterKind::kAdd;
  if (name == "mul") return ScatterKind::kMul;
  if (name == "max") return ScatterKind::kMax;
  return name == "min" ? ScatterKind::kMin : ScatterKind::kNone;
}

// find(launch, rows, stream) writes the row index of each update.
template <typename Find>
std::unique_ptr<CudaKernel> make_scatter(const Problem& p, const ScatterParams& e, Find find) {
  const bool any = e.count * e.inner > 0;
  return make_cuda_kernel(
      [=, bytes = p.in(0).bytes()](cudaStream_t stream, const Launch& l) mutable {
        OFSDP_CUDA_TRY(copy_bytes(l.out(0), l.in(0), bytes, stream));
        if (!any) return cudaSuccess;
        auto* rows = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(find(l, rows, stream));
        return scatter(e, rows, l.in(2), l.out(0), at(l.workspace, row_bytes(e.count)), stream);
      },
      any ? row_bytes(e.count) + scatter_scratch(e) : 0);
}

ScatterParams scatter_elements_params(const Problem& p) {
  return {parse_reduction(p), p.in(0).dtype, p.in(0).numel(), 1, p.in(1).numel()};
}

Acceptance accepts_scatter_elements(const Problem& p) {
  return accept(accepts_elements(p), {supported(can_scatter(scatter_elements_params(p)))});
}

std::unique_ptr<CudaKernel> create_scatter_elements(DeviceState&, const Problem& p) {
  return make_scatter(
      p, scatter_elements_params(p),
      [e = element_params(p)](const Launch& l, int64_t* rows, cudaStream_t stream) mutable {
        e.indices = l.in(1);
        e.fault = l.fault();
        return element_rows(e, rows, stream);
      });
}

ScatterParams scatter_nd_params(const Problem& p) {
  const Shape &data = p.in(0).shape, &indices = p.in(1).shape;
  const int depth = tuple_depth(p);
  return {parse_reduction(p), p.in(0).dtype, data.numel(0, depth), data.numel(depth, data.rank()),
          indices.numel(0, indices.rank() - 1)};
}

Acceptance accepts_scatter_tuples(const Problem& p) {
  return accept(accepts_tuples(p), {supported(can_scatter(scatter_nd_params(p)))});
}

std::unique_ptr<CudaKernel> create_scatter_tuples(DeviceState&, const Problem& p) {
  TupleParams t{.tuples = scatter_nd_params(p).count, .depth = tuple_depth(p)};
  t.per_batch = std::max<int64_t>(t.tuples, 1);
  for (int a = 0; a < t.depth; ++a) t.sizes[a] = p.in(0).shape[a];
  return make_scatter(p, scatter_nd_params(p),
                      [t](const Launch& l, int64_t* rows, cudaStream_t stream) mutable {
                        t.indices = l.in<int64_t>(1);
                        t.fault = l.fault();
                        return tuple_rows(t, rows, stream);
                      });
}

}  // namespace

void add_gathers(CudaImplementations& list) {
  list.insert(list.end(),
              {{"Gather", "own", accepts_gather, create_gather},
               {"ofsdp.GatherGrad", "own", accepts_gather_grad, create_gather_grad},
               {"GatherND", "own", accepts_tuples, create_tuples},
               {"ofsdp.GatherNDGrad", "own", accepts_tuples_grad, create_tuples_grad},
               {"GatherElements", "own", accepts_elements, create_gather_elements},
               {"ScatterElements", "own", accepts_scatter_elements, create_scatter_elements},
               {"ScatterND", "own", accepts_scatter_tuples, create_scatter_tuples}});
}

}  // namespace ofsdp::kernels::cuda
