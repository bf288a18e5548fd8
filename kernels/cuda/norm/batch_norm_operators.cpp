// BatchNormalization and its gradient: kernels/cuda/norm/channel_norm.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/norm/channel_norm.h"

namespace ofsdp::kernels::cuda {
namespace {

// [N, C, d...]; a vector is N samples of one channel.
ChannelExtent extent_of(const TensorDesc& x, DType stats) {
  ChannelExtent e;
  e.dtype = x.dtype;
  e.stats = stats;
  e.samples = x.shape.rank() < 2 ? x.shape.numel() : x.shape[0];
  e.channels = x.shape.rank() < 2 ? 1 : x.shape[1];
  e.inner = x.shape.rank() < 2 ? 1 : x.shape.numel(2, x.shape.rank());
  e.last = x.layout == Layout::kChannelsLast || e.inner == 1;
  return e;
}

bool trains(const Problem& p) { return p.attributes.i("training_mode", 0) != 0; }

// Inputs 3 and 4: statistics of the type of x, or float32 beside 16 bits.
bool has_types(const Problem& p, DType dtype) {
  const DType stats = p.in(3).dtype;
  return is_float(dtype) && p.in(0).dtype == dtype && p.in(1).dtype == dtype &&
         p.in(2).dtype == dtype && p.in(4).dtype == stats &&
         (stats == dtype || stats == DType::kFloat32);
}

bool accepts(const Problem& p) {
  return has_types(p, p.in(0).dtype) && p.in(0).layout == p.out(0).layout;
}

std::unique_ptr<CudaKernel> create(ofsdp_device&, const Problem& p) {
  ChannelNorm n;
  n.extent = extent_of(p.in(0), p.in(3).dtype);
  n.epsilon = p.attributes.f("epsilon", 1e-5f);
  n.momentum = p.attributes.f("momentum", 0.9f);
  n.training = trains(p);
  std::vector<bool> wanted;
  for (size_t i = 0; i < 5; ++i) wanted.push_back(p.has_out(i));
  return make_cuda_kernel(
      [n, wanted](cudaStream_t stream, const ofsdp_launch& l) {
        ChannelNorm call = n;
        const void** operands[] = {&call.x, &call.scale, &call.bias, &call.mean, &call.variance};
        void** results[] = {&call.y, &call.running_mean, &call.running_variance, &call.batch_mean,
                            &call.batch_variance};
        for (size_t i = 0; i < 5; ++i) *operands[i] = l.inputs[i];
        for (size_t i = 0; i < 5; ++i) *results[i] = wanted[i] ? l.outputs[i] : nullptr;
        call.scratch = l.workspace;
        return channel_norm(call, stream);
      },
      channel_norm_scratch(n.extent));
}

// (dy, x, scale, mean, variance) -> dx, dscale, dbias
bool accepts_grad(const Problem& p) {
  return has_types(p, p.in(1).dtype) && p.in(0).layout == p.in(1).layout &&
         (!p.has_out(0) || p.out(0).layout == p.in(1).layout) && p.in(1).numel() > 0;
}

std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  ChannelNormGradient n;
  n.extent = extent_of(p.in(1), p.in(3).dtype);
  n.epsilon = p.attributes.f("epsilon", 1e-5f);
  n.training = trains(p);
  std::vector<bool> wanted;
  for (size_t i = 0; i < 3; ++i) wanted.push_back(p.has_out(i));
  return make_cuda_kernel(
      [n, wanted](cudaStream_t stream, const ofsdp_launch& l) {
        ChannelNormGradient call = n;
        const void** operands[] = {&call.dy, &call.x, &call.scale, &call.mean, &call.variance};
        void** results[] = {&call.dx, &call.dscale, &call.dbias};
        for (size_t i = 0; i < 5; ++i) *operands[i] = l.inputs[i];
        for (size_t i = 0; i < 3; ++i) *results[i] = wanted[i] ? l.outputs[i] : nullptr;
        call.scratch = l.workspace;
        return channel_norm_grad(call, stream);
      },
      channel_norm_scratch(n.extent));
}

}  // namespace

void add_batch_norm(CudaImplementations& list) {
  list.push_back({"BatchNormalization", "own", accepts, create});
  list.push_back({"ofsdp.BatchNormalizationGrad", "own", accepts_grad, create_grad});
}

}  // namespace ofsdp::kernels::cuda
