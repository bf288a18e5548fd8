// QuantizeLinear(x, scale, zero_point): x / scale, rounded to the nearest integer (ties to even),
// plus the zero point, clamped to the output type's range; for a float8 or float4 type the quotient
// is rounded as in Cast. The division has the scale's type, or attribute precision.
// DequantizeLinear(x, scale, zero_point): (x - zero_point) scale.
//
// There is one scale, or one per index of `axis`, or one per block (kernels/core/quantization.h).
//
// Trained graphs have ofsdp.FakeQuantize instead (importer/normalize/quantized_graph.h); these
// remain for integers that nothing dequantizes, float8 and float4. Neither has a gradient.
// https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
// https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html

#include <algorithm>
#include <cmath>

#include "kernels/core/dtype.h"
#include "kernels/core/quantization.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/fake_quantize.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace quantize_linear {
namespace {

Result<ScaleMap> map_of(const Attributes& attributes, const Shape& x, const Shape& scale) {
  return ScaleMap::make(x, scale, attributes.i("axis", 1), attributes.i("block_size", 0));
}

// Returns the type in attribute `name`, else `otherwise`.
DType type_in(const Attributes& attributes, const char* name, DType otherwise) {
  const int64_t number = attributes.i(name, 0);
  return number == 0 ? otherwise : dtype_from_onnx_number(number);
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
                       c.attributes.i("output_dtype", onnx_number(otherwise)));
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

// An integer type's smallest and largest number.
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

// Returns `value` as the type stores it.
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
                       {.min_inputs = 2, .first_opset = 10, .narrow_types = true}));
  registry.add(make_op("DequantizeLinear", {infer_dequantize, nullptr, dequantize_reference},
                       {{"loops", accepts_plain, create_dequantize}},
                       {.min_inputs = 2, .first_opset = 10, .narrow_types = true}));
}

// ofsdp.FakeQuantize(x, scale, zero_point): QuantizeLinear, then DequantizeLinear
// (kernels/core/quantization.h); attributes: fake_quantize.h. All operands have x's type.
//   dx = dy times the slope along x                                   ofsdp.FakeQuantizeGrad
//   dscale = sum of dy times the scale's slope / sqrt(count * hi)     ofsdp.FakeQuantizeScaleGrad
// The scale gets a gradient (Esser et al. 2020, LSQ) if attribute `learned` is set.

namespace fake_quantize {

constexpr int64_t kGrainElements = 8192;  // worth a thread
constexpr int64_t kPiece = 1024;          // elements in one batch of slopes

// x and scale are inputs `at` and `at` + 1.
template <size_t at, bool of_scale>
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc &x = c.inputs[at], &scale = c.inputs[at + 1];
  if (!is_floating(x.dtype))
    return input_error("expected floating-point values, found {}", x.text());
  OFSDP_RETURN_IF_ERROR(quantization_map(c.attributes, x, scale).status());
  if (c.has(at + 2) && c.inputs[at + 2].numel() != scale.numel()) {
    return input_error("expected as many zero points as scales ({}), found {}", scale.numel(),
                       c.inputs[at + 2].numel());
  }
  return std::vector{of_scale ? TensorDesc{scale.dtype, scale.shape}
                              : TensorDesc{x.dtype, x.shape}};
}

Attributes with_count(const GradBuilder& b) {
  Attributes a = b.attributes();
  if (a.has("count")) return a;
  a.set("count", FakeQuantization(a, b.desc(b.input(0)), b.desc(b.input(1))).count);
  return a;
}

void grad(GradBuilder& b) {
  const Ref zero_point = b.num_inputs() > 2 ? b.input(2) : Ref{};
  const std::vector<Ref> operands{b.grad_output(0), b.input(0), b.input(1), zero_point};
  if (b.needs_grad(0)) b.set_grad(0, b.emit1("ofsdp.FakeQuantizeGrad", operands, b.attributes()));
  if (b.attributes().i("learned", 0) == 0 || !b.needs_grad(1)) return;
  b.set_grad(1, b.emit1("ofsdp.FakeQuantizeScaleGrad", operands, with_count(b)));
}

// --- reference ---

FakeQuantization of_reference(const ReferenceContext& c, size_t at) {
  return {c.attributes, c.inputs[at].desc, c.inputs[at + 1].desc};
}

