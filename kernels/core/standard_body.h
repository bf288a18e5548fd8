// BodyBuilder: builds an operator of our own from operators of the ONNX standard, so that a
// gradient graph can be written to a file that others read (fsdp-run make-training). OpDef::body is
// the function that does so. It is written against BodyBuilder, so kernels know no graph.
//
// A body is built for one problem: shapes and attributes are known. It may use standard operators,
// and operators of ours that have a body themselves.
//
// Calls `fail` if standard operators cannot express the problem.
#pragma once

#include "kernels/core/op_def.h"

namespace ofsdp::kernels {

class BodyBuilder : public GraphBuilder {
 public:
  virtual TensorDesc output_desc(size_t i) const = 0;  // not present(): not wanted
  virtual void set_output(size_t i, Ref ref) = 0;
  virtual ConstantPtr constant_value(Ref ref) const = 0;  // null if not known while planning

  bool wants(size_t output) const { return output_desc(output).present(); }
};

}  // namespace ofsdp::kernels
