// Conv and its gradients by im2row and a matrix product, where cuDNN is absent: for each group
//
//   y = rows(x) W^T + b, with rows [images * outputs, taps * channels] and W [outputs, taps, channels]
//   dx = the way back of dy W      dW = dy^T rows(x)      db = the columns of dy, summed
//
// Everything is channels last on the way; plain operands, and the channels of one of several groups,
// are copied into the workspace first. Nothing is cut into pieces: the workspace has the rows of the
// whole batch. relu is a pass of its own: an epilogue's would hide NaN.
#include <utility>

#include "kernels/cuda/conv/conv_parts.h"
#include "kernels/cuda/conv/window_extent.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::cuda {
namespace {

class Forward final : public CudaKernel {
 public:
  static std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
    auto made = std::make_unique<Forward>(p);
    ProductShape s = conv_product(made->e_, made->e_.rows(), made->e_.columns(), made->e_.outputs);
    s.transpose_b = true;
    s.bias = p.has_in(2);
    made->product_ = make_product(device, s);
    if (made->product_ == nullptr) return nullptr;
    made->scratch_ = made->places_.take(made->product_->workspace_bytes());
    return made;
  }
  explicit Forward(const Problem& p)
      : e_(conv_extent(p, p.in(0).shape, p.in(1).shape)),
        x_(p.in(0), e_.group, e_.in_positions(), places_),
        y_(p.out(0), e_.group, e_.out_positions(), places_),
        rows_(places_.take(e_.rows() * e_.columns(), e_.size)),
        weights_(places_.take(e_.weights(), e_.size)),
        bias_(p.has_in(2)),
        relu_(has_relu(p)),
        numel_(p.out(0).numel()) {
    if (bias_ && e_.group > 1) moved_bias_ = places_.take(e_.outputs, e_.size);
  }

  size_t workspace_bytes() const override { return places_.bytes(); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    for (int64_t g = 0; g < e_.group; ++g) OFSDP_CUDA_TRY(run_group(stream, l, g));
    if (!relu_) return cudaSuccess;
    return pointwise(Pointwise::kRelu, e_.window.dtype, l.out(0), nullptr, l.out(0), numel_, {},
                     stream);
  }

 private:
  cudaError_t run_group(cudaStream_t stream, const Launch& l, int64_t g) {
    void* x = nullptr;
    void* const rows = at(l.workspace, rows_);
    void* const weights = at(l.workspace, weights_);
    const auto part = static_cast<size_t>(g) * e_.size;
    OFSDP_CUDA_TRY(x_.read(l.in(0), g, l.workspace, x, stream));
    OFSDP_CUDA_TRY(im2row(e_.window, x, rows, stream));
    OFSDP_CUDA_TRY(turn_weights(e_, at(l.in(1), part * static_cast<size_t>(e_.weights())), weights,
                                false, stream));
    void* bias = bias_ ? at(l.in(2), part * static_cast<size_t>(e_.outputs)) : nullptr;
    if (bias_ && e_.group > 1) OFSDP_CUDA_TRY(move_bias(stream, bias, l.workspace));
    OFSDP_CUDA_TRY(product_->run(stream, rows, weights, bias, y_.place(l.out(0), l.workspace),
                                 at(l.workspace, scratch_)));
    return y_.write(l.out(0), g, l.workspace, stream);
  }

