// Cast(x), attribute to (ONNX's TensorProto.DataType number), and CastLike(x, like): x's values in
// another type. Floats become integers by rounding towards 0 and clamping to the range (NaN becomes
// 0); bool is "not 0"; attributes saturate and round_mode say how to round to the types in
// kernels/core/dtype.h. If both types are floats, dx is dy cast back.
// https://onnx.ai/onnx/operators/onnx__Cast.html
//
// BitCast(x), attribute to: x's bytes as elements of another type with the same width. No gradient.
// https://onnx.ai/onnx/operators/onnx__BitCast.html
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/core/dtype.h"
#include "kernels/core/element_types.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace cast {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const int64_t to = c.attributes.i("to", 0);
  const DType dtype = dtype_from_onnx_number(to);
  if (dtype == DType::kUndefined) {
    return input_error("attribute 'to': expected a numeric type or bool, found type number {}", to);
  }
  return std::vector{TensorDesc{dtype, c.inputs[0].shape, c.inputs[0].layout}};
}

template <typename To, typename From>
To convert(From from) {
  if constexpr (std::is_same_v<To, bool>) {
    return from != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Limits = std::numeric_limits<To>;
    if (std::isnan(from)) return 0;
    // The largest To may round up to a From outside the range, hence >=.
    if (from >= static_cast<From>(Limits::max())) return Limits::max();
    if (from <= static_cast<From>(Limits::min())) return Limits::min();
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

template <typename To, typename From>
void convert_span(const void* src, void* dst, int64_t begin, int64_t end) {
  const From* x = static_cast<const From*>(src);
  To* y = static_cast<To*>(dst);
  for (int64_t i = begin; i < end; ++i) y[i] = convert<To>(x[i]);
}

using Span = std::function<void(const void*, void*, int64_t, int64_t)>;

// Pairs of types share a loop if their conversions give the same bits: for a target integer only
// the size counts, and bool is stored as 0 or 1.
Span number_span(DType from, DType to) {
  return with_number(from, [to]<typename From>(From) {
    return with_number(to, []<typename To>(To) -> Span {
      using Source = std::conditional_t<std::is_same_v<From, bool>, uint8_t, From>;
      if constexpr (std::is_integral_v<Source> && std::is_integral_v<To>) {
        using Bits = std::make_unsigned_t<Source>;
        if constexpr (std::is_same_v<To, bool>)
          return convert_span<bool, Bits>;
        else
          return convert_span<std::make_unsigned_t<To>, Source>;
      } else {
        return convert_span<To, Source>;
      }
    });
  });
}

Span decode_span(DType from) {
  std::array<float, 256> values;
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = narrow_value(from, static_cast<uint8_t>(code));
  }
  return [values](const void* src, void* dst, int64_t begin, int64_t end) {
    const auto* x = static_cast<const uint8_t*>(src);
    for (int64_t i = begin; i < end; ++i) static_cast<float*>(dst)[i] = values[x[i]];
  };
}

template <typename From>
Span encode_span(DType to, NarrowRounding rounding) {
  return [=](const void* src, void* dst, int64_t begin, int64_t end) {
    const auto* x = static_cast<const From*>(src);
    for (int64_t i = begin; i < end; ++i) {
      static_cast<uint8_t*>(dst)[i] = narrow_code(to, static_cast<double>(x[i]), rounding);
    }
  };
}

// Integers keep their lower bits in a narrow integer.
Span cut_span(DType from, DType to) {
  return [first = number_span(from, DType::kUInt8), mask = (1 << narrow_bits(to)) - 1](
             const void* src, void* dst, int64_t begin, int64_t end) {
    first(src, dst, begin, end);
    auto* y = static_cast<uint8_t*>(dst);
    for (int64_t i = begin; i < end; ++i) y[i] = static_cast<uint8_t>(y[i] & mask);
  };
}

// Returns the one-pass conversion from or to a narrow type; null if there is none.
Span narrow_span(DType from, DType to, NarrowRounding rounding) {
  if (is_narrow(from)) return to == DType::kFloat32 ? decode_span(from) : Span();
  if (!is_narrow(to)) return {};
  if (from == DType::kFloat32) return encode_span<float>(to, rounding);
  if (from == DType::kFloat64) return encode_span<double>(to, rounding);
  return is_narrow_integer(to) && !is_16_bit_float(from) ? cut_span(from, to) : Span();
}

// Conversions to float32, and from float32.
Span to_float(DType from) {
  if (is_narrow(from)) return decode_span(from);
  return is_16_bit_float(from) ? width_span(from, DType::kFloat32)
                               : number_span(from, DType::kFloat32);
}
Span from_float(DType to, NarrowRounding rounding) {
  if (is_narrow(to)) return encode_span<float>(to, rounding);
  return is_16_bit_float(to) ? width_span(DType::kFloat32, to) : number_span(DType::kFloat32, to);
}

// Converts `from` to `to`; 16-bit floats and narrow types go through float32, block by block.
class Conversion {
 public:
  Conversion(DType from, DType to, NarrowRounding rounding)
      : from_bytes_(static_cast<int64_t>(dtype_size(from))),
        to_bytes_(static_cast<int64_t>(dtype_size(to))),
        only_(width_span(from, to)) {
    if (only_ == nullptr) only_ = narrow_span(from, to, rounding);
    if (only_ == nullptr && is_number(from) && is_number(to)) only_ = number_span(from, to);
    if (only_ != nullptr) return;
    first_ = to_float(from);
    second_ = from_float(to, rounding);
  }

  void run(const void* src, void* dst, int64_t begin, int64_t end) const {
    if (only_ != nullptr) return only_(src, dst, begin, end);
    std::array<float, kBlock> block;
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      first_(static_cast<const std::byte*>(src) + at * from_bytes_, block.data(), 0, n);
      second_(block.data(), static_cast<std::byte*>(dst) + at * to_bytes_, 0, n);
    }
  }

 private:
  static constexpr int64_t kBlock = 1024;
  int64_t from_bytes_, to_bytes_;
  Span only_, first_, second_;
};

