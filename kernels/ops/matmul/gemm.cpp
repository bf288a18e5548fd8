// Gemm: Y = alpha A' B' + beta C, A' = A or A^T (transA), B' = B or B^T (transB), C broadcast to
// [M, N]. dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY summed over C's broadcast axes.
// Attribute of our own, set by fusion: ofsdp_activation="relu" makes it Y = max(that, 0), and the
// gradient starts with ofsdp.ReluGrad(dY, Y).
// https://onnx.ai/onnx/operators/onnx__Gemm.html
#include "kernels/cpu/fold.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace gemm {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& a = c.inputs[0].shape;
  const Shape& b = c.inputs[1].shape;
  if (a.rank() != 2 || b.rank() != 2) {
    return input_error("A and B must have 2 axes, found {} and {}", a.text(), b.text());
  }
  if (c.inputs[0].dtype != c.inputs[1].dtype) {
    return input_error("A and B must have one dtype, found {} and {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  const int trans_a = c.attributes.i("transA", 0) != 0;
  const int trans_b = c.attributes.i("transB", 0) != 0;
  if (a[1 - trans_a] != b[trans_b]) {
    return input_error("A {} (transA {}) and B {} (transB {}) disagree: inner axes {} and {}",
                       a.text(), trans_a, b.text(), trans_b, a[1 - trans_a], b[trans_b]);
  }
  const Shape y{a[trans_a], b[1 - trans_b]};
  if (c.has(2)) {
    if (c.inputs[2].dtype != c.inputs[0].dtype) {
      return input_error("C: expected {} as A is, found {}", dtype_name(c.inputs[0].dtype),
                         c.inputs[2].text());
    }
    const Result<Shape> both = broadcast(y, c.inputs[2].shape);
    if (!both.ok() || *both != y) {
      return input_error("C {} does not broadcast to {}", c.inputs[2].shape.text(), y.text());
    }
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, y}};
}

Ref product(GradBuilder& b, Ref left, Ref right, bool trans_left, bool trans_right) {
  return b.emit1("Gemm", {left, right},
                 {{"alpha", b.attributes().f("alpha", 1.0f)},
                  {"transA", int64_t{trans_left}},
                  {"transB", int64_t{trans_right}}});
}

void grad(GradBuilder& b) {
  const bool trans_a = b.attributes().i("transA", 0) != 0;
  const bool trans_b = b.attributes().i("transB", 0) != 0;
  const Ref dy = activation_grad(b);
  if (b.needs_grad(0)) {
    b.set_grad(0, trans_a ? product(b, b.input(1), dy, trans_b, true)
                          : product(b, dy, b.input(1), false, !trans_b));
  }
  if (b.needs_grad(1)) {
    b.set_grad(1, trans_b ? product(b, dy, b.input(0), true, trans_a)
                          : product(b, b.input(0), dy, !trans_a, false));
  }
  if (b.num_inputs() > 2 && b.input(2) && b.needs_grad(2)) {
    const float beta = b.attributes().f("beta", 1.0f);
    const Ref dc = b.sum_to(dy, b.input(2));
    b.set_grad(2, beta == 1.0f ? dc : b.emit1("Mul", {dc, b.scalar(b.desc(dc).dtype, beta)}));
  }
}

// Distance in C of neighbours along the two axes of Y; 0 where C is broadcast.
std::pair<int64_t, int64_t> strides_of(const Shape& c) {
  const int64_t columns = c.rank() > 0 ? c[c.rank() - 1] : 1;
  const int64_t rows = c.rank() > 1 ? c[0] : 1;
  return {rows > 1 ? columns : 0, columns > 1 ? 1 : 0};
}

// C is the product's bias when it is one row of full width and nothing is scaled; any other C is
// laid into Y first, for the product to be added to.
bool is_bias(const Problem& p) {
  const Shape& c = p.in(2).shape;
  return p.attributes.f("alpha", 1.0f) == 1.0f && p.attributes.f("beta", 1.0f) == 1.0f &&
         c.rank() > 0 && c.numel() == p.out(0).shape[1] && c[c.rank() - 1] == c.numel();
}

MatrixProduct planned(const Problem& p) {
  MatrixProduct made = gemm_product(p.attributes, p.in(0), p.out(0));
  using Addend = MatrixProduct::Addend;
  if (p.has_in(2)) made.addend = is_bias(p) ? Addend::kBias : Addend::kAccumulate;
  return made;
}

// `has_product`: whether the implementation has the product itself.
Acceptance accepts_with(const Problem& p, bool (*has_product)(const MatrixProduct&),
                        const char* otherwise) {
  const MatrixProduct made = planned(p);
  const bool passes = made.addend == MatrixProduct::Addend::kAccumulate || has_relu(p.attributes);
  if (passes && !p.all_dtype(DType::kFloat32)) {
    return Acceptance::refuse("an addend or activation of another type than float32");
  }
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return accept_if(has_product(made), otherwise);
}

