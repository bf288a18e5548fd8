// Gemm: Y = alpha A' B' + beta C, with A' = A or A^T (transA), B' = B or B^T (transB), C broadcast
// to [M, N]. dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY summed over C's broadcast axes.
// Fusion sets our own attribute ofsdp_activation="relu": Y = max(that, 0), and the gradient starts
// with ofsdp.ReluGrad(dY, Y).
// https://onnx.ai/onnx/operators/onnx__Gemm.html

#include <algorithm>
#include <cstring>

#include "kernels/core/planned_operands.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/fused_activation.h"
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
  const bool wide = c.attributes.i(kWideResult, 0) != 0;
  return std::vector{TensorDesc{wide ? DType::kFloat32 : c.inputs[0].dtype, y}};
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

// Returns C's strides along both axes of Y; 0 if C is broadcast.
std::pair<int64_t, int64_t> strides_of(const Shape& c) {
  const int64_t columns = c.rank() > 0 ? c[c.rank() - 1] : 1;
  const int64_t rows = c.rank() > 1 ? c[0] : 1;
  return {rows > 1 ? columns : 0, columns > 1 ? 1 : 0};
}

// C is the product's bias if it is one full row and nothing is scaled. Any other C is written to Y
// first, and the product is added.
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

constexpr const char* kWide = "a result wider than the operands";

// `has_product` says whether the implementation has the product itself.
Acceptance accepts_with(const Problem& p, bool (*has_product)(const MatrixProduct&),
                        const char* otherwise) {
  const MatrixProduct made = planned(p);
  if (p.attributes.has(kWideResult)) return Acceptance::refuse(kWide);
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
  if (p.attributes.has(kWideResult)) return Acceptance::refuse(kWide);
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

// Computes the product alone, then alpha and beta C in double.
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
                       {.min_inputs = 2, .costly = true, .product = true}));
}

// ofsdp.KeptRowsGemm(A, B, C, rows): Gemm over the kept rows (kernels/core/planned_operands.h),
// which come first in the operands; n = rounded_rows(kept rows). C may be absent. Attributes are
// Gemm's.
//
//   transA = 0   A [N, K], C has one row: Y's first n rows are Gemm's, the others zeros
//   transA = 1   A [N, M], B [N, K] (transB = 0, no C): sums over the first n rows alone
//
// Planning makes Gemm's kernels for each of eight row counts; a step takes one.

namespace kept_rows_gemm {
namespace {

constexpr size_t kRows = 3;

bool sums_rows(const Attributes& attributes) { return attributes.i("transA", 0) != 0; }

// Returns the operands without `rows`, with n rows.
std::vector<TensorDesc> gemm_inputs(const Attributes& attributes, std::vector<TensorDesc> inputs,
                                    int64_t n) {
  inputs.resize(inputs[2].present() ? 3 : 2);
  inputs[0].shape[0] = n;
  if (sums_rows(attributes)) inputs[1].shape[0] = n;
  return inputs;
}

Result<std::vector<TensorDesc>> infer_with(const OpDef& gemm, const InferContext& c) {
  const TensorDesc& a = c.inputs[0];
  if (a.shape.rank() != 2 || !are_kept_rows(c.inputs[kRows], a.shape[0])) {
    return input_error("expected A [N, K] and int64 [N + 1], found {} and {}", a.text(),
                       c.inputs[kRows].text());
  }
  if (sums_rows(c.attributes) ? c.attributes.i("transB", 0) != 0 || c.has(2)
                              : c.has(2) && c.inputs[2].shape.rank() > 1) {
    return input_error("a C of several rows, or a product over rows with transB or C");
  }
  return gemm.infer({c.attributes, gemm_inputs(c.attributes, c.inputs, a.shape[0]), {}, c.wanted});
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool over_rows = sums_rows(c.attributes);
  const int64_t all = c.inputs[0].desc.shape[0];
  const int64_t n = rounded_rows(all - static_cast<int64_t>(c.inputs[kRows][0]), all);
  ReferenceContext part = c;
  part.inputs[0].desc.shape[0] = n;
  if (over_rows) part.inputs[1].desc.shape[0] = n;
  part.inputs.pop_back();
  if (!over_rows) part.output_descs[0].shape[0] = n;
  RefTensor y = gemm_reference(part)[0];
  y.desc = c.output_descs[0];
  y.values.resize(static_cast<size_t>(y.desc.numel()), 0);
  return {y};
}

Problem of_size(const Problem& p, size_t size) {
  const int64_t n = rows_of_size(size, p.in(0).shape[0]);
  Problem made = p;
  made.inputs = gemm_inputs(p.attributes, p.inputs, n);
  made.constants.resize(std::min(p.constants.size(), made.inputs.size()));
  if (!sums_rows(p.attributes)) made.outputs[0].shape[0] = n;
  return made;
}

constexpr size_t kAllRows = kRowSixteenths.size() - 1;

// Asks a Gemm implementation about all rows. `plan --explain` prints the name, so it must name the
// library that multiplies.
Acceptance accepts_with(const OpDef& gemm, const Implementation& implementation, const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  if (const Acceptance all = implementation.accepts(of_size(p, kAllRows)); !all) return all;
  for (size_t size = 0; size < kAllRows; ++size) {
    const Problem part = of_size(p, size);
    const bool taken = std::ranges::any_of(
        gemm.cpu, [&](const Implementation& one) { return static_cast<bool>(one.accepts(part)); });
    if (!taken) return Acceptance::refuse("Gemm has no kernel for some of the numbers of rows");
  }
  return true;
}

void clear(std::byte* bytes, size_t count) {
  constexpr int64_t kGrain = int64_t{1} << 18;
  parallel_for(static_cast<int64_t>(count), kGrain, [bytes](int64_t begin, int64_t end) {
    std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
  });
}

class KeptRowsGemm final : public Kernel {
 public:
  KeptRowsGemm(const OpDef& gemm, const Problem& p)
      : all_(p.in(0).shape[0]), operands_(p.has_in(2) ? 3 : 2) {
    for (size_t size = 0; size < parts_.size(); ++size) {
      const Problem part = of_size(p, size);
      Result<std::unique_ptr<Kernel>> made = create_kernel(gemm, part);
      OFSDP_CHECK(made.ok(), "{}", made.error().message());
      parts_[size] = {*std::move(made), part.out(0).bytes()};
      workspace_ = std::max(workspace_, parts_[size].kernel->workspace_bytes());
    }
  }

