// MaxPool: y[n, c, o] = max of x[n, c, o s - p + k d] over the taps k inside x, with strides s,
// pads p and dilations d; NaN wins. Output 1, Indices, says where in x the maximum is (the first of
// equal ones). Output 2 is ours, for the gradient ofsdp.MaxPoolGrad(dy, winners): the winning tap
// (pool_shape.h).
//
// Fusion sets our own attribute ofsdp_activation="relu": y = max(that, 0). The maximum of relus is
// the relu of the maximum, on fewer elements; stopped outputs get kNoWinner, so the gradient is
// exact.
// https://onnx.ai/onnx/operators/onnx__MaxPool.html
//
// GlobalMaxPool: [N, C, spatial...] -> [N, C, 1...], the maximum over the spatial axes: MaxPool
// with one window that covers x. Output 1 is ours, which the gradient asks for: the winning tap,
// the first of equal ones.
// https://onnx.ai/onnx/operators/onnx__GlobalMaxPool.html

#include "kernels/core/element_types.h"
#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/pool/pool_shape.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace max_pool {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const Window w, infer_pool(c.attributes, x));
  const Shape y = pool_output(w, x);
  const auto wanted = [&](size_t i) { return c.wanted.size() > i && c.wanted[i]; };
  std::vector<TensorDesc> outputs = {{c.inputs[0].dtype, y}, {}, {}};
  if (wanted(1)) outputs[1] = {DType::kInt64, y};
  if (wanted(2)) outputs[2] = {winner_dtype(w.taps()), y};
  return outputs;
}

void grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  const Window w = known_pool(b.attributes(), x);
  b.set_grad(0, b.emit1("ofsdp.MaxPoolGrad", {b.grad_output(0), b.output(2)},
                        pool_attributes(b.attributes(), w, x)));
}

void store(std::vector<RefTensor>& outputs, size_t index, size_t at, int64_t value) {
  if (outputs.size() <= index || !outputs[index].desc.present()) return;
  const bool narrow = outputs[index].desc.dtype == DType::kUInt8;
  outputs[index].values[at] = static_cast<double>(narrow ? value & 255 : value);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  const Window w = known_pool(c.attributes, x.desc.shape);
  const bool column_major = c.attributes.i("storage_order", 0) != 0;
  std::vector<RefTensor> outputs;
  for (const TensorDesc& desc : c.output_descs) {
    outputs.push_back(
        {desc, std::vector<double>(desc.present() ? static_cast<size_t>(desc.numel()) : 0)});
  }
  for (int64_t plane = 0; plane < x.desc.shape.numel(0, 2); ++plane) {
    std::vector<double> best(static_cast<size_t>(w.out_size()), -INFINITY);
    std::vector<int64_t> place(best.size(), 0), winner(best.size(), kNoWinner);
    for_each_tap(w, [&](int64_t out, int64_t tap, int64_t in) {
      const auto o = static_cast<size_t>(out);
      const double v = x[plane * w.in_size() + in];
      if (winner[o] != kNoWinner && !(v > best[o]) && v == v) return;
      best[o] = v;
      winner[o] = tap;
      place[o] = plane * w.in_size() + stored_place(w, in, column_major);
    });
    for (size_t o = 0; o < best.size(); ++o) {
      const size_t at = static_cast<size_t>(plane * w.out_size()) + o;
      if (has_relu(c.attributes) && !(best[o] > 0)) winner[o] = kNoWinner;
      if (has_relu(c.attributes) && best[o] < 0) best[o] = 0;
      outputs[0].values[at] = best[o];
      store(outputs, 1, at, place[o]);
      store(outputs, 2, at, winner[o]);
    }
  }
  return outputs;
}

Acceptance accepts(const Problem& p) {
  if (p.in(0).dtype != DType::kFloat32) return Acceptance::refuse("not float32");
  if (!has_pool_layouts(p)) return Acceptance::refuse("operands of several layouts");
  return accept_if(!p.has_out(1) || !has_relu(p.attributes), "Indices with a fused activation");
}

// --- GlobalMaxPool ---

Result<std::vector<TensorDesc>> global_infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const Shape y, infer_global_pool(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, y},
                     TensorDesc{winner_dtype(x.numel(2, x.rank())), y}};
}