  // cuBLASLt reads the bias in 16 bytes, which that of a group need not begin at, and is not told.
  cudaError_t move_bias(cudaStream_t stream, void*& bias, void* workspace) const {
    const size_t bytes = static_cast<size_t>(e_.outputs) * e_.size;
    void* const from = std::exchange(bias, at(workspace, moved_bias_));
    return cudaMemcpyAsync(bias, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }

  Places places_;
  ConvExtent e_;
  GroupPart x_, y_;
  size_t rows_, weights_, scratch_ = 0, moved_bias_ = 0;
  bool bias_, relu_;
  int64_t numel_;
  std::unique_ptr<MatrixProduct> product_;
};

// (dy, w) -> dx
class InputGradient final : public CudaKernel {
 public:
  static std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
    return make(device, conv_extent(p, conv_x_shape(p), conv_w_shape(p)), p.in(0), p.out(0));
  }
  static std::unique_ptr<CudaKernel> make(DeviceState& device, const ConvExtent& e,
                                          const TensorDesc& dy, const TensorDesc& dx) {
    auto made = std::make_unique<InputGradient>(e, dy, dx);
    made->product_ = make_product(
        device, conv_product(made->e_, made->e_.rows(), made->e_.outputs, made->e_.columns()));
    if (made->product_ == nullptr) return nullptr;
    made->scratch_ = made->places_.take(made->product_->workspace_bytes());
    return made;
  }
  InputGradient(const ConvExtent& e, const TensorDesc& dy, const TensorDesc& dx)
      : e_(e),
        dy_(dy, e_.group, e_.out_positions(), places_),
        dx_(dx, e_.group, e_.in_positions(), places_),
        rows_(places_.take(e_.rows() * e_.columns(), e_.size)),
        weights_(places_.take(e_.weights(), e_.size)) {}

  size_t workspace_bytes() const override { return places_.bytes(); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    void* const rows = at(l.workspace, rows_);
    void* const weights = at(l.workspace, weights_);
    for (int64_t g = 0; g < e_.group; ++g) {
      void* dy = nullptr;
      const auto skip = static_cast<size_t>(g * e_.weights()) * e_.size;
      OFSDP_CUDA_TRY(dy_.read(l.in(0), g, l.workspace, dy, stream));
      OFSDP_CUDA_TRY(turn_weights(e_, at(l.in(1), skip), weights, false, stream));
      OFSDP_CUDA_TRY(product_->run(stream, dy, weights, nullptr, rows, at(l.workspace, scratch_)));
      OFSDP_CUDA_TRY(row2im(e_.window, rows, dx_.place(l.out(0), l.workspace), stream));
      OFSDP_CUDA_TRY(dx_.write(l.out(0), g, l.workspace, stream));
    }
    return cudaSuccess;
  }

 private:
  Places places_;
  ConvExtent e_;
  GroupPart dy_, dx_;
  size_t rows_, weights_, scratch_ = 0;
  std::unique_ptr<MatrixProduct> product_;
};

// (x, dy) -> dw, db
class WeightsGradient final : public CudaKernel {
 public:
  static std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
    auto made = std::make_unique<WeightsGradient>(p);
    ProductShape s = conv_product(made->e_, made->e_.outputs, made->e_.rows(), made->e_.columns());
    s.transpose_a = true;
    made->product_ = make_product(device, s);
    if (made->product_ == nullptr) return nullptr;
    made->scratch_ = made->places_.take(made->product_->workspace_bytes());
    return made;
  }
  explicit WeightsGradient(const Problem& p)
      : e_(conv_extent(p, conv_x_shape(p), conv_w_shape(p))),
        x_(p.in(0), e_.group, e_.in_positions(), places_),
        dy_(p.in(1), e_.group, e_.out_positions(), places_),
        rows_(places_.take(e_.rows() * e_.columns(), e_.size)),
        weights_(places_.take(e_.weights(), e_.size)),
        wants_weights_(p.has_out(0)),
        wants_bias_(p.has_out(1)),
        sums_(plan_reduce({e_.rows(), e_.outputs}, {true, false})),
        sum_scratch_(places_.take(reduce_scratch(sums_))) {}

  size_t workspace_bytes() const override { return places_.bytes(); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    for (int64_t g = 0; g < e_.group; ++g) {
      void* dy = nullptr;
      OFSDP_CUDA_TRY(dy_.read(l.in(1), g, l.workspace, dy, stream));
      if (wants_weights_) OFSDP_CUDA_TRY(run_weights(stream, l, g, dy));
      if (wants_bias_) OFSDP_CUDA_TRY(run_bias(stream, l, g, dy));
    }
    return cudaSuccess;
  }

 private:
  cudaError_t run_weights(cudaStream_t stream, const Launch& l, int64_t g, void* dy) {
    void* x = nullptr;
    void* const rows = at(l.workspace, rows_);
    void* const weights = at(l.workspace, weights_);
    OFSDP_CUDA_TRY(x_.read(l.in(0), g, l.workspace, x, stream));
    OFSDP_CUDA_TRY(im2row(e_.window, x, rows, stream));
    OFSDP_CUDA_TRY(product_->run(stream, dy, rows, nullptr, weights, at(l.workspace, scratch_)));
    const auto skip = static_cast<size_t>(g * e_.weights()) * e_.size;
    return turn_weights(e_, weights, at(l.out(0), skip), true, stream);
  }

  cudaError_t run_bias(cudaStream_t stream, const Launch& l, int64_t g, void* dy) {
    ReduceCall call;
    call.dtype = call.out_dtype = e_.window.dtype;
    call.x = dy;
    call.y = at(l.out(1), static_cast<size_t>(g * e_.outputs) * e_.size);
    call.scratch = at(l.workspace, sum_scratch_);
    return reduce(sums_, call, stream);
  }

  Places places_;
  ConvExtent e_;
  GroupPart x_, dy_;
  size_t rows_, weights_, scratch_ = 0;
  bool wants_weights_, wants_bias_;
  std::vector<ReducePass> sums_;
  size_t sum_scratch_;
  std::unique_ptr<MatrixProduct> product_;
};

