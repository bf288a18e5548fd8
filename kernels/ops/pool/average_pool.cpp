// AveragePool: y[n, c, o] = sum of x[n, c, o s - p + k d] over the taps k, divided by how many taps
// are inside x, with strides s, pads p and dilations d. With count_include_pad, taps in the padding
// count too (taps that ceil_mode puts past the padding never do). Positions outside x are 0; a
// window without any tap gives 0.
//
// The gradient is ofsdp.AveragePoolGrad(dy), attributes: the window's and x_shape. dx[i] = sum of
// dy[o] / count[o] over the outputs o that read i; output rows are added in order.
// https://onnx.ai/onnx/operators/onnx__AveragePool.html
//
// GlobalAveragePool: [N, C, spatial...] -> [N, C, 1...], the mean over the spatial axes. dx = dy /
// n for each of a mean's n elements.
// https://onnx.ai/onnx/operators/onnx__GlobalAveragePool.html

#include <cmath>

#include "kernels/base/budgets.h"
#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pool/pool_shape.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace average_pool {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Window w, infer_pool(c.attributes, c.inputs[0].shape));
  return std::vector{TensorDesc{c.inputs[0].dtype, pool_output(w, c.inputs[0].shape)}};
}

void grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  Attributes made = pool_attributes(b.attributes(), known_pool(b.attributes(), x), x);
  made.set("count_include_pad", b.attributes().i("count_include_pad", 0));
  b.set_grad(0, b.emit1("ofsdp.AveragePoolGrad", {b.grad_output(0)}, made));
}

// Returns 1 / count for every output position; reads attribute count_include_pad.
std::vector<double> average_scales(const Attributes& attributes, const Window& w) {
  const bool padding = attributes.i("count_include_pad", 0) != 0;
  const auto counted = [&](size_t axis, int64_t o) {
    const int64_t start = w.position(axis, o, 0), dilation = w.dilations[axis];
    // Returns the first tap at `place` or after it.
    const auto tap_at = [&](int64_t place) {
      const int64_t way = std::max<int64_t>(place - start, 0);
      return std::min((way + dilation - 1) / dilation, w.kernel[axis]);
    };
    const int64_t first = padding ? -w.pads_begin[axis] : 0;
    return tap_at(w.in[axis] + (padding ? w.pads_end[axis] : 0)) - tap_at(first);
  };
  std::vector<double> made;
  for (int64_t o = 0; o < w.out_size(); ++o) {
    const int64_t count = counted(0, o / (w.out[1] * w.out[2])) *
                          counted(1, o / w.out[2] % w.out[1]) * counted(2, o % w.out[2]);
    made.push_back(count == 0 ? 0 : 1 / static_cast<double>(count));
  }
  return made;
}

// Calls f(index in x, index in y, scale) for every product in the sum.
void for_each_term(const Attributes& attributes, const Shape& x, const auto& f) {
  const Window w = known_pool(attributes, x);
  const std::vector<double> scale = average_scales(attributes, w);
  for (int64_t plane = 0; plane < x.numel(0, 2); ++plane) {
    for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
      f(static_cast<size_t>(plane * w.in_size() + in),
        static_cast<size_t>(plane * w.out_size() + out), scale[static_cast<size_t>(out)]);
    });
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  for_each_term(c.attributes, c.inputs[0].desc.shape, [&](size_t in, size_t out, double s) {
    y.values[out] += s * c.inputs[0].values[in];
  });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  for_each_term(c.attributes, dx.desc.shape, [&](size_t in, size_t out, double s) {
    dx.values[in] += s * c.inputs[0].values[out];
  });
  return {dx};
}

template <typename T, bool backward = false>
Acceptance accepts(const Problem& p) {
  if (!p.all_dtype(dtype_of<T>())) return Acceptance::refuse(not_of_type<T>());
  const Shape& y = backward ? p.in(0).shape : p.out(0).shape;
  if (y.numel(2, y.rank()) > kMaxTableEntries) {
    return Acceptance::refuse("more windows than a table of their scales may have");
  }
  return accept_if(p.in(0).layout == p.out(0).layout, "input and output of two layouts");
}

// --- kernels: x and y both plain or both channels last ---

