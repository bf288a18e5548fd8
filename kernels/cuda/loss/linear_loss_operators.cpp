// ofsdp.LinearCrossEntropy: the product that makes scores, the loss and its gradients, a chunk of
// rows at a time (kernels/ops/loss/loss_with_gradient.cpp has the formulas). cuBLASLt multiplies;
// the loss and the scores' gradient are cross_entropy.cu's, with the bits of whole scores.
//
// dW is added up in float32, by the products themselves (beta = 1), in the order of the chunks. It
// is rounded once at the end, unless the result is float32 and not padded: then it is the sum.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/cuda/matmul/product_kernels.h"
#include "kernels/cuda/reduce/reduce.h"

namespace ofsdp::kernels::cuda {
namespace {

using namespace linear_loss;

// The products of one chunk of `rows` rows, and the sum of its score gradients over rows.
struct ChunkKernels {
  int64_t rows = 0;
  std::shared_ptr<MatrixProduct> scores, input, first, next;  // null: not wanted
  std::vector<ReducePass> columns;

  bool all_made(bool by_input, bool by_weights) const {
    return scores != nullptr && (!by_input || input != nullptr) &&
           (!by_weights || (first != nullptr && next != nullptr));
  }
};

class LinearLoss final : public CudaKernel {
 public:
  // Returns null if cuBLASLt has no algorithm for a product.
  static std::unique_ptr<CudaKernel> make(DeviceState& device, const Problem& p) {
    auto made = std::make_unique<LinearLoss>(p);
    for (const int64_t rows : {made->rooms_.chunk, made->samples_ % made->rooms_.chunk}) {
      if (rows > 0 && !made->add_chunk(device, rows)) return nullptr;
    }
    return made;
  }

  explicit LinearLoss(const Problem& p)
      : rooms_(Rooms::of(p)),
        dtype_(p.in(kX).dtype),
        dw_(p.has_out(kDW) ? p.out(kDW).dtype : dtype_),
        samples_(p.in(kX).shape[0]),
        size_(dtype_size(dtype_)),
        turned_(is_turned(p.attributes)),
        biased_(p.has_in(kBias)),
        by_input_(p.has_out(kDX)),
        by_weights_(p.has_out(kDW)),
        by_bias_(p.has_out(kDBias)) {
    const std::string reduction = p.attributes.s("reduction", "mean");
    loss_ = {.dtype = dtype_,
             .samples = samples_,
             .classes = rooms_.classes,
             .reduction = reduction == "sum" ? LossReduction::kSum : LossReduction::kMean,
             .ignores = p.attributes.has("ignore_index"),
             .ignore_index = p.attributes.i("ignore_index", 0),
             .smoothing = static_cast<double>(p.attributes.f("label_smoothing", 0.0f)),
             .label_dtype = p.in(kLabels).dtype,
             .pitch = pads() ? rooms_.padded : 0};
    scratch_ = rooms_.bytes;
    work_ = scratch_ + round_up(cross_entropy_scratch(loss_));
  }

  size_t workspace_bytes() const override { return work_ + work_bytes_; }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    CrossEntropy c = loss_;
    c.labels = l.in(kLabels);
    c.weights = l.in(kClassWeights);
    c.fault = l.fault();
    void* const scores = at(l.workspace, rooms_.scores);
    const CrossEntropyJoined j{.scores = scores,
                               .diff_loss = l.in<float>(kLossWeight),
                               .loss = l.out<float>(kLoss),
                               .diff_scores = scores,
                               .scratch = at(l.workspace, scratch_)};
    if (pads()) OFSDP_CUDA_TRY(pad(stream, l));
    OFSDP_CUDA_TRY(cross_entropy_totals(c, j, stream));
    for (int64_t first = 0; first < samples_; first += rooms_.chunk) {
      OFSDP_CUDA_TRY(run_chunk(stream, l, c, j, first));
    }
    OFSDP_CUDA_TRY(cross_entropy_loss(c, j, stream));
    return finish(stream, l);
  }

 private:
  bool pads() const { return rooms_.padded != rooms_.classes; }
  const void* weights(const Launch& l) const {
    return pads() ? at(l.workspace, rooms_.weights) : l.in(kW);
  }
  void* sums(const Launch& l) const {
    return rooms_.sums_apart ? at(l.workspace, rooms_.sums) : l.out(kDW);
  }

  // W and dW, as given and with padded classes.
  PitchedMatrix matrix(int64_t classes) const {
    return turned_ ? PitchedMatrix{classes, rooms_.inner, rooms_.inner}
                   : PitchedMatrix{rooms_.inner, classes, classes};
  }

  bool add_chunk(DeviceState& device, int64_t rows) {
    for (const ChunkKernels& made : chunks_) {
      if (made.rows == rows) return true;
    }
    const int64_t classes = rooms_.padded, inner = rooms_.inner;
    ChunkKernels made;
    made.rows = rows;
    const auto add = [&](const ProductShape& shape) -> std::shared_ptr<MatrixProduct> {
      std::shared_ptr<MatrixProduct> product = make_product(device, shape);
      if (product != nullptr) work_bytes_ = std::max(work_bytes_, product->workspace_bytes());
      return product;
    };
    ProductShape shape{.dtype = dtype_, .rows = rows, .columns = classes, .inner = inner};
    shape.transpose_b = turned_;
    shape.bias = biased_;
    made.scores = add(shape);
    if (by_input_) {
      shape = {.dtype = dtype_, .rows = rows, .columns = inner, .inner = classes};
      shape.transpose_b = !turned_;
      made.input = add(shape);
    }
    if (by_weights_) {
      const PitchedMatrix w = matrix(classes);
      shape = {.dtype = dtype_, .rows = w.rows, .columns = w.columns, .inner = rows};
      shape.transpose_a = true;
      shape.wide = true;
      made.first = add(shape);
      shape.beta = 1;
      made.next = add(shape);
    }
    if (by_bias_) {
      made.columns = plan_reduce({rows, classes}, {true, false});
      work_bytes_ = std::max(work_bytes_, reduce_scratch(made.columns));
    }
    if (!made.all_made(by_input_, by_weights_)) return false;
    chunks_.push_back(std::move(made));
    return true;
  }