void global_grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  const Attributes window = global_window(x);
  b.set_grad(0, b.emit1("ofsdp.MaxPoolGrad", {b.grad_output(0), b.output(1)},
                        pool_attributes(window, known_pool(window, x), x)));
}

std::vector<RefTensor> global_reference(const ReferenceContext& c) {
  const std::vector<double>& x = c.inputs[0].values;
  RefTensor y{c.output_descs[0], {}}, winners{{}, {}};
  if (c.output_descs.size() > 1) winners.desc = c.output_descs[1];
  const auto size =
      static_cast<size_t>(c.inputs[0].desc.shape.numel(2, c.inputs[0].desc.shape.rank()));
  for (size_t at = 0; at < x.size(); at += size) {
    size_t best = 0;
    for (size_t k = 1; k < size; ++k) {
      if (x[at + k] > x[at + best]) best = k;
    }
    y.values.push_back(x[at + best]);
    winners.values.push_back(static_cast<double>(best));
  }
  return {y, winners};
}

// Returns the problem with MaxPool's outputs: no Indices, the winners as output 2.
Problem as_max_pool(const Problem& p) {
  Problem made = p;
  made.attributes = global_window(p.in(0).shape);
  made.outputs = {p.out(0), {}, p.has_out(1) ? p.out(1) : TensorDesc{}};
  made.outputs[0].layout = made.outputs[2].layout = p.in(0).layout;  // the same bytes
  return made;
}

Acceptance global_accepts(const Problem& p) {
  if (p.in(0).dtype == DType::kFloat32) return accept_if(true, "");
  return accepts_max_pool_loops(as_max_pool(p));
}

std::unique_ptr<Kernel> global_create(const Problem& p) {
  const Problem pool = as_max_pool(p);
  std::unique_ptr<Kernel> kernel =
      p.in(0).dtype == DType::kFloat32 ? make_max_pool(pool) : make_max_pool_loops(pool);
  std::vector<TensorView> views;
  for (const TensorDesc& desc : pool.outputs) views.push_back({nullptr, desc});
  return make_kernel([kernel = std::move(kernel), views](const KernelArgs& a) mutable {
    views[0].data = a.outputs[0].data;
    if (a.outputs.size() > 1) views[2].data = a.outputs[1].data;
    return kernel->run({a.inputs, views, a.workspace, a.step});
  });
}

}  // namespace max_pool

void add_max_pool(Registry& registry) {
  using namespace max_pool;
  registry.add(make_op("MaxPool", {infer, grad, reference},
                       {{"loops", accepts, make_max_pool},
                        {"plain_loops", accepts_max_pool_loops, make_max_pool_loops},
                        in_float32<accepts, make_max_pool>()},
                       channels_last({0}, {0, 2})));
  registry.add(make_op("GlobalMaxPool", {global_infer, global_grad, global_reference},
                       with_half_floats<global_accepts, global_create>("loops"),
                       channels_last({0}, {})));
}

// ofsdp.MaxPoolGrad(dy, winners) -> dx: dx[n, c, i] = sum of dy over all outputs with their winning
// tap at i; kNoWinner sends nothing. Attributes: MaxPool's window with explicit pads, and x_shape.
// Outputs are added in order, so repeated runs give the same bits.
//
// MaxUnpool(x, I): zeros except x[i] at flat index I[i] in the shape before the pooling, which has
// (in - 1) stride - pads + kernel positions per spatial axis. A larger output_shape holds that
// shape in a corner. dx = Gather(flat dy, I). If indices repeat, the last x stays.
// https://onnx.ai/onnx/operators/onnx__MaxUnpool.html

namespace max_pool_grad {

Window window_of(const Attributes& attributes) {
  return known_pool(attributes, Shape(attributes.ints("x_shape")));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Window w = window_of(c.attributes);
  RefTensor dx = zeros(c.output_descs[0]);
  for (int64_t plane = 0; plane < dx.desc.shape.numel(0, 2); ++plane) {
    for_each_tap(w, [&](int64_t out, int64_t tap, int64_t in) {
      const auto at = static_cast<size_t>(plane * w.out_size() + out);
      if (static_cast<int64_t>(c.inputs[1].values[at]) != tap) return;
      dx[plane * w.in_size() + in] += c.inputs[0].values[at];
    });
  }
  return {dx};
}

OFSDP_MULTIARCH void add_winners(const float* diff_dst, const uint8_t* winners, uint8_t tap,
                                 float* diff_src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) diff_src[i] += winners[i] == tap ? diff_dst[i] : 0.0f;
}

