// Conv: y[n, m, o] = b[m] + sum of w[m, c, k] x[n, c, o s - p + k d] over the channels c in m's
// group and the taps k; s, p and d are strides, pads and dilations, and positions outside x count
// as 0. ofsdp.ConvGradInput(dy, w) returns dx, ofsdp.ConvGradWeights(x, dy) returns dw and db.
// Fusion sets an attribute that is ours: ofsdp_activation="relu" (activation.h).
// https://onnx.ai/onnx/operators/onnx__Conv.html
//
// ConvTranspose: x [N, C, in...], w [C, M/group, kernel...],
//   y[n, m, i s - p + k d] += w[c, m, k] x[n, c, i], then + b[m].
// So y is ofsdp.ConvGradInput(x, w) for the Conv that maps y's shape to x's, and that Conv gives
// the gradients too: dx = Conv(dy, w), dw = ofsdp.ConvGradWeights(dy, x); db = sum of dy.
// https://onnx.ai/onnx/operators/onnx__ConvTranspose.html

#include <cstring>
#include <numeric>

#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace conv {
namespace {

Status check_operands(const InferContext& c, int64_t outputs) {
  if (c.inputs[0].dtype != c.inputs[1].dtype) {
    return input_error("X and W must have one dtype, found {} and {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  if (!c.has(2)) return ok_status();
  if (c.inputs[2].shape != Shape{outputs}) {
    return input_error("B: expected [{}], found {}", outputs, c.inputs[2].shape.text());
  }
  if (c.inputs[2].dtype == c.inputs[0].dtype) return ok_status();
  return input_error("B: expected {} as X is, found {}", dtype_name(c.inputs[0].dtype),
                     c.inputs[2].text());
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const ConvShape s,
                         infer_conv(c.attributes, c.inputs[0].shape, c.inputs[1].shape));
  OFSDP_RETURN_IF_ERROR(check_operands(c, s.w[0]));
  return std::vector{TensorDesc{c.inputs[0].dtype, s.y}};
}

void grad(GradBuilder& b) {
  const ConvShape s =
      known_conv(b.attributes(), b.desc(b.input(0)).shape, b.desc(b.input(1)).shape);
  const Attributes attributes = conv_attributes(s);
  const Ref dy = activation_grad(b);
  if (b.needs_grad(0)) b.set_grad(0, b.emit1("ofsdp.ConvGradInput", {dy, b.input(1)}, attributes));
  const bool bias = b.num_inputs() > 2 && b.input(2) && b.needs_grad(2);
  if (!bias && !b.needs_grad(1)) return;
  const std::vector<Ref> grads =
      b.emit("ofsdp.ConvGradWeights", {b.input(0), dy}, attributes, bias ? 2 : 1);
  if (b.needs_grad(1)) b.set_grad(1, grads[0]);
  if (bias) b.set_grad(2, grads[1]);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ConvShape s = known_conv(c.attributes, c.inputs[0].desc.shape, c.inputs[1].desc.shape);
  RefTensor y{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.y.numel()))};
  const bool bias = c.inputs.size() > 2 && c.inputs[2].desc.present();
  for (size_t i = 0; bias && i < y.values.size(); ++i) {
    y.values[i] =
        c.inputs[2]
            .values[i / static_cast<size_t>(s.window.out_size()) % static_cast<size_t>(s.y[1])];
  }
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    y[out] += c.inputs[0][in] * c.inputs[1][tap];
  });
  if (has_relu(c.attributes)) reference_relu(y.values);
  return {y};
}

// Returns the attributes for nodes of the Conv that ConvTranspose transposes.
Attributes attributes_of(const ConvShape& s) {
  Attributes made = conv_attributes(s);
  made.set(kOutputsAttribute, s.window.used(s.window.out));
  return made;
}

Result<std::vector<TensorDesc>> transposed_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const ConvShape s,
                         infer_transposed(c.attributes, c.inputs[0].shape, c.inputs[1].shape));
  OFSDP_RETURN_IF_ERROR(check_operands(c, s.x[1]));
  return std::vector{TensorDesc{c.inputs[0].dtype, s.x}};
}

