// Resize as a linear map per axis: which input positions an output position reads, and with which
// weights. Nearest, linear, cubic and the antialiased forms are such maps. An N-D resize applies
// one after another; the gradient applies the transposed maps.
//
// `roi`, `scales` and `sizes` are ONNX's inputs, empty if absent.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

// Row i has entries first[i] .. first[i+1]-1.
struct AxisMap {
  int64_t in = 0, out = 0;
  std::vector<int64_t> first = {}, index = {};
  std::vector<double> weight = {};
  std::vector<bool> outside = {};  // rows that tf_crop_and_resize puts outside x: no entries
  // These numbers suffice to make the rows again (kernels/cuda/indexing/axis_map.h).
  double scale = 1, roi_begin = 0, roi_end = 1;

  bool is_identity() const;
  AxisMap transposed() const;
};

struct ResizeInputs {
  std::vector<double> roi, scales, sizes;
};

struct ResizeMaps {
  Shape y;
  std::vector<AxisMap> axes;  // for every axis of x
};

Result<ResizeMaps> resolve_resize(const Attributes& attributes, const Shape& x,
                                  const ResizeInputs& inputs);
bool is_nearest(const Attributes& attributes);

// Makes a kernel that applies the maps, one axis after another, shrinking axes first: float32 and
// float64 with weights, or any type if every row has one entry. Input 0 and output 0 must both be
// plain or both be channels last. Rows outside x get `fill`.
std::unique_ptr<Kernel> make_resize(const Problem& problem, const ResizeMaps& maps, double fill);
// Maps dy to dx.
std::unique_ptr<Kernel> make_resize_grad(const Problem& problem, const ResizeMaps& maps);

}  // namespace ofsdp::kernels::ops
