// Trilu, OneHot, ConstantOfShape and ofsdp.KeepCounted: kernels/cuda/shape/triangle.h.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/shape/movement.h"
#include "kernels/cuda/shape/triangle.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts_triangle(const Problem& p) {
  return p.all_plain() && (!p.has_in(1) || p.constant(1) != nullptr);
}

std::unique_ptr<CudaKernel> create_triangle(ofsdp_device&, const Problem& p) {
  const Shape& shape = p.out(0).shape;
  TriangleExtent e;
  e.matrices = shape.numel(0, shape.rank() - 2);
  e.rows = shape[shape.rank() - 2];
  e.columns = shape[shape.rank() - 1];
  const int64_t most = e.rows + e.columns;
  e.k = p.has_in(1) ? std::clamp(known_ints(p, 1)[0], -most, most) : 0;
  e.upper = p.attributes.i("upper", 1) != 0;
  return make_cuda_kernel(
      [e, size = dtype_size(p.out(0).dtype)](cudaStream_t stream, const ofsdp_launch& l) {
        return triangle(e, size, l.inputs[0], l.outputs[0], stream);
      });
}

bool accepts_one_hot(const Problem& p) { return p.all_plain() && has_one_hot(p.in(0).dtype); }

std::unique_ptr<CudaKernel> create_one_hot(ofsdp_device&, const Problem& p) {
  const Lines lines = lines_along(p.out(0).shape, p.attributes.i("axis", -1));
  const OneHotExtent e{lines.outer, lines.n, lines.inner, p.in(0).dtype};
  return make_cuda_kernel(
      [e, size = dtype_size(p.out(0).dtype)](cudaStream_t stream, const ofsdp_launch& l) {
        return one_hot(e, size, l.inputs[0], l.inputs[2], l.outputs[0], stream);
      });
}

bool accepts_any(const Problem&) { return true; }

// Float32 zeros where there is no value.
std::unique_ptr<CudaKernel> create_full(ofsdp_device&, const Problem& p) {
  const auto value = p.attributes.get<ConstantPtr>("value", nullptr);
  std::vector<std::byte> bytes(dtype_size(p.out(0).dtype));
  if (value != nullptr) bytes = std::vector<std::byte>(value->bytes.begin(), value->bytes.end());
  return make_cuda_kernel(
      [bytes, n = p.out(0).numel()](cudaStream_t stream, const ofsdp_launch& l) {
        return fill(bytes.size(), bytes.data(), l.outputs[0], n, stream);
      });
}

bool accepts_plain(const Problem& p) { return p.all_plain(); }

std::unique_ptr<CudaKernel> create_keep(ofsdp_device&, const Problem& p) {
  const Lines lines = lines_along(p.in(0).shape, p.attributes.i("axis", 0));
  return make_cuda_kernel(
      [lines, factor = p.attributes.i("factor", 1), size = dtype_size(p.in(0).dtype)](
          cudaStream_t stream, const ofsdp_launch& l) {
        return keep_counted(lines.outer, lines.n, lines.inner, factor,
                            static_cast<const int64_t*>(l.inputs[1]), size, l.inputs[0],
                            l.outputs[0], stream);
      });
}

}  // namespace

void add_triangles(CudaImplementations& list) {
  list.push_back({"Trilu", "own", accepts_triangle, create_triangle});
  list.push_back({"OneHot", "own", accepts_one_hot, create_one_hot});
  list.push_back({"ConstantOfShape", "own", accepts_any, create_full});
  list.push_back({"ofsdp.KeepCounted", "own", accepts_plain, create_keep});
}

}  // namespace ofsdp::kernels::cuda
