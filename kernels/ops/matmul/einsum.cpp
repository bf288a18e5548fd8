// Einsum(x0, x1, ...), attribute equation: y[output labels] = the sum over all other labels of the
// product of the operands, each taken at its labels.
// Two operands whose labels are batch, rows, columns or summed are laid out as matrices and
// multiplied; the rest is loops. d x_k is Einsum(dy, the other operands) with the terms swapped,
// and, where x_k has a diagonal, a broadcast axis or a label that nothing else has,
// ofsdp.EinsumGrad(dy, x0, ...), attributes equation and input, by loops.
// https://onnx.ai/onnx/operators/onnx__Einsum.html
#include <algorithm>

#include "kernels/cpu/fold.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/matmul/einsum_matrices.h"
#include "kernels/ops/matmul/einsum_terms.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
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

// The equation of d x_k, or "" when only EinsumGrad can do it.
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

bool is_number(const Problem& p, DType dtype) {
  return p.all_plain() &&
         (dtype == DType::kFloat32 || dtype == DType::kFloat64 || is_integer(dtype));
}

bool accepts_loops(const Problem& p) { return is_number(p, p.out(0).dtype); }

std::unique_ptr<Kernel> create_loops(const Problem& p) {
  const auto shapes = operand_shapes(p.inputs);
  const EinsumLoop loop(einsum_terms(p.attributes, shapes), shapes);
  return with_number(p.out(0).dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
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
      return ok_status();
    });
  });
}

SampleCase sample(const char* name, const char* equation, std::vector<Shape> shapes,
                  DType dtype = DType::kFloat32, double tolerance = 2e-5) {
  SampleCase made{.name = name,
                  .attributes = {{"equation", std::string(equation)}},
                  .check_grad = dtype == DType::kFloat32,
                  .tolerance = tolerance};
  for (Shape& shape : shapes) made.inputs.push_back({dtype, std::move(shape)});
  return made;
}

std::vector<SampleCase> samples() {
  return {sample("product", "ij,jk->ik", {{4, 5}, {5, 6}}),
          sample("implicit", "ij,jk", {{4, 5}, {5, 6}}),
          sample("transposed", "ji,kj->ki", {{5, 4}, {6, 5}}),
          sample("heads", "bqhd,bkhd->bhqk", {{2, 3, 4, 5}, {2, 6, 4, 5}}),
          sample("context", "bhqk,bkhd->bqhd", {{2, 4, 3, 6}, {2, 6, 4, 5}}),
          sample("outer", "i,j->ij", {{4}, {5}}),
          sample("inner", "i,i->", {{7}, {7}}),
          sample("three", "ij,jk,kl->il", {{2, 3}, {3, 4}, {4, 5}}),
          sample("transpose", "ij->ji", {{3, 4}}),
          sample("sum", "ij->i", {{3, 4}}),
          sample("sum_alone", "ij,k->i", {{3, 4}, {5}}),
          sample("diagonal", "...ii->...i", {{3, 4, 4}}),
          sample("trace", "ii->", {{4, 4}}),
          sample("dots", "...ij,...jk->...ik", {{2, 3, 4}, {2, 4, 5}}),
          sample("broadcast", "...ij,...jk->...ik", {{3, 1, 2, 4}, {5, 4, 3}}),
          sample("spaces", " i j , j -> i ", {{3, 4}, {4}}),
          sample("empty", "ij,jk->ik", {{0, 5}, {5, 6}}),
          sample("no_inner", "ij,jk->ik", {{3, 0}, {0, 6}}),
          sample("float64", "bij,bjk->bik", {{2, 3, 4}, {2, 4, 5}}, DType::kFloat64, 1e-13),
          sample("float16", "bij,bjk->bik", {{2, 3, 4}, {2, 4, 5}}, DType::kFloat16, 2e-3),
          sample("int32", "ij,jk->ik", {{3, 4}, {4, 5}}, DType::kInt32)};
}

}  // namespace

void add_einsum(Registry& registry) {
  registry.add({.name = "Einsum",
                .first_opset = 12,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"matrices", accepts_einsum_matrices, create_einsum_matrices},
                        in_float32<accepts_einsum_matrices, create_einsum_matrices>(),
                        {"loops", accepts_loops, create_loops},
                        in_float32<accepts_loops, create_loops>()},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