void transposed_grad(GradBuilder& b) {
  const Attributes made = attributes_of(
      known_transposed(b.attributes(), b.desc(b.input(0)).shape, b.desc(b.input(1)).shape));
  const Ref dy = b.grad_output(0);
  if (b.needs_grad(0)) b.set_grad(0, b.emit1("Conv", {dy, b.input(1)}, made));
  if (b.needs_grad(1)) b.set_grad(1, b.emit1("ofsdp.ConvGradWeights", {dy, b.input(0)}, made));
  if (b.num_inputs() < 3 || !b.input(2) || !b.needs_grad(2)) return;
  std::vector<int64_t> axes(static_cast<size_t>(b.desc(dy).shape.rank()) - 1);
  std::iota(axes.begin(), axes.end(), 1);
  axes[0] = 0;
  b.set_grad(2, b.emit1("ReduceSum", {dy, b.ints(axes)}, {{"keepdims", int64_t{0}}}));
}

std::vector<RefTensor> transposed_reference(const ReferenceContext& c) {
  const ConvShape s =
      known_transposed(c.attributes, c.inputs[0].desc.shape, c.inputs[1].desc.shape);
  RefTensor y{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.x.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    y[in] += c.inputs[0][out] * c.inputs[1][tap];
  });
  if (c.inputs.size() < 3 || !c.inputs[2].desc.present()) return {y};
  const std::vector<double>& bias = c.inputs[2].values;
  for (size_t i = 0; i < y.values.size(); ++i) {
    y.values[i] += bias[i / static_cast<size_t>(s.window.in_size()) % bias.size()];
  }
  return {y};
}

Problem as_grad_input(const Problem& p) {
  Problem made = p;
  made.attributes = attributes_of(known_transposed(p.attributes, p.in(0).shape, p.in(1).shape));
  made.inputs.resize(2);
  made.constants.clear();
  return made;
}

OFSDP_MULTIARCH void add_spans(const float* bias, int64_t channels, int64_t size, int64_t begin,
                               int64_t end, float* y) {
  for (int64_t i = begin; i < end; ++i) {
    if (size == 1) {
      y[i] += bias[i % channels];
      continue;
    }
    for (int64_t k = 0; k < size; ++k) y[i * size + k] += bias[i % channels];
  }
}
void add_spans(const double* bias, int64_t channels, int64_t size, int64_t begin, int64_t end,
               double* y) {
  for (int64_t i = begin * size; i < end * size; ++i) y[i] += bias[i / size % channels];
}

// Adds the bias to spans of one channel; a channels-last span has one element.
template <typename T>
std::unique_ptr<Kernel> with_bias(const Problem& p, std::unique_ptr<Kernel> kernel) {
  if (!p.has_in(2)) return kernel;
  const Shape& y = p.out(0).shape;
  const bool last = p.out(0).layout == Layout::kChannelsLast;
  const int64_t size = last ? 1 : y.numel(2, y.rank());
  const size_t workspace = kernel->workspace_bytes();
  return make_kernel(
      [inner = std::move(kernel), size, channels = y[1],
       spans = size == 0 ? 0 : y.numel() / size](const KernelArgs& a) {
        OFSDP_RETURN_IF_ERROR(inner->run(a));
        parallel_for(spans, kElementGrain / std::max<int64_t>(size, 1) + 1,
                     [&](int64_t begin, int64_t end) {
                       add_spans(a.in<T>(2), channels, size, begin, end, a.out<T>(0));
                     });
        return ok_status();
      },
      workspace);
}

template <auto grad_accepts>
Acceptance transposed_accepts(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32)) return Acceptance::refuse("not float32");
  return grad_accepts(as_grad_input(p));
}

template <auto grad_create>
std::unique_ptr<Kernel> transposed_create(const Problem& p) {
  return with_bias<float>(p, grad_create(as_grad_input(p)));
}

std::unique_ptr<Kernel> create_loops(const Problem& p) {
  std::unique_ptr<Kernel> kernel = make_conv_grad_input_loops(as_grad_input(p));
  return p.in(0).dtype == DType::kFloat64 ? with_bias<double>(p, std::move(kernel))
                                          : with_bias<float>(p, std::move(kernel));
}

}  // namespace
}  // namespace conv

