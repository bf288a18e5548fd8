// ofsdp.ReduceProdGrad(dy, x): dy times the product of the other elements, which is exact where
// elements are 0. dy has a 1 for each axis that was reduced.
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) { return std::vector{c.inputs[1]}; }

std::vector<RefTensor> reference(const ReferenceContext& c) {
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
Acceptance accepts(const Problem& p) {
  return accept_if(p.all_dtype(dtype_of<T>()) && p.all_plain(), "not plain, or another dtype");
}

// First the product of the elements before each one, in dx; then times that of the elements after.
template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
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

void add_reduce_prod_grad(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "ReduceProdGrad",
                .min_inputs = 2,
                .infer = infer,
                .reference = reference,
                .cpu = {{"loops", accepts<float>, create<float>},
                        in_float32<accepts<float>, create<float>>(),
                        {"float64", accepts<double>, create<double>}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
