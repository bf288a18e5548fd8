// DeformConv(X [N, C, H, W], W [M, C / group, kH, kW], offset, B, mask): a convolution that reads X
// between pixels. Tap k for output position p reads where an ordinary convolution would, plus
// offset [N, offset_group, kH kW, (y, x), oH oW]: linearly between 4 pixels, 0 outside, times mask
// [N, offset_group, kH kW, oH oW]. Channels are split into offset_group groups.
//
// It has no kernel: the body is GridSample, Mul and MatMul, so all operands have gradients. Two
// spatial axes. https://onnx.ai/onnx/operators/onnx__DeformConv.html
#include <bit>
#include <cmath>

#include "kernels/core/op_def.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace deform_conv {
namespace {

struct DeformShape {
  Shape x, w, y;
  int64_t group, offset_group, taps, places;
  std::vector<int64_t> strides, dilations, pads;

  // Returns where tap k reads for output position p along `axis` (0: y), before the offset.
  double base(int64_t k, int64_t p, size_t axis) const {
    const int64_t tap = axis == 0 ? k / w[3] : k % w[3], place = axis == 0 ? p / y[3] : p % y[3];
    return static_cast<double>(place * strides[axis] + tap * dilations[axis] - pads[axis]);
  }
};

Result<DeformShape> shape_of(const Attributes& a, const Shape& x, const Shape& w) {
  if (x.rank() != 4 || w.rank() != 4) {
    return input_error("expected X and W of two spatial axes, found {} and {}", x.text(), w.text());
  }
  OFSDP_ASSIGN_OR_RETURN(const ConvShape conv, infer_conv(a, x, w));
  DeformShape s{x,
                w,
                conv.y,
                a.i("group", 1),
                a.i("offset_group", 1),
                w[2] * w[3],
                conv.y[2] * conv.y[3],
                a.ints("strides", {1, 1}),
                a.ints("dilations", {1, 1}),
                a.ints("pads", {0, 0, 0, 0})};
  if (s.offset_group > 0 && x[1] % s.offset_group == 0 && x[2] > 0 && x[3] > 0) return s;
  return input_error("attribute 'offset_group': expected a divisor of {} channels, found {}", x[1],
                     s.offset_group);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const DeformShape s,
                         shape_of(c.attributes, c.inputs[0].shape, c.inputs[1].shape));
  const int64_t sampled = s.offset_group * s.taps;
  const Shape offset{s.x[0], 2 * sampled, s.y[2], s.y[3]}, mask{s.x[0], sampled, s.y[2], s.y[3]};
  const auto fits = [&](size_t i, const Shape& shape) {
    return !c.has(i) || (c.inputs[i].shape == shape && c.inputs[i].dtype == c.inputs[0].dtype);
  };
  const auto refused = [&](const char* name, size_t i, const Shape& shape) {
    return input_error("{}: expected {}{}, found {}", name, dtype_name(c.inputs[0].dtype),
                       shape.text(), c.inputs[i].text());
  };
  if (!fits(2, offset)) return refused("offset", 2, offset);
  if (!fits(3, {s.w[0]})) return refused("B", 3, {s.w[0]});
  if (!fits(4, mask)) return refused("mask", 4, mask);
  return std::vector{TensorDesc{c.inputs[0].dtype, s.y}};
}

Ref numbers(BodyBuilder& b, DType dtype, const Shape& shape, const std::vector<double>& values) {
  const TensorDesc desc{dtype, shape};
  std::vector<std::byte> bytes(desc.bytes());
  from_doubles(values, desc, bytes.data());
  return b.constant(std::make_shared<const Constant>(Constant{desc, std::move(bytes)}));
}

// X is padded with zeros until the sizes are powers of two: coordinates of whole pixels (offset 0)
// are then exact.
int64_t filled(int64_t size) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size)));
}

