// Conv and the gradients without cuDNN, by im2row and a matrix product per group:
//
//   y = rows(x) W^T + b: rows [images * outputs, taps * channels], W [outputs, taps, channels]
//   dx = row2im(dy W)      dW = dy^T rows(x)      db = sum of dy over rows
//
// Everything is computed in channels last. Operands in plain layout, and groups if there are
// several, are first copied into the workspace, which holds the rows of the whole batch. relu is a
// separate pass, since an epilogue would turn NaN into 0.
#include <utility>

#include "kernels/cuda/conv/conv_parts.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::cuda {
namespace {

// Base of the three kernels: shapes of one group, the product, workspace for rows and weights.
class ConvProduct : public CudaKernel {
 public:
  size_t workspace_bytes() const override { return places_.bytes(); }
  bool choose_product(DeviceState& device, const ProductShape& shape) {
    product_ = make_product(device, shape);
    if (product_ != nullptr) scratch_ = places_.take(product_->workspace_bytes());
    return product_ != nullptr;
  }

 protected:
  explicit ConvProduct(const ConvParams& e)
      : e_(e),
        rows_(places_.take(e.rows() * e.columns(), e.size)),
        weights_(places_.take(e.weights(), e.size)) {}
  cudaError_t multiply(cudaStream_t stream, const Launch& l, const void* a, const void* b,
                       const void* bias, void* d) const {
    return product_->run(stream, a, b, bias, d, at(l.workspace, scratch_));
  }
  void* rows(const Launch& l) const { return at(l.workspace, rows_); }
  void* weights(const Launch& l) const { return at(l.workspace, weights_); }
  // Byte offset of group `g` in an operand with `elements` elements per group.
  size_t before(int64_t g, int64_t elements) const {
    return static_cast<size_t>(g * elements) * e_.size;
  }

  Places places_;
  ConvParams e_;

 private:
  size_t rows_, weights_, scratch_ = 0;
  std::unique_ptr<MatrixProduct> product_;
};

// Makes a K, or returns null if cuBLASLt has no algorithm for the product.
template <typename K, typename... A>
std::unique_ptr<CudaKernel> make_conv(DeviceState& device, const A&... arguments) {
  auto made = std::make_unique<K>(arguments...);
  return made->choose_product(device, made->shape()) ? std::move(made) : nullptr;
}

class Forward final : public ConvProduct {
 public:
  explicit Forward(const Problem& p)
      : ConvProduct(conv_params(p, p.in(0).shape, p.in(1).shape)),
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
        transpose_weights(e_, at(l.in(1), before(g, e_.weights())), weights(l), false, stream));
    void* bias = bias_ ? at(l.in(2), before(g, e_.outputs)) : nullptr;
    if (bias_ && e_.group > 1) OFSDP_CUDA_TRY(move_bias(stream, bias, l.workspace));
    OFSDP_CUDA_TRY(multiply(stream, l, rows(l), weights(l), bias, y_.place(l.out(0), l.workspace)));
    return y_.write(l.out(0), g, l.workspace, stream);
  }

  // cuBLASLt loads the bias in 16-byte accesses and cannot be told about alignment. A group's bias
  // may start anywhere, so this copies it to an aligned buffer.
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
      : InputGradient(conv_params(p, conv_x_shape(p), conv_w_shape(p)), p) {}
  InputGradient(const ConvParams& e, const Problem& p)
      : ConvProduct(e),
        dy_(p.in(0), e_.group, e_.out_positions(), places_),
        dx_(p.out(0), e_.group, e_.in_positions(), places_) {}
  ProductShape shape() const { return conv_product(e_, e_.rows(), e_.outputs, e_.columns()); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    for (int64_t g = 0; g < e_.group; ++g) {
      void* dy = nullptr;
      OFSDP_CUDA_TRY(dy_.read(l.in(0), g, l.workspace, dy, stream));
      OFSDP_CUDA_TRY(
          transpose_weights(e_, at(l.in(1), before(g, e_.weights())), weights(l), false, stream));
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
      : ConvProduct(conv_params(p, conv_x_shape(p), conv_w_shape(p))),
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
    return transpose_weights(e_, weights(l), at(l.out(0), before(g, e_.weights())), true, stream);
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

// --- ConvTranspose: the input gradient of a convolution, plus bias. The gradients are Conv and
// ofsdp.ConvGradWeights. ---

ConvParams transposed_params(const Problem& p) {
  const Shape& w = p.in(1).shape;
  const ops::ConvShape s = ops::known_transposed(p.attributes, p.in(0).shape, w);
  ConvParams e;
  e.group = s.group;
  e.outputs = w[0] / s.group;
  e.size = dtype_size(p.in(0).dtype);
  e.window = window_params(s.window, s.x[0], w[1], p.in(0).dtype, true);
  return e;
}

// Describes y + bias in y's memory layout.
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
  call.walk = merge_dense_axes(shape, {dense_strides(shape), bias});
  return call;
}

std::unique_ptr<CudaKernel> create_transposed(DeviceState& device, const Problem& p) {
  auto made = make_conv<InputGradient>(device, transposed_params(p), p);
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
      {{"Conv", "im2row", accepts_conv, make_conv<Forward, Problem>},
       {"ofsdp.ConvGradInput", "im2row", accepts_conv_grad, make_conv<InputGradient, Problem>},
       {"ofsdp.ConvGradWeights", "im2row", accepts_conv_grad, make_conv<WeightsGradient, Problem>},
       {"ConvTranspose", "row2im", accepts_conv_grad, create_transposed}});
}

}  // namespace ofsdp::kernels::cuda
