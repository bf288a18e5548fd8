// What the gather and scatter operators share: checks of their operands, places for their
// references, and the gradient of a scatter, which is the same for elements and for slices.
//
// Owns: nothing. Threads: any. Errors: kInput.
#pragma once

#include "kernels/cpu/scatter.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// A tensor of zeros made at run time.
Ref zeros(GradBuilder& b, const TensorDesc& desc);

// Of GatherElements and ScatterElements: int64 or int32 indices of the rank of data, nowhere larger
// but along the attribute axis.
Status check_element_indices(const InferContext& c);
// The element of data that element `i` of the indices names.
size_t element_place(const Shape& data, const RefTensor& indices, int64_t i, int64_t axis);

// Of GatherND and ScatterND: the shape that gathering gives, which is that of the updates.
Result<Shape> tuple_slices(const InferContext& c, int64_t batch_axes);
// f(element of data, element of the slices), in the order of the slices.
void for_tuple_elements(const Shape& data, const RefTensor& indices, int batch_axes,
                        const std::function<void(size_t, size_t)>& f);

Result<ScatterKind> reduction_of(const Attributes& attributes);
double reduce_doubles(ScatterKind kind, double a, double b);

// scatter(data, indices, updates) with the attribute reduction, `gather` its counterpart, `carried`
// their other attributes:
//   none     d data = dy with zeros at the indices,  d updates = dy there
//   add      d data = dy,                            d updates = dy there
//   mul      d data = dy scattered with the updates, d updates = dy there times all other factors
//   max/min  dy shared evenly by all, data included, that are equal to y
void scatter_grad(GradBuilder& b, const std::string& scatter, const std::string& gather,
                  const Attributes& carried);

}  // namespace ofsdp::kernels::ops