template <typename T>
OFSDP_MULTIARCH void gather_span(const T* x, int64_t step, T* y, int64_t n) {
  if (step == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] += x[i];
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] += x[i * step];
  }
}

template <typename T>
OFSDP_MULTIARCH void scatter_span(const T* dy, const T* scale, int64_t step, T* dx, int64_t n) {
  if (step == 0) {  // channels last: one scale
    const T s = *scale;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i] += dy[i] * s;
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i * step] += dy[i] * scale[i];
  }
}

// Both directions use the same spans: neighbouring outputs for one tap (positions in a row if
// plain, channels at a position if channels last).
template <typename T>
class Average {
 public:
  Average(const Problem& p, const TensorDesc& x)
      : window_(known_pool(p.attributes, x.shape)),
        last_(x.layout == Layout::kChannelsLast),
        channels_(last_ ? x.shape[1] : 1),
        items_(last_ ? x.shape[0] : x.shape.numel(0, 2)) {
    for (double s : average_scales(p.attributes, window_)) scales_.push_back(static_cast<T>(s));
  }

  void forward(const T* x, T* y) const {
    const int64_t rows = window_.out[0] * window_.out[1];
    parallel_each(items_ * rows, 1, [&](int64_t i) {
      const T* src = x + i / rows * window_.in_size() * channels_;
      T* dst = y + i * window_.out[2] * channels_;
      std::fill_n(dst, window_.out[2] * channels_, T{0});
      for_spans(i % rows, [&](int64_t in, int64_t out, int64_t n) {
        gather_span(src + in * channels_, last_ ? 1 : window_.strides[2], dst + out * channels_, n);
      });
      const T* scale = scales_.data() + i % rows * window_.out[2];
      for (int64_t k = 0; k < window_.out[2] * channels_; ++k) dst[k] *= scale[k / channels_];
    });
  }

  void backward(const T* dy, T* dx) const {
    const int64_t rows = window_.out[0] * window_.out[1];
    parallel_each(items_, 1, [&](int64_t i) {
      T* dst = dx + i * window_.in_size() * channels_;
      std::fill_n(dst, window_.in_size() * channels_, T{0});
      for (int64_t row = 0; row < rows; ++row) {
        const T* src = dy + (i * rows + row) * window_.out[2] * channels_;
        const T* scale = scales_.data() + row * window_.out[2];
        for_spans(row, [&](int64_t in, int64_t out, int64_t n) {
          scatter_span(src + out * channels_, scale + out, last_ ? 0 : window_.strides[2],
                       dst + in * channels_, n);
        });
      }
    });
  }

 private:
  // Calls f(position in x, index in the output row, elements) for every tap in a row of outputs.
  void for_spans(int64_t row, const auto& f) const {
    const Window& w = window_;
    const auto depths = tap_range(w, 0, row / w.out[1]);
    const auto heights = tap_range(w, 1, row % w.out[1]);
    for (int64_t d = depths.first; d < depths.second; ++d) {
      for (int64_t h = heights.first; h < heights.second; ++h) {
        const int64_t at = w.position(0, row / w.out[1], d) * w.in[1];
        for_columns((at + w.position(1, row % w.out[1], h)) * w.in[2], f);
      }
    }
  }

  void for_columns(int64_t in_row, const auto& f) const {
    const Window& w = window_;
    for (int64_t v = 0; last_ && v < w.out[2]; ++v) {
      const auto [begin, end] = tap_range(w, 2, v);
      for (int64_t k = begin; k < end; ++k) f(in_row + w.position(2, v, k), v, channels_);
    }
    for (int64_t k = 0; !last_ && k < w.kernel[2]; ++k) {
      const int64_t first = w.position(2, 0, k), stride = w.strides[2];
      const int64_t begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
      const int64_t room = w.in[2] - first;
      const int64_t end = std::min(w.out[2], room > 0 ? (room + stride - 1) / stride : 0);
      if (begin < end) f(in_row + w.position(2, begin, k), begin, end - begin);
    }
  }