void add_conv(Registry& registry) {
  using namespace conv;
  registry.add(make_op("Conv", {infer, grad, reference},
                       {{"winograd", winograd_accepts_conv, make_winograd_conv},
                        {"onednn", onednn_accepts_conv, make_onednn_conv},
                        {"columns", columns_accept_conv, make_columns_conv},
                        {"loops", accepts_conv_loops, make_conv_loops},
                        in_float32<LibraryConvForward::accepts, LibraryConvForward::create>()},
                       channels_last({0}, {0}, {.min_inputs = 2, .costly = true})));
  registry.add(make_op("ConvTranspose", {transposed_infer, transposed_grad, transposed_reference},
                       {{"winograd", transposed_accepts<winograd_accepts_conv_grad_input>,
                         transposed_create<make_winograd_conv_grad_input>},
                        {"onednn", transposed_accepts<onednn_accepts_conv_grad_input>,
                         transposed_create<make_onednn_conv_grad_input>},
                        {"columns", transposed_accepts<columns_accept_conv_grad>,
                         transposed_create<make_columns_conv_grad_input>},
                        {"loops", accepts_conv_loops, create_loops},
                        in_float32<transposed_accepts<LibraryConvGradInput::accepts>,
                                   transposed_create<LibraryConvGradInput::create>>()},
                       channels_last({0}, {0}, {.min_inputs = 2, .costly = true})));
}

Result<ConvShape> infer_conv(const Attributes& attributes, const Shape& x, const Shape& w) {
  if (w.rank() < 3) return input_error("expected weights of 3 to 5 axes, found {}", w.text());
  const std::vector<int64_t> kernel(w.axes().begin() + 2, w.axes().end());
  if (attributes.ints("kernel_shape", kernel) != kernel) {
    return input_error("kernel_shape: expected that of the weights {}, found [{}]", w.text(),
                       joined(attributes.ints("kernel_shape"), ", "));
  }
  OFSDP_ASSIGN_OR_RETURN(Window window, resolve_window(attributes, x, kernel));
  const int64_t group = attributes.i("group", 1);
  if (group < 1 || w[0] % group != 0) {
    return input_error("group: expected a divisor of {} output channels, found {}", w[0], group);
  }
  if (x[1] != w[1] * group) {
    return input_error("expected {} input channels (weights {}, group {}), found {}", w[1] * group,
                       w.text(), group, x[1]);
  }
  std::vector<int64_t> y = {x[0], w[0]};
  for (int64_t axis : window.used(window.out)) y.push_back(axis);
  return ConvShape{x, w, Shape(std::move(y)), group, window};
}

ConvShape known_conv(const Attributes& attributes, const Shape& x, const Shape& w) {
  Result<ConvShape> shape = infer_conv(attributes, x, w);
  OFSDP_CHECK(shape.ok(), "{}", shape.error().message());
  return *shape;
}

ConvShape conv_of(const Problem& p) {
  return known_conv(p.attributes, p.in(0).shape, p.in(1).shape);
}

Attributes conv_attributes(const ConvShape& shape) {
  Attributes made = window_attributes(shape.window);
  made.set("group", shape.group);
  made.set("x_shape", shape.x.axes());
  made.set("w_shape", shape.w.axes());
  return made;
}

ConvShape conv_of_grad(const Attributes& attributes) {
  return known_conv(attributes, Shape(attributes.ints("x_shape")),
                    Shape(attributes.ints("w_shape")));
}

bool sums_nothing(const ConvShape& s) {
  return s.x.numel() == 0 || s.y.numel() == 0 || s.w.numel() == 0;
}

std::unique_ptr<Kernel> make_conv_zeros() {
  return make_kernel([](const KernelArgs& a) {
    for (const TensorView& view : a.outputs) {
      if (view.data != nullptr) std::memset(view.data, 0, view.desc.bytes());
    }
  });
}

