// The Einsum operators; einsum_terms.cpp parses equations.

#include "kernels/ops/matmul/einsum.h"

#include <algorithm>
#include <map>
#include <optional>

#include "kernels/core/memory.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {

// Einsum(x0, x1, ...), attribute equation: y[output labels] = the product of all operands, each
// taken at its labels, summed over all other labels. If there are two operands and each label is
// batch, rows, columns or summed, they are laid out as matrices and multiplied; loops do the rest.
//
// d x_k is Einsum(dy, the other operands) with swapped terms. If x_k has a diagonal, a broadcast
// axis or a label that nothing else has, loops compute it: ofsdp.EinsumGrad(dy, x0, ...),
// attributes equation and input k.
// https://onnx.ai/onnx/operators/onnx__Einsum.html

namespace einsum {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const EinsumTerms terms,
                         parse_einsum(c.attributes.s("equation", ""), operand_shapes(c.inputs)));
  std::vector<int64_t> axes;
  for (int label : terms.output) axes.push_back(terms.sizes[static_cast<size_t>(label)]);
  for (const TensorDesc& input : c.inputs) {
    if (input.dtype == c.inputs[0].dtype) continue;
    return input_error("expected operands of one type, found {} and {}", c.inputs[0].text(),
                       input.text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(axes)}};
}

// Returns the equation for d x_k, or "" if only EinsumGrad can compute it.
std::string swapped(const EinsumTerms& terms, const std::vector<Shape>& shapes, size_t k) {
  if (terms.broadcasts(shapes) || terms.repeats(k)) return "";
  EinsumTerms made = terms;
  made.inputs.erase(made.inputs.begin() + static_cast<std::ptrdiff_t>(k));
  made.inputs.insert(made.inputs.begin(), terms.output);
  made.output = terms.inputs[k];
  auto known = [&](int label) {
    return std::ranges::any_of(made.inputs,
                               [&](const Labels& list) { return has_label(list, label); });
  };
  return std::ranges::all_of(made.output, known) ? made.equation() : "";
}

void grad(GradBuilder& b) {
  std::vector<Ref> operands;
  std::vector<Shape> shapes;
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    operands.push_back(b.input(i));
    shapes.push_back(b.desc(b.input(i)).shape);
  }
  const EinsumTerms terms = einsum_terms(b.attributes(), shapes);
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!b.needs_grad(k)) continue;
    const std::string equation = swapped(terms, shapes, k);
    std::vector<Ref> inputs = operands;
    if (!equation.empty()) inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(k));
    inputs.insert(inputs.begin(), b.grad_output(0));
    b.set_grad(k, equation.empty() ? b.emit1("ofsdp.EinsumGrad", inputs,
                                             {{"equation", b.attributes().s("equation", "")},
                                              {"input", static_cast<int64_t>(k)}})
                                   : b.emit1("Einsum", inputs, {{"equation", equation}}));
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  std::vector<Shape> shapes;
  for (const RefTensor& input : c.inputs) shapes.push_back(input.desc.shape);
  const EinsumLoop loop(einsum_terms(c.attributes, shapes), shapes);
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < loop.outputs; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < loop.summed; ++j) {
      double product = 1;
      for (size_t k = 0; k < shapes.size(); ++k) {
        const int64_t at =
            loop.offset(k, 0, loop.outer, i) + loop.offset(k, loop.outer, loop.sizes.size(), j);
        product *= c.inputs[k].values[static_cast<size_t>(at)];
      }
      sum += product;
    }
    y.values.push_back(sum);
  }
  return {y};
}

// --- two operands as matrices: copied to that layout if necessary, then multiplied by a library
// ---

// Returns a copy from `from`'s order to `to`'s; none if they are equal.
std::optional<StridedCopy> relayout(const EinsumTerms& terms, const Labels& from,
                                    const Labels& to) {
  if (from == to) return std::nullopt;
  const auto strides = label_strides(from, label_shape(terms, from), terms.labels());
  std::vector<int64_t> source;
  for (int label : to) source.push_back(strides[static_cast<size_t>(label)]);
  const Shape shape = label_shape(terms, to);
  return StridedCopy(shape, source, strides_of({DType::kFloat32, shape}), sizeof(float));
}

MatrixProduct product_of(const EinsumTerms& terms, const EinsumForm& form) {
  const auto count = [&](const Labels& labels) { return label_shape(terms, labels).numel(); };
  MatrixProduct p;
  if (!form.batch.empty()) p.batch_a = p.batch_b = {count(form.batch)};
  p.rows = count(form.rows);
  p.inner = count(form.inner);
  p.columns = count(form.columns);
  p.transpose_a = form.transpose_a;
  p.transpose_b = form.transpose_b;
  return p;
}

Acceptance accepts_matrices(const Problem& p) {
  if (const Acceptance plain = accepts_plain_of<float>(p); !plain) return plain;
  const auto shapes = operand_shapes(p.inputs);
  const EinsumTerms terms = einsum_terms(p.attributes, shapes);
  const EinsumForm form = einsum_form(terms, shapes);
  if (!form.possible) return Acceptance::refuse("no product of two matrices");
  return accept_if(library_accepts(product_of(terms, form)), kNoSuchProduct);
}

