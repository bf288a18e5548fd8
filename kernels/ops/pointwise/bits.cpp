// Operators on the bits of integers, broadcast. No gradients.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// BitShift, attribute direction ("LEFT" or "RIGHT"): a shifted by b bits. Bits shifted out are lost;
// to the right, signed integers fill with their sign. A negative b, or one of all bits and more,
// leaves only the fill.
#include <cmath>

#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

int64_t whole(double x) { return static_cast<int64_t>(x); }

std::vector<BinaryOp> bitwise() {
  return {
      {.name = "BitwiseAnd",
       .first_opset = 18,
       .reference =
           of_ab<[](double a, double b) { return static_cast<double>(whole(a) & whole(b)); }>,
       .loops = binary_loops<OFSDP_AB(a & b), kIntegerTypes, Loops::kSignless>()},
      {.name = "BitwiseOr",
       .first_opset = 18,
       .reference =
           of_ab<[](double a, double b) { return static_cast<double>(whole(a) | whole(b)); }>,
       .loops = binary_loops<OFSDP_AB(a | b), kIntegerTypes, Loops::kSignless>()},
      {.name = "BitwiseXor",
       .first_opset = 18,
       .reference =
           of_ab<[](double a, double b) { return static_cast<double>(whole(a) ^ whole(b)); }>,
       .loops = binary_loops<OFSDP_AB(a ^ b), kIntegerTypes, Loops::kSignless>()},
  };
}

std::vector<RefTensor> not_reference(const ReferenceContext& c) {
  RefTensor y = unary_reference(c, [](double x) { return -1 - x; })[0];
  const auto bits = static_cast<int>(8 * dtype_size(y.desc.dtype));
  for (double& v : y.values) {
    if (y.desc.dtype >= DType::kUInt8) v += std::ldexp(1.0, bits);
  }
  return {y};
}

// --- BitShift ---

std::vector<RefTensor> shift_reference(const ReferenceContext& c) {
  const bool left = c.attributes.s("direction", "") == "LEFT";
  const TensorDesc& desc = c.output_descs[0];
  const double range = std::ldexp(1.0, static_cast<int>(8 * dtype_size(desc.dtype)));
  const bool is_signed = desc.dtype <= DType::kInt64;
  return binary_reference(c, [=](double a, double b) {
    const double by = b < 0 ? 64 : b;
    if (!left) return std::floor(std::ldexp(a, -static_cast<int>(by)));
    if (std::ldexp(1.0, static_cast<int>(by)) >= range) return 0.0;
    const double moved = std::ldexp(a, static_cast<int>(by));
    if (std::abs(moved) < range / 2) return moved;
    const double rest = std::fmod(moved, range);
    const double positive = rest < 0 ? rest + range : rest;
    return is_signed && positive >= range / 2 ? positive - range : positive;
  });
}

template <typename T>
OFSDP_HD T shift_of(T a, T b, bool left) {
  constexpr T kBits = 8 * sizeof(T);
  const bool all = (std::is_signed_v<T> && b < T{0}) || b >= kBits;
  if (left) return all ? T{0} : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << b);
  if (!std::is_signed_v<T> && all) return T{0};
  return static_cast<T>(a >> (all ? static_cast<T>(kBits - 1) : b));
}

Result<std::vector<TensorDesc>> infer_shift(const InferContext& c) {
  const std::string direction = c.attributes.s("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") {
    return input_error("attribute 'direction': expected LEFT or RIGHT, found '{}'", direction);
  }
  return infer_binary(c);
}

std::vector<SampleCase> shift_samples() {
  std::vector<SampleCase> list;
  for (const char* direction : {"LEFT", "RIGHT"}) {
    append(list, samples_of_types(kIntegerTypes, [](size_t input, std::vector<double>& values) {
             for (double& v : values) v *= input == 0 ? 13 : 1;
           }));
    for (DType dtype : types_in(kIntegerTypes)) {
      const double bits = 8.0 * static_cast<double>(dtype_size(dtype));
      list.push_back(
          sample_of(dtype, "far", {{6}, {6}}, fill_with(1, {bits - 1, bits, 1, 0, 100, 2})));
    }
    for (SampleCase& s : list) {
      if (!s.attributes.has("direction")) s.attributes.set("direction", std::string(direction));
    }
  }
  return list;
}

std::vector<OpDef> others() {
  return {
      pointwise(
          {.name = "BitwiseNot",
           .first_opset = 18,
           .reference = not_reference,
           .cpu = pointwise_kernels(
               "BitwiseNot", unary_loops<OFSDP_X(static_cast<decltype(x)>(~x)), kIntegerTypes>()),
           .samples = [] { return vectors_of_types(kIntegerTypes); }}),
      pointwise({.name = "BitShift",
                 .min_inputs = 2,
                 .first_opset = 11,
                 .infer = infer_shift,
                 .reference = shift_reference,
                 .cpu = pointwise_kernels(
                     "BitShift", binary_loops<OFSDP_AB(shift_of(a, b, k.a != 0)), kIntegerTypes>()),
                 .samples = shift_samples}),
  };
}

}  // namespace

void add_bits(Registry& registry) {
  for (const BinaryOp& op : bitwise()) add_binary(registry, op);
  for (OpDef& op : others()) registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
