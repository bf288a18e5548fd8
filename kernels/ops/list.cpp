#include "kernels/ops/list.h"

namespace ofsdp {

Registry make_registry() {
  Registry registry;
  ops::add_relu(registry);
  ops::add_sum_to(registry);
  ops::add_reshape(registry);
  ops::add_flatten(registry);
  ops::add_squeeze(registry);
  ops::add_unsqueeze(registry);
  ops::add_identity(registry);
  ops::add_collapse(registry);
  ops::add_copy(registry);
  ops::add_reorder(registry);
  ops::add_constant(registry);
  ops::add_shape(registry);
  ops::add_add(registry);
  ops::add_sub(registry);
  ops::add_mul(registry);
  ops::add_div(registry);
  ops::add_neg(registry);
  ops::add_sqrt(registry);
  ops::add_exp(registry);
  ops::add_log(registry);
  ops::add_sigmoid(registry);
  ops::add_tanh(registry);
  ops::add_concat(registry);
  ops::add_slice(registry);
  ops::add_transpose(registry);
  ops::add_expand(registry);
  ops::add_gather(registry);
  ops::add_cast(registry);
  ops::add_reduce_sum(registry);
  ops::add_reduce_mean(registry);
  ops::add_softmax(registry);
  ops::add_log_softmax(registry);
  ops::add_nll_loss(registry);
  ops::add_softmax_cross_entropy_loss(registry);
  ops::add_mse_loss(registry);
  ops::add_bce_with_logits_loss(registry);
  ops::add_argmax_matches(registry);
  ops::add_dropout(registry);
  ops::add_gemm(registry);
  ops::add_matmul(registry);
  ops::add_conv(registry);
  ops::add_conv_grad(registry);
  ops::add_max_pool(registry);
  ops::add_max_pool_grad(registry);
  ops::add_abs(registry);
  ops::add_leaky_relu(registry);
  ops::add_equal(registry);
  ops::add_less(registry);
  ops::add_greater(registry);
  ops::add_not(registry);
  ops::add_pow(registry);
  ops::add_clip(registry);
  ops::add_where(registry);
  ops::add_constant_of_shape(registry);
  ops::add_range(registry);
  ops::add_global_average_pool(registry);
  return registry;
}

}  // namespace ofsdp
