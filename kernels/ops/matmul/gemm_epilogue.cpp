// ofsdp.GemmEpilogue(A, B, bias, addend, x): a Gemm with an elementwise end that would otherwise be
// another pass over memory. A pass inserts it if a device has a kernel for it
// (importer/passes/joined_nodes.h), after the backward nodes exist, so it has no gradient.
//
//   z = alpha A' B' + bias + addend      A' = A or A^T (transA), B' = B or B^T; bias is a row;
//                                        bias, addend and x may be absent
//   y = z                                activation ""
//   y = gelu(z)                          "gelu_tanh"; output 1, if wanted, is z
//   y = z gelu'(x)                       "gelu_tanh_grad"
//
// bias_grad makes output 1 the gradient of a bias that A, B or y flows back to: "a" sums each row
// of A' over the columns, "b" each column of B' over the rows, "y" each column of y over the rows.
#include <array>

#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace gemm_epilogue {
namespace {

enum Operand : size_t { kA, kB, kBias, kAddend, kX };

std::string activation_of(const Attributes& a) { return a.s("activation", ""); }
std::string bias_grad_of(const Attributes& a) { return a.s("bias_grad", ""); }

Status check_operand(const InferContext& c, size_t i, const char* name, const Shape& shape) {
  if (!c.has(i) || c.inputs[i] == TensorDesc{c.inputs[0].dtype, shape}) return {};
  return input_error("expected {} of {}, found {}", name, shape.text(), c.inputs[i].text());
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape &a = c.inputs[kA].shape, &b = c.inputs[kB].shape;
  const int trans_a = c.attributes.i("transA", 0) != 0, trans_b = c.attributes.i("transB", 0) != 0;
  const DType dtype = c.inputs[kA].dtype;
  if (a.rank() != 2 || b.rank() != 2 || c.inputs[kB].dtype != dtype ||
      a[1 - trans_a] != b[trans_b]) {
    return input_error("A {} (transA {}) and B {} (transB {}) disagree", c.inputs[kA].text(),
                       trans_a, c.inputs[kB].text(), trans_b);
  }
  const Shape y{a[trans_a], b[1 - trans_b]};
  OFSDP_RETURN_IF_ERROR(check_operand(c, kBias, "a bias", Shape{y[1]}));
  OFSDP_RETURN_IF_ERROR(check_operand(c, kAddend, "an addend", y));
  OFSDP_RETURN_IF_ERROR(check_operand(c, kX, "the operand of gelu", y));
  std::vector<TensorDesc> made{{dtype, y}};
  const std::string grad = bias_grad_of(c.attributes);
  if (!grad.empty()) made.push_back({dtype, {grad == "a" ? y[0] : y[1]}});
  if (activation_of(c.attributes) == "gelu_tanh") made.push_back({dtype, y});
  return made;
}

// Sums values [rows, columns] per column, or per row.
std::vector<double> sums(const std::vector<double>& values, const Shape& shape, bool of_columns) {
  std::vector<double> made(static_cast<size_t>(shape[of_columns ? 1 : 0]));
  for (int64_t i = 0; i < shape.numel(); ++i) {
    made[static_cast<size_t>(of_columns ? i % shape[1] : i / shape[1])] +=
        values[static_cast<size_t>(i)];
  }
  return made;
}

// Returns which operand is summed to the bias gradient, and whether over the first axis as stored.
std::pair<size_t, bool> summed_operand(const Attributes& attributes) {
  if (bias_grad_of(attributes) == "a") return {kA, attributes.i("transA", 0) != 0};
  return {kB, attributes.i("transB", 0) == 0};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  reference_product(gemm_product(c.attributes, c.inputs[0].desc, y.desc), c.inputs[kA].values,
                    c.inputs[kB].values, y.values);
  const RefTensor *bias = given(c.inputs, kBias), *addend = given(c.inputs, kAddend),
                  *x = given(c.inputs, kX);
  std::vector<double> z = y.values;
  for (size_t i = 0; i < z.size(); ++i) {
    if (bias != nullptr) z[i] += bias->values[i % bias->values.size()];
    if (addend != nullptr) z[i] += addend->values[i];
    const std::string activation = activation_of(c.attributes);
    y.values[i] = activation == "gelu_tanh"        ? reference_gelu(z[i], true)
                  : activation == "gelu_tanh_grad" ? z[i] * reference_gelu_slope(x->values[i], true)
                                                   : z[i];
  }
  std::vector<RefTensor> made{y};
  if (bias_grad_of(c.attributes) == "y") {
    made.push_back({c.output_descs[1], sums(y.values, y.desc.shape, true)});
  } else if (!bias_grad_of(c.attributes).empty()) {
    const auto [i, of_columns] = summed_operand(c.attributes);
    made.push_back(
        {c.output_descs[1], sums(c.inputs[i].values, c.inputs[i].desc.shape, of_columns)});
  } else if (activation_of(c.attributes) == "gelu_tanh") {
    made.push_back({TensorDesc{y.desc.dtype, y.desc.shape}, z});
  }
  return made;
}

// The CPU gains nothing by this operator. It runs the parts' kernels one after the other, so that
// the tests' device computes the same bits as the separate nodes.
MatrixProduct planned(const Problem& p) {
  MatrixProduct made = gemm_product(p.attributes, p.in(0), p.out(0));
  if (p.has_in(kBias)) made.addend = MatrixProduct::Addend::kBias;
  return made;
}

Acceptance accepts(const Problem& p) {
  if (const Acceptance plain = accepts_plain_of<float>(p); !plain) return plain;
  if (p.out(0).numel() == 0) return Acceptance::refuse("an empty output");
  return accept_if(library_accepts(planned(p)), kNoSuchProduct);
}

class Parts final : public Kernel {
 public:
  explicit Parts(const Problem& p)
      : product_(make_matrix_product(planned(p))),
        activation_(activation_of(p.attributes)),
        bias_grad_(bias_grad_of(p.attributes)),
        keeps_z_(bias_grad_.empty() && p.has_out(1)),
        y_(p.out(0)) {
    const Problem two{{}, {y_, y_}, {y_}, {}}, one{{}, {y_}, {y_}, {}};
    if (p.has_in(kAddend)) add_ = joined(ChainOp::kAdd, two);
    if (activation_ == "gelu_tanh") gelu_ = joined(ChainOp::kGeluTanh, one);
    if (activation_ == "gelu_tanh_grad") gelu_ = joined(ChainOp::kGeluTanhGrad, two);
    if (bias_grad_.empty() || !p.has_out(1)) return;
    const auto [i, of_columns] = summed_operand(p.attributes);
    summed_ = bias_grad_ == "y" ? -1 : static_cast<int>(i);
    const bool columns = summed_ < 0 || of_columns;
    sum_.emplace(summed_ < 0 ? y_.shape : p.in(i).shape, std::vector<bool>{columns, !columns},
                 ReduceKind::kSum);
  }

