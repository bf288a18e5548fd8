#include "kernels/ops/reduce/reduce_extreme.h"

#include <cmath>
#include <limits>

namespace ofsdp::kernels::ops {
namespace {

std::pair<double, double> range_of(DType dtype) {
  if (is_floating(dtype)) return {-INFINITY, INFINITY};
  return with_number(dtype, [](auto zero) -> std::pair<double, double> {
    using Limits = std::numeric_limits<decltype(zero)>;
    return {static_cast<double>(Limits::lowest()), static_cast<double>(Limits::max())};
  });
}

}  // namespace

void grad_of_reduced_extreme(GradBuilder& b) {
  const DType dtype = b.desc(b.input(0)).dtype;
  const Ref y = keep_reduced(b, b.output(0));
  const Ref ones = b.scalar(dtype, 1);
  const Ref zeros = b.scalar(dtype, 0);
  const Ref mask = b.emit1("Where", {b.emit1("Equal", {b.input(0), y}), ones, zeros});
  const Ref count = b.emit1("ofsdp.SumTo", {mask}, {{"shape", b.desc(y).shape.axes()}});
  const Ref share = b.emit1("Div", {keep_reduced(b, b.grad_output(0)), count});
  b.set_grad(0, b.emit1("Mul", {mask, share}));
}

RefTensor reference_of_extreme(const ReferenceContext& c, bool largest) {
  const auto [lowest, highest] = range_of(c.output_descs[0].dtype);
  return reference_fold(c, largest ? lowest : highest, [&](double y, double x) {
    return std::isnan(x) || (largest ? x > y : x < y) ? x : y;
  });
}

}  // namespace ofsdp::kernels::ops
