// RotaryEmbedding of ai.onnx and of com.microsoft: kernels/cuda/attention/rotary.h.
#include <algorithm>

#include "kernels/cuda/attention/rotary.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"

namespace ofsdp::kernels::cuda {
namespace {

// Places of the operands among the inputs.
struct RotaryInputs {
  size_t cos, sin, positions;
};

Acceptance accepts(const Problem& p, const RotaryInputs& at) {
  const DType dtype = p.in(0).dtype;
  const bool positions = !p.has_in(at.positions) || p.in(at.positions).dtype == DType::kInt64;
  return accept({plain(p), floats(dtype),
                 alike(p.in(at.cos).dtype == dtype && p.in(at.sin).dtype == dtype && positions)});
}

// As extent() of kernels/ops/attention/rotary_embedding.cpp.
RotaryExtent extent_of(const Problem& p, const RotaryInputs& at) {
  const Shape &x = p.in(0).shape, &cos = p.in(at.cos).shape;
  RotaryExtent e;
  e.dtype = p.in(0).dtype;
  e.packed = x.rank() == 3;
  e.batch = x[0];
  e.dim = p.attributes.i("rotary_embedding_dim", 0);
  e.heads = e.packed ? p.attributes.i("num_heads", 0) : x[1];
  if (e.packed && e.heads == 0 && e.dim == 0) {
    e.heads = x[2] / std::max<int64_t>(2 * cos[cos.rank() - 1], 1);
  }
  e.steps = e.packed ? x[1] : x[2];
  e.width = e.packed ? (e.heads == 0 ? 0 : x[2] / e.heads) : x[3];
  if (e.dim == 0) e.dim = e.width;
  e.interleaved = p.attributes.i("interleaved", 0) != 0;
  e.cache_rows = cos.numel(0, cos.rank() - 1);
  if (p.has_in(at.positions)) e.count = p.in(at.positions).numel();
  return e;
}

CudaImplementation implementation_of(const char* op, RotaryInputs at) {
  return {op, "own", [at](const Problem& p) { return accepts(p, at); },
          [at](DeviceState&, const Problem& p) {
            return make_cuda_kernel(
                [e = extent_of(p, at), at](cudaStream_t stream, const Launch& l) mutable {
                  e.positions = l.in<int64_t>(at.positions);
                  e.fault = l.fault();
                  return rotate(e, l.in(0), l.in(at.cos), l.in(at.sin), l.out(0), stream);
                });
          }};
}

}  // namespace

void add_rotary(CudaImplementations& list) {
  list.push_back(implementation_of("RotaryEmbedding", {1, 2, 3}));
  list.push_back(implementation_of("com.microsoft.RotaryEmbedding", {2, 3, 1}));
}

}  // namespace ofsdp::kernels::cuda
