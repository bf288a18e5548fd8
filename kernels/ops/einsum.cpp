// Einsum(x0, x1, ...), attribute equation: y[output labels] = the sum over all other labels of the
// product of the operands, each taken at its labels.
// Two operands whose labels are batch, rows, columns or summed are laid out as matrices and
// multiplied; the rest is loops. d x_k is Einsum(dy, the other operands) with the terms swapped,
// and, where x_k has a diagonal, a broadcast axis or a label that nothing else has,
// ofsdp.EinsumGrad(dy, x0, ...), attributes equation and input, by loops.
// https://onnx.ai/onnx/operators/onnx__Einsum.html
#include <algorithm>

#include "kernels/core/memory.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/einsum_terms.h"
#include "kernels/ops/list.h"
#include "kernels/ops/matrix_product.h"

namespace ofsdp::ops {
namespace {

bool has(const Labels& list, int label) { return std::ranges::find(list, label) != list.end(); }

std::vector<Shape> shapes_of(const std::vector<TensorDesc>& descs, size_t first = 0) {
  std::vector<Shape> shapes;
  for (size_t i = first; i < descs.size(); ++i) shapes.push_back(descs[i].shape);
  return shapes;
}

EinsumTerms terms_of(const Attributes& attributes, const std::vector<Shape>& shapes) {
  return *parse_einsum(attributes.s("equation", ""), shapes);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const EinsumTerms terms,
                         parse_einsum(c.attributes.s("equation", ""), shapes_of(c.inputs)));
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
    return std::ranges::any_of(made.inputs, [&](const Labels& list) { return has(list, label); });
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
  const EinsumTerms terms = terms_of(b.attributes(), shapes);
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
  const EinsumLoop loop(terms_of(c.attributes, shapes), shapes);
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
  const auto shapes = shapes_of(p.inputs);
  const EinsumLoop loop(terms_of(p.attributes, shapes), shapes);
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

// --- two operands as matrices ---

// Labels by their part in the product; `possible`: there is one.
struct MatrixForm {
  Labels batch, rows, columns, inner;
  bool possible = false;
};

MatrixForm matrix_form(const EinsumTerms& terms, const std::vector<Shape>& shapes) {
  MatrixForm form;
  if (shapes.size() != 2 || terms.broadcasts(shapes) || terms.repeats(0) || terms.repeats(1)) {
    return form;
  }
  for (int label : terms.output) {
    const bool left = has(terms.inputs[0], label), right = has(terms.inputs[1], label);
    (left && right ? form.batch : left ? form.rows : form.columns).push_back(label);
  }
  form.possible = true;
  for (size_t k = 0; k < 2; ++k) {
    for (int label : terms.inputs[k]) {
      if (has(terms.output, label)) continue;
      if (!has(terms.inputs[1 - k], label)) form.possible = false;  // summed alone
      if (k == 0) form.inner.push_back(label);
    }
  }
  return form;
}

Labels joined(std::initializer_list<Labels> lists) {
  Labels all;
  for (const Labels& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

struct Sizes {
  const EinsumTerms& terms;
  Shape shape(const Labels& list) const {
    std::vector<int64_t> axes;
    for (int label : list) axes.push_back(terms.sizes[static_cast<size_t>(label)]);
    return Shape(axes);
  }
  int64_t count(const Labels& list) const { return shape(list).numel(); }
};

// Copies an operand from the order of `from` to that of `to`; nothing when they are equal.
std::optional<StridedCopy> relayout(const EinsumTerms& terms, const Labels& from,
                                    const Labels& to) {
  if (from == to) return std::nullopt;
  const Sizes sizes{terms};
  const auto strides = label_strides(from, sizes.shape(from), terms.labels());
  std::vector<int64_t> source;
  for (int label : to) source.push_back(strides[static_cast<size_t>(label)]);
  const Shape shape = sizes.shape(to);
  return StridedCopy(shape, source, strides_of({DType::kFloat32, shape}), sizeof(float));
}

MatrixProduct product_of(const EinsumTerms& terms, const MatrixForm& form) {
  const Sizes sizes{terms};
  MatrixProduct p;
  if (!form.batch.empty()) p.batch_a = p.batch_b = {sizes.count(form.batch)};
  p.rows = sizes.count(form.rows);
  p.inner = sizes.count(form.inner);
  p.columns = sizes.count(form.columns);
  // An operand that already lies the other way round is read transposed.
  p.transpose_a = terms.inputs[0] == joined({form.batch, form.inner, form.rows});
  p.transpose_b = terms.inputs[1] == joined({form.batch, form.columns, form.inner});
  return p;
}

bool accepts_matrices(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32) || !p.all_plain()) return false;
  const auto shapes = shapes_of(p.inputs);
  const EinsumTerms terms = terms_of(p.attributes, shapes);
  const MatrixForm form = matrix_form(terms, shapes);
  return form.possible && onednn_accepts(product_of(terms, form));
}

std::unique_ptr<Kernel> create_matrices(const Problem& p) {
  const auto shapes = shapes_of(p.inputs);
  const EinsumTerms terms = terms_of(p.attributes, shapes);
  const MatrixForm form = matrix_form(terms, shapes);
  const MatrixProduct product = product_of(terms, form);
  const Labels a = product.transpose_a ? joined({form.batch, form.inner, form.rows})
                                       : joined({form.batch, form.rows, form.inner});
  const Labels b = product.transpose_b ? joined({form.batch, form.columns, form.inner})
                                       : joined({form.batch, form.inner, form.columns});
  const Labels y = joined({form.batch, form.rows, form.columns});
  const std::array<std::optional<StridedCopy>, 3> copies = {relayout(terms, terms.inputs[0], a),
                                                            relayout(terms, terms.inputs[1], b),
                                                            relayout(terms, y, terms.output)};
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
        TensorView operands[] = {args.inputs[0], args.inputs[1], args.outputs[0]};
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

// --- EinsumGrad ---

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  return std::vector{c.inputs[static_cast<size_t>(c.attributes.i("input", 0)) + 1]};
}

// dx[at] += dy * the others, over all combinations.
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
  const EinsumLoop loop(terms_of(c.attributes, shapes), shapes);
  RefTensor dx{c.output_descs[0], {}};
  dx.values.assign(static_cast<size_t>(dx.desc.numel()), 0);
  add_gradients(
      loop, static_cast<size_t>(c.attributes.i("input", 0)), shapes.size(),
      c.inputs[0].values.data(), [&](size_t k) { return c.inputs[k + 1].values.data(); },
      dx.values.data());
  return {dx};
}

template <typename T>
bool accepts_grad(const Problem& p) {
  return p.all_plain() && p.all_dtype(std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64);
}

template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  const auto shapes = shapes_of(p.inputs, 1);
  const EinsumLoop loop(terms_of(p.attributes, shapes), shapes);
  const auto wanted = static_cast<size_t>(p.attributes.i("input", 0));
  return make_kernel([=, count = shapes.size(), n = p.out(0).numel()](const KernelArgs& a) {
    std::fill_n(a.out<T>(0), n, T{0});
    add_gradients(
        loop, wanted, count, a.in<T>(0), [&](size_t k) { return a.in<T>(k + 1); }, a.out<T>(0));
    return ok_status();
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

std::vector<SampleCase> grad_samples() {
  auto made = [](const char* name, const char* equation, std::vector<Shape> shapes, int64_t input,
                 DType dtype = DType::kFloat32, double tolerance = 2e-5) {
    SampleCase s = sample(name, equation, std::move(shapes), dtype, tolerance);
    s.attributes.set("input", input);
    return s;
  };
  return {made("diagonal", "ii->i", {{4}, {4, 4}}, 0),
          made("sum_alone", "ij,k->i", {{3}, {3, 4}, {5}}, 1),
          made("broadcast", "...ij,...jk->...ik", {{3, 2, 5}, {1, 2, 4}, {3, 4, 5}}, 0),
          made("empty", "ij->i", {{0}, {0, 4}}, 0),
          made("float64", "ii->i", {{4}, {4, 4}}, 0, DType::kFloat64, 1e-13),
          made("float16", "ii->i", {{4}, {4, 4}}, 0, DType::kFloat16, 2e-3)};
}

}  // namespace

void add_einsum(Registry& registry) {
  registry.add({.name = "Einsum",
                .first_opset = 12,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"matrices", accepts_matrices, create_matrices},
                        in_float32<accepts_matrices, create_matrices>(),
                        {"loops", accepts_loops, create_loops},
                        in_float32<accepts_loops, create_loops>()},
                .samples = samples});
  registry.add({.domain = kOwnDomain,
                .name = "EinsumGrad",
                .min_inputs = 2,
                .infer = infer_grad,
                .reference = grad_reference,
                .cpu = {{"loops", accepts_grad<float>, create_grad<float>},
                        in_float32<accepts_grad<float>, create_grad<float>>(),
                        {"float64", accepts_grad<double>, create_grad<double>}},
                .samples = grad_samples});
}

}  // namespace ofsdp::ops
