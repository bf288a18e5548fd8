#include "kernels/ops/reduce/cumulative.h"

namespace ofsdp::kernels::ops {

Result<std::vector<TensorDesc>> infer_cumulative(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto axis, known_ints(c, 1, "axis"));
  if (axis.size() != 1) return input_error("expected one axis, found {}", axis.size());
  OFSDP_RETURN_IF_ERROR(normalize_axis(axis[0], c.inputs[0].shape.rank()).status());
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

bool accepts_cumulative(const Problem& p) {
  return p.all_plain() && is_number(p.in(0).dtype) && p.in(0).dtype != DType::kBool;
}

Cumulation cumulation(const Attributes& attributes, const Shape& shape, int64_t axis) {
  return {lines_along(shape, axis), attributes.i("exclusive", 0) != 0,
          attributes.i("reverse", 0) != 0};
}

std::vector<SampleCase> cumulative_samples() {
  auto made = [](const char* name, TensorDesc x, double axis, int64_t exclusive, int64_t reverse) {
    return SampleCase{.name = name,
                      .attributes = {{"exclusive", exclusive}, {"reverse", reverse}},
                      .inputs = {std::move(x), {DType::kInt64, {}}},
                      .fill = fill_with(1, {axis}),
                      .constant_inputs = {1}};
  };
  const DType f = DType::kFloat32;
  return {made("vector", {f, {7}}, 0, 0, 0),
          made("exclusive", {f, {3, 7}}, -1, 1, 0),
          made("reverse", {f, {5, 3}}, 0, 0, 1),
          made("both", {f, {2, 5, 3}}, 1, 1, 1),
          made("wide", {f, {2, 3, 300}}, 1, 0, 0),
          made("doubles", {DType::kFloat64, {2, 3}}, 1, 0, 0),
          made("ints", {DType::kInt32, {2, 3}}, 0, 0, 1),
          made("longs", {DType::kInt64, {2, 3}}, 1, 1, 0),
          made("one", {f, {3, 1}}, 1, 1, 0),
          made("empty", {f, {0, 3}}, 0, 0, 0)};
}

}  // namespace ofsdp::kernels::ops