OFSDP_MULTIARCH void set_winners(const float* diff_dst, const uint8_t* winners, uint8_t tap,
                                 float* diff_src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) diff_src[i] = winners[i] == tap ? diff_dst[i] : 0.0f;
}

// For the bits of 16-bit floats. Uses masks, since AVX2 has no conditional 16-bit loads.
OFSDP_MULTIARCH void set_winners(const uint16_t* diff_dst, const uint8_t* winners, uint8_t tap,
                                 uint16_t* diff_src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    diff_src[i] = static_cast<uint16_t>(diff_dst[i] & -int{winners[i] == tap});
  }
}

// Returns whether the windows cover x side by side: each element of dx is then written once, so
// nothing need be cleared.
bool tiles_input(const Window& w) {
  for (size_t axis = 0; axis < 3; ++axis) {
    if (w.strides[axis] != w.kernel[axis] || w.dilations[axis] != 1 || w.pads_begin[axis] != 0 ||
        w.out[axis] * w.kernel[axis] != w.in[axis]) {
      return false;
    }
  }
  return true;
}

// Channels last, windows with up to 255 taps: the channels at a position are one vector. T is
// float; or, if windows cover x side by side, so that nothing is added, the bits of a 16-bit float.
template <typename T>
class ChannelsLastGrad {
 public:
  explicit ChannelsLastGrad(const Problem& p)
      : window_(window_of(p.attributes)),
        images_(p.out(0).shape[0]),
        channels_(p.out(0).shape[1]),
        tiles_(tiles_input(window_)) {}

  void operator()(const KernelArgs& a) const {
    parallel_each(images_, 1, [&](int64_t n) { image(a, n); });
  }

 private:
  void image(const KernelArgs& a, int64_t n) const {
    const T* dy = a.in<T>(0) + n * window_.out_size() * channels_;
    const uint8_t* winners = a.in<uint8_t>(1) + n * window_.out_size() * channels_;
    T* dx = a.out<T>(0) + n * window_.in_size() * channels_;
    void (*take)(const T*, const uint8_t*, uint8_t, T*, int64_t) = set_winners;
    if constexpr (std::is_same_v<T, float>) {
      if (!tiles_) take = add_winners;
    }
    if (!tiles_) std::fill_n(dx, window_.in_size() * channels_, T{0});
    for_each_tap(window_, [&](int64_t out, int64_t tap, int64_t in) {
      take(dy + out * channels_, winners + out * channels_, static_cast<uint8_t>(tap),
           dx + in * channels_, channels_);
    });
  }

  Window window_;
  int64_t images_, channels_;
  bool tiles_;
};

// Any layout and window: adds each output at the winner.
template <typename T, typename Winner>
class ScatterGrad {
 public:
  explicit ScatterGrad(const Problem& p)
      : window_(window_of(p.attributes)),
        planes_(p.out(0).shape.numel(0, 2)),
        channels_(p.out(0).layout == Layout::kChannelsLast ? p.out(0).shape[1] : 1) {
    const Window& w = window_;
    for (int64_t tap = 0; tap < w.taps(); ++tap) {
      const int64_t d = tap / (w.kernel[1] * w.kernel[2]) * w.dilations[0];
      const int64_t h = tap / w.kernel[2] % w.kernel[1] * w.dilations[1];
      offsets_.push_back((d * w.in[1] + h) * w.in[2] + tap % w.kernel[2] * w.dilations[2]);
    }
  }

  void operator()(const KernelArgs& a) const {
    parallel_each(planes_, 1, [&](int64_t p) { plane(a, p); });
  }

