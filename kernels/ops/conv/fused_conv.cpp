// com.microsoft.FusedConv(X, W, B, Z): Conv, plus Z, then the operator that attribute activation
// names, with the numbers in activation_params as attributes.
//
// com.microsoft.NhwcConv(X, W, B) and NhwcFusedConv(X, W, B, Z): the same if X, Y and Z are
// channels last, [N, spatial..., C]. W is [M, kernel..., C / group], as ONNX Runtime's
// `transformers` tool writes it, or [M, C / group, kernel...]: attribute kNhwcWeightsLast says
// which (importer/passes/specialize.h). Without it, W is the former unless only the latter fits.
//
// None has a kernel: the bodies are Conv between Transposes, Add and the activation.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/core/op_def.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/fused_activation.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace fused_conv {
namespace {

FusedActivation activation_of(const Attributes& attributes) {
  return {attributes.s("activation", ""),
          attributes.get("activation_params", std::vector<float>())};
}

Attributes without_activation(const Attributes& attributes) {
  Attributes made;
  for (const auto& [name, value] : attributes.all()) {
    if (!name.starts_with("activation") && name != kNhwcWeightsLast) made.set(name, value);
  }
  return made;
}

// Returns the perm that moves the last axis to axis 1; then the inverse.
std::vector<int64_t> channels_to_front(int rank) {
  std::vector<int64_t> order{0, rank - 1};
  for (int64_t axis = 1; axis + 1 < rank; ++axis) order.push_back(axis);
  return order;
}
std::vector<int64_t> channels_to_back(int rank) {
  std::vector<int64_t> order{0};
  for (int64_t axis = 2; axis < rank; ++axis) order.push_back(axis);
  order.push_back(1);
  return order;
}

Shape permuted(const Shape& shape, const std::vector<int64_t>& order) {
  std::vector<int64_t> axes;
  for (const int64_t axis : order) axes.push_back(shape[static_cast<int>(axis)]);
  return Shape(axes);
}

// Returns whether W, if the channels are on axis 1, matches X's channels and the node's kernel.
bool fits(const Shape& w, int64_t channels, const Attributes& attributes) {
  const std::vector<int64_t> kernel(w.axes().begin() + 2, w.axes().end());
  return w[1] * attributes.i("group", 1) == channels &&
         attributes.ints("kernel_shape", kernel) == kernel;
}

bool weights_are_last(const Shape& x, const Shape& w, const Attributes& attributes) {
  if (attributes.has(kNhwcWeightsLast)) return attributes.i(kNhwcWeightsLast, 1) != 0;
  const int64_t channels = x[x.rank() - 1];
  return fits(permuted(w, channels_to_front(w.rank())), channels, attributes) ||
         !fits(w, channels, attributes);
}

template <bool last>
Result<ConvShape> form(const Attributes& attributes, Shape x, Shape w) {
  if (x.rank() < 3 || w.rank() != x.rank()) {
    return input_error("expected X and W of 3 to 5 axes each, found {} and {}", x.text(), w.text());
  }
  if (last && weights_are_last(x, w, attributes)) w = permuted(w, channels_to_front(w.rank()));
  if (last) x = permuted(x, channels_to_front(x.rank()));
  return infer_conv(without_activation(attributes), x, w);
}

template <bool last>
Shape output(const ConvShape& s) {
  return last ? permuted(s.y, channels_to_back(s.y.rank())) : s.y;
}

template <bool last>
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_activation(activation_of(c.attributes)));
  OFSDP_ASSIGN_OR_RETURN(const ConvShape s,
                         form<last>(c.attributes, c.inputs[0].shape, c.inputs[1].shape));
  const Shape y = output<last>(s);
  if (c.has(3) && c.inputs[3].shape != y) {
    return input_error("Z: expected {}, found {}", y.text(), c.inputs[3].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, y}};
}

template <bool last>
void body(BodyBuilder& b) {
  Ref x = b.input(0), w = b.input(1), z = b.input(3);
  const int rank = b.desc(x).shape.rank();
  const auto front = [&](Ref ref) { return b.transpose(ref, channels_to_front(rank)); };
  if (last && weights_are_last(b.desc(x).shape, b.desc(w).shape, b.attributes())) w = front(w);
  if (last) x = front(x);
  std::vector<Ref> inputs{x, w};
  if (b.input(2)) inputs.push_back(b.input(2));
  Ref y = b.emit1("Conv", inputs, without_activation(b.attributes()));
  if (z) y = b.add(y, last ? front(z) : z);
  y = activated(b, y, activation_of(b.attributes()));
  b.set_output(0, last ? b.transpose(y, channels_to_back(rank)) : y);
}

// Returns x with the axes in another order.
RefTensor permuted(const RefTensor& x, const std::vector<int64_t>& order) {
  RefTensor made = zeros({x.desc.dtype, permuted(x.desc.shape, order)});
  for (int64_t i = 0; i < made.desc.numel(); ++i) {
    const auto to = unravel(made.desc.shape, i);
    std::vector<int64_t> from(to.size());
    for (size_t k = 0; k < to.size(); ++k) from[static_cast<size_t>(order[k])] = to[k];
    made[i] = x.values[ravel(x.desc.shape, from)];
  }
  return made;
}

template <bool last>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor x = c.inputs[0], w = c.inputs[1];
  const int rank = x.desc.shape.rank();
  const RefTensor* bias = given(c.inputs, 2);
  const RefTensor* z = given(c.inputs, 3);
  const ConvShape s = *form<last>(c.attributes, x.desc.shape, w.desc.shape);
  if (last && weights_are_last(x.desc.shape, w.desc.shape, c.attributes)) {
    w = permuted(w, channels_to_front(rank));
  }
  if (last) x = permuted(x, channels_to_front(rank));
  RefTensor y = zeros({x.desc.dtype, s.y});
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) { y[out] += x[in] * w[tap]; });
  for (int64_t i = 0; bias != nullptr && i < s.y.numel(); ++i) {
    y[i] += (*bias)[i / s.window.out_size() % s.y[1]];
  }
  if (last) y = permuted(y, channels_to_back(rank));
  for (int64_t i = 0; i < s.y.numel(); ++i) {
    y[i] = reference_activated(activation_of(c.attributes), y[i] + (z == nullptr ? 0 : (*z)[i]));
  }
  return {y};
}

}  // namespace
}  // namespace fused_conv

void add_fused_conv(Registry& registry) {
  using namespace fused_conv;
  const auto add = [&](const char* name, const OpFunctions& functions, StandardBody body) {
    registry.add(
        make_op(name, functions, {}, {.domain = "com.microsoft", .min_inputs = 2, .body = body}));
  };
  add("FusedConv", {infer<false>, nullptr, reference<false>}, body<false>);
  add("NhwcConv", {infer<true>, nullptr, reference<true>}, body<true>);
  add("NhwcFusedConv", {infer<true>, nullptr, reference<true>}, body<true>);
}

}  // namespace ofsdp::kernels::ops