  Window window_;
  bool last_;
  int64_t channels_;  // adjacent channels: 1 if plain
  int64_t items_;     // images if channels last, else planes
  std::vector<T> scales_;
};

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([average = Average<T>(p, p.in(0))](const KernelArgs& a) {
    return average.forward(a.in<T>(0), a.out<T>(0));
  });
}

template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([average = Average<T>(p, p.out(0))](const KernelArgs& a) {
    return average.backward(a.in<T>(0), a.out<T>(0));
  });
}

// Spreads dy / count over the windows by a transposed convolution with ones; cuts the padding off.
void average_pool_grad_body(BodyBuilder& b) {
  const Shape& x = b.output_desc(0).shape;
  const Window w = known_pool(b.attributes(), x);
  const Ref dy = b.input(0);
  std::vector<int64_t> scales{1, 1}, ones{x[1], 1}, rest;
  for (size_t axis = 3 - static_cast<size_t>(w.axes); axis < 3; ++axis) {
    scales.push_back(w.out[axis]);
    ones.push_back(w.kernel[axis]);
    const int64_t reached = w.position(axis, w.out[axis] - 1, w.kernel[axis] - 1) + 1;
    rest.push_back(std::max<int64_t>(w.in[axis] - reached, 0));
  }
  Constant made{{b.desc(dy).dtype, Shape(scales)}, {}};
  made.bytes.resize(made.desc.bytes());
  from_doubles(average_scales(b.attributes(), w), made.desc, made.bytes.data());
  const Ref each = b.mul(dy, b.constant(std::make_shared<const Constant>(std::move(made))));
  Ref dx = b.emit1("ConvTranspose", {each, b.emit1("Expand", {b.like(dy, 1), b.ints(ones)})},
                   {{"group", x[1]},
                    {"strides", w.used(w.strides)},
                    {"dilations", w.used(w.dilations)},
                    {"kernel_shape", w.used(w.kernel)},
                    {"output_padding", rest}});
  for (int axis = 0; axis < w.axes; ++axis) {
    const auto at = static_cast<size_t>(3 - w.axes + axis);
    dx = b.slice(dx, 2 + axis, w.pads_begin[at], w.pads_begin[at] + w.in[at]);
  }
  b.set_output(0, dx);
}

// --- GlobalAveragePool ---

int64_t spatial_size(const Shape& x) { return x.numel(2, x.rank()); }

Result<std::vector<TensorDesc>> global_infer(const InferContext& c) {
  TensorDesc y{c.inputs[0].dtype, c.inputs[0].shape};
  if (y.shape.rank() < 3 || spatial_size(y.shape) == 0) {
    return input_error("expected [N, C, spatial...], found {}", y.text());
  }
  for (int axis = 2; axis < y.shape.rank(); ++axis) y.shape[axis] = 1;
  return std::vector{y};
}

void global_grad(GradBuilder& b) {
  const TensorDesc& x = b.desc(b.input(0));
  const Ref scale = b.scalar(x.dtype, 1.0 / static_cast<double>(spatial_size(x.shape)));
  const Ref shape = b.ints(x.shape.axes());
  b.set_grad(0, b.emit1("Expand", {b.emit1("Mul", {b.grad_output(0), scale}), shape}));
}

std::vector<RefTensor> global_reference(const ReferenceContext& c) {
  const int64_t size = spatial_size(c.inputs[0].desc.shape);
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    double sum = 0;
    for (int64_t k = 0; k < size; ++k) sum += c.inputs[0][i * size + k];
    y.values.push_back(sum / static_cast<double>(size));
  }
  return {y};
}

Acceptance global_accepts(const Problem& p) {
  return accept_if(p.all_dtype(DType::kFloat32), not_of_type<float>());
}

// y has the same bytes in both layouts; x is [N, C, n] or [N, n, C].
std::unique_ptr<Kernel> global_create(const Problem& p) {
  const Shape& x = p.in(0).shape;
  const int64_t size = spatial_size(x);
  const bool last = p.in(0).layout == Layout::kChannelsLast;
  const Reduction sum(last ? Shape{x[0], size, x[1]} : Shape{x[0], x[1], size},
                      {false, last, !last}, ReduceKind::kSum);
  return make_kernel([sum, scale = 1.0f / static_cast<float>(size)](const KernelArgs& a) {
    sum.run(a.in<float>(0), a.out<float>(0), scale);
  });
}

}  // namespace average_pool