  size_t workspace_bytes() const override { return workspace_; }

  Status run(const KernelArgs& a) override {
    const int64_t kept = kept_of(a.in<int64_t>(kRows), all_);
    size_t written = 0;
    if (kept > 0) {
      const Part& part = parts_[size_for(kept, all_)];
      KernelArgs args = a;
      args.inputs = a.inputs.first(operands_);
      OFSDP_RETURN_IF_ERROR(part.kernel->run(args));
      written = part.written;
    }
    clear(a.outputs[0].data + written, a.outputs[0].desc.bytes() - written);
    return ok_status();
  }

 private:
  struct Part {
    std::unique_ptr<Kernel> kernel;
    size_t written = 0;  // bytes in Y
  };

  int64_t all_;      // rows
  size_t operands_;  // Gemm's
  std::array<Part, kRowSixteenths.size()> parts_;
  size_t workspace_ = 0;
};

}  // namespace
}  // namespace kept_rows_gemm

void add_kept_rows_gemm(Registry& registry) {
  using namespace kept_rows_gemm;
  const auto gemm = std::make_shared<const OpDef>(registry.get("Gemm"));
  std::vector<Implementation> made = gemm->cpu;
  for (Implementation& implementation : made) {
    implementation.accepts = [gemm, one = implementation](const Problem& p) {
      return accepts_with(*gemm, one, p);
    };
    implementation.create = [gemm](const Problem& p) -> std::unique_ptr<Kernel> {
      return std::make_unique<KeptRowsGemm>(*gemm, p);
    };
  }
  const auto infer = [gemm](const InferContext& c) { return infer_with(*gemm, c); };
  registry.add_own(
      make_op("KeptRowsGemm", {infer, nullptr, reference}, std::move(made), {.min_inputs = 4}));
}

// com.microsoft.FusedGemm(A, B, C): Gemm, then the operator that attribute activation names, with
// activation_alpha, activation_beta and activation_gamma as attributes.
//
// com.microsoft.GemmFastGelu(X, W, bias): tanh Gelu of X W + bias; X [..., K], W [K, N].
//
// Neither has a kernel: the bodies are Gemm or MatMul before the activation.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