// Convolutions by plain loops, for float64 or if no library has a kernel (conv_shape.h).

namespace {

// An operand [N, C, spatial...] in either layout.
struct Planes {
  Planes(const TensorDesc& desc)
      : channels(desc.shape[1]),
        size(desc.shape.numel(2, desc.shape.rank())),
        last(desc.layout == Layout::kChannelsLast) {}
  int64_t at(int64_t n, int64_t c) const { return n * channels * size + (last ? c : c * size); }
  int64_t step() const { return last ? channels : 1; }

  int64_t channels, size;
  bool last;
};

template <typename T>
class ConvLoops {
 public:
  ConvLoops(const ConvShape& s, const TensorDesc& x, const TensorDesc& y)
      : s_(s), x_(x), y_(y), channels_(s.x[1] / s.group), outputs_(s.y[1] / s.group) {}

  void forward(const T* x, const T* w, const T* bias, T* y) const {
    const int64_t outputs = s_.y[1];
    parallel_each(s_.y[0] * outputs, 1, [&](int64_t i) {
      const int64_t n = i / outputs, m = i % outputs;
      T* plane = y + y_.at(n, m);
      fill(y_, plane, bias == nullptr ? T{0} : bias[m]);
      for (int64_t c = 0; c < channels_; ++c) {
        const T* src = x + x_.at(n, m / outputs_ * channels_ + c);
        const T* weights = w + weights_at(m, c);
        for_each_tap(s_.window, [&](int64_t out, int64_t tap, int64_t in) {
          plane[out * y_.step()] += weights[tap] * src[in * x_.step()];
        });
      }
    });
  }

  void grad_input(const T* dy, const T* w, T* dx) const {
    parallel_each(s_.x[0] * s_.x[1], 1, [&](int64_t i) {
      const int64_t n = i / s_.x[1], c = i % s_.x[1];
      T* plane = dx + x_.at(n, c);
      fill(x_, plane, T{0});
      const int64_t first = c / channels_ * outputs_;
      for (int64_t m = first; m < first + outputs_; ++m) {
        const T* src = dy + y_.at(n, m);
        const T* weights = w + weights_at(m, c % channels_);
        for_each_tap(s_.window, [&](int64_t out, int64_t tap, int64_t in) {
          plane[in * x_.step()] += weights[tap] * src[out * y_.step()];
        });
      }
    });
  }

  void grad_weights(const T* x, const T* dy, T* dw, T* db) const {
    parallel_each(s_.w[0], 1, [&](int64_t m) {
      std::fill_n(dw + weights_at(m, 0), channels_ * s_.window.taps(), T{0});
      if (db != nullptr) db[m] = 0;
      for (int64_t n = 0; n < s_.x[0]; ++n) image_of_weights(x, dy + y_.at(n, m), n, m, dw, db);
    });
  }

 private:
  void image_of_weights(const T* x, const T* dy, int64_t n, int64_t m, T* dw, T* db) const {
    for (int64_t c = 0; c < channels_; ++c) {
      const T* src = x + x_.at(n, m / outputs_ * channels_ + c);
      T* to = dw + weights_at(m, c);
      for_each_tap(s_.window, [&](int64_t out, int64_t tap, int64_t in) {
        to[tap] += src[in * x_.step()] * dy[out * y_.step()];
      });
    }
    for (int64_t i = 0; db != nullptr && i < y_.size; ++i) db[m] += dy[i * y_.step()];
  }

  int64_t weights_at(int64_t m, int64_t c) const { return (m * channels_ + c) * s_.window.taps(); }
  static void fill(const Planes& planes, T* plane, T value) {
    for (int64_t i = 0; i < planes.size; ++i) plane[i * planes.step()] = value;
  }

