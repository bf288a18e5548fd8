// Operators with values that are known while planning; the importer runs them to fold them. They
// have no gradient. https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Constant                     an attribute: value (a tensor), value_float(s) or value_int(s)
//   ConstantOfShape(shape)       filled with attribute value's one element (float32 0)
//   Range(start, limit, delta)   start, start + delta, ... before limit
//   EyeLike(x), dtype, k         a matrix in x's shape with ones on the diagonal j = i + k
//
// Shape(x), attributes start, end: x's axes as int64. Size(x): x's element count, an int64 scalar.
// Both follow from x's shape, so the importer folds them too.
// https://onnx.ai/onnx/operators/onnx__Shape.html
#include <algorithm>
#include <cmath>

#include "kernels/base/budgets.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace constants {

// Refuses long outputs, since the kernel holds the values.
Acceptance accepts_listed(const Problem& p) {
  return accept_if(p.out(0).numel() <= kMaxTableEntries, "more values than a table may have");
}

std::unique_ptr<Kernel> constant_kernel(const TensorDesc& desc, const std::vector<double>& values) {
  std::vector<std::byte> bytes(desc.bytes());
  from_doubles(values, desc, bytes.data());
  return make_kernel([bytes = std::move(bytes)](const KernelArgs& a) {
    if (!bytes.empty()) std::memcpy(a.outputs[0].data, bytes.data(), bytes.size());
  });
}

// --- constant ---

template <typename T>
ConstantPtr list_of(DType dtype, const std::vector<T>& values) {
  return make_constant<T>(dtype, Shape({static_cast<int64_t>(values.size())}), values);
}

Result<ConstantPtr> constant_value_of(const Attributes& a) {
  const auto tensor = a.get<ConstantPtr>("value", nullptr);
  if (tensor != nullptr) return tensor;
  if (a.has("value_int")) {
    const int64_t value = a.i("value_int", 0);
    return make_constant<int64_t>(DType::kInt64, {}, {&value, 1});
  }
  if (a.has("value_float")) {
    const float value = a.f("value_float", 0);
    return make_constant<float>(DType::kFloat32, {}, {&value, 1});
  }
  if (a.has("value_ints")) return list_of(DType::kInt64, a.ints("value_ints"));
  if (a.has("value_floats")) {
    return list_of(DType::kFloat32, a.get<std::vector<float>>("value_floats", {}));
  }
  return input_error("expected value, value_int(s) or value_float(s), found '{}'", a.text());
}

Result<std::vector<TensorDesc>> constant_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const ConstantPtr value, constant_value_of(c.attributes));
  return std::vector{value->desc};
}

std::vector<RefTensor> constant_reference(const ReferenceContext& c) {
  const ConstantPtr value = *constant_value_of(c.attributes);
  return {{c.output_descs[0], to_doubles(value->desc, value->bytes.data())}};
}

Acceptance constant_accepts(const Problem& p) {
  return accept_if(constant_value_of(p.attributes).ok(), "no value");
}

std::unique_ptr<Kernel> constant_create(const Problem& p) {
  return make_kernel([value = *constant_value_of(p.attributes)](const KernelArgs& a) {
    if (!value->bytes.empty()) {
      std::memcpy(a.outputs[0].data, value->bytes.data(), value->bytes.size());
    }
  });
}

// --- constant_of_shape ---

ConstantPtr constant_of_shape_value_of(const Attributes& attributes) {
  const auto value = attributes.get<ConstantPtr>("value", nullptr);
  if (value != nullptr) return value;
  const float zero = 0;
  return make_constant<float>(DType::kFloat32, {1}, {&zero, 1});
}

Result<std::vector<TensorDesc>> constant_of_shape_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto axes, known_ints(c, 0, "input"));
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  const ConstantPtr value = constant_of_shape_value_of(c.attributes);
  if (value->desc.numel() != 1) {
    return input_error("attribute 'value': expected one element, found {}", value->desc.text());
  }
  return std::vector{TensorDesc{value->desc.dtype, Shape(axes)}};
}

std::vector<RefTensor> constant_of_shape_reference(const ReferenceContext& c) {
  const ConstantPtr value = constant_of_shape_value_of(c.attributes);
  const double v = first_double(*value);
  return {
      {c.output_descs[0], std::vector<double>(static_cast<size_t>(c.output_descs[0].numel()), v)}};
}

std::unique_ptr<Kernel> constant_of_shape_create(const Problem& p) {
  const TensorDesc& y = p.out(0);
  StridedCopy copy(y.shape, std::vector<int64_t>(static_cast<size_t>(y.shape.rank()), 0),
                   strides_of(y), dtype_size(y.dtype));
  return make_kernel([copy, value = constant_of_shape_value_of(p.attributes)](const KernelArgs& a) {
    copy.run(value->bytes.data(), a.outputs[0].data);
  });
}

// --- range ---

struct Progression {
  double start, delta;
  int64_t count;
};

Result<Progression> progression(const InferContext& c) {
  for (size_t i = 0; i < 3; ++i) {
    const Constant* value = c.constant(i);
    if (value == nullptr || value->desc.numel() != 1 || c.inputs[i].dtype != c.inputs[0].dtype) {
      return input_error("expected three known scalars of one type, found input {} {}", i,
                         c.inputs[i].text());
    }
  }
  const double start = first_double(*c.constant(0));
  const double limit = first_double(*c.constant(1));
  const double delta = first_double(*c.constant(2));
  const double count = std::max(std::ceil((limit - start) / delta), 0.0);
  if (!(count < 0x1p40)) {  // also NaN and infinity
    return input_error("from {} to {} by {} is no finite range", start, limit, delta);
  }
  return Progression{start, delta, static_cast<int64_t>(count)};
}

