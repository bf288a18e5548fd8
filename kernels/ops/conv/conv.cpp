// Conv: y[n, m, o] = b[m] + sum over c of m's group and taps k of w[m, c, k] x[n, c, o s - p + k
// d]; positions outside x count as 0. dx by ofsdp.ConvGradInput(dy, w), dw and db by
// ofsdp.ConvGradWeights(x, dy), each in its file.
// Attribute of our own, set by fusion: ofsdp_activation="relu" (see activation.h).
// https://onnx.ai/onnx/operators/onnx__Conv.html
//
// ConvTranspose: the transpose of a convolution. x [N, C, in...], w [C, M/group, kernel...]:
//   y[n, m, i s - p + k d] += w[c, m, k] x[n, c, i], then + b[m].
// So y is what ofsdp.ConvGradInput(x, w) gives for a Conv from y's shape to x's, and the gradients
// are that Conv's other two: dx = Conv(dy, w), dw = ofsdp.ConvGradWeights(dy, x); db = sum of dy.
// https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
#include <numeric>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/in_float32.h"
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

// The attributes that the nodes of that Conv carry.
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

// Channels last has spans of one element.
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
                       channels_last({0}, {0}, {.min_inputs = 2})));
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
                       channels_last({0}, {0}, {.min_inputs = 2})));
}

}  // namespace ofsdp::kernels::ops
