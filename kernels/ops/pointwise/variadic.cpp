// Operators that fold any number of inputs that broadcast to each other, from the first to the
// last: Sum, Mean, Max and Min (NaN if one input is).
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// Gradients, each summed over what was broadcast: of Sum dy, of Mean dy / n, of Max and Min dy
// where x is y. 16-bit floats are folded in float32 and rounded once.
#include <cmath>
#include <numeric>

#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace variadic {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  TensorDesc y = c.inputs[0];
  for (const TensorDesc& x : c.inputs) {
    if (x.dtype != y.dtype) {
      return input_error("expected inputs of one type, found {} and {}", y.text(), x.text());
    }
    OFSDP_ASSIGN_OR_RETURN(y.shape, broadcast(y.shape, x.shape));
  }
  y.layout = Layout::kPlain;
  for (const TensorDesc& x : c.inputs) {
    if (x.shape == y.shape) y.layout = x.layout;
  }
  return std::vector{std::move(y)};
}

// dx = dy where x is y, shared evenly among the inputs that are, as in PyTorch.
void grad_of_chosen(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (b.num_inputs() == 1) return b.set_grad(0, dy);
  const Ref zero = b.like(dy, 0), one = b.like(dy, 1);
  std::vector<Ref> hits;
  Ref count;
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    hits.push_back(b.emit1("Equal", {b.input(i), b.output(0)}));
    const Ref here = b.where(hits[i], one, zero);
    count = i == 0 ? here : b.add(count, here);
  }
  const Ref share = b.div(dy, count);
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (!b.needs_grad(i)) continue;
    b.set_grad(i, b.sum_to(b.where(hits[i], share, zero), b.input(i)));
  }
}

// --- kernels: y = f(f(x0, x1), x2) ..., one pass over y an input; y may be input 0 or 1 ---

class FoldKernel final : public Kernel {
 public:
  // `finish`, of one operand and the number of inputs, is applied to the result once more.
  FoldKernel(const Problem& p, RowLoop join, RowLoop finish)
      : join_(join),
        finish_(finish),
        n_(p.out(0).numel()),
        bytes_(static_cast<int64_t>(dtype_size(p.out(0).dtype))) {
    const TensorDesc& y = p.out(0);
    for (size_t i = 1; i < p.inputs.size(); ++i) {
      const auto left = i == 1 ? broadcast_strides(p.in(0), y.shape) : strides_of(y);
      loops_.push_back({y.shape, {left, broadcast_strides(p.in(i), y.shape), strides_of(y)}});
    }
  }

  Status run(const KernelArgs& a) override {
    auto* y = a.out<std::byte>(0);
    if (loops_.empty() && a.in<std::byte>(0) != y) std::copy_n(a.in<std::byte>(0), n_ * bytes_, y);
    for (size_t k = 0; k < loops_.size(); ++k) {
      const StridedLoop& loop = loops_[k];
      const std::byte* left = k == 0 ? a.in<std::byte>(0) : y;
      for_loop_rows(loop, [&](const StridedLoop::Offsets& at, int64_t n) {
        join_({left + at[0] * bytes_, loop.inner_stride(0), a.in<std::byte>(k + 1) + at[1] * bytes_,
               loop.inner_stride(1), y + at[2] * bytes_, n},
              {});
      });
    }
    if (finish_ == nullptr) return ok_status();
    const Numbers count{static_cast<float>(loops_.size() + 1)};
    parallel_for(n_, kElementGrain, [&](int64_t begin, int64_t end) {
      std::byte* at = y + begin * bytes_;
      finish_({at, 1, nullptr, 0, at, end - begin}, count);
    });
    return ok_status();
  }

 private:
  std::vector<StridedLoop> loops_;  // loop k joins y (input 0 in the first) and input k + 1
  RowLoop join_, finish_;
  int64_t n_, bytes_;
};

OpDef fold(OpDef op, const PointwiseLoops& join, const PointwiseLoops& finish = {}) {
  TypeSet types = 0;
  for (size_t i = 0; i < join.of.size(); ++i) types |= TypeSet{join.of[i] != nullptr} << i;
  const auto accepts = [join](const Problem& p) {
    if (join[p.in(0).dtype] == nullptr) return Acceptance::refuse("no loop for this dtype");
    if (!p.all_dtype(p.in(0).dtype)) return Acceptance::refuse("inputs of two dtypes");
    return accept_if(p.inputs.size() > 1 || p.in(0).layout == p.out(0).layout,
                     "input and output of two layouts");
  };
  const auto create = [join, finish](const Problem& p) -> std::unique_ptr<Kernel> {
    return std::make_unique<FoldKernel>(p, join[p.in(0).dtype], finish[p.in(0).dtype]);
  };
  const Implementation loops{"loops", accepts, create};
  op.first_opset = 13;
  op.infer = infer;
  op.cpu = {loops, in_float32(loops)};
  op.inplace_inputs = {0, 1};
  op.layout = LayoutRule::kElementwise;
  return op;
}

// --- references ---

template <auto f>  // of the values of all inputs at one element
std::vector<RefTensor> of_all(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    std::vector<double> values;
    for (const RefTensor& x : c.inputs) {
      values.push_back(x.values[ravel_broadcast(x.desc.shape, index)]);
    }
    y.values.push_back(f(values));
  }
  return {y};
}

double total(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

double mean(const std::vector<double>& x) { return total(x) / static_cast<double>(x.size()); }

double largest(const std::vector<double>& x) {
  double y = x[0];
  for (double v : x) y = std::isnan(v) || v > y ? v : y;
  return y;
}

double smallest(const std::vector<double>& x) {
  double y = x[0];
  for (double v : x) y = std::isnan(v) || v < y ? v : y;
  return y;
}

void sum_grad(GradBuilder& b) {
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(b.grad_output(0), b.input(i)));
  }
}

void mean_grad(GradBuilder& b) {
  const Ref part = b.mul(b.grad_output(0), 1.0 / static_cast<double>(b.num_inputs()));
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(part, b.input(i)));
  }
}

std::vector<OpDef> operators() {
  const PointwiseLoops add = chain_loops(ChainOp::kAdd);
  return {fold({.name = "Sum", .grad = sum_grad, .reference = of_all<total>}, add),
          fold({.name = "Mean", .grad = mean_grad, .reference = of_all<mean>}, add,
               unary_loops<OFSDP_X(x / k.a)>()),
          fold({.name = "Max", .grad = grad_of_chosen, .reference = of_all<largest>},
               binary_loops<OFSDP_AB(a > b || a != a ? a : b), kNumberTypes>()),
          fold({.name = "Min", .grad = grad_of_chosen, .reference = of_all<smallest>},
               binary_loops<OFSDP_AB(a < b || a != a ? a : b), kNumberTypes>())};
}

}  // namespace variadic

void add_variadic(Registry& registry) {
  using namespace variadic;
  for (OpDef& op : operators()) registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
