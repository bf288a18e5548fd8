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

dnnl::convolution_forward::primitive_desc describe(const Problem& p, const ConvShape& s,
                                                   Wish wish) {
  const DType dtype = p.in(0).dtype;
  const onednn::Desc bias = p.has_in(2) ? onednn::row_major(dtype, {s.w[0]}) : onednn::Desc();
  return onednn::first_quiet([&] { return conv_forward(s, dtype, wish, bias); });
}

// oneDNN's kernel for channels last, or what it likes best where that has only plain loops.
dnnl::convolution_forward::primitive_desc describe(const Problem& p, const ConvShape& s) {
  auto pd = describe(p, s, Wish::kChannelsLast);
  if (pd.get(true) != nullptr && !onednn::is_reference(pd.impl_info_str())) return pd;
  return describe(p, s, Wish::kAny);
}

ConvShape shape_of(const Problem& p) {
  return known_conv(p.attributes, p.in(0).shape, p.in(1).shape);
}

Acceptance accepts(const Problem& p) {
  if (!onednn::has_type(p.in(0).dtype)) return Acceptance::refuse(onednn::kNoType);
  if (has_relu(p.attributes) && !p.all_dtype(DType::kFloat32)) {
    return Acceptance::refuse("a fused activation of another type than float32");
  }
  if (p.out(0).numel() == 0) return accept_if(true, "");
  const ConvShape s = shape_of(p);
  return accept_if(s.w.numel() > 0 && describe(p, s).get(true) != nullptr, onednn::kNoPrimitive);
}

std::unique_ptr<Kernel> create(const Problem& p) {
  if (p.out(0).numel() == 0) return make_kernel([](const KernelArgs&) {});
  const ConvShape s = shape_of(p);
  std::vector<onednn::Binding> bindings = {
      {DNNL_ARG_SRC, false, 0, onednn::desc_of(p.in(0))},
      {DNNL_ARG_WEIGHTS, false, 1, onednn::row_major(p.in(1).dtype, weights_dims(s))},
      {DNNL_ARG_DST, true, 0, onednn::desc_of(p.out(0))}};
  if (p.has_in(2)) bindings.push_back({DNNL_ARG_BIAS, false, 2, onednn::desc_of(p.in(2))});
  std::unique_ptr<Kernel> kernel = onednn::make_kernel(describe(p, s), bindings);
  return has_relu(p.attributes) ? with_relu(std::move(kernel), p.out(0).numel())
                                : std::move(kernel);
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

Acceptance transposed_accepts(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32)) return Acceptance::refuse("not float32");
  return accepts_conv_grad_input(as_grad_input(p));
}

std::unique_ptr<Kernel> transposed_create(const Problem& p) {
  return with_bias<float>(p, make_conv_grad_input(as_grad_input(p)));
}

std::unique_ptr<Kernel> create_loops(const Problem& p) {
  std::unique_ptr<Kernel> kernel = make_conv_grad_input_loops(as_grad_input(p));
  return p.in(0).dtype == DType::kFloat64 ? with_bias<double>(p, std::move(kernel))
                                          : with_bias<float>(p, std::move(kernel));
}

}  // namespace

void add_conv(Registry& registry) {
  registry.add(make_op("Conv", {infer, grad, reference},
                       {{"onednn", accepts, create},
                        {"loops", accepts_conv_loops, make_conv_loops},
                        in_float32<accepts, create>()},
                       channels_last({0}, {0}, {.min_inputs = 2})));
  registry.add(make_op("ConvTranspose", {transposed_infer, transposed_grad, transposed_reference},
                       {{"onednn", transposed_accepts, transposed_create},
                        {"loops", accepts_conv_loops, create_loops},
                        in_float32<transposed_accepts, transposed_create>()},
                       channels_last({0}, {0}, {.min_inputs = 2})));
}

}  // namespace ofsdp::kernels::ops
