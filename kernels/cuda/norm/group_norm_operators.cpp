// GroupNormalization and InstanceNormalization with their common gradient: kernels/cuda/norm/group_norm.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/norm/group_norm.h"

namespace ofsdp::kernels::cuda {
namespace {

GroupExtent extent_of(const TensorDesc& x, int64_t groups) {
  GroupExtent e;
  e.dtype = x.dtype;
  e.batch = x.shape[0];
  e.groups = groups;
  e.each = groups == 0 ? 0 : x.shape[1] / groups;
  e.inner = x.shape.numel(2, x.shape.rank());
  return e;
}

bool accepts(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return p.all_plain() && is_float(dtype) && p.in(1).dtype == dtype && p.in(2).dtype == dtype &&
         p.in(0).numel() > 0;
}

std::unique_ptr<CudaKernel> create(const Problem& p, int64_t groups) {
  GroupNorm n;
  n.extent = extent_of(p.in(0), groups);
  n.epsilon = p.attributes.f("epsilon", 1e-5f);
  const bool mean = p.has_out(1), inv = p.has_out(2);
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        GroupNorm call = n;
        call.x = l.inputs[0];
        call.scale = l.inputs[1];
        call.bias = l.inputs[2];
        call.y = l.outputs[0];
        if (mean) call.mean = static_cast<float*>(l.outputs[1]);
        if (inv) call.inv = static_cast<float*>(l.outputs[2]);
        call.scratch = l.workspace;
        return group_norm(call, stream);
      },
      group_norm_scratch(n.extent));
}

std::unique_ptr<CudaKernel> create_groups(ofsdp_device&, const Problem& p) {
  return create(p, p.attributes.i("num_groups", 1));
}
std::unique_ptr<CudaKernel> create_channels(ofsdp_device&, const Problem& p) {
  return create(p, p.in(0).shape[1]);
}

// (dy, x, scale, mean, inv) -> dx, dscale, dbias
bool accepts_grad(const Problem& p) {
  const DType dtype = p.in(1).dtype;
  return p.all_plain() && is_float(dtype) && p.in(0).dtype == dtype && p.in(2).dtype == dtype &&
         p.in(3).dtype == DType::kFloat32 && p.in(4).dtype == DType::kFloat32 &&
         p.in(1).numel() > 0;
}

std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  GroupNormGradient n;
  n.extent = extent_of(p.in(1), p.attributes.i("num_groups", 1));
  const bool dx = p.has_out(0), dscale = p.has_out(1), dbias = p.has_out(2);
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        GroupNormGradient call = n;
        call.dy = l.inputs[0];
        call.x = l.inputs[1];
        call.scale = l.inputs[2];
        call.mean = static_cast<const float*>(l.inputs[3]);
        call.inv = static_cast<const float*>(l.inputs[4]);
        call.dx = dx ? l.outputs[0] : nullptr;
        call.dscale = dscale ? l.outputs[1] : nullptr;
        call.dbias = dbias ? l.outputs[2] : nullptr;
        call.scratch = l.workspace;
        return group_norm_grad(call, stream);
      },
      group_norm_scratch(n.extent));
}

}  // namespace

void add_group_norm(CudaImplementations& list) {
  list.push_back({"GroupNormalization", "own", accepts, create_groups});
  list.push_back({"InstanceNormalization", "own", accepts, create_channels});
  list.push_back({"ofsdp.GroupNormalizationGrad", "own", accepts_grad, create_grad});
}

}  // namespace ofsdp::kernels::cuda
