// ofsdp.SumTo(dy), attribute shape: sums dy over the axes along which `shape` was broadcast:
// leading axes that `shape` lacks, and axes that are 1 in it. This is the gradient of broadcasting,
// and so of every bias. SumTo's gradient is the broadcast. The additions have the same order for
// any thread count (kernels/cpu/reduce.h).
//
// ofsdp.ReduceProdGrad(dy, x): dy times the product of the other elements, exact even if elements
// are 0. dy has a 1 for each axis that was reduced.
#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace sum_to {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape to(c.attributes.ints("shape"));
  OFSDP_ASSIGN_OR_RETURN(const Shape both, broadcast(to, c.inputs[0].shape));
  if (both != c.inputs[0].shape) {
    return input_error("expected a shape that broadcasts to {}, found {}", c.inputs[0].shape.text(),
                       to.text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, to}};
}

void grad(GradBuilder& b) {
  const Ref shape = b.ints(b.desc(b.input(0)).shape.axes());
  b.set_grad(0, b.emit1("Expand", {b.grad_output(0), shape}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& dy = c.inputs[0];
  RefTensor sum = zeros(c.output_descs[0]);
  for (size_t i = 0; i < dy.values.size(); ++i) {
    const auto index = unravel(dy.desc.shape, static_cast<int64_t>(i));
    sum.values[ravel_broadcast(sum.desc.shape, index)] += dy.values[i];
  }
  return {sum};
}

Acceptance accepts(const Problem& p) {
  return accept_if(is_32_or_16_bit_float(p.in(0).dtype) && p.all_plain(),
                   "not plain float32 or less");
}

// Returns whether each axis of dy is summed.
std::vector<bool> summed(const Problem& p) {
  const Shape& from = p.in(0).shape;
  const Shape& to = p.out(0).shape;
  std::vector<bool> reduced(static_cast<size_t>(from.rank()), true);
  for (int axis = 0; axis < to.rank(); ++axis) {
    const int at = from.rank() - to.rank() + axis;
    if (to[axis] == from[at]) reduced[static_cast<size_t>(at)] = false;
  }
  return reduced;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Reduction sum(p.in(0).shape, summed(p), ReduceKind::kSum);
  return with_stored_float(p.in(0).dtype, [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([sum](const KernelArgs& a) { sum.run(a.in<T>(0), a.out<T>(0)); });
  });
}

Acceptance accepts_numbers(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept_if(p.all_plain() && (dtype == DType::kFloat64 || is_integer(dtype)),
                   "not plain, or a type without a loop");
}

std::unique_ptr<Kernel> create_numbers(const Problem& p) {
  return create_fold(wrapping_fold_of<SumFold>(p.in(0).dtype), p.in(0).dtype, p.in(0).shape,
                     summed(p));
}

void sum_to_body(BodyBuilder& b) {
  const Shape& from = b.desc(b.input(0)).shape;
  const Shape& to = b.output_desc(0).shape;
  const int lead = from.rank() - to.rank();
  std::vector<int64_t> axes;
  for (int axis = 0; axis < from.rank(); ++axis) {
    if (axis < lead || (to[axis - lead] == 1 && from[axis] != 1)) axes.push_back(axis);
  }
  b.set_output(0, b.reshape(b.sum(b.input(0), axes), to));
}

std::vector<RefTensor> product_reference(const ReferenceContext& c) {
  const Shape& shape = c.inputs[1].desc.shape;
  const Shape& kept = c.inputs[0].desc.shape;
  RefTensor dx{c.output_descs[0], {}};
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const size_t at = ravel_broadcast(kept, unravel(shape, i));
    double product = c.inputs[0].values[at];
    for (int64_t k = 0; k < shape.numel(); ++k) {
      if (k != i && ravel_broadcast(kept, unravel(shape, k)) == at) product *= c.inputs[1][k];
    }
    dx.values.push_back(product);
  }
  return {dx};
}

template <typename T>
Acceptance product_accepts(const Problem& p) {
  return accept_if(p.all_dtype(dtype_of<T>()) && p.all_plain(), "not plain, or another dtype");
}

// First writes the product of all earlier elements to dx, then multiplies by all later ones.
template <typename T>
std::unique_ptr<Kernel> product_create(const Problem& p) {
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
  });
}

}  // namespace
}  // namespace sum_to

void add_sum_to(Registry& registry) {
  using namespace sum_to;
  registry.add_own(
      make_op("SumTo", {infer, grad, reference},
              {{"blocks", accepts, create}, {"loops", accepts_numbers, create_numbers}},
              {.body = sum_to_body}));
  registry.add_own(make_op("ReduceProdGrad", {infer_like_inputs({1}), nullptr, product_reference},
                           {{"loops", product_accepts<float>, product_create<float>},
                            in_float32<product_accepts<float>, product_create<float>>(),
                            {"float64", product_accepts<double>, product_create<double>}},
                           {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
