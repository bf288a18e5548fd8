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
void add_narrow_cross_entropy_loss(Registry& registry);
void add_mse_loss(Registry& registry);
void add_bce_with_logits_loss(Registry& registry);
void add_argmax_matches(Registry& registry);
void add_dropout(Registry& registry);
void add_dropout_grad(Registry& registry);
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

// data movement and indices
void add_argmax(Registry& registry);
void add_argmin(Registry& registry);
void add_cast_like(Registry& registry);
void add_cumsum(Registry& registry);
void add_cumprod(Registry& registry);
void add_depth_to_space(Registry& registry);
void add_space_to_depth(Registry& registry);
void add_eye_like(Registry& registry);
void add_size(Registry& registry);
void add_split(Registry& registry);
void add_tile(Registry& registry);
void add_trilu(Registry& registry);
void add_one_hot(Registry& registry);
void add_reverse_sequence(Registry& registry);
void add_gather_elements(Registry& registry);
void add_scatter_elements(Registry& registry);
void add_gather_nd(Registry& registry);
void add_scatter_nd(Registry& registry);
void add_pad(Registry& registry);
void add_pad_grad(Registry& registry);
void add_top_k(Registry& registry);
void add_non_zero(Registry& registry);
void add_scatter_indices(Registry& registry);
void add_require_count(Registry& registry);
void add_keep_counted(Registry& registry);
void add_found_indices(Registry& registry);
void add_found_unique(Registry& registry);
void add_compress(Registry& registry);
void add_unique(Registry& registry);
void add_tensor_scatter(Registry& registry);
// end of data movement and indices

// image and recurrent
void add_average_pool(Registry& registry);
void add_global_max_pool(Registry& registry);
void add_conv_transpose(Registry& registry);
void add_rnn(Registry& registry);
void add_gru(Registry& registry);
void add_lstm(Registry& registry);
void add_resize(Registry& registry);
void add_random_normal(Registry& registry);
void add_random_uniform(Registry& registry);
void add_bernoulli(Registry& registry);
void add_multinomial(Registry& registry);
void add_lp_pool(Registry& registry);
void add_global_lp_pool(Registry& registry);
void add_center_crop_pad(Registry& registry);
void add_col2im(Registry& registry);
void add_max_unpool(Registry& registry);
// end of image and recurrent

// --- reductions, normalization, attention ---
void add_reduce_l1(Registry& registry);
void add_reduce_l2(Registry& registry);
void add_reduce_log_sum(Registry& registry);
void add_reduce_log_sum_exp(Registry& registry);
void add_reduce_max(Registry& registry);
void add_reduce_min(Registry& registry);
void add_reduce_prod(Registry& registry);
void add_reduce_sum_square(Registry& registry);
void add_hardmax(Registry& registry);
void add_layer_normalization(Registry& registry);
void add_layer_normalization_grad(Registry& registry);
void add_rms_normalization(Registry& registry);
void add_simplified_layer_normalization(Registry& registry);
void add_batch_normalization(Registry& registry);
void add_batch_normalization_grad(Registry& registry);
void add_group_normalization(Registry& registry);
void add_group_normalization_grad(Registry& registry);
void add_instance_normalization(Registry& registry);
void add_skip_layer_normalization(Registry& registry);
void add_skip_simplified_layer_normalization(Registry& registry);
void add_attention(Registry& registry);
void add_attention_grad(Registry& registry);
void add_rotary_embedding(Registry& registry);
void add_microsoft_rotary_embedding(Registry& registry);
void add_lp_normalization(Registry& registry);
void add_mean_variance_normalization(Registry& registry);
void add_lrn(Registry& registry);
void add_fused_matmul(Registry& registry);
void add_einsum(Registry& registry);
void add_einsum_grad(Registry& registry);
// --- end ---

// elementwise
void add_sin(Registry& registry);
void add_cos(Registry& registry);
void add_tan(Registry& registry);
void add_asin(Registry& registry);
void add_acos(Registry& registry);
void add_atanh(Registry& registry);
void add_atan(Registry& registry);
void add_asinh(Registry& registry);
void add_acosh(Registry& registry);
void add_sinh(Registry& registry);
void add_cosh(Registry& registry);
void add_reciprocal(Registry& registry);
void add_floor(Registry& registry);
void add_ceil(Registry& registry);
void add_round(Registry& registry);
void add_sign(Registry& registry);
void add_erf(Registry& registry);
void add_softplus(Registry& registry);
void add_softsign(Registry& registry);
void add_hard_swish(Registry& registry);
void add_mish(Registry& registry);
void add_thresholded_relu(Registry& registry);
void add_elu(Registry& registry);
void add_selu(Registry& registry);
void add_celu(Registry& registry);
void add_hard_sigmoid(Registry& registry);
void add_swish(Registry& registry);
void add_shrink(Registry& registry);
void add_greater_or_equal(Registry& registry);
void add_less_or_equal(Registry& registry);
void add_and(Registry& registry);
void add_or(Registry& registry);
void add_xor(Registry& registry);
void add_bitwise_and(Registry& registry);
void add_bitwise_or(Registry& registry);
void add_bitwise_xor(Registry& registry);
void add_bit_shift(Registry& registry);
void add_is_nan(Registry& registry);
void add_is_inf(Registry& registry);
void add_bitwise_not(Registry& registry);
void add_mod(Registry& registry);
void add_gelu(Registry& registry);
void add_bias_gelu(Registry& registry);
void add_quick_gelu(Registry& registry);
void add_sum(Registry& registry);
void add_mean(Registry& registry);
void add_max(Registry& registry);
void add_min(Registry& registry);
void add_prelu(Registry& registry);
void add_chain(Registry& registry);
// end of elementwise
void add_training_adam(Registry& registry);
void add_training_adagrad(Registry& registry);
void add_training_momentum(Registry& registry);

}  // namespace ofsdp::ops
