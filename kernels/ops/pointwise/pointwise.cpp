#include "kernels/ops/pointwise/pointwise.h"

#include <cmath>
#include <limits>

namespace ofsdp::kernels::ops {

namespace {

TypeSet types_of(const PointwiseLoops& loops) {
  TypeSet types = 0;
  for (size_t i = 0; i < loops.of.size(); ++i) {
    if (loops.of[i] != nullptr) types |= TypeSet{1} << i;
  }
  return types;
}

std::vector<SampleCase> cases_of(const UnarySamples& s) {
  std::vector<SampleCase> list = float_samples(s.fill, s.attributes);
  if (s.vectors_of != 0) append(list, vectors_of_types(s.vectors_of));
  if (s.extremes) list.push_back(extreme_sample(s.attributes));
  if (!s.attributes.all().empty()) {
    list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  }
  append(list, s.more);
  return list;
}

}  // namespace

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
  OpDef made = pointwise(
      make_op(op.name, {nullptr, op.grad, op.reference, [s = op.samples] { return cases_of(s); }},
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
    registry.add(pointwise_grad(
        make_op(slope_name,
                {nullptr, nullptr, op.slope->reference,
                 [s = op.samples] { return float_pair_samples(s.fill, s.attributes); }},
                pointwise_kernels(op.name, op.slope->loops), {.body = op.slope->body})));
  }
  registry.add(std::move(made));
}

OpDef binary(const BinaryOp& op) {
  OpDef made = pointwise(make_op(
      op.name,
      {nullptr, op.grad, op.reference,
       [types = types_of(op.loops), fill = op.fill] { return samples_of_types(types, fill); }},
      pointwise_kernels(op.name, op.loops), {.min_inputs = 2, .first_opset = op.first_opset}));
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

double tolerance_of(DType dtype) {
  if (dtype == DType::kFloat16) return 1e-3;
  if (dtype == DType::kBFloat16) return 8e-3;
  return dtype == DType::kFloat64 ? 1e-13 : 2e-5;
}

}  // namespace

SampleCase sample_of(DType dtype, std::string name, std::vector<Shape> shapes, const Fill& fill) {
  SampleCase made{.name = std::string(dtype_name(dtype)) + "_" + std::move(name), .fill = fill};
  for (Shape& shape : shapes) made.inputs.push_back({dtype, std::move(shape)});
  // A constant of a gradient is rounded to 16 bits: too coarse for finite differences.
  made.check_grad = dtype == DType::kFloat32 || dtype == DType::kFloat64;
  made.tolerance = tolerance_of(dtype);
  return made;
}

std::vector<SampleCase> float_samples(const Fill& fill, const Attributes& attributes) {
  std::vector<SampleCase> list = unary_samples(fill);
  for (DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    list.push_back(sample_of(dtype, "matrix", {{3, 11}}, fill));
  }
  for (SampleCase& s : list) s.attributes = attributes;
  return list;
}

std::vector<SampleCase> float_pair_samples(const Fill& fill, const Attributes& attributes) {
  std::vector<SampleCase> list = pair_samples(fill);
  for (DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    list.push_back(sample_of(dtype, "matrix", {{3, 11}, {3, 11}}, fill));
  }
  for (SampleCase& s : list) s.attributes = attributes;
  return list;
}

std::vector<DType> types_in(TypeSet types) {
  std::vector<DType> list;
  for (auto i = static_cast<int>(DType::kFloat32); i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool small = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
    if (in_set(types, small ? DType::kFloat32 : dtype)) list.push_back(dtype);
  }
  return list;
}

std::vector<SampleCase> vectors_of_types(TypeSet types, const Fill& fill) {
  std::vector<SampleCase> list;
  for (DType dtype : types_in(types)) list.push_back(sample_of(dtype, "vector", {{19}}, fill));
  return list;
}

std::vector<SampleCase> samples_of_types(TypeSet types, const Fill& fill) {
  std::vector<SampleCase> list;
  if (in_set(types, DType::kFloat32)) list = binary_samples(fill);
  for (DType dtype : types_in(types)) {
    list.push_back(sample_of(dtype, "pair", {{2, 9}, {2, 9}}, fill));
    list.push_back(sample_of(dtype, "row", {{2, 9}, {9}}, fill));
    list.back().check_grad = false;  // ofsdp.SumTo is of float32
  }
  return list;
}

SampleCase extreme_sample(const Attributes& attributes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return make_sample(
      "extremes", {{DType::kFloat32, {18}}}, attributes,
      fill_with(0, {0.0, -0.0, kInfinity, -kInfinity, std::nan(""), 1e-40, -1e-40, 1e-20, -1e-20,
                    16.5, -16.5, 100, -100, 1e6, -1e6, 1e30, -1e30, 0.5}),
      {.check_grad = false});
}

Fill squashed(double limit) {
  return [limit](size_t input, std::vector<double>& values) {
    if (input != 0) return;
    for (double& v : values) v = limit * std::tanh(v);
  };
}

Fill scaled(double factor) {
  return [factor](size_t, std::vector<double>& values) {
    for (double& v : values) v *= factor;
  };
}

Fill positive_fill(double least) {
  return [least](size_t, std::vector<double>& values) {
    for (double& v : values) v = std::abs(v) + least;
  };
}

}  // namespace ofsdp::kernels::ops
