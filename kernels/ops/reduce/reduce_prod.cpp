// ReduceProd(x, axes): the product; see reduce_axes.h for the attributes. dx = dy times the product
// of the other elements (ofsdp.ReduceProdGrad(dy, x, axes)), which is exact where elements are 0.
// https://onnx.ai/onnx/operators/onnx__ReduceProd.html
#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

// dy is given with a 1 for each reduced axis; axes of 1 in dy are those that were reduced.
void grad(GradBuilder& b) {
  const Ref dy = keep_reduced(b, b.grad_output(0));
  b.set_grad(0, b.emit1("ofsdp.ReduceProdGrad", {dy, b.input(0)}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {reference_fold(c, 1, [](double product, double x) { return product * x; })};
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  return std::vector{c.inputs[1]};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const Shape& shape = c.inputs[1].desc.shape;
  const Shape& kept = c.inputs[0].desc.shape;
  RefTensor dx{c.output_descs[0], {}};
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const size_t at = ravel_broadcast(kept, unravel(shape, i));
    double product = c.inputs[0].values[at];
    for (int64_t k = 0; k < shape.numel(); ++k) {
      if (k != i && ravel_broadcast(kept, unravel(shape, k)) == at) {
        product *= c.inputs[1].values[static_cast<size_t>(k)];
      }
    }
    dx.values.push_back(product);
  }
  return {dx};
}

template <typename T>
bool accepts_grad(const Problem& p) {
  return p.all_dtype(std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64) && p.all_plain();
}

// The products of what lies before each element, in dx, times those of what lies behind it.
template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  std::vector<bool> reduced;
  for (int axis = 0; axis < p.in(1).shape.rank(); ++axis) {
    reduced.push_back(p.in(0).shape[axis] == 1);
  }
  return make_kernel([loops = FoldLoops(p.in(1).shape, reduced)](const KernelArgs& a) {
    const int64_t count = loops.reduced.inner();
    const int64_t step = loops.reduced.inner_stride(0);
    auto one = [&](const T* x, T dy, T* dx) {
      double product = dy;
      loops.reduced.for_rows(0, loops.reduced.rows(), [&](const StridedLoop::Offsets& at) {
        for (int64_t i = 0; i < count; ++i) {
          dx[at[0] + i * step] = static_cast<T>(product);
          product *= x[at[0] + i * step];
        }
      });
      product = 1;
      for (int64_t row = loops.reduced.rows(); row-- > 0;) {
        loops.reduced.for_rows(row, row + 1, [&](const StridedLoop::Offsets& at) {
          for (int64_t i = count; i-- > 0;) {
            dx[at[0] + i * step] = static_cast<T>(dx[at[0] + i * step] * product);
            product *= x[at[0] + i * step];
          }
        });
      }
    };
    loops.kept.for_rows(0, loops.kept.rows(), [&](const StridedLoop::Offsets& at) {
      for (int64_t i = 0; i < loops.kept.inner(); ++i) {
        const int64_t from = at[0] + i * loops.kept.inner_stride(0);
        one(a.in<T>(1) + from, a.in<T>(0)[at[1] + i], a.out<T>(0) + from);
      }
    });
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples();
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt64,
                                  DType::kInt32}));
  list.push_back({.name = "zeros",
                  .inputs = {{DType::kFloat32, {3, 4}}, {DType::kInt64, {1}}},
                  .fill =
                      [](size_t input, std::vector<double>& values) {
                        if (input == 1) values = {1};
                        if (input == 1) return;
                        for (const size_t at : {1, 5, 6}) {  // a test resizes the axes
                          if (at < values.size()) values[at] = 0;
                        }
                      },
                  .constant_inputs = {1}});
  return list;
}

std::vector<SampleCase> grad_samples() {
  const DType f = DType::kFloat32;
  return {{.name = "rows", .inputs = {{f, {3, 1}}, {f, {3, 7}}}},
          {.name = "ends", .inputs = {{f, {1, 3, 1}}, {f, {2, 3, 4}}}},
          {.name = "all", .inputs = {{f, {1, 1}}, {f, {3, 4}}}},
          {.name = "zeros", .inputs = {{f, {1, 2}}, {f, {3, 2}}}, .fill = fill_with(1, {0, 3, 2})},
          {.name = "empty", .inputs = {{f, {0, 1}}, {f, {0, 4}}}},
          {.name = "float64",
           .inputs = {{DType::kFloat64, {3, 1}}, {DType::kFloat64, {3, 4}}},
           .tolerance = 1e-13}};
}

}  // namespace

void add_reduce_prod(Registry& registry) {
  registry.add({.name = "ReduceProd",
                .first_opset = 18,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create_reduction<ReduceKind::kProduct>, ProductFold>(),
                .samples = samples,
                .constant_inputs = {1}});
  registry.add({.domain = kOwnDomain,
                .name = "ReduceProdGrad",
                .min_inputs = 2,
                .infer = infer_grad,
                .reference = grad_reference,
                .cpu = {{"loops", accepts_grad<float>, create_grad<float>},
                        in_float32<accepts_grad<float>, create_grad<float>>(),
                        {"float64", accepts_grad<double>, create_grad<double>}},
                .samples = grad_samples});
}

}  // namespace ofsdp::kernels::ops