// Calls f(element, scale index, x / scale rounded, zero point).
void reference_walk(const ReferenceContext& c, size_t at, const auto& f) {
  const RefTensor &x = c.inputs[at], &scale = c.inputs[at + 1];
  const RefTensor* zero = given(c.inputs, at + 2);
  const ScaleMap map = of_reference(c, at).map;
  for (int64_t i = 0; i < x.desc.numel(); ++i) {
    const int64_t k = map.index(i);
    const double rounded = std::nearbyint(x[i] / scale[k]);
    f(i, k, rounded, zero == nullptr ? 0.0 : (*zero)[k]);
  }
}

struct Range {
  explicit Range(const FakeQuantization& f)
      : lo(static_cast<double>(f.lo)), hi(static_cast<double>(f.hi)) {}
  bool has(double q) const { return lo <= q && q <= hi; }
  double lo, hi;
};

// The function that training differentiates. Inputs 3 to 5 fix the rounding, so y is x plus a fixed
// multiple of the scale inside the range, and a multiple of the scale outside. The scale counts as
// LSQ weights it, and not at all if it is not learned.
std::vector<RefTensor> straight_through(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const FakeQuantization f = of_reference(c, 0);
  const Range range(f);
  const double part = c.attributes.i("learned", 0) == 0 ? 0 : f.step();
  const RefTensor &x = c.inputs[0], &scale = c.inputs[1], &old_scale = c.inputs[4];
  reference_walk(c, 3, [&](int64_t i, int64_t k, double rounded, double zero) {
    const double moved = old_scale[k] + part * (scale[k] - old_scale[k]);
    const double q = rounded + zero, off = rounded - c.inputs[3][i] / old_scale[k];
    y[i] = range.has(q) ? x[i] + moved * off : (std::clamp(q, range.lo, range.hi) - zero) * moved;
  });
  return {y};
}

// With six inputs (importer/graph/reference_run.cpp), returns straight_through.
std::vector<RefTensor> reference(const ReferenceContext& c) {
  if (c.inputs.size() == 6) return straight_through(c);
  RefTensor y = zeros(c.output_descs[0]);
  const Range range(of_reference(c, 0));
  reference_walk(c, 0, [&](int64_t i, int64_t k, double rounded, double zero) {
    y[i] = (std::clamp(rounded + zero, range.lo, range.hi) - zero) * c.inputs[1][k];
  });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  const Range range(of_reference(c, 1));
  reference_walk(c, 1, [&](int64_t i, int64_t, double rounded, double zero) {
    dx[i] = range.has(rounded + zero) ? c.inputs[0][i] : 0;
  });
  return {dx};
}

std::vector<RefTensor> scale_grad_reference(const ReferenceContext& c) {
  RefTensor ds = zeros(c.output_descs[0]);
  const Range range(of_reference(c, 1));
  reference_walk(c, 1, [&](int64_t i, int64_t k, double rounded, double zero) {
    const double q = rounded + zero;
    const double slope = range.has(q)   ? rounded - c.inputs[1][i] / c.inputs[2][k]
                         : q > range.hi ? range.hi - zero
                                        : range.lo - zero;
    ds[k] += c.inputs[0][i] * slope;
  });
  const double step = of_reference(c, 1).step();
  for (double& v : ds.values) v *= step;
  return {ds};
}

// --- kernels ---

// A row's scales; zero is null if all zero points are 0.
struct RowScales {
  const float *scale, *zero;
  IntegerRange range;
  int64_t step;
};

// Calls loop(at, zero) with functions that return element i's scale index and zero point.
[[gnu::always_inline]] inline void with_scales(const RowScales& s, const auto& loop) {
  const auto first = [](int64_t) { return int64_t{0}; };
  const auto own = [](int64_t i) { return i; };
  const auto none = [](int64_t) { return 0.0f; };
  const float* zero = s.zero;
  if (s.step == 0 && zero == nullptr) return loop(first, none);
  if (s.step == 0) return loop(first, [z = zero[0]](int64_t) { return z; });
  if (zero == nullptr) return loop(own, none);
  loop(own, [zero](int64_t i) { return zero[i]; });
}

OFSDP_MULTIARCH void quantize_row(const RowScales& s, const float* x, int64_t n, float* y) {
  with_scales(s, [&](auto at, auto zero) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = fake_quantized(x[i], s.scale[at(i)], zero(i), s.range);
  });
}

OFSDP_MULTIARCH void grad_row(const RowScales& s, const float* dy, const float* x, int64_t n,
                              float* dx) {
  with_scales(s, [&](auto at, auto zero) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      dx[i] = fake_quantized_grad(dy[i], x[i], s.scale[at(i)], zero(i), s.range);
    }
  });
}

