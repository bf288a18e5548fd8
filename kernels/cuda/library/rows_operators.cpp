// Normalization, losses, embeddings and dropout: kernels/cuda/norm.h, cross_entropy.h, embedding.h
// and dropout.h as implementations.
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/library/own_operators.h"
#include "kernels/cuda/norm.h"

namespace ofsdp::cuda {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

struct Rows {
  int64_t rows, width;
};

Rows rows_of(const Problem& p, const Shape& x) {
  const int64_t axis = p.attributes.i("axis", -1);
  const int first = static_cast<int>(axis < 0 ? axis + x.rank() : axis);
  return {x.numel(0, first), x.numel(first, x.rank())};
}

// scale and bias of the whole width; statistics in float32.
bool accepts_norm(const Problem& p) {
  const Rows r = rows_of(p, p.in(0).shape);
  const bool scale = p.in(1).dtype == p.in(0).dtype && p.in(1).numel() == r.width;
  const bool bias = !p.has_in(2) || (p.in(2).dtype == p.in(0).dtype && p.in(2).numel() == r.width);
  return p.all_plain() && is_float(p.in(0).dtype) && scale && bias && r.rows > 0 && r.width > 0;
}

std::unique_ptr<CudaKernel> create_norm(ofsdp_device&, const Problem& p) {
  NormForward n;
  const Rows r = rows_of(p, p.in(0).shape);
  n.dtype = p.in(0).dtype;
  n.rows = r.rows;
  n.width = r.width;
  n.epsilon = p.attributes.f("epsilon", 1e-5f);
  const bool bias = p.has_in(2), mean = p.has_out(1), inv = p.has_out(2);
  return make_cuda_kernel([=](cudaStream_t stream, const ofsdp_launch& l) {
    NormForward call = n;
    call.x = l.inputs[0];
    call.scale = l.inputs[1];
    call.bias = bias ? l.inputs[2] : nullptr;
    call.y = l.outputs[0];
    call.mean = mean ? static_cast<float*>(l.outputs[1]) : nullptr;
    call.inv = inv ? static_cast<float*>(l.outputs[2]) : nullptr;
    return norm_forward(call, stream);
  });
}

// ofsdp.LayerNormalizationGrad(dy, x, scale, mean, inv, dmean, dinv) -> dx, dscale, dbias.
bool accepts_norm_grad(const Problem& p) {
  const Rows r = rows_of(p, p.in(1).shape);
  return p.all_plain() && is_float(p.in(1).dtype) && p.in(0).dtype == p.in(1).dtype &&
         p.has_in(2) && p.in(2).dtype == p.in(1).dtype && p.in(2).numel() == r.width &&
         p.has_in(3) && p.has_out(0) && r.rows > 0 && r.width > 0;
}

std::unique_ptr<CudaKernel> create_norm_grad(ofsdp_device&, const Problem& p) {
  NormBackward n;
  const Rows r = rows_of(p, p.in(1).shape);
  n.dtype = p.in(1).dtype;
  n.rows = r.rows;
  n.width = r.width;
  const bool dmean = p.has_in(5), dinv = p.has_in(6), dscale = p.has_out(1), dbias = p.has_out(2);
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        const auto statistic = [&](size_t i) { return static_cast<const float*>(l.inputs[i]); };
        NormBackward call = n;
        call.dy = l.inputs[0];
        call.x = l.inputs[1];
        call.scale = l.inputs[2];
        call.mean = statistic(3);
        call.inv = statistic(4);
        call.dmean = dmean ? statistic(5) : nullptr;
        call.dinv = dinv ? statistic(6) : nullptr;
        call.dx = l.outputs[0];
        call.dscale = dscale ? l.outputs[1] : nullptr;
        call.dbias = dbias ? l.outputs[2] : nullptr;
        call.scratch = l.workspace;
        return norm_backward(call, stream);
      },
      norm_backward_scratch(r.rows, r.width));
}

CrossEntropy loss_of(const Problem& p, const Shape& scores, size_t labels) {
  CrossEntropy c;
  c.samples = scores[0];
  c.classes = scores[1];
  c.inner = scores.numel(2, scores.rank());
  const std::string reduction = p.attributes.s("reduction", "mean");
  c.reduction = reduction == "none"  ? LossReduction::kNone
                : reduction == "sum" ? LossReduction::kSum
                                     : LossReduction::kMean;
  c.ignores = p.attributes.has("ignore_index");
  c.ignore_index = p.attributes.i("ignore_index", 0);
  c.smoothing = p.attributes.f("label_smoothing", 0.0f);
  c.label_dtype = p.in(labels).dtype;
  return c;
}

bool accepts_loss_operands(const Problem& p, size_t scores, size_t labels) {
  const DType dtype = p.in(scores).dtype, label = p.in(labels).dtype;
  const bool weights = !p.has_in(labels + 1) || p.in(labels + 1).dtype == dtype;
  return p.all_plain() && is_float(dtype) && weights && p.in(scores).numel() > 0 &&
         (label == DType::kInt32 || label == DType::kInt64);
}

bool accepts_loss(const Problem& p) { return accepts_loss_operands(p, 0, 1); }
bool accepts_loss_grad(const Problem& p) { return accepts_loss_operands(p, 1, 2); }

