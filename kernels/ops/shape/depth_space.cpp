#include "kernels/ops/shape/depth_space.h"

namespace ofsdp::kernels::ops {

constexpr int64_t kMostBlock = 65536;  // whose square is no overflow

Status check_block(const InferContext& c) {
  const int64_t size = c.attributes.i("blocksize", 0);
  if (size < 1 || size > kMostBlock) {
    return input_error("attribute 'blocksize': expected 1..{}, found {}", kMostBlock, size);
  }
  const std::string mode = c.attributes.s("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") {
    return input_error("attribute 'mode': expected DCR or CRD, found '{}'", mode);
  }
  if (c.inputs[0].shape.rank() != 4) {
    return input_error("expected [N, C, H, W], found {}", c.inputs[0].text());
  }
  return ok_status();
}

BlockView block_view(const Shape& space, const Attributes& attributes) {
  const int64_t b = attributes.i("blocksize", 1);
  const int64_t c = space[1], h = space[2] / b, w = space[3] / b;
  const int64_t plane = h * w;
  const bool dcr = attributes.s("mode", "DCR") == "DCR";
  const int64_t column = dcr ? c * plane : plane;
  return {{space[0], c, h, b, w, b},
          {c * plane * b * b, plane * b * b, w * b * b, w * b, b, 1},
          {c * plane * b * b, dcr ? plane : plane * b * b, w, column * b, 1, column}};
}

void block_grad(GradBuilder& b, const char* inverse) {
  b.set_grad(0, b.emit1(inverse, {b.grad_output(0)}, b.attributes()));
}

std::vector<RefTensor> block_reference(const BlockView& v, const ReferenceContext& c,
                                       const std::vector<int64_t>& from,
                                       const std::vector<int64_t>& to) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(v.shape, i);
    size_t x_at = 0, y_at = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) {
      x_at += static_cast<size_t>(index[axis] * from[axis]);
      y_at += static_cast<size_t>(index[axis] * to[axis]);
    }
    y.values[y_at] = c.inputs[0].values[x_at];
  }
  return {y};
}

std::vector<SampleCase> block_samples(const std::vector<Shape>& shapes) {
  std::vector<SampleCase> list;
  for (const char* mode : {"DCR", "CRD"}) {
    for (const Shape& shape : shapes) {
      list.push_back({.name = std::string(mode) + (shape.numel() == 0 ? "_empty" : ""),
                      .attributes = {{"blocksize", int64_t{2}}, {"mode", std::string(mode)}},
                      .inputs = {{DType::kFloat32, shape}}});
    }
  }
  list.push_back({.name = "bytes",
                  .attributes = {{"blocksize", int64_t{2}}},
                  .inputs = {{DType::kUInt8, shapes[0]}}});
  return list;
}

}  // namespace ofsdp::kernels::ops