namespace {

// --- FusedGemm ---

Attributes gemm_attributes(const Attributes& attributes) {
  return {{"alpha", attributes.f("alpha", 1)},
          {"beta", attributes.f("beta", 1)},
          {"transA", attributes.i("transA", 0)},
          {"transB", attributes.i("transB", 0)}};
}

FusedActivation activation_of(const Attributes& attributes) {
  FusedActivation made{attributes.s("activation", ""), {}};
  for (const char* name : {"activation_alpha", "activation_beta", "activation_gamma"}) {
    if (attributes.has(name)) made.numbers.push_back(attributes.f(name, 0));
  }
  return made;
}

Result<std::vector<TensorDesc>> fused_gemm_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_activation(activation_of(c.attributes)));
  const TensorDesc &a = c.inputs[0], &b = c.inputs[1];
  const size_t trans_a = c.attributes.i("transA", 0) != 0,
               trans_b = c.attributes.i("transB", 0) != 0;
  if (a.shape.rank() != 2 || b.shape.rank() != 2) {
    return input_error("A and B must have 2 axes, found {} and {}", a.text(), b.text());
  }
  const auto axis = [](const TensorDesc& x, size_t at) { return x.shape[static_cast<int>(at)]; };
  return std::vector{TensorDesc{a.dtype, {axis(a, trans_a), axis(b, 1 - trans_b)}}};
}

void fused_gemm_body(BodyBuilder& b) {
  std::vector<Ref> inputs{b.input(0), b.input(1)};
  if (b.input(2)) inputs.push_back(b.input(2));
  const Ref product = b.emit1("Gemm", inputs, gemm_attributes(b.attributes()));
  b.set_output(0, activated(b, product, activation_of(b.attributes())));
}

std::vector<RefTensor> fused_gemm_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const bool trans_a = c.attributes.i("transA", 0) != 0, trans_b = c.attributes.i("transB", 0) != 0;
  const RefTensor &left = c.inputs[0], &right = c.inputs[1];
  const RefTensor* addend = given(c.inputs, 2);
  const int64_t inner = left.desc.shape[trans_a ? 0 : 1];
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto at = unravel(y.desc.shape, i);
    double sum = 0;
    for (int64_t k = 0; k < inner; ++k) {
      const std::vector<int64_t> l{trans_a ? k : at[0], trans_a ? at[0] : k};
      const std::vector<int64_t> r{trans_b ? at[1] : k, trans_b ? k : at[1]};
      sum += left.values[ravel(left.desc.shape, l)] * right.values[ravel(right.desc.shape, r)];
    }
    sum *= static_cast<double>(c.attributes.f("alpha", 1));
    if (addend != nullptr) {
      sum += static_cast<double>(c.attributes.f("beta", 1)) *
             addend->values[ravel_broadcast(addend->desc.shape, at)];
    }
    y[i] = reference_activated(activation_of(c.attributes), sum);
  }
  return {y};
}

// --- GemmFastGelu ---

Result<std::vector<TensorDesc>> gemm_gelu_infer(const InferContext& c) {
  const Shape &x = c.inputs[0].shape, &w = c.inputs[1].shape;
  if (x.rank() < 1 || w.rank() != 2 || x[x.rank() - 1] != w[0]) {
    return input_error("expected W [{}, N], found X {} and W {}",
                       x.rank() < 1 ? 0 : x[x.rank() - 1], c.inputs[0].text(), c.inputs[1].text());
  }
  if (c.has(2) && c.inputs[2].shape != Shape{w[1]}) {
    return input_error("expected a bias [{}], found {}", w[1], c.inputs[2].text());
  }
  std::vector<int64_t> axes = x.axes();
  axes.back() = w[1];
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(axes)}};
}

void gemm_gelu_body(BodyBuilder& b) {
  Ref product = b.emit1("MatMul", {b.input(0), b.input(1)});
  if (b.input(2)) product = b.add(product, b.input(2));
  b.set_output(0, b.emit1("Gelu", {product}, {{"approximate", std::string("tanh")}}));
}

std::vector<RefTensor> gemm_gelu_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor &x = c.inputs[0], &w = c.inputs[1];
  const RefTensor* bias = given(c.inputs, 2);
  const int64_t inner = w.desc.shape[0], columns = w.desc.shape[1];
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const int64_t row = i / columns, column = i % columns;
    double sum = bias == nullptr ? 0 : (*bias)[column];
    for (int64_t k = 0; k < inner; ++k) sum += x[row * inner + k] * w[k * columns + column];
    y[i] = reference_gelu(sum, true);
  }
  return {y};
}

}  // namespace

void add_fused_gemm(Registry& registry) {
  registry.add(make_op(
      "FusedGemm", {fused_gemm_infer, nullptr, fused_gemm_reference}, {},
      {.domain = "com.microsoft", .min_inputs = 2, .body = fused_gemm_body, .product = true}));
  registry.add(make_op(
      "GemmFastGelu", {gemm_gelu_infer, nullptr, gemm_gelu_reference}, {},
      {.domain = "com.microsoft", .min_inputs = 2, .body = gemm_gelu_body, .product = true}));
}

}  // namespace ofsdp::kernels::ops