Result<std::vector<TensorDesc>> range_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Progression made, progression(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, {made.count}}};
}

std::vector<double> range_values_of(double start, double delta, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(start + static_cast<double>(i) * delta);
  return values;
}

std::vector<RefTensor> range_reference(const ReferenceContext& c) {
  return {{c.output_descs[0], range_values_of(c.inputs[0].values[0], c.inputs[2].values[0],
                                              c.output_descs[0].numel())}};
}

std::unique_ptr<Kernel> range_create(const Problem& p) {
  const Progression made = *progression({p.attributes, p.inputs, p.constants, {}});
  return constant_kernel(p.out(0), range_values_of(made.start, made.delta, made.count));
}

// --- eye_like ---

Result<std::vector<TensorDesc>> eye_like_infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() != 2) return input_error("expected a matrix, found {}", x.text());
  const int64_t number = c.attributes.i("dtype", onnx_number(x.dtype));
  const DType dtype = dtype_from_onnx_number(number);
  if (dtype == DType::kUndefined) {
    return input_error("attribute 'dtype': expected a numeric type or bool, found type number {}",
                       number);
  }
  return std::vector{TensorDesc{dtype, x.shape}};
}

std::vector<double> eye_like_values_of(const Shape& shape, int64_t k) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t j = 0; j < shape[1]; ++j) values.push_back(j - i == k ? 1 : 0);
  }
  return values;
}

std::vector<RefTensor> eye_like_reference(const ReferenceContext& c) {
  return {{c.output_descs[0], eye_like_values_of(c.output_descs[0].shape, c.attributes.i("k", 0))}};
}

std::unique_ptr<Kernel> eye_like_create(const Problem& p) {
  return constant_kernel(p.out(0), eye_like_values_of(p.out(0).shape, p.attributes.i("k", 0)));
}

// --- shape ---

// Returns the axes from start to end; negative ones count from the end, and both are clamped.
std::vector<int64_t> dims_of(const Shape& shape, const Attributes& attributes) {
  const int64_t rank = shape.rank();
  auto clamped = [rank](int64_t at) {
    return std::clamp(at < 0 ? at + rank : at, int64_t{0}, rank);
  };
  const int64_t start = clamped(attributes.i("start", 0));
  const int64_t end = std::max(start, clamped(attributes.i("end", rank)));
  return {shape.axes().begin() + start, shape.axes().begin() + end};
}

Result<std::vector<TensorDesc>> shape_infer(const InferContext& c) {
  const auto count = static_cast<int64_t>(dims_of(c.inputs[0].shape, c.attributes).size());
  return std::vector{TensorDesc{DType::kInt64, {count}}};
}

std::vector<RefTensor> shape_reference(const ReferenceContext& c) {
  const auto dims = dims_of(c.inputs[0].desc.shape, c.attributes);
  return {{c.output_descs[0], std::vector<double>(dims.begin(), dims.end())}};
}

std::unique_ptr<Kernel> shape_create(const Problem& p) {
  return make_kernel([dims = dims_of(p.in(0).shape, p.attributes)](const KernelArgs& a) {
    std::ranges::copy(dims, a.out<int64_t>(0));
  });
}

// --- size ---

Result<std::vector<TensorDesc>> size_infer(const InferContext&) {
  return std::vector{TensorDesc{DType::kInt64, {}}};
}

std::vector<RefTensor> size_reference(const ReferenceContext& c) {
  return {{c.output_descs[0], {static_cast<double>(c.inputs[0].desc.numel())}}};
}

std::unique_ptr<Kernel> size_create(const Problem& p) {
  return make_kernel([n = p.in(0).numel()](const KernelArgs& a) { *a.out<int64_t>(0) = n; });
}

}  // namespace constants

void add_constants(Registry& registry) {
  using namespace constants;
  registry.add(make_op("Constant", {constant_infer, nullptr, constant_reference},
                       {{"copy", constant_accepts, constant_create}}, {.min_inputs = 0}));
  registry.add(make_op("ConstantOfShape",
                       {constant_of_shape_infer, nullptr, constant_of_shape_reference},
                       {{"fill", accepts_always, constant_of_shape_create}},
                       {.first_opset = 9, .narrow_types = true, .constant_inputs = {0}}));
  registry.add(make_op("Range", {range_infer, nullptr, range_reference},
                       {{"copy", accepts_listed, range_create}},
                       {.min_inputs = 3, .first_opset = 11, .constant_inputs = {0, 1, 2}}));
  registry.add(make_op("EyeLike", {eye_like_infer, nullptr, eye_like_reference},
                       {{"copy", accepts_listed, eye_like_create}},
                       {.first_opset = 9, .shape_only = true}));
  registry.add(make_op("Shape", {shape_infer, nullptr, shape_reference},
                       {{"copy", accepts_always, shape_create}},
                       {.shape_only = true, .narrow_types = true}));
  registry.add(make_op("Size", {size_infer, nullptr, size_reference},
                       {{"count", accepts_always, size_create}},
                       {.shape_only = true, .narrow_types = true}));
}

}  // namespace ofsdp::kernels::ops