  ConvShape s_;
  Planes x_, y_;
  int64_t channels_, outputs_;  // per group
};

template <typename T>
std::unique_ptr<Kernel> make_forward(const Problem& p) {
  const ConvLoops<T> loops(conv_of(p), p.in(0), p.out(0));
  return make_kernel([loops, bias = p.has_in(2)](const KernelArgs& a) {
    return loops.forward(a.in<T>(0), a.in<T>(1), bias ? a.in<T>(2) : nullptr, a.out<T>(0));
  });
}

template <typename T>
std::unique_ptr<Kernel> make_grad_input(const Problem& p) {
  return make_kernel(
      [loops = ConvLoops<T>(conv_of_grad(p.attributes), p.out(0), p.in(0))](const KernelArgs& a) {
        return loops.grad_input(a.in<T>(0), a.in<T>(1), a.out<T>(0));
      });
}

template <typename T>
std::unique_ptr<Kernel> make_grad_weights(const Problem& p) {
  const ConvLoops<T> loops(conv_of_grad(p.attributes), p.in(0), p.in(1));
  return make_kernel([loops, bias = p.has_out(1)](const KernelArgs& a) {
    return loops.grad_weights(a.in<T>(0), a.in<T>(1), a.out<T>(0), bias ? a.out<T>(1) : nullptr);
  });
}

bool is_double(const Problem& p) { return p.in(0).dtype == DType::kFloat64; }

}  // namespace

Acceptance accepts_conv_loops(const Problem& p) {
  if (has_relu(p.attributes)) return Acceptance::refuse("a fused activation");
  return accept_if(p.all_dtype(DType::kFloat64) || p.all_dtype(DType::kFloat32),
                   "not all float32 or all float64");
}

std::unique_ptr<Kernel> make_conv_loops(const Problem& p) {
  return is_double(p) ? make_forward<double>(p) : make_forward<float>(p);
}

std::unique_ptr<Kernel> make_conv_grad_input_loops(const Problem& p) {
  return is_double(p) ? make_grad_input<double>(p) : make_grad_input<float>(p);
}

std::unique_ptr<Kernel> make_conv_grad_weights_loops(const Problem& p) {
  return is_double(p) ? make_grad_weights<double>(p) : make_grad_weights<float>(p);
}

// The gradients of y = conv(x, w) + b. Both nodes have Conv's attributes with explicit pads, and
// x_shape and w_shape.
//
// ofsdp.ConvGradInput(dy, w) -> dx: dx[n, c, i] = sum of w dy over all (m, o, k) that read i.
// ofsdp.ConvGradWeights(x, dy) -> dw, db: dw[m, c, k] = sum of x[n, c, o s - p + k d] dy[n, m, o]
// over (n, o); db[m] = sum of dy over (n, o), computed only if wanted.

namespace {

// ONNX's pads: all begins, then all ends.
std::vector<int64_t> onnx_pads(const Window& w) {
  std::vector<int64_t> pads = w.used(w.pads_begin);
  const auto ends = w.used(w.pads_end);
  pads.insert(pads.end(), ends.begin(), ends.end());
  return pads;
}

// --- ConvGradInput ---

std::vector<RefTensor> input_reference(const ReferenceContext& c) {
  const ConvShape s = conv_of_grad(c.attributes);
  RefTensor dx{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.x.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    dx[in] += c.inputs[0][out] * c.inputs[1][tap];
  });
  return {dx};
}

void conv_grad_input_body(BodyBuilder& b) {
  const ConvShape s = conv_of_grad(b.attributes());
  const Window& w = s.window;
  std::vector<int64_t> rest;  // input positions after the last window
  for (size_t axis = 3 - static_cast<size_t>(w.axes); axis < 3; ++axis) {
    const int64_t reached = w.position(axis, w.out[axis] - 1, w.kernel[axis] - 1) + 1;
    rest.push_back(w.in[axis] + w.pads_end[axis] - reached);
  }
  b.set_output(0, b.emit1("ConvTranspose", {b.input(0), b.input(1)},
                          {{"group", s.group},
                           {"strides", w.used(w.strides)},
                           {"dilations", w.used(w.dilations)},
                           {"kernel_shape", w.used(w.kernel)},
                           {"pads", onnx_pads(w)},
                           {"output_padding", rest}}));
}

// --- ConvGradWeights ---

Result<std::vector<TensorDesc>> weights_infer(const InferContext& c) {
  const Shape w(c.attributes.ints("w_shape"));
  return std::vector{TensorDesc{c.inputs[0].dtype, w}, TensorDesc{c.inputs[0].dtype, {w[0]}}};
}