// Returns GridSample's coordinates (x, y) for all taps and positions: (2 position + 1) / size - 1.
Ref grid(BodyBuilder& b, const DeformShape& s) {
  const DType dtype = b.desc(b.input(2)).dtype;
  std::vector<double> base;
  for (int64_t i = 0; i < s.taps * s.places; ++i) {
    for (const size_t axis : {size_t{1}, size_t{0}}) {
      base.push_back(s.base(i / s.places, i % s.places, axis) + 0.5);
    }
  }
  const Ref split = b.reshape(b.input(2), {s.x[0] * s.offset_group, s.taps, 2, s.places});
  const Ref pairs =
      b.emit1("Gather", {b.transpose(split, {0, 1, 3, 2}), b.ints({1, 0})}, {{"axis", int64_t{3}}});
  const Ref places = b.add(pairs, numbers(b, dtype, {1, s.taps, s.places, 2}, base));
  const Ref scale =
      numbers(b, dtype, {2},
              {2 / static_cast<double>(filled(s.x[3])), 2 / static_cast<double>(filled(s.x[2]))});
  return b.sub(b.mul(places, scale), b.like(places, 1));
}

void body(BodyBuilder& b) {
  const DeformShape s =
      *shape_of(b.attributes(), b.desc(b.input(0)).shape, b.desc(b.input(1)).shape);
  const int64_t images = s.x[0] * s.offset_group;
  Ref x = b.reshape(b.input(0), {images, s.x[1] / s.offset_group, s.x[2], s.x[3]});
  const int64_t below = filled(s.x[2]) - s.x[2], right = filled(s.x[3]) - s.x[3];
  if (below + right > 0) x = b.emit1("Pad", {x, b.ints({0, 0, 0, 0, 0, 0, below, right})});
  Ref columns = b.emit1("GridSample", {x, grid(b, s)});
  if (b.input(4)) {
    columns = b.mul(columns, b.reshape(b.input(4), {images, 1, s.taps, s.places}));
  }
  const int64_t width = s.x[1] / s.group * s.taps;
  columns = b.reshape(columns, {s.x[0], s.group, width, s.places});
  const Ref w = b.reshape(b.input(1), {s.group, s.w[0] / s.group, width});
  Ref y = b.reshape(b.emit1("MatMul", {w, columns}), s.y);
  if (b.input(3)) y = b.add(y, b.reshape(b.input(3), {s.w[0], 1, 1}));
  b.set_output(0, y);
}

// --- reference ---

// Returns X between the pixels of one plane.
double value_at(const DeformShape& s, const RefTensor& x, int64_t plane, double v, double h) {
  double sum = 0;
  for (double row = std::floor(v); row <= std::floor(v) + 1; ++row) {
    for (double column = std::floor(h); column <= std::floor(h) + 1; ++column) {
      const auto i = static_cast<int64_t>(row), k = static_cast<int64_t>(column);
      if (i < 0 || i >= s.x[2] || k < 0 || k >= s.x[3]) continue;
      sum += (1 - std::abs(v - row)) * (1 - std::abs(h - column)) *
             x[(plane * s.x[2] + i) * s.x[3] + k];
    }
  }
  return sum;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor &x = c.inputs[0], &w = c.inputs[1], &offset = c.inputs[2];
  const RefTensor *bias = given(c.inputs, 3), *mask = given(c.inputs, 4);
  const DeformShape s = *shape_of(c.attributes, x.desc.shape, w.desc.shape);
  RefTensor y = zeros(c.output_descs[0]);
  const int64_t inputs = s.x[1] / s.group, outputs = s.w[0] / s.group;
  for (int64_t at = 0; at < y.desc.numel(); ++at) {
    const int64_t p = at % s.places, m = at / s.places % s.w[0], n = at / s.places / s.w[0];
    y[at] = bias == nullptr ? 0 : (*bias)[m];
    for (int64_t i = 0; i < inputs * s.taps; ++i) {
      const int64_t k = i % s.taps, channel = m / outputs * inputs + i / s.taps;
      const int64_t shared = channel / (s.x[1] / s.offset_group);
      const int64_t row = (n * s.offset_group + shared) * s.taps + k;
      const double v = s.base(k, p, 0) + offset[2 * row * s.places + p];
      const double h = s.base(k, p, 1) + offset[(2 * row + 1) * s.places + p];
      const double share = mask == nullptr ? 1 : (*mask)[row * s.places + p];
      y[at] += w[m * inputs * s.taps + i] * share * value_at(s, x, n * s.x[1] + channel, v, h);
    }
  }
  return {y};
}

}  // namespace
}  // namespace deform_conv

void add_deform_conv(Registry& registry) {
  using namespace deform_conv;
  registry.add(make_op("DeformConv", {infer, nullptr, reference}, {},
                       {.min_inputs = 3, .first_opset = 19, .body = body}));
}

}  // namespace ofsdp::kernels::ops
