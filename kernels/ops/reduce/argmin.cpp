// ArgMin(x), attributes axis, keepdims, select_last_index: the index of the smallest element along
// the axis; of equal ones the first, or the last when select_last_index is 1. No gradient: the
// output is whole numbers. https://onnx.ai/onnx/operators/onnx__ArgMin.html
#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/arg_extreme.h"

namespace ofsdp::kernels::ops {

void add_argmin(Registry& registry) { registry.add(arg_extreme("ArgMin", false)); }

}  // namespace ofsdp::kernels::ops