std::unique_ptr<Kernel> create_matrices(const Problem& p) {
  const auto shapes = operand_shapes(p.inputs);
  const EinsumTerms terms = einsum_terms(p.attributes, shapes);
  const EinsumForm form = einsum_form(terms, shapes);
  const MatrixProduct product = product_of(terms, form);
  const std::array<std::optional<StridedCopy>, 3> copies = {
      relayout(terms, terms.inputs[0], form.a), relayout(terms, terms.inputs[1], form.b),
      relayout(terms, form.y, terms.output)};
  const std::array<const TensorDesc*, 3> descs = {&p.in(0), &p.in(1), &p.out(0)};
  std::array<size_t, 3> offsets{};
  size_t bytes = 0;
  for (size_t i = 0; i < 3; ++i) {
    offsets[i] = bytes;
    if (copies[i]) bytes += align_up(descs[i]->bytes(), kTensorAlignment);
  }
  std::unique_ptr<Kernel> inner = make_matrix_product(product);
  const size_t workspace = bytes + inner->workspace_bytes();
  return make_kernel(
      [=, inner = std::move(inner)](const KernelArgs& args) {
        TensorView operands[] = {// a desc would be a copy: an allocation
                                 {args.inputs[0].data, {}},
                                 {args.inputs[1].data, {}},
                                 {args.outputs[0].data, {}}};
        for (size_t i = 0; i < 3; ++i) {
          if (!copies[i]) continue;
          std::byte* at = args.workspace + offsets[i];
          if (i < 2) copies[i]->run(operands[i].data, at);
          operands[i].data = at;
        }
        OFSDP_RETURN_IF_ERROR(
            inner->run({{operands, 2}, {operands + 2, 1}, args.workspace + bytes, args.step}));
        if (copies[2]) copies[2]->run(operands[2].data, args.outputs[0].data);
        return ok_status();
      },
      workspace);
}

// --- loops ---

Acceptance accepts_loops(const Problem& p) {
  const DType dtype = p.out(0).dtype;
  const bool number = dtype == DType::kFloat32 || dtype == DType::kFloat64 || is_integer(dtype);
  if (!number) return Acceptance::refuse("not float32, float64 or whole numbers");
  return accept_if(p.all_plain(), kNotPlain);
}

std::unique_ptr<Kernel> create_loops(const Problem& p) {
  const auto shapes = operand_shapes(p.inputs);
  const EinsumLoop loop(einsum_terms(p.attributes, shapes), shapes);
  return with_wrapping_number(p.out(0).dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    return make_kernel([loop, count = shapes.size()](const KernelArgs& a) {
      const size_t labels = loop.sizes.size();
      for (int64_t i = 0; i < loop.outputs; ++i) {
        SumOf<T> sum = 0;
        for (int64_t j = 0; j < loop.summed; ++j) {
          SumOf<T> product = 1;
          for (size_t k = 0; k < count; ++k) {
            const int64_t at =
                loop.offset(k, 0, loop.outer, i) + loop.offset(k, loop.outer, labels, j);
            product *= widened(a.in<T>(k)[at]);
          }
          sum += product;
        }
        a.out<T>(0)[i] = static_cast<T>(sum);
      }
    });
  });
}

// --- EinsumGrad ---

Result<std::vector<TensorDesc>> grad_infer(const InferContext& c) {
  return std::vector{c.inputs[static_cast<size_t>(c.attributes.i("input", 0)) + 1]};
}

// dx[at] += dy times the other operands, over all combinations.
template <typename T, typename X, typename D>
void add_gradients(const EinsumLoop& loop, size_t wanted, size_t count, const T* dy, const X& x,
                   D* dx) {
  for (int64_t i = 0; i < loop.outputs; ++i) {
    for (int64_t j = 0; j < loop.summed; ++j) {
      auto at = [&](size_t k) {
        return loop.offset(k, 0, loop.outer, i) + loop.offset(k, loop.outer, loop.sizes.size(), j);
      };
      T product = dy[i];
      for (size_t k = 0; k < count; ++k) {
        if (k != wanted) product *= x(k)[at(k)];
      }
      dx[at(wanted)] += product;
    }
  }
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  std::vector<Shape> shapes;
  for (size_t i = 1; i < c.inputs.size(); ++i) shapes.push_back(c.inputs[i].desc.shape);
  const EinsumLoop loop(einsum_terms(c.attributes, shapes), shapes);
  RefTensor dx = zeros(c.output_descs[0]);
  add_gradients(
      loop, static_cast<size_t>(c.attributes.i("input", 0)), shapes.size(),
      c.inputs[0].values.data(), [&](size_t k) { return c.inputs[k + 1].values.data(); },
      dx.values.data());
  return {dx};
}

template <typename T>
std::unique_ptr<Kernel> grad_create(const Problem& p) {
  const auto shapes = operand_shapes(p.inputs, 1);
  const EinsumLoop loop(einsum_terms(p.attributes, shapes), shapes);
  const auto wanted = static_cast<size_t>(p.attributes.i("input", 0));
  return make_kernel([=, count = shapes.size(), n = p.out(0).numel()](const KernelArgs& a) {
    std::fill_n(a.out<T>(0), n, T{0});
    add_gradients(
        loop, wanted, count, a.in<T>(0), [&](size_t k) { return a.in<T>(k + 1); }, a.out<T>(0));
  });
}

}  // namespace
}  // namespace einsum

void add_einsum(Registry& registry) {
  using namespace einsum;
  registry.add(make_op("Einsum", {infer, grad, reference},
                       {{"matrices", accepts_matrices, create_matrices},
                        in_float32<accepts_matrices, create_matrices>(),
                        {"loops", accepts_loops, create_loops},
                        in_float32<accepts_loops, create_loops>()},
                       {.first_opset = 12, .costly = true}));
  registry.add_own(make_op("EinsumGrad", {grad_infer, nullptr, grad_reference},
                           plain_float_kernels<grad_create<float>, grad_create<double>>("loops"),
                           {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
