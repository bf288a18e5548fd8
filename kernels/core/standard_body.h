// BodyBuilder: builds an operator of our own from operators of the ONNX standard, so that a gradient
// graph can be written to a file that others read (fsdp-run make-training). OpDef::body is the
// function that does so. It is written against BodyBuilder, so kernels know no graph.
//
// A body is built for one problem: shapes and attributes are known. It may use standard operators and
// those of ours that have a body themselves.
//
// Errors: `fail` with what standard operators cannot express.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels {

class BodyBuilder {
 public:
  virtual ~BodyBuilder() = default;
  virtual const Attributes& attributes() const = 0;
  virtual Ref input(size_t i) const = 0;  // none when absent
  virtual const TensorDesc& desc(Ref ref) const = 0;
  virtual const TensorDesc& output_desc(size_t i) const = 0;  // not present(): not wanted
  virtual std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                                const Attributes& attributes, size_t num_outputs) = 0;
  virtual Ref constant(ConstantPtr value) = 0;
  virtual void set_output(size_t i, Ref ref) = 0;
  virtual void fail(Status status) = 0;

  bool wants(size_t output) const { return output_desc(output).present(); }
  Ref emit1(const std::string& op, const std::vector<Ref>& inputs,
            const Attributes& attributes = {}) {
    return emit(op, inputs, attributes, 1)[0];
  }
  Ref ints(const std::vector<int64_t>& values);  // int64 of one axis
  Ref scalar(DType dtype, double value);
  Ref like(Ref ref, double value) { return scalar(desc(ref).dtype, value); }

  Ref add(Ref a, Ref b) { return emit1("Add", {a, b}); }
  Ref sub(Ref a, Ref b) { return emit1("Sub", {a, b}); }
  Ref mul(Ref a, Ref b) { return emit1("Mul", {a, b}); }
  Ref mul(Ref a, double b) { return emit1("Mul", {a, like(a, b)}); }
  Ref div(Ref a, Ref b) { return emit1("Div", {a, b}); }
  Ref sum(Ref a, const std::vector<int64_t>& axes);  // keeps the axes
  Ref reshape(Ref a, const Shape& shape);
  Ref transpose(Ref a, const std::vector<int64_t>& order);
  Ref slice(Ref a, int64_t axis, int64_t begin, int64_t end);
  Ref where(Ref condition, Ref a, Ref b) { return emit1("Where", {condition, a, b}); }
  Ref cast(Ref a, DType dtype);
};

}  // namespace ofsdp::kernels