std::vector<RefTensor> weights_reference(const ReferenceContext& c) {
  const ConvShape s = conv_of_grad(c.attributes);
  RefTensor dw{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.w.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    dw[tap] += c.inputs[0][in] * c.inputs[1][out];
  });
  if (c.output_descs.size() < 2 || !c.output_descs[1].present()) return {dw};
  RefTensor db{c.output_descs[1], std::vector<double>(static_cast<size_t>(s.w[0]))};
  for (size_t i = 0; i < c.inputs[1].values.size(); ++i) {
    db.values[i / static_cast<size_t>(s.window.out_size()) % db.values.size()] +=
        c.inputs[1].values[i];
  }
  return {dw, db};
}

// Computes dw as a convolution of x by dy: samples act as channels, and the result's positions are
// the taps. Strides may leave positions after the taps; they are cut off.
Ref weights_of_group(BodyBuilder& b, const ConvShape& s, Ref x, Ref dy) {
  const Window& w = s.window;
  std::vector<int64_t> swapped{1, 0};
  for (int axis = 2; axis < s.x.rank(); ++axis) swapped.push_back(axis);
  Ref made = b.emit1(
      "Conv", {b.transpose(x, swapped), b.transpose(dy, swapped)},
      {{"strides", w.used(w.dilations)}, {"dilations", w.used(w.strides)}, {"pads", onnx_pads(w)}});
  for (int axis = 2; axis < s.w.rank(); ++axis) made = b.slice(made, axis, 0, s.w[axis]);
  return b.transpose(made, swapped);
}

void conv_grad_weights_body(BodyBuilder& b) {
  const ConvShape s = conv_of_grad(b.attributes());
  const Ref x = b.input(0), dy = b.input(1);
  if (b.wants(0)) {
    const int64_t channels = s.x[1] / s.group, outputs = s.y[1] / s.group;
    std::vector<Ref> parts;
    for (int64_t g = 0; g < s.group; ++g) {
      parts.push_back(weights_of_group(b, s, b.slice(x, 1, g * channels, (g + 1) * channels),
                                       b.slice(dy, 1, g * outputs, (g + 1) * outputs)));
    }
    b.set_output(0,
                 parts.size() == 1 ? parts[0] : b.emit1("Concat", parts, {{"axis", int64_t{0}}}));
  }
  if (!b.wants(1)) return;
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < s.y.rank(); ++axis) axes.push_back(axis);
  b.set_output(1, b.reshape(b.sum(dy, axes), b.output_desc(1).shape));
}

}  // namespace

void add_conv_grad(Registry& registry) {
  registry.add_own(
      make_op("ConvGradInput", {infer_shape_of("x_shape"), nullptr, input_reference},
              {{"winograd", winograd_accepts_conv_grad_input, make_winograd_conv_grad_input},
               {"onednn", onednn_accepts_conv_grad_input, make_onednn_conv_grad_input},
               {"columns", columns_accept_conv_grad, make_columns_conv_grad_input},
               {"loops", accepts_conv_loops, make_conv_grad_input_loops},
               in_float32<LibraryConvGradInput::accepts, LibraryConvGradInput::create>()},
              channels_last({0}, {0}, {.min_inputs = 2, .body = conv_grad_input_body})));
  registry.add_own(
      make_op("ConvGradWeights", {weights_infer, nullptr, weights_reference},
              {{"winograd", winograd_accepts_conv_grad_weights, make_winograd_conv_grad_weights},
               {"onednn", onednn_accepts_conv_grad_weights, make_onednn_conv_grad_weights},
               {"columns", columns_accept_conv_grad, make_columns_conv_grad_weights},
               {"loops", accepts_conv_loops, make_conv_grad_weights_loops},
               in_float32<LibraryConvGradWeights::accepts, LibraryConvGradWeights::create>()},
              channels_last({0, 1}, {}, {.min_inputs = 2, .body = conv_grad_weights_body})));
}

}  // namespace ofsdp::kernels::ops