void grad(GradBuilder& b) {
  const DType from = b.desc(b.input(0)).dtype;
  const DType to = b.desc(b.grad_output(0)).dtype;
  if (!is_floating(from) || !is_floating(to)) return;
  b.set_grad(0, b.emit1("Cast", {b.grad_output(0)}, {{"to", onnx_number(from)}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const TensorDesc& desc = c.output_descs[0];
  RefTensor y{desc, c.inputs[0].values};
  for (double& v : y.values) {
    if (desc.dtype == DType::kBool) v = v != 0;
    if (is_integer(desc.dtype)) v = std::trunc(v);
    if (!is_narrow(desc.dtype)) continue;
    v = narrow_value(desc.dtype, narrow_code(desc.dtype, v, narrow_rounding(c.attributes)));
  }
  return {y};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.in(0).layout == p.out(0).layout, "input and output of two layouts");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel(
      [conversion = Conversion(p.in(0).dtype, p.out(0).dtype, narrow_rounding(p.attributes)),
       n = p.out(0).numel()](const KernelArgs& a) {
        parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
          conversion.run(a.inputs[0].data, a.outputs[0].data, begin, end);
        });
      });
}

// --- CastLike ---

Result<std::vector<TensorDesc>> infer_like(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[1].dtype, c.inputs[0].shape}};
}

// --- BitCast ---

int bits_of(DType dtype) {
  return is_narrow(dtype) ? narrow_bits(dtype) : static_cast<int>(dtype_size(dtype)) * 8;
}

Result<std::vector<TensorDesc>> infer_bits(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<TensorDesc> made, infer(c));
  const DType from = c.inputs[0].dtype, to = made[0].dtype;
  if (bits_of(from) == bits_of(to)) return made;
  return input_error("attribute 'to': expected a type of {} bits as {}, found {}", bits_of(from),
                     dtype_name(from), dtype_name(to));
}

std::vector<RefTensor> bits_reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  std::vector<std::byte> bytes(x.desc.bytes());
  from_doubles(x.values, x.desc, bytes.data());
  return {{c.output_descs[0], to_doubles(c.output_descs[0], bytes.data())}};
}

std::unique_ptr<Kernel> create_bits(const Problem& p) {
  return make_kernel([bytes = p.out(0).bytes()](const KernelArgs& a) {
    if (bytes > 0) std::memcpy(a.outputs[0].data, a.inputs[0].data, bytes);
  });
}

}  // namespace cast

void add_cast(Registry& registry) {
  using namespace cast;
  registry.add(
      make_op("Cast", {infer, grad, reference}, {{"loops", accepts, create}},
              {.first_opset = 9, .narrow_types = true, .layout = LayoutRule::kElementwise}));
  registry.add(make_op("CastLike", {infer_like, grad, reference}, {{"loops", accepts, create}},
                       {.min_inputs = 2, .first_opset = 15, .narrow_types = true}));
  registry.add(make_op("BitCast", {infer_bits, no_grad, bits_reference},
                       {{"copy", accepts, create_bits}},
                       {.first_opset = 26, .narrow_types = true}));
}

}  // namespace ofsdp::kernels::ops