void add_average_pool(Registry& registry) {
  using namespace average_pool;
  registry.add(make_op("AveragePool", {infer, grad, reference},
                       {{"loops", accepts<float>, create<float>},
                        {"float64", accepts<double>, create<double>},
                        in_float32<accepts<float>, create<float>>()},
                       channels_last({0}, {0})));
  registry.add_own(make_op("AveragePoolGrad", {infer_shape_of("x_shape"), nullptr, grad_reference},
                           {{"loops", accepts<float, true>, create_grad<float>},
                            {"float64", accepts<double, true>, create_grad<double>},
                            in_float32<accepts<float, true>, create_grad<float>>()},
                           channels_last({0}, {0}, {.body = average_pool_grad_body})));
  registry.add(make_op("GlobalAveragePool", {global_infer, global_grad, global_reference},
                       with_half_floats<global_accepts, global_create>("blocks"),
                       channels_last({0}, {})));
}

// LpPool: y[n, c, o] = (sum of |x[n, c, o s - p + k d]|^p over the taps k inside x)^(1/p), p = 2
// unless given. ofsdp.LpPoolGrad(dy, x, y): dx = sum of dy sign(x) |x|^(p-1) y^(1-p) over the
// outputs that read x; 0 if y is 0.
// https://onnx.ai/onnx/operators/onnx__LpPool.html
//
// GlobalLpPool: [N, C, spatial...] -> [N, C, 1...], (sum of |x|^p)^(1/p) over the spatial axes:
// LpPool with one window that covers x.
// https://onnx.ai/onnx/operators/onnx__GlobalLpPool.html
//
// The kernels are plain loops over the window.

namespace lp_pool {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Window w, infer_pool(c.attributes, c.inputs[0].shape));
  if (c.attributes.i("p", 2) < 1) {
    return input_error("p: expected 1 or more, found {}", c.attributes.i("p", 2));
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, pool_output(w, c.inputs[0].shape)}};
}

// Returns the window's attributes and p: LpPool's, or one window that covers x.
using WindowOf = Attributes (*)(const Attributes& attributes, const Shape& x);
Attributes given_window(const Attributes& attributes, const Shape&) { return attributes; }
Attributes covering_window(const Attributes& attributes, const Shape& x) {
  Attributes made = global_window(x);
  made.set("p", attributes.i("p", 2));
  return made;
}

template <WindowOf window_of>
void grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  const Attributes attributes = window_of(b.attributes(), x);
  Attributes made = pool_attributes(attributes, known_pool(attributes, x), x);
  made.set("p", attributes.i("p", 2));
  b.set_grad(0, b.emit1("ofsdp.LpPoolGrad", {b.grad_output(0), b.input(0), b.output(0)}, made));
}

template <WindowOf window_of>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  const Attributes attributes = window_of(c.attributes, x.desc.shape);
  const Window w = known_pool(attributes, x.desc.shape);
  const auto p = static_cast<double>(attributes.i("p", 2));
  RefTensor y = zeros(c.output_descs[0]);
  for (int64_t plane = 0; plane < x.desc.shape.numel(0, 2); ++plane) {
    for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
      y[plane * w.out_size() + out] += std::pow(std::abs(x[plane * w.in_size() + in]), p);
    });
  }
  for (double& v : y.values) v = std::pow(v, 1 / p);
  return {y};
}

// Returns dy/dx for one tap's x.
template <typename T>
T slope(T x, T y, int64_t p) {
  if (y == 0 || x == 0) return 0;
  const T size = std::pow(std::abs(x) / y, static_cast<T>(p - 1));
  return x < 0 ? -size : size;
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const RefTensor &dy = c.inputs[0], &x = c.inputs[1], &y = c.inputs[2];
  const Window w = known_pool(c.attributes, x.desc.shape);
  const auto p = static_cast<double>(c.attributes.i("p", 2));
  RefTensor dx{c.output_descs[0], std::vector<double>(x.values.size())};
  for (int64_t plane = 0; plane < x.desc.shape.numel(0, 2); ++plane) {
    for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
      const auto i = static_cast<size_t>(plane * w.in_size() + in);
      const auto o = static_cast<size_t>(plane * w.out_size() + out);
      if (x.values[i] == 0 || y.values[o] == 0) return;
      dx.values[i] += dy.values[o] * std::copysign(std::pow(std::abs(x.values[i]), p - 1) *
                                                       std::pow(y.values[o], 1 - p),
                                                   x.values[i]);
    });
  }
  return {dx};
}

