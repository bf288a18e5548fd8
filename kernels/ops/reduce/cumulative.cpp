// CumSum(x, axis) and CumProd(x, axis): running results along an axis, known while planning.
// Attributes exclusive (leaves the element itself out; the first result is the neutral element) and
// reverse (from the end). CumSum's gradient is the CumSum of dy in the other direction.
// https://onnx.ai/onnx/operators/onnx__CumSum.html
//
// ofsdp.CumProdGrad(dy, x, axis): dx_i = p_i s_i, with p_i the product of the elements before i and
// s_i = dy_i + x_(i+1) s_(i+1); if exclusive, s_i = dy_(i+1) + x_(i+1) s_(i+1). Nothing is divided,
// so it is exact if elements are 0.
#include "kernels/core/element_types.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace cumulation {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto axis, known_ints(c, 1, "axis"));
  if (axis.size() != 1) return input_error("expected one axis, found {}", axis.size());
  OFSDP_RETURN_IF_ERROR(normalize_axis(axis[0], c.inputs[0].shape.rank()).status());
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

Acceptance accepts(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept_if(p.all_plain() && is_number(dtype) && dtype != DType::kBool,
                   "not plain, or a type without a loop");
}

struct Cumulation {
  Lines lines;
  bool exclusive, reverse;

  // Returns which element step k adds; the result goes to the same index.
  int64_t place(int64_t k) const { return reverse ? lines.n - 1 - k : k; }
};
Cumulation cumulation(const Attributes& attributes, const Shape& shape, int64_t axis) {
  return {lines_along(shape, axis), attributes.i("exclusive", 0) != 0,
          attributes.i("reverse", 0) != 0};
}

std::vector<RefTensor> cumulative_reference(const ReferenceContext& c, double neutral,
                                            const auto& combine) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const auto axis = static_cast<int64_t>(c.inputs[1].values[0]);
  const Cumulation r = cumulation(c.attributes, y.desc.shape, axis);
  for (int64_t line = 0; line < r.lines.count(); ++line) {
    double running = neutral;
    for (int64_t k = 0; k < r.lines.n; ++k) {
      double& v = y[r.lines.at(line / r.lines.inner, r.place(k), line % r.lines.inner)];
      const double next = combine(running, v);
      v = r.exclusive ? running : next;
      running = next;
    }
  }
  return {y};
}

template <typename T, typename F>
[[gnu::always_inline]] inline void cumulate_line(const Cumulation& r, const T* x, T* y, T running,
                                                 const F& combine) {
  for (int64_t k = 0; k < r.lines.n; ++k) {
    const int64_t at = r.place(k) * r.lines.inner;
    const T next = wrapping(running, x[at], combine);
    y[at] = r.exclusive ? running : next;
    running = next;
  }
}

// Cumulates neighbouring lines side by side.
template <typename T, typename F>
[[gnu::always_inline]] inline void cumulate_block(const Cumulation& r, const T* x, T* y,
                                                  int64_t count, T neutral, const F& combine) {
  T running[kLineBlock];
  std::fill_n(running, count, neutral);
  for (int64_t k = 0; k < r.lines.n; ++k) {
    const T* from = x + r.place(k) * r.lines.inner;
    T* to = y + r.place(k) * r.lines.inner;
    for (int64_t j = 0; j < count; ++j) {
      const T next = wrapping(running[j], from[j], combine);
      to[j] = r.exclusive ? running[j] : next;
      running[j] = next;
    }
  }
}

using Block = void (*)(const Cumulation& r, const std::byte* x, std::byte* y, int64_t count);

template <typename T, typename Combine, int neutral>
void cumulate(const Cumulation& r, const std::byte* from, std::byte* to, int64_t count) {
  const T* x = reinterpret_cast<const T*>(from);
  T* y = reinterpret_cast<T*>(to);
  if (count == 1) {
    cumulate_line(r, x, y, T{neutral}, Combine{});
  } else {
    cumulate_block(r, x, y, count, T{neutral}, Combine{});
  }
}

template <typename Combine, int neutral>
std::unique_ptr<Kernel> create(const Problem& p) {
  const int64_t axis = (*int_values(*p.constant(1)))[0];
  const DType dtype = p.in(0).dtype;
  const Block block = with_number(dtype, []<typename T>(T) -> Block {
    if constexpr (std::is_same_v<T, bool>)
      return nullptr;  // not accepted
    else if constexpr (std::is_floating_point_v<T>)
      return cumulate<T, Combine, neutral>;
    // Integers wrap, so signed and unsigned ones give the same bits.
    else
      return cumulate<std::make_unsigned_t<T>, Combine, neutral>;
  });
  const auto bytes = static_cast<int64_t>(dtype_size(dtype));
  return make_kernel(
      [r = cumulation(p.attributes, p.in(0).shape, axis), block, bytes](const KernelArgs& a) {
        for_line_blocks(r.lines, [&](int64_t o, int64_t begin, int64_t end) {
          const int64_t at = r.lines.at(o, 0, begin) * bytes;
          block(r, a.in<std::byte>(0) + at, a.out<std::byte>(0) + at, end - begin);
        });
      });
}

