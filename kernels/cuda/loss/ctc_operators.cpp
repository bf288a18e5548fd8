// The CTC loss, its gradient and its measure (ctc.h).
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/loss/ctc.h"
#include "kernels/ops/loss/ctc_shape.h"

namespace ofsdp::kernels::cuda {
namespace {

// Scores and labels are operands `scores` and the next one.
CtcParams ctc_of(const Problem& p, size_t scores) {
  const ops::CtcShape s(p.in(scores).shape, p.in(scores + 1).shape, p.attributes);
  CtcParams e;
  e.samples = s.samples;
  e.places = s.places;
  e.classes = s.classes;
  e.steps = s.steps;
  e.blank = s.blank;
  e.ignore = s.ignore;
  e.space = s.space;
  e.time_first = s.time_first;
  return e;
}

template <size_t scores>
Acceptance accepts_ctc(const Problem& p) {
  const bool types =
      p.in(scores).dtype == DType::kFloat32 && p.in(scores + 1).dtype == DType::kInt64;
  return accept({plain(p), supported(types)});
}

std::unique_ptr<CudaKernel> create_ctc(DeviceState&, const Problem& p) {
  const CtcParams given = ctc_of(p, 0);
  return make_cuda_kernel(
      [s = given](cudaStream_t stream, const Launch& l) mutable {
        s.fault = l.fault();
        return ctc_loss(s, l.in<float>(0), l.in<int64_t>(1), l.out<float>(0), l.workspace, stream);
      },
      ctc_scratch(given));
}

std::unique_ptr<CudaKernel> create_ctc_grad(DeviceState&, const Problem& p) {
  const CtcParams given = ctc_of(p, 1);
  return make_cuda_kernel(
      [s = given](cudaStream_t stream, const Launch& l) mutable {
        s.fault = l.fault();
        return ctc_grad(s, l.in<float>(0), l.in<float>(1), l.in<int64_t>(2), l.out<float>(0),
                        l.workspace, stream);
      },
      ctc_scratch(given));
}

std::unique_ptr<CudaKernel> create_ctc_measure(DeviceState&, const Problem& p) {
  const CtcParams s = ctc_of(p, 0);
  return make_cuda_kernel(
      [s](cudaStream_t stream, const Launch& l) {
        return ctc_measure(s, l.in<float>(0), l.in<int64_t>(1), l.out<double>(0), l.workspace,
                           stream);
      },
      ctc_measure_scratch(s));
}

}  // namespace

void add_sequences(CudaImplementations& list) {
  list.insert(list.end(), {{"ofsdp.CtcLoss", "own", accepts_ctc<0>, create_ctc},
                           {"ofsdp.CtcLossGrad", "own", accepts_ctc<1>, create_ctc_grad},
                           {"ofsdp.MeasureCtc", "own", accepts_ctc<0>, create_ctc_measure}});
}

}  // namespace ofsdp::kernels::cuda
