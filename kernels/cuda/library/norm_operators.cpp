// Layer and RMS normalization with their common gradient: kernels/cuda/norm.h.
#include "kernels/cuda/library/implementations.h"
#include "kernels/cuda/library/operands.h"
#include "kernels/cuda/norm.h"

namespace ofsdp::cuda {
namespace {

struct Rows {
  int64_t rows = 0, width = 0;
  bool is_row(const TensorDesc& operand, DType dtype) const {
    return operand.dtype == dtype && operand.numel() == width;
  }
};

Rows rows_of(const Problem& p, const Shape& x) {
  const int axis = axis_of(p.attributes, "axis", -1, x.rank());
  return {x.numel(0, axis), x.numel(axis, x.rank())};
}

// Scale and bias of one row; statistics in float32.
bool accepts(const Problem& p) {
  const Rows r = rows_of(p, p.in(0).shape);
  const DType dtype = p.in(0).dtype;
  const bool bias = !p.has_in(2) || r.is_row(p.in(2), dtype);
  return p.all_plain() && is_float(dtype) && p.out(0).dtype == dtype && r.is_row(p.in(1), dtype) &&
         bias;
}

// Outputs behind the first: mean and inv of LayerNormalization, inv of RMSNormalization.
std::unique_ptr<CudaKernel> create(const Problem& p, bool centred) {
  NormForward n;
  const Rows r = rows_of(p, p.in(0).shape);
  n.dtype = p.in(0).dtype;
  n.rows = r.rows;
  n.width = r.width;
  n.epsilon = p.attributes.f("epsilon", 1e-5f);
  n.centred = centred;
  const bool bias = p.has_in(2), mean = centred && p.has_out(1);
  const size_t last = centred ? 2 : 1;
  const bool inv = p.has_out(last);
  return make_cuda_kernel([=](cudaStream_t stream, const ofsdp_launch& l) {
    NormForward call = n;
    call.x = l.inputs[0];
    call.scale = l.inputs[1];
    call.bias = bias ? l.inputs[2] : nullptr;
    call.y = l.outputs[0];
    call.mean = mean ? static_cast<float*>(l.outputs[1]) : nullptr;
    call.inv = inv ? static_cast<float*>(l.outputs[last]) : nullptr;
    return norm_forward(call, stream);
  });
}

// (dy, x, scale, mean, inv, dmean, dinv) -> dx, dscale, dbias; without mean that of RMSNormalization.
bool accepts_grad(const Problem& p) {
  const Rows r = rows_of(p, p.in(1).shape);
  const DType dtype = p.in(1).dtype;
  return p.all_plain() && is_float(dtype) && p.in(0).dtype == dtype && p.has_in(2) &&
         r.is_row(p.in(2), dtype) && p.has_in(4) && p.has_out(0) && p.in(1).numel() > 0;
}

std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  NormBackward n;
  const Rows r = rows_of(p, p.in(1).shape);
  n.dtype = p.in(1).dtype;
  n.rows = r.rows;
  n.width = r.width;
  const bool mean = p.has_in(3), dmean = p.has_in(5), dinv = p.has_in(6);
  const bool dscale = p.has_out(1), dbias = p.has_out(2);
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        const auto statistic = [&](bool there, size_t i) {
          return there ? static_cast<const float*>(l.inputs[i]) : nullptr;
        };
        NormBackward call = n;
        call.dy = l.inputs[0];
        call.x = l.inputs[1];
        call.scale = l.inputs[2];
        call.mean = statistic(mean, 3);
        call.inv = statistic(true, 4);
        call.dmean = statistic(dmean, 5);
        call.dinv = statistic(dinv, 6);
        call.dx = l.outputs[0];
        call.dscale = dscale ? l.outputs[1] : nullptr;
        call.dbias = dbias ? l.outputs[2] : nullptr;
        call.scratch = l.workspace;
        return norm_backward(call, stream);
      },
      norm_backward_scratch(r.rows, r.width));
}

CudaImplementation forward(const char* op, bool centred) {
  return {op, "own", accepts,
          [centred](ofsdp_device&, const Problem& p) { return create(p, centred); }};
}

}  // namespace

void add_norms(CudaImplementations& list) {
  list.push_back(forward("LayerNormalization", true));
  list.push_back(forward("com.microsoft.LayerNormalization", true));
  list.push_back(forward("RMSNormalization", false));
  list.push_back({"ofsdp.LayerNormalizationGrad", "own", accepts_grad, create_grad});
}

}  // namespace ofsdp::cuda