 private:
  void plane(const KernelArgs& a, int64_t p) const {
    const Window& w = window_;
    const int64_t image = p / channels_, channel = p % channels_;
    const T* dy = a.in<T>(0) + image * w.out_size() * channels_ + channel;
    const Winner* winners = a.in<Winner>(1) + image * w.out_size() * channels_ + channel;
    T* dx = a.out<T>(0) + image * w.in_size() * channels_ + channel;
    for (int64_t i = 0; i < w.in_size(); ++i) dx[i * channels_] = 0;
    for (int64_t out = 0; out < w.out_size(); ++out) {
      const Winner winner = winners[out * channels_];
      if (winner == static_cast<Winner>(kNoWinner)) continue;
      const int64_t row = out / w.out[2];
      const int64_t d = w.position(0, row / w.out[1], 0), h = w.position(1, row % w.out[1], 0);
      const int64_t start = (d * w.in[1] + h) * w.in[2] + w.position(2, out % w.out[2], 0);
      dx[(start + offsets_[winner]) * channels_] += dy[out * channels_];
    }
  }

  Window window_;
  int64_t planes_, channels_;
  std::vector<int64_t> offsets_;  // from the window's first position to a tap
};

Acceptance accepts_layouts(const Problem& p) {
  return accept_if(p.in(0).layout == p.in(1).layout && p.in(0).layout == p.out(0).layout,
                   "operands of several layouts");
}

template <typename T>
Acceptance accepts(const Problem& p) {
  if (p.in(0).dtype != dtype_of<T>()) return Acceptance::refuse(not_of_type<T>());
  return accepts_layouts(p);
}

Acceptance accepts_channels_last(const Problem& p) {
  if (p.in(0).layout != Layout::kChannelsLast) return Acceptance::refuse("not channels last");
  if (p.in(1).dtype != DType::kUInt8) return Acceptance::refuse("a window of more than 255 taps");
  const DType dtype = p.in(0).dtype;
  if (!is_32_or_16_bit_float(dtype)) return Acceptance::refuse("not float32 or 16-bit floats");
  if (dtype != DType::kFloat32 && !tiles_input(window_of(p.attributes))) {
    return Acceptance::refuse("windows that overlap");
  }
  return accepts_layouts(p);
}

std::unique_ptr<Kernel> create_channels_last(const Problem& p) {
  if (p.in(0).dtype != DType::kFloat32) return make_kernel(ChannelsLastGrad<uint16_t>(p));
  return make_kernel(ChannelsLastGrad<float>(p));
}

template <typename T>
std::unique_ptr<Kernel> create_scatter(const Problem& p) {
  if (p.in(1).dtype == DType::kUInt8) return make_kernel(ScatterGrad<T, uint8_t>(p));
  return make_kernel(ScatterGrad<T, int32_t>(p));
}

std::unique_ptr<Kernel> create_float32(const Problem& p) {
  return accepts_channels_last(p) ? create_channels_last(p) : create_scatter<float>(p);
}

// For the standard's MaxPool: the winners are the Indices, which count in all of x.
void max_pool_grad_body(BodyBuilder& b) {
  const Shape& shape = b.output_desc(0).shape;
  const Ref dy = b.input(0);
  const Ref zeros = b.emit1("Expand", {b.like(dy, 0), b.ints({shape.numel()})});
  const Shape flat{b.desc(dy).shape.numel()};
  const Ref sum =
      b.emit1("ScatterElements", {zeros, b.reshape(b.input(1), flat), b.reshape(dy, flat)},
              {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  b.set_output(0, b.reshape(sum, shape));
}

using Ints = std::vector<int64_t>;

// Returns the shape in which the indices count.
Result<Shape> counted(const Attributes& attributes, const Shape& x) {
  const Ints kernel = attributes.ints("kernel_shape");
  const size_t count = kernel.size();
  const Ints strides = attributes.ints("strides", Ints(count, 1));
  const Ints pads = attributes.ints("pads", Ints(2 * count, 0));
  if (count == 0 || x.rank() != static_cast<int>(count) + 2 || strides.size() != count ||
      pads.size() != 2 * count) {
    return input_error("kernel_shape [{}], {} strides and {} pads do not fit {}",
                       joined(kernel, ", "), strides.size(), pads.size(), x.text());
  }
  Shape y = x;
  for (size_t i = 0; i < count; ++i) {
    const int axis = static_cast<int>(i) + 2;
    y[axis] = (x[axis] - 1) * strides[i] - pads[i] - pads[count + i] + kernel[i];
    if (y[axis] < 0) return input_error("spatial axis {} would have {} positions", i, y[axis]);
  }
  return y;
}

Result<std::vector<TensorDesc>> unpool_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(Shape y, counted(c.attributes, c.inputs[0].shape));
  if (c.inputs[1].shape != c.inputs[0].shape || c.inputs[1].dtype != DType::kInt64) {
    return input_error("I: expected int64{}, found {}", c.inputs[0].shape.text(),
                       c.inputs[1].text());
  }
  if (c.has(2)) {
    OFSDP_ASSIGN_OR_RETURN(const Ints given, known_ints(c, 2, "output_shape"));
    if (given.size() != y.axes().size()) {
      return input_error("output_shape: expected {} sizes, found {}", y.rank(), given.size());
    }
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i] >= y.axes()[i]) continue;
      return input_error("output_shape: expected at least {}, found {}", y.text(),
                         Shape(given).text());
    }
    y = Shape(given);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, y}};
}

