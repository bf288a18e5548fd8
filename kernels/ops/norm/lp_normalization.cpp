// LpNormalization(x), attributes axis, p (1 or 2): y = x / n with n = sum |x| or sqrt(sum x^2)
// along the axis; 0 where n is 0. With s = sum dy y: dx = (dy - sign(x) s) / n for p = 1,
// (dy - y s) / n for p = 2, and 0 where n is 0.
// https://onnx.ai/onnx/operators/onnx__LpNormalization.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/softmax_loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const int64_t p = c.attributes.i("p", 2);
  if (p != 1 && p != 2) return input_error("attribute 'p': expected 1 or 2, found {}", p);
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank()).status());
  return std::vector{c.inputs[0]};
}

SoftmaxExtent extent(const Shape& shape, const Attributes& attributes) {
  const int64_t axis = attributes.i("axis", -1);
  return softmax_extent(shape, static_cast<int>(axis < 0 ? axis + shape.rank() : axis));
}

void grad(GradBuilder& b) {
  const bool first = b.attributes().i("p", 2) == 1;
  const Ref dy = b.grad_output(0), x = b.input(0), y = b.output(0);
  const Ref axes = b.ints({b.attributes().i("axis", -1)});
  const Ref zero = b.scalar(b.desc(x).dtype, 0), one = b.scalar(b.desc(x).dtype, 1);
  const Ref norm = b.emit1(first ? "ReduceL1" : "ReduceL2", {x, axes});
  const Ref inv =
      b.emit1("Where", {b.emit1("Equal", {norm, zero}), zero, b.emit1("Div", {one, norm})});
  const Ref dot = b.emit1("ReduceSum", {b.emit1("Mul", {dy, y}), axes});
  const Ref shape = b.ints(b.desc(x).shape.axes());
  const Ref along = first ? b.emit1("ofsdp.AbsGrad", {b.emit1("Expand", {dot, shape}), x})
                          : b.emit1("Mul", {y, dot});
  b.set_grad(0, b.emit1("Mul", {b.emit1("Sub", {dy, along}), inv}));
}

template <typename T>
void normalize(const SoftmaxExtent& e, bool first, const T* x, T* y) {
  for_distributions(e, [&](int64_t at) {
    T sum = 0;
    for (int64_t k = 0; k < e.classes; ++k) {
      const T v = x[at + k * e.inner];
      sum += first ? std::abs(v) : v * v;
    }
    const T norm = first ? sum : std::sqrt(sum);
    for (int64_t k = 0; k < e.classes; ++k) {
      y[at + k * e.inner] = norm == T{0} ? T{0} : x[at + k * e.inner] / norm;
    }
  });
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  normalize(extent(y.desc.shape, c.attributes), c.attributes.i("p", 2) == 1,
            c.inputs[0].values.data(), y.values.data());
  return {y};
}

OFSDP_MULTIARCH void divide_row(const BinaryRow<float>& row) {
  binary_row(row, [](float x, float norm) { return norm == 0.0f ? 0.0f : x / norm; });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const SoftmaxExtent e = extent(p.in(0).shape, p.attributes);
  const bool first = p.attributes.i("p", 2) == 1;
  const Shape x{e.outer, e.classes, e.inner};
  const Reduction norms(x, {false, true, false},
                        first ? ReduceKind::kSumAbs : ReduceKind::kSumSquares);
  const TensorDesc all{DType::kFloat32, x}, kept{DType::kFloat32, {e.outer, 1, e.inner}};
  return make_kernel(
      [=, loop = binary_loop({{}, {all, kept}, {all}, {}})](const KernelArgs& a) {
        auto* norm = reinterpret_cast<float*>(a.workspace);
        norms.run(a.in<float>(0), norm);
        for (int64_t i = 0; !first && i < e.outer * e.inner; ++i) norm[i] = std::sqrt(norm[i]);
        run_binary<float, float, divide_row>(loop, a.in<float>(0), norm, a.out<float>(0));
        return ok_status();
      },
      kept.bytes());
}

std::unique_ptr<Kernel> create_double(const Problem& p) {
  return make_kernel([e = extent(p.in(0).shape, p.attributes),
                      first = p.attributes.i("p", 2) == 1](const KernelArgs& a) {
    normalize(e, first, a.in<double>(0), a.out<double>(0));
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  auto made = [](const char* name, Shape x, int64_t axis, int64_t p, DType dtype = DType::kFloat32,
                 double tolerance = 2e-5) {
    return SampleCase{.name = name,
                      .attributes = {{"axis", axis}, {"p", p}},
                      .inputs = {{dtype, std::move(x)}},
                      .check_grad = dtype == DType::kFloat32,
                      .tolerance = tolerance};
  };
  std::vector<SampleCase> list = {made("rows", {5, 37}, -1, 2),
                                  made("columns", {5, 37}, 0, 1),
                                  made("middle", {2, 5, 3}, 1, 2),
                                  made("absolute", {2, 5, 3}, -1, 1),
                                  made("empty", {0, 4}, -1, 2),
                                  made("float64", {3, 4}, -1, 2, DType::kFloat64, 1e-13),
                                  made("float16", {3, 4}, -1, 2, DType::kFloat16, 1e-3),
                                  made("zeros", {2, 4}, -1, 2)};
  list.back().fill = fill_with(0, {0, 0, 0, 0, 1, 2, 3, 4});
  list.back().check_grad = false;  // no derivative at 0
  return list;
}

}  // namespace

void add_lp_normalization(Registry& registry) {
  registry.add({.name = "LpNormalization",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = plain_float_kernels<create, create_double>("rows"),
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
