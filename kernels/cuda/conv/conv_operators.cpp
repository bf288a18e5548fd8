// Conv and its gradients by im2row and a matrix product, where cuDNN is absent: for each group
//
//   y = rows(x) W^T + b: rows [images * outputs, taps * channels], W [outputs, taps, channels]
//   dx = the way back of dy W      dW = dy^T rows(x)      db = the columns of dy, summed
//
// Everything is channels last on the way; plain operands, and the channels of one of several
// groups, are copied into the workspace first. Nothing is cut into pieces: the workspace has the
// rows of the whole batch. relu is a pass of its own: an epilogue's would hide NaN.
#include <utility>

#include "kernels/cuda/conv/conv_parts.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::cuda {
namespace {

// Shared by the three kernels: the numbers of a group, a product, rows and weights in the
// workspace.
class ConvProduct : public CudaKernel {
 public:
  size_t workspace_bytes() const override { return places_.bytes(); }
  bool settle(DeviceState& device, const ProductShape& shape) {
    product_ = make_product(device, shape);
    if (product_ != nullptr) scratch_ = places_.take(product_->workspace_bytes());
    return product_ != nullptr;
  }

 protected:
  explicit ConvProduct(const ConvExtent& e)
      : e_(e),
        rows_(places_.take(e.rows() * e.columns(), e.size)),
        weights_(places_.take(e.weights(), e.size)) {}
  cudaError_t multiply(cudaStream_t stream, const Launch& l, const void* a, const void* b,
                       const void* bias, void* d) const {
    return product_->run(stream, a, b, bias, d, at(l.workspace, scratch_));
  }
  void* rows(const Launch& l) const { return at(l.workspace, rows_); }
  void* weights(const Launch& l) const { return at(l.workspace, weights_); }
  // Bytes before group `g` of an operand that has so many elements a group.
  size_t before(int64_t g, int64_t elements) const {
    return static_cast<size_t>(g * elements) * e_.size;
  }

  Places places_;
  ConvExtent e_;

 private:
  size_t rows_, weights_, scratch_ = 0;
  std::unique_ptr<MatrixProduct> product_;
};

// A K from these arguments; null where the library has no algorithm for its product.
template <typename K, typename... A>
std::unique_ptr<CudaKernel> settled(DeviceState& device, const A&... arguments) {
  auto made = std::make_unique<K>(arguments...);
  return made->settle(device, made->shape()) ? std::move(made) : nullptr;
}

class Forward final : public ConvProduct {
 public:
  explicit Forward(const Problem& p)
      : ConvProduct(conv_extent(p, p.in(0).shape, p.in(1).shape)),
        x_(p.in(0), e_.group, e_.in_positions(), places_),
        y_(p.out(0), e_.group, e_.out_positions(), places_),
        bias_(p.has_in(2)),
        relu_(has_relu(p)),
        numel_(p.out(0).numel()) {
    if (bias_ && e_.group > 1) moved_bias_ = places_.take(e_.outputs, e_.size);
  }
  ProductShape shape() const {
    ProductShape s = conv_product(e_, e_.rows(), e_.columns(), e_.outputs);
    s.transpose_b = true;
    s.bias = bias_;
    return s;
  }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    for (int64_t g = 0; g < e_.group; ++g) OFSDP_CUDA_TRY(run_group(stream, l, g));
    if (!relu_) return cudaSuccess;
    return pointwise(Pointwise::kRelu, e_.window.dtype, l.out(0), nullptr, l.out(0), numel_, {},
                     stream);
  }

 private:
  cudaError_t run_group(cudaStream_t stream, const Launch& l, int64_t g) {
    void* x = nullptr;
    OFSDP_CUDA_TRY(x_.read(l.in(0), g, l.workspace, x, stream));
    OFSDP_CUDA_TRY(move_rows(e_.window, false, x, rows(l), stream));
    OFSDP_CUDA_TRY(
        turn_weights(e_, at(l.in(1), before(g, e_.weights())), weights(l), false, stream));
    void* bias = bias_ ? at(l.in(2), before(g, e_.outputs)) : nullptr;
    if (bias_ && e_.group > 1) OFSDP_CUDA_TRY(move_bias(stream, bias, l.workspace));
    OFSDP_CUDA_TRY(multiply(stream, l, rows(l), weights(l), bias, y_.place(l.out(0), l.workspace)));
    return y_.write(l.out(0), g, l.workspace, stream);
  }

