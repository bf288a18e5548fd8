// Resize as a linear map of each axis: which input positions an output position reads, and with
// which weights. Nearest, linear, cubic and their antialiased forms are such maps; an N-D resize is
// one after another, and its gradient the transposed maps.
//
// `roi`, `scales` and `sizes` are ONNX's inputs, empty when absent. Owns: values. Threads: any.
// Errors: kInput.
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
  std::vector<bool> outside = {};  // rows of tf_crop_and_resize outside of x: no entries
  // The numbers that rows are made from, to make them again (kernels/cuda/indexing/axis_map.h).
  double scale = 1, roi_begin = 0, roi_end = 1;

  bool is_identity() const;
  AxisMap transposed() const;
};

struct ResizeInputs {
  std::vector<double> roi, scales, sizes;
};

struct ResizeMaps {
  Shape y;
  std::vector<AxisMap> axes;  // of every axis of x
};

Result<ResizeMaps> resolve_resize(const Attributes& attributes, const Shape& x,
                                  const ResizeInputs& inputs);
bool is_nearest(const Attributes& attributes);

// Kernels that apply the maps: one axis after another, those that shrink first. float32 and float64
// with weights, or elements of any type moved when every row has one entry. Operand 0 to output 0,
// both plain or both channels last.
// `fill` goes where a map has a row outside of x.
std::unique_ptr<Kernel> make_resize(const Problem& problem, const ResizeMaps& maps, double fill);
// dy to dx.
std::unique_ptr<Kernel> make_resize_grad(const Problem& problem, const ResizeMaps& maps);

}  // namespace ofsdp::kernels::ops