Acceptance accepts_onednn(const Problem& p) {
  return accepts_with(p, onednn_accepts, "oneDNN has no such product");
}

Acceptance accepts(const Problem& p) { return accepts_with(p, library_accepts, kNoSuchProduct); }

Acceptance accepts_blas(const Problem& p) {
  if (const Acceptance blas = openblas_accepts(planned(p)); !blas) return blas;
  return accepts(p);  // asks oneDNN, which takes longer
}

Acceptance accepts_blocks(const Problem& p) {
  const MatrixProduct made = planned(p);
  if (made.addend == MatrixProduct::Addend::kAccumulate || has_relu(p.attributes)) {
    return Acceptance::refuse("a general addend or an activation");
  }
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return widening_accepts(made);
}

std::unique_ptr<Kernel> create_blocks(const Problem& p) {
  return make_widening_product(planned(p));
}

void lay_addend(const float* addend, float* dst, const Shape& y,
                std::pair<int64_t, int64_t> strides, float beta) {
  for (int64_t i = 0; i < y[0]; ++i) {
    for (int64_t j = 0; j < y[1]; ++j) {
      dst[i * y[1] + j] = beta * addend[i * strides.first + j * strides.second];
    }
  }
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const MatrixProduct made = planned(p);
  std::unique_ptr<Kernel> kernel = make_matrix_product(made);
  if (made.addend == MatrixProduct::Addend::kAccumulate) {
    const size_t workspace = kernel->workspace_bytes();
    kernel = make_kernel(
        [inner = std::move(kernel), y = p.out(0).shape, strides = strides_of(p.in(2).shape),
         beta = p.attributes.f("beta", 1.0f)](const KernelArgs& a) {
          lay_addend(a.in<float>(2), a.out<float>(0), y, strides, beta);
          return inner->run(a);
        },
        workspace);
  }
  return has_relu(p.attributes) ? with_relu(std::move(kernel), p.out(0).numel())
                                : std::move(kernel);
}

Acceptance accepts_loops(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  if (has_relu(p.attributes)) return Acceptance::refuse("a fused activation");
  if (!p.all_dtype(dtype) || !(is_integer(dtype) || dtype == DType::kFloat64)) {
    return Acceptance::refuse("not all float64 or all of one whole number type");
  }
  return accept_if(p.all_plain(), kNotPlain);
}

// The product alone, then alpha and beta C in double.
std::unique_ptr<Kernel> create_loops(const Problem& p) {
  MatrixProduct made = gemm_product(p.attributes, p.in(0), p.out(0));
  made.alpha = 1;
  const bool has_c = p.has_in(2);
  const auto steps = has_c ? strides_of(p.in(2).shape) : std::pair<int64_t, int64_t>{};
  const double alpha = p.attributes.f("alpha", 1.0f), beta = p.attributes.f("beta", 1.0f);
  return with_number(p.in(0).dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    return make_kernel([=, inner = make_matrix_loops(made)](const KernelArgs& a) {
      OFSDP_RETURN_IF_ERROR(inner->run(a));
      T* y = a.out<T>(0);
      for (int64_t i = 0; i < made.rows * made.columns; ++i) {
        const int64_t at = i / made.columns * steps.first + i % made.columns * steps.second;
        const double addend = has_c ? beta * static_cast<double>(a.in<T>(2)[at]) : 0;
        y[i] = static_cast<T>(alpha * static_cast<double>(y[i]) + addend);
      }
      return ok_status();
    });
  });
}

}  // namespace
}  // namespace gemm

std::vector<RefTensor> gemm_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  reference_product(gemm_product(c.attributes, c.inputs[0].desc, y.desc), c.inputs[0].values,
                    c.inputs[1].values, y.values);
  if (c.inputs.size() > 2 && c.inputs[2].desc.present()) {
    const auto [row, column] = gemm::strides_of(c.inputs[2].desc.shape);
    const int64_t columns = y.desc.shape[1];
    for (int64_t i = 0; i < y.desc.numel(); ++i) {
      const int64_t at = i / columns * row + i % columns * column;
      y[i] += c.attributes.f("beta", 1.0f) * c.inputs[2][at];
    }
  }
  if (has_relu(c.attributes)) reference_relu(y.values);
  return {y};
}

void add_gemm(Registry& registry) {
  using namespace gemm;
  registry.add(make_op("Gemm", {infer, grad, gemm_reference},
                       {{"openblas", accepts_blas, create},
                        {"onednn", accepts_onednn, create},
                        {"blocks", accepts_blocks, create_blocks},
                        in_float32<accepts, create>(),
                        {"loops", accepts_loops, create_loops}},
                       {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
