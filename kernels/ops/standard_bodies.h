// The one list of standard bodies (kernels/core/standard_body.h): a line each here and in
// standard_bodies.cpp; each stands in its operator's file. Below, what several of them share.
//
// Ownership, threads: as there.
#pragma once

#include "kernels/core/standard_body.h"

namespace ofsdp::kernels::ops {

void abs_grad_body(BodyBuilder& b);
void average_pool_grad_body(BodyBuilder& b);
void batch_normalization_grad_body(BodyBuilder& b);
void bce_with_logits_loss_body(BodyBuilder& b);
void bce_with_logits_loss_grad_body(BodyBuilder& b);
void clip_grad_body(BodyBuilder& b);
void collapse_body(BodyBuilder& b);
void conv_grad_input_body(BodyBuilder& b);
void conv_grad_weights_body(BodyBuilder& b);
void copy_body(BodyBuilder& b);
void dropout_grad_body(BodyBuilder& b);
void elu_grad_body(BodyBuilder& b);
void erf_grad_body(BodyBuilder& b);
void gather_grad_body(BodyBuilder& b);
void gelu_grad_body(BodyBuilder& b);
void group_normalization_grad_body(BodyBuilder& b);
void layer_normalization_grad_body(BodyBuilder& b);
void leaky_relu_grad_body(BodyBuilder& b);
void log_softmax_grad_body(BodyBuilder& b);
void matmul_body(BodyBuilder& b);
void max_pool_grad_body(BodyBuilder& b);
void mse_loss_body(BodyBuilder& b);
void mse_loss_grad_body(BodyBuilder& b);
void nll_loss_grad_body(BodyBuilder& b);
void relu_grad_body(BodyBuilder& b);
void sigmoid_grad_body(BodyBuilder& b);
void slice_grad_body(BodyBuilder& b);
void softmax_cross_entropy_loss_grad_body(BodyBuilder& b);
void softmax_grad_body(BodyBuilder& b);
void softplus_grad_body(BodyBuilder& b);
void sum_to_body(BodyBuilder& b);
void swish_grad_body(BodyBuilder& b);
void tanh_grad_body(BodyBuilder& b);

// dy added up in zeros that have `size` along `axis`, at `indices` of it; dy has the axes of indices
// in place of that axis.
Ref scatter_along(BodyBuilder& b, Ref dy, Ref indices, int axis, int64_t size);

// What the gradients of class losses are made of, each with an axis of classes: one-hot labels, which
// labels count (0 or 1), and their weights (0 where they do not count).
struct LabelTerms {
  Ref one_hot, kept, weight;
};
LabelTerms label_terms(BodyBuilder& b, Ref labels, Ref weights, const TensorDesc& scores);
// The class weights [C] as a factor of the scores.
Ref class_weights(BodyBuilder& b, Ref weights, const Shape& scores);
// What a label's gradient is multiplied by, from that of the loss and the reduction.
Ref label_scale(BodyBuilder& b, const LabelTerms& terms, Ref diff_loss);

}  // namespace ofsdp::kernels::ops