  // cuBLASLt reads the bias in 16 bytes, which that of a group need not begin at, and is not told.
  cudaError_t move_bias(cudaStream_t stream, void*& bias, void* workspace) const {
    const size_t bytes = static_cast<size_t>(e_.outputs) * e_.size;
    void* const from = std::exchange(bias, at(workspace, moved_bias_));
    return cudaMemcpyAsync(bias, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }

  GroupPart x_, y_;
  size_t moved_bias_ = 0;
  bool bias_, relu_;
  int64_t numel_;
};

// (dy, w) -> dx
class InputGradient final : public ConvProduct {
 public:
  explicit InputGradient(const Problem& p)
      : InputGradient(conv_extent(p, conv_x_shape(p), conv_w_shape(p)), p) {}
  InputGradient(const ConvExtent& e, const Problem& p)
      : ConvProduct(e),
        dy_(p.in(0), e_.group, e_.out_positions(), places_),
        dx_(p.out(0), e_.group, e_.in_positions(), places_) {}
  ProductShape shape() const { return conv_product(e_, e_.rows(), e_.outputs, e_.columns()); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    for (int64_t g = 0; g < e_.group; ++g) {
      void* dy = nullptr;
      OFSDP_CUDA_TRY(dy_.read(l.in(0), g, l.workspace, dy, stream));
      OFSDP_CUDA_TRY(
          turn_weights(e_, at(l.in(1), before(g, e_.weights())), weights(l), false, stream));
      OFSDP_CUDA_TRY(multiply(stream, l, dy, weights(l), nullptr, rows(l)));
      OFSDP_CUDA_TRY(move_rows(e_.window, true, rows(l), dx_.place(l.out(0), l.workspace), stream));
      OFSDP_CUDA_TRY(dx_.write(l.out(0), g, l.workspace, stream));
    }
    return cudaSuccess;
  }

 private:
  GroupPart dy_, dx_;
};

// (x, dy) -> dw, db
class WeightsGradient final : public ConvProduct {
 public:
  explicit WeightsGradient(const Problem& p)
      : ConvProduct(conv_extent(p, conv_x_shape(p), conv_w_shape(p))),
        x_(p.in(0), e_.group, e_.in_positions(), places_),
        dy_(p.in(1), e_.group, e_.out_positions(), places_),
        wants_weights_(p.has_out(0)),
        wants_bias_(p.has_out(1)),
        sums_(plan_reduce({e_.rows(), e_.outputs}, {true, false})),
        sum_scratch_(places_.take(reduce_scratch(sums_))) {}
  ProductShape shape() const {
    ProductShape s = conv_product(e_, e_.outputs, e_.rows(), e_.columns());
    s.transpose_a = true;
    return s;
  }

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
    OFSDP_CUDA_TRY(x_.read(l.in(0), g, l.workspace, x, stream));
    OFSDP_CUDA_TRY(move_rows(e_.window, false, x, rows(l), stream));
    OFSDP_CUDA_TRY(multiply(stream, l, dy, rows(l), nullptr, weights(l)));
    return turn_weights(e_, weights(l), at(l.out(0), before(g, e_.weights())), true, stream);
  }

  cudaError_t run_bias(cudaStream_t stream, const Launch& l, int64_t g, void* dy) {
    ReduceCall call;
    call.dtype = call.out_dtype = e_.window.dtype;
    call.x = dy;
    call.y = at(l.out(1), before(g, e_.outputs));
    call.scratch = at(l.workspace, sum_scratch_);
    return reduce(sums_, call, stream);
  }

  GroupPart x_, dy_;
  bool wants_weights_, wants_bias_;
  std::vector<ReducePass> sums_;
  size_t sum_scratch_;
};

// --- ConvTranspose: the gradient of a convolution's input, and the bias. Its own gradients are a
// Conv and ofsdp.ConvGradWeights. ---

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
  auto made = settled<InputGradient>(device, transposed_extent(p), p);
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
  list.insert(
      list.end(),
      {{"Conv", "im2row", accepts_conv, settled<Forward, Problem>},
       {"ofsdp.ConvGradInput", "im2row", accepts_conv_grad, settled<InputGradient, Problem>},
       {"ofsdp.ConvGradWeights", "im2row", accepts_conv_grad, settled<WeightsGradient, Problem>},
       {"ConvTranspose", "row2im", accepts_conv_grad, create_transposed}});
}

}  // namespace ofsdp::kernels::cuda
