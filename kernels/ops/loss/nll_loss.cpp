// NegativeLogLikelihoodLoss(log_prob, labels, weights): see class_loss.h for the formula (no
// smoothing) and the attributes reduction and ignore_index. d log_prob = ofsdp.NllLossGrad(dloss,
// labels, weights), the same attributes and `classes`: log_prob need not be kept.
// https://onnx.ai/onnx/operators/onnx__NegativeLogLikelihoodLoss.html
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/standard_bodies.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc loss, infer_class_loss(c, 1, 2));
  return std::vector{std::move(loss)};
}

void grad(GradBuilder& b) {
  Attributes attributes = b.attributes();
  attributes.set("classes", b.desc(b.input(0)).shape[1]);
  std::vector<Ref> inputs = {b.grad_output(0), b.input(1)};
  if (b.num_inputs() > 2 && b.input(2)) inputs.push_back(b.input(2));
  b.set_grad(0, b.emit1("ofsdp.NllLossGrad", inputs, attributes));
}

const std::vector<double>& weights_of(const ReferenceContext& c, const std::vector<double>& none) {
  return c.inputs.size() > 2 ? c.inputs[2].values : none;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[0].desc.shape, c.attributes);
  return {{c.output_descs[0],
           reference_class_loss(l, c.inputs[0].values, c.inputs[1].values, weights_of(c, {}))}};
}

// The shape of the scores from that of the labels.
Shape scores_shape(const Shape& labels, const Attributes& attributes) {
  std::vector<int64_t> axes = labels.axes();
  axes.insert(axes.begin() + 1, attributes.i("classes", 0));
  return Shape(axes);
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  if (c.inputs[1].shape.rank() < 1) return input_error("expected labels [N, d...], found a scalar");
  return std::vector{TensorDesc{c.inputs[0].dtype, scores_shape(c.inputs[1].shape, c.attributes)}};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.output_descs[0].shape, c.attributes);
  return {{c.output_descs[0], reference_class_loss_grad(l, c.inputs[0].values, {},
                                                        c.inputs[1].values, weights_of(c, {}))}};
}

bool accepts(const Problem& p) { return accepts_class_loss(p, 1); }

template <typename Index>
std::unique_ptr<Kernel> create_as(const Problem& p) {
  const ClassLoss l = class_loss(p.in(0).shape, p.attributes);
  return make_kernel([l, weighted = p.has_in(2)](const KernelArgs& a) {
    return run_class_loss(l, a.in<float>(0), a.in<Index>(1), weighted ? a.in<float>(2) : nullptr,
                          a.out<float>(0));
  });
}

template <typename Index>
std::unique_ptr<Kernel> create_grad_as(const Problem& p) {
  const ClassLoss l = class_loss(p.out(0).shape, p.attributes);
  return make_kernel([l, weighted = p.has_in(2)](const KernelArgs& a) {
    return run_class_loss_grad(l, a.in<float>(0), nullptr, a.in<Index>(1),
                               weighted ? a.in<float>(2) : nullptr, a.out<float>(0));
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return p.in(1).dtype == DType::kInt64 ? create_as<int64_t>(p) : create_as<int32_t>(p);
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return p.in(1).dtype == DType::kInt64 ? create_grad_as<int64_t>(p) : create_grad_as<int32_t>(p);
}

// Without the log-probabilities, whose number of classes becomes an attribute.
std::vector<SampleCase> grad_samples() {
  std::vector<SampleCase> list = class_loss_grad_samples();
  for (SampleCase& s : list) {
    s.attributes.set("classes", s.inputs[1].shape[1]);
    s.inputs.erase(s.inputs.begin() + 1);
    s.fill = [fill = s.fill](size_t input, std::vector<double>& values) {
      fill(input == 0 ? 0 : input + 1, values);
    };
  }
  return list;
}

void nll_loss_grad_body(BodyBuilder& b) {
  const LabelTerms t = label_terms(b, b.input(1), b.input(2), b.output_desc(0));
  const Ref each = label_scale(b, t, b.input(0));
  b.set_output(0, b.emit1("Neg", {b.mul(t.one_hot, b.mul(t.weight, each))}));
}

}  // namespace

void add_nll_loss(Registry& registry) {
  registry.add({.name = "NegativeLogLikelihoodLoss",
                .min_inputs = 2,
                .first_opset = 12,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = class_loss_samples});
  registry.add({.domain = kOwnDomain,
                .name = "NllLossGrad",
                .min_inputs = 2,
                .infer = infer_grad,
                .body = nll_loss_grad_body,
                .reference = grad_reference,
                .cpu = {{"loops", accepts, create_grad}},
                .samples = grad_samples});
}

}  // namespace ofsdp::kernels::ops
