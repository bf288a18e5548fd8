#include "kernels/ops/pointwise/pointwise.h"

#include "kernels/cpu/parallel.h"
#include "kernels/ops/pointwise/activation.h"

namespace ofsdp::kernels::ops {

OpDef pointwise(OpDef op) {
  if (op.infer == nullptr) op.infer = op.min_inputs == 1 ? infer_same : infer_binary;
  for (int i = 0; i < op.min_inputs; ++i) op.inplace_inputs.push_back(i);
  op.layout = LayoutRule::kElementwise;
  return op;
}

OpDef pointwise_grad(OpDef op) {
  op.domain = kOwnDomain;
  op.min_inputs = 2;
  return pointwise(std::move(op));
}

UnaryOp unary_op(const char* name, int first_opset, ReferenceFn reference,
                 const PointwiseLoops& loops, UnaryOp rest) {
  rest.name = name;
  rest.first_opset = first_opset;
  rest.reference = reference;
  rest.loops = loops;
  return rest;
}

BinaryOp binary_op(const char* name, int first_opset, ReferenceFn reference,
                   const PointwiseLoops& loops, BinaryOp rest) {
  rest.name = name;
  rest.first_opset = first_opset;
  rest.reference = reference;
  rest.loops = loops;
  return rest;
}

void add_unary(Registry& registry, const UnaryOp& op) {
  const std::string slope_name = std::string(op.name) + "Grad";
  OpDef made =
      pointwise(make_op(op.name, {nullptr, op.grad, op.reference},
                        pointwise_kernels(op.name, op.loops), {.first_opset = op.first_opset}));
  if (op.loops.to_bool) {
    made.infer = infer_predicate;
    made.inplace_inputs.clear();
  }
  if (op.slope) {
    const bool of_output = op.slope->of_output;
    made.grad = [=](GradBuilder& b) {
      (of_output ? grad_of_output : grad_of_input)(b, slope_name);
    };
    registry.add(pointwise_grad(make_op(slope_name, {nullptr, nullptr, op.slope->reference},
                                        pointwise_kernels(op.name, op.slope->loops),
                                        {.body = op.slope->body})));
  }
  registry.add(std::move(made));
}

OpDef binary(const BinaryOp& op) {
  OpDef made = pointwise(make_op(op.name, {nullptr, op.grad, op.reference},
                                 pointwise_kernels(op.name, op.loops),
                                 {.min_inputs = 2, .first_opset = op.first_opset}));
  if (op.loops.to_bool) {
    made.infer = infer_comparison;
    made.inplace_inputs.clear();
  }
  return made;
}

void add_binary(Registry& registry, const BinaryOp& op) { registry.add(binary(op)); }

Result<std::vector<TensorDesc>> infer_comparison(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  desc.dtype = DType::kBool;
  return std::vector{std::move(desc)};
}

Result<std::vector<TensorDesc>> infer_predicate(const InferContext& c) {
  TensorDesc desc = c.inputs[0];
  desc.dtype = DType::kBool;
  return std::vector{std::move(desc)};
}

void grad_of_input(GradBuilder& b, const std::string& name) {
  b.set_grad(0, b.emit1("ofsdp." + name, {b.grad_output(0), b.input(0)}, b.attributes()));
}

void grad_of_output(GradBuilder& b, const std::string& name) {
  b.set_grad(0, b.emit1("ofsdp." + name, {b.grad_output(0), b.output(0)}, b.attributes()));
}

void grad_is_zero(GradBuilder& b) {
  const TensorDesc& x = b.desc(b.input(0));
  const Ref shape = b.ints(x.shape.axes());
  b.set_grad(0, b.emit1("Expand", {b.scalar(x.dtype, 0), shape}));
}

std::vector<RefTensor> map_x(const ReferenceContext& c, double (*f)(double, const Attributes&)) {
  return unary_reference(c, [&](double x) { return f(x, c.attributes); });
}

std::vector<RefTensor> map_ab(const ReferenceContext& c,
                              double (*f)(double, double, const Attributes&)) {
  return binary_reference(c, [&](double a, double b) { return f(a, b, c.attributes); });
}

namespace {

OFSDP_MULTIARCH void relu_in_place(float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = dst[i] < 0.0f ? 0.0f : dst[i];
}

}  // namespace

bool has_relu(const Attributes& attributes) {
  return attributes.s(kActivationAttribute, "") == "relu";
}

void reference_relu(std::vector<double>& values) {
  for (double& v : values) v = v < 0 ? 0 : v;
}

std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, int64_t count) {
  const size_t workspace = kernel->workspace_bytes();
  return make_kernel(
      [inner = std::move(kernel), count](const KernelArgs& a) {
        Status status = inner->run(a);
        if (!status.ok()) return status;
        parallel_for(count, kElementGrain, [&](int64_t begin, int64_t end) {
          relu_in_place(a.out<float>(0) + begin, end - begin);
        });
        return ok_status();
      },
      workspace);
}

Ref activation_grad(GradBuilder& b) {
  if (!has_relu(b.attributes())) return b.grad_output(0);
  return b.emit1("ofsdp.ReluGrad", {b.grad_output(0), b.output(0)});
}

}  // namespace ofsdp::kernels::ops