void sum_grad(GradBuilder& b) {
  const int64_t reverse = b.attributes().i("reverse", 0) != 0 ? 0 : 1;
  b.set_grad(0, b.emit1("CumSum", {b.grad_output(0), b.input(1)},
                        {{"exclusive", b.attributes().i("exclusive", 0)}, {"reverse", reverse}}));
}

// --- CumProdGrad ---

void prod_grad(GradBuilder& b) {
  b.set_grad(
      0, b.emit1("ofsdp.CumProdGrad", {b.grad_output(0), b.input(0), b.input(1)}, b.attributes()));
}

// The definition: the sum of dy_j times all elements in y_j except i.
std::vector<RefTensor> prod_grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  const RefTensor &dy = c.inputs[0], &x = c.inputs[1];
  const Cumulation r =
      cumulation(c.attributes, x.desc.shape, static_cast<int64_t>(c.inputs[2].values[0]));
  for (int64_t at = 0; at < r.lines.count() * r.lines.n; ++at) {
    const int64_t line = at / r.lines.n, i = at % r.lines.n;
    const auto place = [&](int64_t k) {
      return r.lines.at(line / r.lines.inner, r.place(k), line % r.lines.inner);
    };
    for (int64_t j = i + (r.exclusive ? 1 : 0); j < r.lines.n; ++j) {
      double product = dy[place(j)];
      for (int64_t k = 0; k < j + (r.exclusive ? 0 : 1); ++k) product *= k == i ? 1 : x[place(k)];
      dx[place(i)] += product;
    }
  }
  return {dx};
}

template <typename T>
void prod_grad_line(const Cumulation& r, const T* dy, const T* x, T* dx) {
  double before = 1, after = 0;
  for (int64_t k = 0; k < r.lines.n; ++k) {
    const int64_t at = r.place(k) * r.lines.inner;
    dx[at] = static_cast<T>(before);
    before *= static_cast<double>(x[at]);
  }
  for (int64_t k = r.lines.n; k-- > 0;) {
    const int64_t at = r.place(k) * r.lines.inner;
    const double sum = r.exclusive ? after : static_cast<double>(dy[at]) + after;
    dx[at] = static_cast<T>(static_cast<double>(dx[at]) * sum);
    after = static_cast<double>(x[at]) * sum + (r.exclusive ? static_cast<double>(dy[at]) : 0.0);
  }
}

template <typename T>
std::unique_ptr<Kernel> create_prod_grad(const Problem& p) {
  const int64_t axis = (*int_values(*p.constant(2)))[0];
  return make_kernel([r = cumulation(p.attributes, p.in(1).shape, axis)](const KernelArgs& a) {
    for_line_blocks(r.lines, [&](int64_t o, int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const int64_t at = r.lines.at(o, 0, j);
        prod_grad_line(r, a.in<T>(0) + at, a.in<T>(1) + at, a.out<T>(0) + at);
      }
    });
  });
}

template <typename Combine, int neutral>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  return cumulative_reference(c, neutral, Combine{});
}

template <typename Combine, int neutral>
OpDef cumulative(const char* name, int first_opset, const GradFn& grad) {
  constexpr auto make = create<Combine, neutral>;
  return {.name = name,
          .min_inputs = 2,
          .first_opset = first_opset,
          .infer = infer,
          .grad = grad,
          .reference = reference<Combine, neutral>,
          .cpu = with_half_floats<accepts, make>("lines"),
          .inplace_inputs = {0},
          .constant_inputs = {1}};
}

}  // namespace
}  // namespace cumulation

void add_cumulative(Registry& registry) {
  using namespace cumulation;
  registry.add(cumulative<std::plus<>, 0>("CumSum", 11, sum_grad));
  registry.add(cumulative<std::multiplies<>, 1>("CumProd", 26, prod_grad));
  registry.add_own(
      make_op("CumProdGrad", {infer_like_inputs({1}), nullptr, prod_grad_reference},
              float_kernels<accepts_plain_first_of<float>, create_prod_grad<float>,
                            accepts_plain_first_of<double>, create_prod_grad<double>>("lines"),
              {.min_inputs = 3, .constant_inputs = {2}}));
}

}  // namespace ofsdp::kernels::ops
