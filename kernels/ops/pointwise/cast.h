// The conversion that Cast and CastLike share: element by element, from the dtype of input 0 to
// that of output 0. See kernels/ops/pointwise/cast.cpp for what becomes of values that do not fit.
//
// Owns: nothing. Threads: as Kernel. Errors: none.
#pragma once

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

int64_t number_of_dtype(DType dtype);   // in onnx.proto's TensorProto.DataType; 0 when absent
DType dtype_of_number(int64_t number);  // kUndefined when it is none of ours
bool accepts_cast(const Problem& p);
std::unique_ptr<Kernel> create_cast(const Problem& p);
std::vector<RefTensor> cast_reference(const ReferenceContext& c);
void cast_grad(GradBuilder& b);

}  // namespace ofsdp::kernels::ops
