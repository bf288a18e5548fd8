// ofsdp.EinsumGrad(dy, x0, x1, ...), attributes equation and input k: d x_k of Einsum, by loops, for
// what no other Einsum can give (diagonals, broadcast axes, labels of one operand alone).
#include <algorithm>

#include "kernels/cpu/in_float32.h"
#include "kernels/ops/matmul/einsum_terms.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
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

std::vector<RefTensor> reference(const ReferenceContext& c) {
  std::vector<Shape> shapes;
  for (size_t i = 1; i < c.inputs.size(); ++i) shapes.push_back(c.inputs[i].desc.shape);
  const EinsumLoop loop(einsum_terms(c.attributes, shapes), shapes);
  RefTensor dx{c.output_descs[0], {}};
  dx.values.assign(static_cast<size_t>(dx.desc.numel()), 0);
  add_gradients(
      loop, static_cast<size_t>(c.attributes.i("input", 0)), shapes.size(),
      c.inputs[0].values.data(), [&](size_t k) { return c.inputs[k + 1].values.data(); },
      dx.values.data());
  return {dx};
}

template <typename T>
bool accepts(const Problem& p) {
  return p.all_plain() && p.all_dtype(std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64);
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  const auto shapes = operand_shapes(p.inputs, 1);
  const EinsumLoop loop(einsum_terms(p.attributes, shapes), shapes);
  const auto wanted = static_cast<size_t>(p.attributes.i("input", 0));
  return make_kernel([=, count = shapes.size(), n = p.out(0).numel()](const KernelArgs& a) {
    std::fill_n(a.out<T>(0), n, T{0});
    add_gradients(
        loop, wanted, count, a.in<T>(0), [&](size_t k) { return a.in<T>(k + 1); }, a.out<T>(0));
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  auto made = [](const char* name, const char* equation, std::vector<Shape> shapes, int64_t input,
                 DType dtype = DType::kFloat32, double tolerance = 2e-5) {
    SampleCase s{.name = name,
                 .attributes = {{"equation", std::string(equation)}, {"input", input}},
                 .tolerance = tolerance};
    for (Shape& shape : shapes) s.inputs.push_back({dtype, std::move(shape)});
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

void add_einsum_grad(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "EinsumGrad",
                .min_inputs = 2,
                .infer = infer,
                .reference = reference,
                .cpu = {{"loops", accepts<float>, create<float>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