// out[i] = dy times y's slope along the scale.
OFSDP_MULTIARCH void slope_row(const RowScales& s, const float* dy, const float* x, int64_t n,
                               float* out) {
  with_scales(s, [&](auto at, auto zero) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      out[i] = dy[i] * fake_quantized_scale_slope(x[i], s.scale[at(i)], zero(i), s.range);
    }
  });
}

// A kernel's operands; x is input `at`.
struct Operands {
  Operands(const Problem& p, size_t at)
      : of(p.attributes, p.in(at), p.in(at + 1)), x(at), has_zero(p.has_in(at + 2)) {}

  RowScales scales(const KernelArgs& a, const ScaleMap::Row& row) const {
    return {a.in<float>(x + 1) + row.scale, has_zero ? a.in<float>(x + 2) + row.scale : nullptr,
            of.range(), row.step};
  }

  FakeQuantization of;
  size_t x;
  bool has_zero;
};

void for_rows(const ScaleMap& map, const auto& f) {
  if (map.elements() == 0) return;
  const int64_t elements = std::max<int64_t>(map.elements() / std::max<int64_t>(map.rows(), 1), 1);
  parallel_each(map.rows(), kGrainElements / elements + 1, [&](int64_t r) { f(map.row(r), r); });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([o = Operands(p, 0)](const KernelArgs& a) {
    for_rows(o.of.map, [&](const ScaleMap::Row& row, int64_t) {
      quantize_row(o.scales(a, row), a.in<float>(0) + row.first, row.count,
                   a.out<float>(0) + row.first);
    });
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([o = Operands(p, 1)](const KernelArgs& a) {
    for_rows(o.of.map, [&](const ScaleMap::Row& row, int64_t) {
      grad_row(o.scales(a, row), a.in<float>(0) + row.first, a.in<float>(1) + row.first, row.count,
               a.out<float>(0) + row.first);
    });
  });
}

// Sums in double, in element order, so the thread count does not change the bits.
std::unique_ptr<Kernel> create_scale_grad(const Problem& p) {
  const Operands o(p, 1);
  const auto sums = static_cast<size_t>(o.of.map.scales());
  const double step = o.of.step();
  return make_kernel(
      [o, step](const KernelArgs& a) {
        auto* sum = reinterpret_cast<double*>(a.workspace);
        std::fill_n(sum, o.of.map.scales(), 0.0);
        const int64_t rows = o.of.map.elements() == 0 ? 0 : o.of.map.rows();
        for (int64_t r = 0; r < rows; ++r) {
          const ScaleMap::Row row = o.of.map.row(r);
          for (int64_t done = 0; done < row.count; done += kPiece) {
            ScaleMap::Row piece = row;
            piece.scale += row.step * done;
            const int64_t n = std::min(kPiece, row.count - done);
            float slopes[kPiece];
            slope_row(o.scales(a, piece), a.in<float>(0) + row.first + done,
                      a.in<float>(1) + row.first + done, n, slopes);
            double* to = sum + piece.scale;
            for (int64_t i = 0; i < n; ++i) to[i * row.step] += static_cast<double>(slopes[i]);
          }
        }
        for (int64_t k = 0; k < o.of.map.scales(); ++k) {
          a.out<float>(0)[k] = static_cast<float>(sum[k] * step);
        }
      },
      sums * sizeof(double));
}

}  // namespace fake_quantize

void add_fake_quantize(Registry& registry) {
  using namespace fake_quantize;  // NOLINT: the operator's own names
  OpDef forward = make_op("FakeQuantize", {infer<0, false>, grad, reference},
                          with_half_floats<accepts_plain_of<float>, create>("rows"),
                          {.min_inputs = 2, .fake_quantizes = true, .inplace_inputs = {0}});
  registry.add_own(std::move(forward));
  registry.add_own(make_op("FakeQuantizeGrad", {infer<1, false>, nullptr, grad_reference},
                           with_half_floats<accepts_plain_of<float>, create_grad>("rows"),
                           {.min_inputs = 3, .inplace_inputs = {0}}));
  registry.add_own(make_op("FakeQuantizeScaleGrad", {infer<1, true>, nullptr, scale_grad_reference},
                           with_half_floats<accepts_plain_of<float>, create_scale_grad>("rows"),
                           {.min_inputs = 3}));
}

}  // namespace ofsdp::kernels::ops
