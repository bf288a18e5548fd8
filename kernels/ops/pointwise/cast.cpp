// Cast(x), attribute to (ONNX's TensorProto.DataType number): the same values in another type.
// Floats become integers cut towards 0 and clamped to the range (NaN becomes 0); bool is "not 0".
// dx is dy cast back, where both types are floats. https://onnx.ai/onnx/operators/onnx__Cast.html
#include "kernels/ops/pointwise/cast.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

struct Bits16 {
  uint16_t bits;
};
struct Half : Bits16 {};
struct BFloat16 : Bits16 {};

// Type numbers of onnx.proto; index is the number.
constexpr std::array<DType, 17> kOnnxTypes = {
    DType::kUndefined, DType::kFloat32, DType::kUInt8,  DType::kInt8,      DType::kUInt16,
    DType::kInt16,     DType::kInt32,   DType::kInt64,  DType::kUndefined, DType::kBool,
    DType::kFloat16,   DType::kFloat64, DType::kUInt32, DType::kUInt64,    DType::kUndefined,
    DType::kUndefined, DType::kBFloat16};

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const int64_t to = c.attributes.i("to", 0);
  const DType dtype = dtype_of_number(to);
  if (dtype == DType::kUndefined) {
    return input_error("attribute 'to': expected a numeric type or bool, found type number {}", to);
  }
  return std::vector{TensorDesc{dtype, c.inputs[0].shape, c.inputs[0].layout}};
}

template <typename To, typename From>
To convert(From from) {
  if constexpr (std::is_same_v<From, Half>) {
    return convert<To>(half_to_float(from.bits));
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return convert<To>(bfloat16_to_float(from.bits));
  } else if constexpr (std::is_same_v<To, Half>) {
    return {{float_to_half(static_cast<float>(from))}};
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return {{float_to_bfloat16(static_cast<float>(from))}};
  } else if constexpr (std::is_same_v<To, bool>) {
    return from != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Limits = std::numeric_limits<To>;
    if (std::isnan(from)) return 0;
    // The largest To may round up to a From outside of the range, hence >=.
    if (from >= static_cast<From>(Limits::max())) return Limits::max();
    if (from <= static_cast<From>(Limits::min())) return Limits::min();
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

// f(T{}) with the C++ type of `dtype`.
template <typename F>
auto with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kFloat16:
      return f(Half{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    case DType::kUInt32:
      return f(uint32_t{});
    case DType::kUInt64:
      return f(uint64_t{});
    default:
      return f(bool{});
  }
}

template <typename To, typename From>
void convert_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const From* x = static_cast<const From*>(src);
  To* y = static_cast<To*>(dst);
  for (int64_t i = begin; i < end; ++i) y[i] = convert<To>(x[i]);
}

using Span = void (*)(const void*, void*, int64_t, int64_t);

Span span_for(DType from, DType to) {
  if (const WidthSpan span = width_span(from, to); span != nullptr) return span;
  return with_type(from, [to](auto x) {
    return with_type(to, [](auto y) -> Span { return convert_span<decltype(y), decltype(x)>; });
  });
}

SampleCase sample(DType from, DType to, Shape shape) {
  const bool exact = is_floating(from) && dtype_size(to) >= 4;
  return {.name = std::string(dtype_name(from)) + "_to_" + std::string(dtype_name(to)) +
                  (shape.numel() == 0 ? "_empty" : ""),
          .attributes = {{"to", number_of_dtype(to)}},
          .inputs = {{from, std::move(shape)}},
          .check_grad = exact && is_floating(to),
          .tolerance = to == DType::kBFloat16  ? 4e-3
                       : to == DType::kFloat16 ? 5e-4
                                               : 1e-6};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {sample(f, DType::kFloat64, {3, 5}),
          sample(f, DType::kFloat16, {2, 3, 4, 5}),
          sample(f, DType::kBFloat16, {3, 5}),
          sample(DType::kBFloat16, f, {3, 5}),
          sample(DType::kFloat16, f, {3, 5}),
          sample(DType::kFloat16, DType::kBFloat16, {7}),
          sample(f, DType::kInt64, {40}),
          sample(f, DType::kUInt8, {0}),
          sample(DType::kInt64, f, {40}),
          sample(DType::kInt64, DType::kInt32, {9}),
          sample(DType::kBool, f, {9}),
          sample(f, DType::kBool, {9}),
          sample(DType::kInt32, DType::kBool, {9}),
          sample(f, f, {0, 4})};
}

}  // namespace

DType dtype_of_number(int64_t number) {
  const bool known = number >= 0 && number < static_cast<int64_t>(kOnnxTypes.size());
  return known ? kOnnxTypes[static_cast<size_t>(number)] : DType::kUndefined;
}

int64_t number_of_dtype(DType dtype) {
  for (size_t i = 1; i < kOnnxTypes.size(); ++i) {
    if (kOnnxTypes[i] == dtype) return static_cast<int64_t>(i);
  }
  return 0;
}

void cast_grad(GradBuilder& b) {
  const DType from = b.desc(b.input(0)).dtype;
  const DType to = b.desc(b.grad_output(0)).dtype;
  if (!is_floating(from) || !is_floating(to)) return;
  b.set_grad(0, b.emit1("Cast", {b.grad_output(0)}, {{"to", number_of_dtype(from)}}));
}

std::vector<RefTensor> cast_reference(const ReferenceContext& c) {
  const TensorDesc& desc = c.output_descs[0];
  RefTensor y{desc, c.inputs[0].values};
  for (double& v : y.values) {
    if (desc.dtype == DType::kBool) v = v != 0;
    if (is_integer(desc.dtype)) v = std::trunc(v);
  }
  return {y};
}

bool accepts_cast(const Problem& p) { return p.in(0).layout == p.out(0).layout; }

std::unique_ptr<Kernel> create_cast(const Problem& p) {
  const Span span = span_for(p.in(0).dtype, p.out(0).dtype);
  return make_kernel([span, n = p.out(0).numel()](const KernelArgs& a) {
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      span(a.inputs[0].data, a.outputs[0].data, begin, end);
    });
    return ok_status();
  });
}

void add_cast(Registry& registry) {
  registry.add({.name = "Cast",
                .first_opset = 9,
                .infer = infer,
                .grad = cast_grad,
                .reference = cast_reference,
                .cpu = {{"loops", accepts_cast, create_cast}},
                .samples = samples,
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::kernels::ops