// --- ConvTranspose: the gradient of a convolution's input, and the bias. Its own gradients are a Conv and
// ofsdp.ConvGradWeights. ---

ConvExtent transposed_extent(const Problem& p) {
  const Shape& w = p.in(1).shape;
  const ops::ConvShape s = ops::known_transposed(p.attributes, p.in(0).shape, w);
  ConvExtent e;
  e.group = s.group;
  e.outputs = w[0] / s.group;
  e.size = dtype_size(p.in(0).dtype);
  e.window = window_extent(s.window, s.x[0], w[1], p.in(0).dtype, true);
  return e;
}

// y + bias, over [images, channels, positions] as they lie.
PointwiseCall with_bias(const TensorDesc& y) {
  const int64_t positions = y.shape.numel(2, y.shape.rank());
  const bool last = y.layout == Layout::kChannelsLast;
  const std::vector<int64_t> shape = last ? std::vector<int64_t>{y.shape[0] * positions, y.shape[1]}
                                          : std::vector<int64_t>{y.shape[0], y.shape[1], positions};
  const std::vector<int64_t> bias =
      last ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0, 1, 0};
  PointwiseCall call;
  call.op = Pointwise::kAdd;
  call.dtype = y.dtype;
  call.walk = collapsed(shape, {dense_strides(shape), bias});
  return call;
}

std::unique_ptr<CudaKernel> create_transposed(DeviceState& device, const Problem& p) {
  auto made = InputGradient::make(device, transposed_extent(p), p.in(0), p.out(0));
  if (made == nullptr || !p.has_in(2)) return made;
  std::shared_ptr<CudaKernel> inner = std::move(made);
  return make_cuda_kernel(
      [inner, add = with_bias(p.out(0))](cudaStream_t stream, const Launch& l) mutable {
        OFSDP_CUDA_TRY(inner->run(stream, l));
        add.a = add.y = l.out(0);
        add.b = l.in(2);
        return pointwise(add, stream);
      },
      inner->workspace_bytes());
}

}  // namespace

void add_convolutions(CudaImplementations& list) {
  list.insert(list.end(),
              {{"Conv", "im2row", accepts_conv, Forward::create},
               {"ofsdp.ConvGradInput", "im2row", accepts_conv_grad, InputGradient::create},
               {"ofsdp.ConvGradWeights", "im2row", accepts_conv_grad, WeightsGradient::create},
               {"ConvTranspose", "row2im", accepts_conv_grad, create_transposed}});
}

}  // namespace ofsdp::kernels::cuda
