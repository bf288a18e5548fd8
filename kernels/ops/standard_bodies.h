// Parts that several standard bodies (kernels/core/standard_body.h) share.
#pragma once

#include "kernels/core/standard_body.h"

namespace ofsdp::kernels::ops {

// Adds dy into zeros that have `size` along `axis`, at `indices` of that axis. In dy the axes of
// `indices` replace that axis.
Ref scatter_along(BodyBuilder& b, Ref dy, Ref indices, int axis, int64_t size);

// Terms of the gradients of class losses, each with an axis of classes: one-hot labels, whether a
// label counts (0 or 1), and its weight (0 where it does not count).
struct LabelTerms {
  Ref one_hot, kept, weight;
};
LabelTerms label_terms(BodyBuilder& b, Ref labels, Ref weights, const TensorDesc& scores);
// Returns the class weights [C] as a factor of the scores.
Ref class_weights(BodyBuilder& b, Ref weights, const Shape& scores);
// Returns the factor of each label's gradient, from the loss's gradient and its reduction.
Ref label_scale(BodyBuilder& b, const LabelTerms& terms, Ref diff_loss);

}  // namespace ofsdp::kernels::ops