template <typename T>
T power(T x, int64_t p) {
  return p == 2 ? x * x : p == 1 ? std::abs(x) : std::pow(std::abs(x), static_cast<T>(p));
}

template <typename T>
T root(T sum, int64_t p) {
  return p == 2 ? std::sqrt(sum) : p == 1 ? sum : std::pow(sum, 1 / static_cast<T>(p));
}

// Calls f(plane) for all planes, in parallel.
void for_planes(int64_t planes, const auto& f) {
  parallel_each(planes, 1, [&](int64_t i) { f(i); });
}

template <typename T>
std::unique_ptr<Kernel> make_forward(const Window& w, int64_t planes, int64_t p) {
  return make_kernel([=](const KernelArgs& a) {
    for_planes(planes, [&](int64_t plane) {
      const T* x = a.in<T>(0) + plane * w.in_size();
      T* y = a.out<T>(0) + plane * w.out_size();
      std::fill_n(y, w.out_size(), T{0});
      for_each_tap(w, [&](int64_t out, int64_t, int64_t in) { y[out] += power(x[in], p); });
      for (int64_t i = 0; i < w.out_size(); ++i) y[i] = root(y[i], p);
    });
  });
}

template <typename T>
std::unique_ptr<Kernel> create_grad_of(const Problem& problem) {
  const Window w = known_pool(problem.attributes, problem.in(1).shape);
  return make_kernel([w, p = problem.attributes.i("p", 2),
                      planes = problem.in(1).shape.numel(0, 2)](const KernelArgs& a) {
    for_planes(planes, [&](int64_t plane) {
      const T* dy = a.in<T>(0) + plane * w.out_size();
      const T* x = a.in<T>(1) + plane * w.in_size();
      const T* y = a.in<T>(2) + plane * w.out_size();
      T* dx = a.out<T>(0) + plane * w.in_size();
      std::fill_n(dx, w.in_size(), T{0});
      for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
        dx[in] += dy[out] * slope(x[in], y[out], p);
      });
    });
  });
}

template <WindowOf window_of>
std::unique_ptr<Kernel> create(const Problem& problem) {
  const Shape& x = problem.in(0).shape;
  const Attributes attributes = window_of(problem.attributes, x);
  const Window w = known_pool(attributes, x);
  const int64_t p = attributes.i("p", 2);
  return problem.in(0).dtype == DType::kFloat64 ? make_forward<double>(w, x.numel(0, 2), p)
                                                : make_forward<float>(w, x.numel(0, 2), p);
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return p.in(0).dtype == DType::kFloat64 ? create_grad_of<double>(p) : create_grad_of<float>(p);
}

// Accepts plain float32 or float64.
Acceptance accepts(const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  return accept_if(p.all_dtype(DType::kFloat32) || p.all_dtype(DType::kFloat64),
                   "not all float32 or all float64");
}

// --- GlobalLpPool ---

Result<std::vector<TensorDesc>> global_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(Shape y, infer_global_pool(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, std::move(y)}};
}

}  // namespace lp_pool

void add_lp_pool(Registry& registry) {
  using namespace lp_pool;
  registry.add(make_op("LpPool", {infer, grad<given_window>, reference<given_window>},
                       with_half_floats<accepts, create<given_window>>("loops")));
  registry.add_own(make_op("LpPoolGrad", {infer_like_inputs({1}), nullptr, grad_reference},
                           with_half_floats<accepts, create_grad>("loops"), {.min_inputs = 3}));
  registry.add(make_op("GlobalLpPool",
                       {global_infer, grad<covering_window>, reference<covering_window>},
                       with_half_floats<accepts, create<covering_window>>("loops")));
}

}  // namespace ofsdp::kernels::ops
