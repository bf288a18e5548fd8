// Layer and RMS normalization with their common gradient: kernels/cuda/norm/norm.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/norm/norm.h"

namespace ofsdp::kernels::cuda {
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

// com.microsoft.SkipLayerNormalization(x, skip, scale, norm_bias, bias) and its simplified sibling,
// which lacks norm_bias: the norm of x + skip + bias over the last axis; outputs mean, inv and that sum.
struct SkipNorm {
  bool centred;
  size_t norm_bias() const { return centred ? 3 : 99; }
  size_t sum_bias() const { return centred ? 4 : 3; }
};

// skip is repeated along leading axes only.
bool accepts_skip(const Problem& p, SkipNorm s) {
  const Shape& x = p.in(0).shape;
  const Rows r{x.numel(0, x.rank() - 1), x[x.rank() - 1]};
  const DType dtype = p.in(0).dtype;
  const auto row = [&](size_t i) { return !p.has_in(i) || r.is_row(p.in(i), dtype); };
  const Shape& skip = p.in(1).shape;
  bool trailing = skip.rank() > 0 && skip.rank() <= x.rank() && p.in(1).numel() >= r.width;
  int64_t inner = 1;
  for (int k = 1; k <= skip.rank() && trailing; ++k) {
    const int64_t size = skip[skip.rank() - k];
    trailing = size == x[x.rank() - k] || (size == 1 && inner == p.in(1).numel());
    inner *= size;
  }
  return p.all_plain() && is_float(dtype) && p.in(1).dtype == dtype && trailing && row(2) &&
         row(s.norm_bias()) && row(s.sum_bias());
}

std::unique_ptr<CudaKernel> create_skip(const Problem& p, SkipNorm s) {
  const Shape& x = p.in(0).shape;
  NormForward n;
  n.dtype = p.in(0).dtype;
  n.width = x[x.rank() - 1];
  n.rows = x.numel(0, x.rank() - 1);
  n.residual_rows = p.in(1).numel() / n.width;
  n.epsilon = p.attributes.f("epsilon", 1e-12f);
  n.centred = s.centred;
  const bool norm_bias = p.has_in(s.norm_bias()), sum_bias = p.has_in(s.sum_bias());
  const bool mean = p.has_out(1), inv = p.has_out(2), sum = p.has_out(3);
  return make_cuda_kernel([=](cudaStream_t stream, const ofsdp_launch& l) {
    NormForward call = n;
    // What is not centred has a mean of 0.
    if (mean && !s.centred) {
      const auto bytes = static_cast<size_t>(n.rows) * sizeof(float);
      OFSDP_CUDA_TRY(cudaMemsetAsync(l.outputs[1], 0, bytes, stream));
    }
    call.x = l.inputs[0];
    call.residual = l.inputs[1];
    call.scale = l.inputs[2];
    call.bias = norm_bias ? l.inputs[s.norm_bias()] : nullptr;
    call.residual_bias = sum_bias ? l.inputs[s.sum_bias()] : nullptr;
    call.y = l.outputs[0];
    call.mean = mean && s.centred ? static_cast<float*>(l.outputs[1]) : nullptr;
    call.inv = inv ? static_cast<float*>(l.outputs[2]) : nullptr;
    call.sum = sum ? l.outputs[3] : nullptr;
    return norm_forward(call, stream);
  });
}

CudaImplementation skip(const char* op, SkipNorm s) {
  return {op, "own", [s](const Problem& p) { return accepts_skip(p, s); },
          [s](ofsdp_device&, const Problem& p) { return create_skip(p, s); }};
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
  list.push_back(forward("SimplifiedLayerNormalization", false));
  list.push_back(forward("com.microsoft.SimplifiedLayerNormalization", false));
  list.push_back(skip("com.microsoft.SkipLayerNormalization", {true}));
  list.push_back(skip("com.microsoft.SkipSimplifiedLayerNormalization", {false}));
  list.push_back({"ofsdp.LayerNormalizationGrad", "own", accepts_grad, create_grad});
}

}  // namespace ofsdp::kernels::cuda