  size_t workspace_bytes() const override { return product_->workspace_bytes(); }

  Status run(const KernelArgs& a) override {
    // Views without a desc: copying one would allocate.
    const TensorView y{a.outputs[0].data, {}}, z{a.outputs[keeps_z_ ? 1 : 0].data, {}};
    OFSDP_RETURN_IF_ERROR(product_->run({a.inputs, {&z, 1}, a.workspace, a.step}));
    if (add_) OFSDP_RETURN_IF_ERROR(pass(*add_, {z, {a.inputs[kAddend].data, {}}}, z, a));
    if (gelu_) {
      std::byte* second = activation_ == "gelu_tanh" ? z.data : a.inputs[kX].data;
      OFSDP_RETURN_IF_ERROR(pass(*gelu_, {z, {second, {}}}, y, a));
    }
    if (sum_) {
      const TensorView& from = summed_ < 0 ? y : a.inputs[static_cast<size_t>(summed_)];
      sum_->run(from.as<const float>(), a.out<float>(1));
    }
    return {};
  }

 private:
  static std::unique_ptr<Kernel> joined(ChainOp op, const Problem& p) {
    return create_pointwise(chain_loops(op), {}, p);
  }
  static Status pass(Kernel& kernel, const std::array<TensorView, 2>& from, const TensorView& to,
                     const KernelArgs& a) {
    return kernel.run({from, {&to, 1}, a.workspace, a.step});
  }

  std::unique_ptr<Kernel> product_, add_, gelu_;
  std::string activation_, bias_grad_;
  bool keeps_z_;
  TensorDesc y_;
  int summed_ = -1;  // input index; -1: y
  std::optional<Reduction> sum_;
};

std::unique_ptr<Kernel> create(const Problem& p) { return std::make_unique<Parts>(p); }

}  // namespace
}  // namespace gemm_epilogue

void add_gemm_epilogue(Registry& registry) {
  using namespace gemm_epilogue;
  registry.add_own(make_op("GemmEpilogue", {infer, nullptr, reference},
                           with_half_floats<accepts, create>("parts"),
                           {.min_inputs = 2, .product = true, .joined = true}));
}

}  // namespace ofsdp::kernels::ops
