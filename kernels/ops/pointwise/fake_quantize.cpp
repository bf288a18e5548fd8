// ofsdp.FakeQuantize(x, scale, zero_point), what QuantizeLinear and then DequantizeLinear give
// (kernels/formulas/quantize.h); attributes: fake_quantize.h. All operands are of the type of x.
//   dx = dy times the slope along x                                   ofsdp.FakeQuantizeGrad
//   dscale = sum of dy times that along the scale / sqrt(count * hi)  ofsdp.FakeQuantizeScaleGrad
// The gradient of the scale (Esser et al. 2020, LSQ) is asked for by attribute `learned`.
#include "kernels/ops/pointwise/fake_quantize.h"

#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace fake_quantize {

constexpr int64_t kGrainElements = 8192;  // worth a thread
constexpr int64_t kPiece = 1024;          // elements whose slopes are at hand at once

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

// f(element, its scale's index, x / scale rounded, zero point)
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

// The function that training differentiates: rounding stays as it was at the operands that inputs 3
// to 5 give, so y is x and a fixed part of the scale in the range, a multiple of the scale outside.
// The scale moves by its part that LSQ lets through, and not at all where it is not learned.
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

// With six inputs (importer/graph/reference_run.cpp): straight_through.
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

// The scales of a row; zero: null where all are 0.
struct RowScales {
  const float *scale, *zero;
  IntegerRange range;
  int64_t step;
};

// Calls loop(at, zero) with how to find the scale and the zero point of element i.
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

// out[i] = dy times the slope of y along the scale.
OFSDP_MULTIARCH void slope_row(const RowScales& s, const float* dy, const float* x, int64_t n,
                               float* out) {
  with_scales(s, [&](auto at, auto zero) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      out[i] = dy[i] * fake_quantized_scale_slope(x[i], s.scale[at(i)], zero(i), s.range);
    }
  });
}

// The operands of a kernel: x is input `at`.
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

// Sums in double in the order of the elements, so the number of threads does not matter.
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
                          {.min_inputs = 2, .inplace_inputs = {0}});
  registry.add_own(std::move(forward));
  registry.add_own(make_op("FakeQuantizeGrad", {infer<1, false>, nullptr, grad_reference},
                           with_half_floats<accepts_plain_of<float>, create_grad>("rows"),
                           {.min_inputs = 3, .inplace_inputs = {0}}));
  registry.add_own(make_op("FakeQuantizeScaleGrad", {infer<1, true>, nullptr, scale_grad_reference},
                           with_half_floats<accepts_plain_of<float>, create_scale_grad>("rows"),
                           {.min_inputs = 3}));
}

}  // namespace ofsdp::kernels::ops