  cudaError_t pad(cudaStream_t stream, const Launch& l) const {
    OFSDP_CUDA_TRY(copy_padded(size_, l.in(kW), matrix(rooms_.classes),
                               at(l.workspace, rooms_.weights), matrix(rooms_.padded), stream));
    if (!biased_) return cudaSuccess;
    return copy_padded(size_, l.in(kBias), {1, rooms_.classes, rooms_.classes},
                       at(l.workspace, rooms_.bias), {1, rooms_.padded, rooms_.padded}, stream);
  }

  cudaError_t run_chunk(cudaStream_t stream, const Launch& l, const CrossEntropy& c,
                        const CrossEntropyJoined& j, int64_t first) const {
    const int64_t rows = std::min(rooms_.chunk, samples_ - first);
    const ChunkKernels& chunk = chunks_[chunks_[0].rows == rows ? 0 : 1];
    const size_t from = static_cast<size_t>(first * rooms_.inner) * size_;
    const void* const x = at(l.in(kX), from);
    void* const scores = at(l.workspace, rooms_.scores);
    void* const work = at(l.workspace, work_);
    const void* bias = nullptr;
    if (biased_) bias = pads() ? at(l.workspace, rooms_.bias) : l.in(kBias);
    OFSDP_CUDA_TRY(chunk.scores->run(stream, x, weights(l), bias, scores, work));
    OFSDP_CUDA_TRY(cross_entropy_rows(c, j, first, rows, stream));
    if (by_bias_) OFSDP_CUDA_TRY(add_columns(stream, l, chunk, first == 0));
    if (by_weights_) {
      const ProductOperands o{
          .a = turned_ ? scores : x, .b = turned_ ? x : scores, .d = sums(l), .workspace = work};
      OFSDP_CUDA_TRY((first == 0 ? chunk.first : chunk.next)->run(stream, o));
    }
    if (!by_input_) return cudaSuccess;
    return chunk.input->run(stream, scores, weights(l), nullptr, at(l.out(kDX), from), work);
  }

  cudaError_t add_columns(cudaStream_t stream, const Launch& l, const ChunkKernels& chunk,
                          bool starts) const {
    auto* const total = reinterpret_cast<float*>(at(l.workspace, rooms_.columns));
    void* const more = at(l.workspace, rooms_.more);
    OFSDP_CUDA_TRY(reduce(chunk.columns,
                          {.dtype = dtype_,
                           .out_dtype = DType::kFloat32,
                           .x = at(l.workspace, rooms_.scores),
                           .y = starts ? static_cast<void*>(total) : more,
                           .scratch = at(l.workspace, work_)},
                          stream));
    if (starts) return cudaSuccess;
    return add_onto(more, static_cast<int32_t>(DType::kFloat32), total, rooms_.padded, stream);
  }

  // Rounds the sums into the results.
  cudaError_t finish(cudaStream_t stream, const Launch& l) const {
    const auto wide = static_cast<int32_t>(DType::kFloat32), narrow = static_cast<int32_t>(dtype_);
    if (by_bias_) {
      OFSDP_CUDA_TRY(convert(at(l.workspace, rooms_.columns), wide, l.out(kDBias), narrow,
                             rooms_.classes, stream));
    }
    if (!by_weights_ || !rooms_.sums_apart) return cudaSuccess;
    // Padded classes are rows, and come last.
    return convert(sums(l), wide, l.out(kDW), static_cast<int32_t>(dw_),
                   rooms_.classes * rooms_.inner, stream);
  }

  Rooms rooms_;
  DType dtype_, dw_;
  int64_t samples_;
  size_t size_;
  bool turned_, biased_, by_input_, by_weights_, by_bias_;
  CrossEntropy loss_;
  size_t scratch_ = 0, work_ = 0, work_bytes_ = 0;
  std::vector<ChunkKernels> chunks_;  // whole, and the last
};

Acceptance accepts_linear_loss(const Problem& p) {
  const TensorDesc& x = p.in(kX);
  if (!is_32_or_16_bit_float(x.dtype)) return Acceptance::refuse("X of another type");
  if (x.numel() == 0 || p.in(kW).numel() == 0) return Acceptance::refuse("an operand is empty");
  const Rooms rooms = Rooms::of(p);
  const size_t chunk_bytes = static_cast<size_t>(rooms.chunk * rooms.inner) * dtype_size(x.dtype);
  const bool one = rooms.chunk == x.shape[0];
  const bool padded_columns = !is_turned(p.attributes) && rooms.padded != rooms.classes;
  return accept({plain(p),
                 dense_but(p, {}),
                 {!p.has_in(kRows), "kept rows are known on the host alone"},
                 {is_index(p.in(kLabels).dtype), "labels are neither int32 nor int64"},
                 alike(!p.has_in(kClassWeights) || p.in(kClassWeights).dtype == x.dtype),
                 {one || chunk_bytes % kProductAlignment == 0, "chunks are not aligned"},
                 {!padded_columns, "rows of the weights have a length that products refuse"}});
}

}  // namespace

void add_linear_losses(CudaImplementations& list) {
  list.insert(list.end(),
              {{"ofsdp.LinearCrossEntropy", "cublaslt", accepts_linear_loss, LinearLoss::make}});
}

}  // namespace ofsdp::kernels::cuda