void grad(GradBuilder& b) {
  const Shape shape = *counted(b.attributes(), b.desc(b.input(0)).shape);
  Ref dy = b.grad_output(0);
  if (b.desc(dy).shape != shape) {
    dy = b.emit1("Slice", {dy, b.ints(Ints(shape.axes().size(), 0)), b.ints(shape.axes())});
  }
  const Ref flat = b.emit1("Reshape", {dy, b.ints({shape.numel()})});
  b.set_grad(0, b.emit1("Gather", {flat, b.input(1)}, {{"axis", int64_t{0}}}));
}

// Returns where position `at` in `from` lies in `to`.
int64_t moved(const Shape& from, const Shape& to, int64_t at) {
  int64_t place = 0, step = 1;
  for (int axis = from.rank(); axis-- > 0;) {
    place += at % from[axis] * step;
    at /= from[axis];
    step *= to[axis];
  }
  return place;
}

std::vector<RefTensor> unpool_reference(const ReferenceContext& c) {
  const Shape shape = *counted(c.attributes, c.inputs[0].desc.shape);
  RefTensor y = zeros(c.output_descs[0]);
  for (size_t i = 0; i < c.inputs[0].values.size(); ++i) {
    const auto at = static_cast<int64_t>(c.inputs[1].values[i]);
    y.values[ravel(y.desc.shape, unravel(shape, at))] = c.inputs[0].values[i];
  }
  return {y};
}

Acceptance unpool_accepts(const Problem& p) {
  return accept_if(p.all_plain(), "not the plain layout");
}

template <typename T>
std::unique_ptr<Kernel> create_for(const Problem& p) {
  return make_kernel([shape = *counted(p.attributes, p.in(0).shape), to = p.out(0).shape,
                      n = p.in(0).numel()](const KernelArgs& a) -> Status {
    std::fill_n(a.out<T>(0), to.numel(), T{0});
    const int64_t count = shape.numel();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = a.in<int64_t>(1)[i];
      if (at < 0 || at >= count) return input_error("index {} is outside 0..{}", at, count - 1);
      a.out<T>(0)[shape == to ? at : moved(shape, to, at)] = a.in<T>(0)[i];
    }
    return ok_status();
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_bits(dtype_size(p.in(0).dtype), [&]<typename T>(T) { return create_for<T>(p); });
}

}  // namespace max_pool_grad

void add_max_pool_grad(Registry& registry) {
  using namespace max_pool_grad;
  registry.add_own(
      make_op("MaxPoolGrad", {infer_shape_of("x_shape"), nullptr, reference},
              {{"channels_last", accepts_channels_last, create_channels_last},
               {"scatter", accepts<float>, create_scatter<float>},
               {"float64", accepts<double>, create_scatter<double>},
               in_float32<accepts<float>, create_float32>()},
              channels_last({0, 1}, {0}, {.min_inputs = 2, .body = max_pool_grad_body})));
  registry.add(make_op("MaxUnpool", {unpool_infer, grad, unpool_reference},
                       {{"scatter", unpool_accepts, create}},
                       {.min_inputs = 2, .constant_inputs = {2}}));
}

}  // namespace ofsdp::kernels::ops
