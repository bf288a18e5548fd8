// ConvTranspose: the transpose of a convolution. x [N, C, in...], w [C, M/group, kernel...]:
//   y[n, m, i s - p + k d] += w[c, m, k] x[n, c, i], then + b[m].
// So y is what ofsdp.ConvGradInput(x, w) gives for a Conv from y's shape to x's, and the gradients
// are that Conv's other two: dx = Conv(dy, w), dw = ofsdp.ConvGradWeights(dy, x); db = sum of dy.
// https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
#include <numeric>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/conv/conv_kernels.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/conv/conv_transpose_shape.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

using Ints = std::vector<int64_t>;

// The attributes that the nodes of that Conv carry.
Attributes attributes_of(const ConvShape& s) {
  Attributes made = conv_attributes(s);
  made.set(kOutputsAttribute, s.window.used(s.window.out));
  return made;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const ConvShape s,
                         infer_transposed(c.attributes, c.inputs[0].shape, c.inputs[1].shape));
  if (c.has(2) && c.inputs[2].shape != Shape{s.x[1]}) {
    return input_error("B: expected [{}], found {}", s.x[1], c.inputs[2].shape.text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, s.x}};
}

void grad(GradBuilder& b) {
  const Attributes made = attributes_of(
      known_transposed(b.attributes(), b.desc(b.input(0)).shape, b.desc(b.input(1)).shape));
  const Ref dy = b.grad_output(0);
  if (b.needs_grad(0)) b.set_grad(0, b.emit1("Conv", {dy, b.input(1)}, made));
  if (b.needs_grad(1)) {
    b.set_grad(1, b.emit1("ofsdp.ConvGradWeights", {dy, b.input(0)}, made));
  }
  if (b.num_inputs() < 3 || !b.input(2) || !b.needs_grad(2)) return;
  std::vector<int64_t> axes(static_cast<size_t>(b.desc(dy).shape.rank()) - 1);
  std::iota(axes.begin(), axes.end(), 1);
  axes[0] = 0;
  b.set_grad(2, b.emit1("ReduceSum", {dy, b.ints(axes)}, {{"keepdims", int64_t{0}}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ConvShape s =
      known_transposed(c.attributes, c.inputs[0].desc.shape, c.inputs[1].desc.shape);
  RefTensor y{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.x.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    y.values[static_cast<size_t>(in)] +=
        c.inputs[0].values[static_cast<size_t>(out)] * c.inputs[1].values[static_cast<size_t>(tap)];
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

Acceptance accepts(const Problem& p) {
  if (!p.all_dtype(DType::kFloat32)) return Acceptance::refuse("not float32");
  return accepts_conv_grad_input(as_grad_input(p));
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_bias<float>(p, make_conv_grad_input(as_grad_input(p)));
}

std::unique_ptr<Kernel> create_loops(const Problem& p) {
  std::unique_ptr<Kernel> kernel = make_conv_grad_input_loops(as_grad_input(p));
  return p.in(0).dtype == DType::kFloat64 ? with_bias<double>(p, std::move(kernel))
                                          : with_bias<float>(p, std::move(kernel));
}

std::vector<SampleCase> samples() {
  const auto sample = [](const char* name, Shape x, Shape w, Attributes attributes,
                         int64_t bias = 0) {
    SampleCase made{.name = name,
                    .attributes = std::move(attributes),
                    .inputs = {{DType::kFloat32, std::move(x)}, {DType::kFloat32, std::move(w)}}};
    if (bias > 0) made.inputs.push_back({DType::kFloat32, {bias}});
    return made;
  };
  const Attributes halves{{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}};
  Attributes padded = halves;
  padded.set("output_padding", Ints{1, 1});
  std::vector<SampleCase> cases = {
      sample("image", {2, 3, 4, 5}, {3, 4, 3, 3}, {}, 4),
      sample("doubling", {2, 3, 4, 5}, {3, 4, 4, 4}, halves, 4),
      sample("output_padding", {2, 3, 4, 5}, {3, 2, 3, 3}, padded, 2),
      sample("grouped_dilated", {1, 4, 4, 5}, {4, 3, 3, 2},
             {{"group", int64_t{2}}, {"dilations", Ints{2, 3}}, {"strides", Ints{2, 1}}}, 6),
      sample("depthwise", {2, 16, 4, 4}, {16, 1, 3, 3}, {{"group", int64_t{16}}}, 16),
      sample("output_shape", {1, 3, 3, 3}, {3, 2, 3, 3},
             {{"strides", Ints{3, 2}}, {"output_shape", Ints{10, 8}}}, 2),
      sample("more_room", {1, 3, 3, 3}, {3, 2, 2, 2},
             {{"strides", Ints{2, 2}}, {"output_shape", Ints{9, 8}}}, 2),
      sample("same_upper", {1, 2, 3, 4}, {2, 2, 3, 3},
             {{"strides", Ints{2, 2}}, {"auto_pad", std::string("SAME_UPPER")}}),
      sample("line", {2, 3, 6}, {3, 4, 5}, {{"strides", Ints{3}}}, 4),
      sample("volume", {1, 2, 3, 4, 2}, {2, 3, 3, 2, 3}, {{"strides", Ints{1, 2, 1}}}, 3),
      sample("empty_batch", {0, 3, 4, 5}, {3, 4, 3, 3}, {}, 4)};
  append(cases, in_rare_types(cases[3]));
  cases[cases.size() - 3].check_grad = false;
  return cases;
}

}  // namespace

void add_conv_transpose(Registry& registry) {
  registry.add({.name = "ConvTranspose",
                .min_inputs = 2,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"onednn", accepts, create},
                        {"loops", accepts_conv_loops, create_loops},
                        in_float32<accepts, create>()},
                .samples = samples,
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0},
                .channels_last_outputs = {0}});
}

}  // namespace ofsdp::kernels::ops
