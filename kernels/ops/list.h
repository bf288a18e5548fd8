// The one list of operators: a line each here and in list.cpp; nothing registers itself.
#pragma once

#include "kernels/core/registry.h"

namespace ofsdp::ops {

void add_relu(Registry& registry);
void add_sum_to(Registry& registry);
void add_reshape(Registry& registry);
void add_flatten(Registry& registry);
void add_squeeze(Registry& registry);
void add_unsqueeze(Registry& registry);
void add_identity(Registry& registry);
void add_collapse(Registry& registry);
void add_copy(Registry& registry);
void add_reorder(Registry& registry);
void add_constant(Registry& registry);
void add_shape(Registry& registry);
void add_add(Registry& registry);
void add_sub(Registry& registry);
void add_mul(Registry& registry);
void add_div(Registry& registry);
void add_neg(Registry& registry);
void add_sqrt(Registry& registry);
void add_exp(Registry& registry);
void add_log(Registry& registry);
void add_sigmoid(Registry& registry);
void add_tanh(Registry& registry);
void add_concat(Registry& registry);
void add_slice(Registry& registry);
void add_transpose(Registry& registry);
void add_expand(Registry& registry);
void add_gather(Registry& registry);
void add_cast(Registry& registry);
void add_reduce_sum(Registry& registry);
void add_reduce_mean(Registry& registry);
void add_softmax(Registry& registry);
void add_log_softmax(Registry& registry);
void add_nll_loss(Registry& registry);
void add_softmax_cross_entropy_loss(Registry& registry);
void add_mse_loss(Registry& registry);
void add_bce_with_logits_loss(Registry& registry);
void add_argmax_matches(Registry& registry);
void add_dropout(Registry& registry);
void add_gemm(Registry& registry);
void add_matmul(Registry& registry);
void add_conv(Registry& registry);
void add_conv_grad(Registry& registry);
void add_max_pool(Registry& registry);
void add_max_pool_grad(Registry& registry);
void add_abs(Registry& registry);
void add_leaky_relu(Registry& registry);
void add_equal(Registry& registry);
void add_less(Registry& registry);
void add_greater(Registry& registry);
void add_not(Registry& registry);
void add_pow(Registry& registry);
void add_clip(Registry& registry);
void add_where(Registry& registry);
void add_constant_of_shape(Registry& registry);
void add_range(Registry& registry);
void add_global_average_pool(Registry& registry);

}  // namespace ofsdp::ops
