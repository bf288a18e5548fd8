// QuantizeLinear(x, scale, zero_point): x / scale, rounded to the nearest even whole number, plus
// the zero point, clamped to the integers of the output's type; to a float8 or float4 type the
// quotient is rounded as Cast rounds. The division is of the scale's type, or of attribute
// precision. DequantizeLinear(x, scale, zero_point): (x - zero_point) scale.
//
// Scales are one, one an index of `axis`, or one a block (kernels/core/scale_map.h).
//
// Files that train have ofsdp.FakeQuantize in their place
// (importer/normalize/quantized_graph.h); these are of integers that nothing dequantizes, of float8
// and of float4. Neither has a gradient.
// https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
// https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
#include <algorithm>
#include <cmath>

#include "kernels/core/narrow_types.h"
#include "kernels/core/scale_map.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace quantize_linear {
namespace {

Result<ScaleMap> map_of(const Attributes& attributes, const Shape& x, const Shape& scale) {
  return ScaleMap::make(x, scale, attributes.i("axis", 1), attributes.i("block_size", 0));
}

// The type that attribute `name` gives, or else `otherwise`.
DType type_in(const Attributes& attributes, const char* name, DType otherwise) {
  const int64_t number = attributes.i(name, 0);
  return number == 0 ? otherwise : dtype_of_number(number);
}

Status check_operands(const InferContext& c, DType zero_type) {
  OFSDP_RETURN_IF_ERROR(map_of(c.attributes, c.inputs[0].shape, c.inputs[1].shape).status());
  if (!c.has(2) || (c.inputs[2].numel() == c.inputs[1].numel() && c.inputs[2].dtype == zero_type)) {
    return ok_status();
  }
  return input_error("expected zero points {}{}, found {}", dtype_name(zero_type),
                     c.inputs[1].shape.text(), c.inputs[2].text());
}

bool is_quantized(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kUInt8 || dtype == DType::kInt16 ||
         dtype == DType::kUInt16 || (is_narrow(dtype) && dtype != DType::kFloat8E8M0);
}

Result<std::vector<TensorDesc>> infer_quantize(const InferContext& c) {
  const DType otherwise = c.has(2) ? c.inputs[2].dtype : DType::kUInt8;
  const DType to = type_in(c.attributes, "output_dtype", otherwise);
  if (!is_quantized(to)) {
    return input_error("expected a quantized type, found type number {}",
                       c.attributes.i("output_dtype", number_of_dtype(otherwise)));
  }
  OFSDP_RETURN_IF_ERROR(check_operands(c, to));
  return std::vector{TensorDesc{to, c.inputs[0].shape}};
}

Result<std::vector<TensorDesc>> infer_dequantize(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_operands(c, c.inputs[0].dtype));
  const DType to = type_in(c.attributes, "output_dtype", c.inputs[1].dtype);
  if (!is_floating(to))
    return input_error("expected scales of floats, found {}", c.inputs[1].text());
  return std::vector{TensorDesc{to, c.inputs[0].shape}};
}

// The least and the greatest number of an integer type.
struct Range {
  double low, high;
};
Range range_of(DType dtype) {
  const int bits = is_narrow(dtype) ? narrow_bits(dtype) : static_cast<int>(dtype_size(dtype)) * 8;
  const bool is_signed = dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt4 ||
                         dtype == DType::kInt2;
  const double half = std::ldexp(1.0, bits - 1);
  return is_signed ? Range{-half, half - 1} : Range{0, 2 * half - 1};
}

// `value` as the type stores it.
double stored(DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kFloat16) return half_to_float(float_to_half(narrow));
  if (dtype == DType::kBFloat16) return bfloat16_to_float(float_to_bfloat16(narrow));
  return dtype == DType::kFloat64 ? value : static_cast<double>(narrow);
}

struct Quantizer {
  Quantizer(const Attributes& attributes, const TensorDesc& scale, DType output)
      : to(output),
        precision(type_in(attributes, "precision", scale.dtype)),
        rounding(narrow_rounding(attributes)),
        whole(!is_narrow(to) || is_narrow_integer(to)) {
    if (whole) range = range_of(to);
  }

  double of(double x, double scale, double zero) const {
    const double ratio = stored(precision, x / scale);
    if (!whole) return narrow_value(to, narrow_code(to, ratio + zero, rounding));
    if (std::isnan(ratio)) return std::clamp(zero, range.low, range.high);
    return std::clamp(std::nearbyint(ratio) + zero, range.low, range.high);
  }

  DType to, precision;
  NarrowRounding rounding;
  bool whole;
  Range range{};
};

std::vector<RefTensor> quantize_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor &x = c.inputs[0], &scale = c.inputs[1], *zero = given(c.inputs, 2);
  const ScaleMap map = *map_of(c.attributes, x.desc.shape, scale.desc.shape);
  const Quantizer quantizer(c.attributes, scale.desc, y.desc.dtype);
  for (int64_t i = 0; i < x.desc.numel(); ++i) {
    const int64_t k = map.index(i);
    y[i] = quantizer.of(x[i], scale[k], zero == nullptr ? 0 : (*zero)[k]);
  }
  return {y};
}

std::vector<RefTensor> dequantize_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor &x = c.inputs[0], &scale = c.inputs[1], *zero = given(c.inputs, 2);
  const ScaleMap map = *map_of(c.attributes, x.desc.shape, scale.desc.shape);
  for (int64_t i = 0; i < x.desc.numel(); ++i) {
    const int64_t k = map.index(i);
    y[i] = (x[i] - (zero == nullptr ? 0 : (*zero)[k])) * scale[k];
  }
  return {y};
}

// y[i] = f(x[i], scale, zero point), each in double.
template <typename F>
std::unique_ptr<Kernel> create_loop(const Problem& p, const F& f) {
  const TensorDesc one{p.out(0).dtype, {}};
  return make_kernel([f, one, map = *map_of(p.attributes, p.in(0).shape, p.in(1).shape),
                      has_zero = p.has_in(2), n = p.out(0).numel()](const KernelArgs& a) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = map.index(i);
      const double y = f(double_at(a.inputs[0], i), double_at(a.inputs[1], k),
                         has_zero ? double_at(a.inputs[2], k) : 0.0);
      from_doubles({&y, 1}, one, a.outputs[0].data + static_cast<size_t>(i) * one.bytes());
    }
  });
}

std::unique_ptr<Kernel> create_quantize(const Problem& p) {
  return create_loop(
      p, [quantizer = Quantizer(p.attributes, p.in(1), p.out(0).dtype)](
             double x, double scale, double zero) { return quantizer.of(x, scale, zero); });
}

std::unique_ptr<Kernel> create_dequantize(const Problem& p) {
  return create_loop(p, [](double x, double scale, double zero) { return (x - zero) * scale; });
}

}  // namespace
}  // namespace quantize_linear

void add_quantize_linear(Registry& registry) {
  using namespace quantize_linear;
  registry.add(make_op("QuantizeLinear", {infer_quantize, nullptr, quantize_reference},
                       {{"loops", accepts_plain, create_quantize}},
                       {.min_inputs = 2, .first_opset = 10}));
  registry.add(make_op("DequantizeLinear", {infer_dequantize, nullptr, dequantize_reference},
                       {{"loops", accepts_plain, create_dequantize}},
                       {.min_inputs = 2, .first_opset = 10}));
}

}  // namespace ofsdp::kernels::ops
