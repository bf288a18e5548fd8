// SoftmaxCrossEntropyLoss(scores, labels, weights): log_prob = log_softmax(scores) along axis 1
// (output 1) and its loss as in class_loss.h; attributes reduction, ignore_index and our own
// label_smoothing, PyTorch's. d scores = ofsdp.SoftmaxCrossEntropyLossGrad(dloss, log_prob, labels,
// weights) with the same attributes, and what flows back through log_prob when somebody reads it.
// https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html
#include <algorithm>
#include <cmath>

#include "kernels/cpu/softmax.h"
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/standard_bodies.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc loss, infer_class_loss(c, 1, 2));
  const float smoothing = c.attributes.f("label_smoothing", 0.0f);
  if (!(smoothing >= 0.0f && smoothing <= 1.0f)) {
    return input_error("label smoothing: expected 0..1, found {}", smoothing);
  }
  return std::vector{std::move(loss), TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void grad(GradBuilder& b) {
  const Ref log_prob = b.output(1);
  Ref total;
  if (b.grad_output(0)) {
    std::vector<Ref> inputs = {b.grad_output(0), log_prob, b.input(1)};
    if (b.num_inputs() > 2 && b.input(2)) inputs.push_back(b.input(2));
    total = b.emit1("ofsdp.SoftmaxCrossEntropyLossGrad", inputs, b.attributes());
  }
  if (b.grad_output(1)) {
    const Ref direct =
        b.emit1("ofsdp.LogSoftmaxGrad", {b.grad_output(1), log_prob}, {{"axis", int64_t{1}}});
    total = total ? b.emit1("Add", {total, direct}) : direct;
  }
  b.set_grad(0, total);
}

std::vector<double> log_softmax_of(const ClassLoss& l, std::vector<double> x) {
  for (int64_t i = 0; i < l.labels(); ++i) {
    double max = -INFINITY;
    double sum = 0;
    auto at = [&](int64_t c) -> double& {
      return x[static_cast<size_t>(l.first(i) + c * l.inner)];
    };
    for (int64_t c = 0; c < l.classes; ++c) max = std::max(max, at(c));
    for (int64_t c = 0; c < l.classes; ++c) sum += std::exp(at(c) - max);
    for (int64_t c = 0; c < l.classes; ++c) at(c) = at(c) - max - std::log(sum);
  }
  return x;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[0].desc.shape, c.attributes);
  const auto log_prob = log_softmax_of(l, c.inputs[0].values);
  const auto weights = c.inputs.size() > 2 ? c.inputs[2].values : std::vector<double>{};
  return {{c.output_descs[0], reference_class_loss(l, log_prob, c.inputs[1].values, weights)},
          {c.inputs[0].desc, log_prob}};
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[1].dtype, c.inputs[1].shape}};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[1].desc.shape, c.attributes);
  const auto weights = c.inputs.size() > 3 ? c.inputs[3].values : std::vector<double>{};
  return {{c.output_descs[0], reference_class_loss_grad(l, c.inputs[0].values, c.inputs[1].values,
                                                        c.inputs[2].values, weights)}};
}

bool accepts(const Problem& p) { return accepts_class_loss(p, 1); }
bool accepts_grad(const Problem& p) { return accepts_class_loss(p, 2); }

template <typename Index>
std::unique_ptr<Kernel> create_as(const Problem& p) {
  const ClassLoss l = class_loss(p.in(0).shape, p.attributes);
  const SoftmaxExtent extent = softmax_extent(p.in(0).shape, 1);
  const bool keeps = p.has_out(1);
  auto run = [l, extent, keeps, weighted = p.has_in(2)](const KernelArgs& a) {
    float* log_prob = keeps ? a.out<float>(1) : reinterpret_cast<float*>(a.workspace);
    log_softmax(extent, a.in<float>(0), log_prob);
    return run_class_loss(l, log_prob, a.in<Index>(1), weighted ? a.in<float>(2) : nullptr,
                          a.out<float>(0));
  };
  return make_kernel(run, keeps ? 0 : p.in(0).bytes());
}

template <typename Index>
std::unique_ptr<Kernel> create_grad_as(const Problem& p) {
  const ClassLoss l = class_loss(p.in(1).shape, p.attributes);
  return make_kernel([l, weighted = p.has_in(3)](const KernelArgs& a) {
    return run_class_loss_grad(l, a.in<float>(0), a.in<float>(1), a.in<Index>(2),
                               weighted ? a.in<float>(3) : nullptr, a.out<float>(0));
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return p.in(1).dtype == DType::kInt64 ? create_as<int64_t>(p) : create_as<int32_t>(p);
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return p.in(2).dtype == DType::kInt64 ? create_grad_as<int64_t>(p) : create_grad_as<int32_t>(p);
}

// The common cases, without and with label smoothing; some keep log_prob.
std::vector<SampleCase> with_smoothing(std::vector<SampleCase> list) {
  const size_t plain = list.size();
  for (size_t i = 0; i < plain; ++i) {
    SampleCase smooth = list[i];
    smooth.name += "_smooth";
    smooth.attributes.set("label_smoothing", 0.125f);
    list.push_back(std::move(smooth));
  }
  return list;
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = with_smoothing(class_loss_samples());
  for (size_t i = 0; i < list.size(); i += 2) list[i].num_outputs = 2;
  return list;
}

std::vector<SampleCase> grad_samples() { return with_smoothing(class_loss_grad_samples()); }

void softmax_cross_entropy_loss_grad_body(BodyBuilder& b) {
  const LabelTerms t = label_terms(b, b.input(2), b.input(3), b.output_desc(0));
  const double s = static_cast<double>(b.attributes().f("label_smoothing", 0.0f));
  Ref target = b.mul(t.one_hot, t.weight);
  if (s > 0) {
    const Shape& shape = b.output_desc(0).shape;
    const Ref share = b.mul(t.kept, s / static_cast<double>(shape[1]));
    const Ref spread = b.input(3) ? b.mul(share, class_weights(b, b.input(3), shape)) : share;
    target = b.add(b.mul(target, 1 - s), spread);
  }
  // With spread of one value for all classes the sum over them is C times it.
  const Shape& shape = b.output_desc(0).shape;
  const Ref whole = b.emit1("Expand", {target, b.ints(shape.axes())});
  const Ref d = b.sub(b.mul(b.emit1("Exp", {b.input(1)}), b.sum(whole, {1})), whole);
  b.set_output(0, b.mul(d, label_scale(b, t, b.input(0))));
}

}  // namespace

void add_softmax_cross_entropy_loss(Registry& registry) {
  registry.add({.name = "SoftmaxCrossEntropyLoss",
                .min_inputs = 2,
                .first_opset = 12,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = samples});
  registry.add({.domain = kOwnDomain,
                .name = "SoftmaxCrossEntropyLossGrad",
                .min_inputs = 3,
                .infer = infer_grad,
                .body = softmax_cross_entropy_loss_grad_body,
                .reference = grad_reference,
                .cpu = {{"loops", accepts_grad, create_grad}},
                .samples = grad_samples,
                .inplace_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