std::unique_ptr<CudaKernel> create_loss(ofsdp_device&, const Problem& p) {
  const CrossEntropy loss = loss_of(p, p.in(0).shape, 1);
  const bool weights = p.has_in(2), log_prob = p.has_out(1);
  const DType dtype = p.out(0).dtype;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        CrossEntropy c = loss;
        c.labels = l.inputs[1];
        c.weights = weights ? l.inputs[2] : nullptr;
        CrossEntropyForward f;
        f.scores = l.inputs[0];
        f.log_prob = log_prob ? l.outputs[1] : nullptr;
        f.loss = l.outputs[0];
        f.loss_dtype = dtype;
        f.scratch = l.workspace;
        return cross_entropy_forward(c, f, stream);
      },
      cross_entropy_scratch(loss));
}

// (dloss, log_prob, labels, weights)
std::unique_ptr<CudaKernel> create_loss_grad(ofsdp_device&, const Problem& p) {
  const CrossEntropy loss = loss_of(p, p.in(1).shape, 2);
  const bool weights = p.has_in(3);
  const DType dtype = p.in(0).dtype;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        CrossEntropy c = loss;
        c.labels = l.inputs[2];
        c.weights = weights ? l.inputs[3] : nullptr;
        CrossEntropyBackward b;
        b.scores = l.inputs[1];
        b.diff_loss = l.inputs[0];
        b.loss_dtype = dtype;
        b.diff_scores = l.outputs[0];
        b.scratch = l.workspace;
        return cross_entropy_backward(c, b, stream);
      },
      cross_entropy_scratch(loss));
}

bool accepts_dropout(const Problem& p) {
  const Constant* training = p.constant(2);
  const bool active =
      training != nullptr && to_doubles(training->desc, training->bytes.data())[0] != 0;
  return p.all_plain() && is_float(p.in(0).dtype) && active;
}

// RandomInput is how ofsdp_step_numbers begins; the sample numbers lie behind it.
static_assert(offsetof(ofsdp_step_numbers, seed) == offsetof(RandomInput, seed) &&
              offsetof(ofsdp_step_numbers, step) == offsetof(RandomInput, step));

std::unique_ptr<CudaKernel> create_dropout(ofsdp_device&, const Problem& p) {
  DropoutCall dropped;
  dropped.dtype = p.in(0).dtype;
  dropped.node_seed = p.node_seed;
  if (const Constant* ratio = p.constant(1); ratio != nullptr) {
    dropped.ratio = to_doubles(ratio->desc, ratio->bytes.data())[0];
  }
  const int64_t numel = p.in(0).numel();
  const bool mask = p.has_out(1);
  return make_cuda_kernel([=](cudaStream_t stream, const ofsdp_launch& l) {
    if (numel == 0) return cudaSuccess;
    DropoutCall c = dropped;
    const bool cut = l.samples > 0 && numel % l.samples == 0;
    c.samples = cut ? l.samples : 1;
    c.elements = numel / c.samples;
    c.random = reinterpret_cast<const RandomInput*>(l.numbers);
    c.sample_index = l.samples > 0 ? reinterpret_cast<const int64_t*>(l.numbers + 1) : nullptr;
    c.x = l.inputs[0];
    c.y = l.outputs[0];
    c.mask = mask ? static_cast<bool*>(l.outputs[1]) : nullptr;
    return dropout(c, stream);
  });
}

bool accepts_dropout_grad(const Problem& p) { return p.all_plain() && is_float(p.in(0).dtype); }

std::unique_ptr<CudaKernel> create_dropout_grad(ofsdp_device&, const Problem& p) {
  return make_cuda_kernel(
      [dtype = p.in(0).dtype, n = p.in(0).numel(), ratio = p.attributes.f("ratio", 0.5f)](
          cudaStream_t stream, const ofsdp_launch& l) {
        if (n == 0) return cudaSuccess;
        return dropout_grad(dtype, l.inputs[0], static_cast<const bool*>(l.inputs[1]), l.outputs[0],
                            n, ratio, stream);
      });
}

bool accepts_gather(const Problem& p) {
  const DType index = p.in(1).dtype;
  return p.all_plain() && (index == DType::kInt32 || index == DType::kInt64);
}

std::unique_ptr<CudaKernel> create_gather(ofsdp_device&, const Problem& p) {
  const Shape& data = p.in(0).shape;
  const int64_t axis = p.attributes.i("axis", 0);
  const int at = static_cast<int>(axis < 0 ? axis + data.rank() : axis);
  GatherExtent e;
  e.outer = data.numel(0, at);
  e.n = data[at];
  e.inner = data.numel(at + 1, data.rank());
  e.count = p.in(1).numel();
  e.index_dtype = p.in(1).dtype;
  return make_cuda_kernel([e, size = dtype_size(p.in(0).dtype), n = p.out(0).numel()](
                              cudaStream_t stream, const ofsdp_launch& l) {
    if (n == 0) return cudaSuccess;
    GatherExtent call = e;
    call.indices = l.inputs[1];
    return gather(call, size, l.inputs[0], l.outputs[0], stream);
  });
}

}  // namespace

void add_own_rows(std::vector<CudaImplementation>& list) {
  list.push_back({"LayerNormalization", "own", accepts_norm, create_norm});
  list.push_back({"com.microsoft.LayerNormalization", "own", accepts_norm, create_norm});
  list.push_back({"ofsdp.LayerNormalizationGrad", "own", accepts_norm_grad, create_norm_grad});
  list.push_back({"SoftmaxCrossEntropyLoss", "own", accepts_loss, create_loss});
  list.push_back({"ofsdp.SoftmaxCrossEntropyLossGrad", "own", accepts_loss_grad, create_loss_grad});
  list.push_back({"Dropout", "own", accepts_dropout, create_dropout});
  list.push_back({"ofsdp.DropoutGrad", "own", accepts_dropout_grad, create_dropout_grad});
  list.push_back({"Gather", "own", accepts_gather, create_gather});
}

}  // namespace ofsdp::cuda
