// The layout of version 1 of ofsdp_plugin.h: existing libraries rely on it. A struct may grow at
// the end, together with OFSDP_PLUGIN_VERSION; then the numbers for `size` change here, no others.
#include <gtest/gtest.h>

#include "plugins/ofsdp_plugin.h"

namespace plugin_layout_test {

#define EXPECT_OFFSET(type, member, offset) EXPECT_EQ(offsetof(type, member), offset##u)

TEST(PluginLayout, Tensor) {
  EXPECT_EQ(sizeof(ofsdp_tensor), 40u);
  EXPECT_OFFSET(ofsdp_tensor, struct_size, 0);
  EXPECT_OFFSET(ofsdp_tensor, dtype, 8);
  EXPECT_OFFSET(ofsdp_tensor, rank, 12);
  EXPECT_OFFSET(ofsdp_tensor, shape, 16);
  EXPECT_OFFSET(ofsdp_tensor, strides, 24);
  EXPECT_OFFSET(ofsdp_tensor, data, 32);
}

TEST(PluginLayout, Attribute) {
  EXPECT_EQ(sizeof(ofsdp_attribute), 72u);
  EXPECT_OFFSET(ofsdp_attribute, name, 8);
  EXPECT_OFFSET(ofsdp_attribute, type, 16);
  EXPECT_OFFSET(ofsdp_attribute, required, 20);
  EXPECT_OFFSET(ofsdp_attribute, i, 24);
  EXPECT_OFFSET(ofsdp_attribute, f, 32);
  EXPECT_OFFSET(ofsdp_attribute, s, 40);
  EXPECT_OFFSET(ofsdp_attribute, ints, 48);
  EXPECT_OFFSET(ofsdp_attribute, floats, 56);
  EXPECT_OFFSET(ofsdp_attribute, count, 64);
}

TEST(PluginLayout, Node) {
  EXPECT_EQ(sizeof(ofsdp_node), 104u);
  EXPECT_OFFSET(ofsdp_node, host, 8);
  EXPECT_OFFSET(ofsdp_node, context, 16);
  EXPECT_OFFSET(ofsdp_node, inputs, 24);
  EXPECT_OFFSET(ofsdp_node, num_inputs, 32);
  EXPECT_OFFSET(ofsdp_node, outputs, 40);
  EXPECT_OFFSET(ofsdp_node, num_outputs, 48);
  EXPECT_OFFSET(ofsdp_node, grad_outputs, 56);
  EXPECT_OFFSET(ofsdp_node, grad_inputs, 64);
  EXPECT_OFFSET(ofsdp_node, scratch, 72);
  EXPECT_OFFSET(ofsdp_node, scratch_size, 80);
  EXPECT_OFFSET(ofsdp_node, seed, 88);
  EXPECT_OFFSET(ofsdp_node, step, 96);
}

TEST(PluginLayout, Graph) {
  EXPECT_EQ(sizeof(ofsdp_graph), 104u);
  EXPECT_OFFSET(ofsdp_graph, host, 8);
  EXPECT_OFFSET(ofsdp_graph, context, 16);
  EXPECT_OFFSET(ofsdp_graph, node, 24);
  EXPECT_OFFSET(ofsdp_graph, input, 32);
  EXPECT_OFFSET(ofsdp_graph, output, 40);
  EXPECT_OFFSET(ofsdp_graph, grad_output, 48);
  EXPECT_OFFSET(ofsdp_graph, needs_grad, 56);
  EXPECT_OFFSET(ofsdp_graph, emit, 64);
  EXPECT_OFFSET(ofsdp_graph, scalar, 72);
  EXPECT_OFFSET(ofsdp_graph, ints, 80);
  EXPECT_OFFSET(ofsdp_graph, sum_to, 88);
  EXPECT_OFFSET(ofsdp_graph, set_grad, 96);
}

TEST(PluginLayout, Host) {
  EXPECT_EQ(sizeof(ofsdp_host), 72u);
  EXPECT_OFFSET(ofsdp_host, version, 8);
  EXPECT_OFFSET(ofsdp_host, context, 16);
  EXPECT_OFFSET(ofsdp_host, log, 24);
  EXPECT_OFFSET(ofsdp_host, threads, 32);
  EXPECT_OFFSET(ofsdp_host, parallel_for, 40);
  EXPECT_OFFSET(ofsdp_host, set_error, 48);
  EXPECT_OFFSET(ofsdp_host, set_output, 56);
  EXPECT_OFFSET(ofsdp_host, attribute, 64);
}

TEST(PluginLayout, OperandAndSample) {
  EXPECT_EQ(sizeof(ofsdp_operand), 24u);
  EXPECT_OFFSET(ofsdp_operand, name, 8);
  EXPECT_OFFSET(ofsdp_operand, types, 16);
  EXPECT_OFFSET(ofsdp_operand, flags, 20);
  EXPECT_EQ(sizeof(ofsdp_sample), 64u);
  EXPECT_OFFSET(ofsdp_sample, name, 8);
  EXPECT_OFFSET(ofsdp_sample, attributes, 16);
  EXPECT_OFFSET(ofsdp_sample, num_attributes, 24);
  EXPECT_OFFSET(ofsdp_sample, inputs, 32);
  EXPECT_OFFSET(ofsdp_sample, num_inputs, 40);
  EXPECT_OFFSET(ofsdp_sample, num_outputs, 48);
  EXPECT_OFFSET(ofsdp_sample, tolerance, 56);
}

TEST(PluginLayout, Operator) {
  EXPECT_EQ(sizeof(ofsdp_operator), 152u);
  EXPECT_OFFSET(ofsdp_operator, domain, 8);
  EXPECT_OFFSET(ofsdp_operator, name, 16);
  EXPECT_OFFSET(ofsdp_operator, since_version, 24);
  EXPECT_OFFSET(ofsdp_operator, until_version, 28);
  EXPECT_OFFSET(ofsdp_operator, inputs, 32);
  EXPECT_OFFSET(ofsdp_operator, num_inputs, 40);
  EXPECT_OFFSET(ofsdp_operator, outputs, 48);
  EXPECT_OFFSET(ofsdp_operator, num_outputs, 56);
  EXPECT_OFFSET(ofsdp_operator, attributes, 64);
  EXPECT_OFFSET(ofsdp_operator, num_attributes, 72);
  EXPECT_OFFSET(ofsdp_operator, infer, 80);
  EXPECT_OFFSET(ofsdp_operator, scratch, 88);
  EXPECT_OFFSET(ofsdp_operator, forward, 96);
  EXPECT_OFFSET(ofsdp_operator, backward, 104);
  EXPECT_OFFSET(ofsdp_operator, build_backward, 112);
  EXPECT_OFFSET(ofsdp_operator, samples, 120);
  EXPECT_OFFSET(ofsdp_operator, num_samples, 128);
  EXPECT_OFFSET(ofsdp_operator, cuda_forward, 136);
  EXPECT_OFFSET(ofsdp_operator, cuda_backward, 144);
}

TEST(PluginLayout, Optimizer) {
  EXPECT_EQ(sizeof(ofsdp_update), 112u);
  EXPECT_OFFSET(ofsdp_update, param, 8);
  EXPECT_OFFSET(ofsdp_update, grad, 16);
  EXPECT_OFFSET(ofsdp_update, state, 24);
  EXPECT_OFFSET(ofsdp_update, count, 32);
  EXPECT_OFFSET(ofsdp_update, step, 40);
  EXPECT_OFFSET(ofsdp_update, lr, 48);
  EXPECT_OFFSET(ofsdp_update, weight_decay, 56);
  EXPECT_OFFSET(ofsdp_update, momentum, 64);
  EXPECT_OFFSET(ofsdp_update, beta1, 72);
  EXPECT_OFFSET(ofsdp_update, beta2, 80);
  EXPECT_OFFSET(ofsdp_update, eps, 88);
  EXPECT_OFFSET(ofsdp_update, rho, 96);
  EXPECT_OFFSET(ofsdp_update, nesterov, 104);
  EXPECT_EQ(sizeof(ofsdp_optimizer), 56u);
  EXPECT_OFFSET(ofsdp_optimizer, name, 8);
  EXPECT_OFFSET(ofsdp_optimizer, states, 16);
  EXPECT_OFFSET(ofsdp_optimizer, num_states, 24);
  EXPECT_OFFSET(ofsdp_optimizer, update, 32);
  EXPECT_OFFSET(ofsdp_optimizer, direction, 40);  // version 2
  EXPECT_OFFSET(ofsdp_optimizer, step_length, 48);
}

TEST(PluginLayout, Plugin) {
  EXPECT_EQ(OFSDP_PLUGIN_VERSION, 2u);
  EXPECT_EQ(sizeof(ofsdp_plugin), 64u);
  EXPECT_OFFSET(ofsdp_plugin, version, 8);
  EXPECT_OFFSET(ofsdp_plugin, name, 16);
  EXPECT_OFFSET(ofsdp_plugin, release, 24);
  EXPECT_OFFSET(ofsdp_plugin, operators, 32);
  EXPECT_OFFSET(ofsdp_plugin, num_operators, 40);
  EXPECT_OFFSET(ofsdp_plugin, optimizers, 48);
  EXPECT_OFFSET(ofsdp_plugin, num_optimizers, 56);
}

TEST(PluginLayout, NumbersOfTypesAreThoseOfOnnx) {
  EXPECT_EQ(OFSDP_FLOAT32, 1);
  EXPECT_EQ(OFSDP_INT64, 7);
  EXPECT_EQ(OFSDP_BOOL, 9);
  EXPECT_EQ(OFSDP_FLOAT16, 10);
  EXPECT_EQ(OFSDP_FLOAT64, 11);
  EXPECT_EQ(OFSDP_BFLOAT16, 16);
  EXPECT_EQ(OFSDP_OPTIONAL | OFSDP_NO_GRADIENT | OFSDP_SAVED | OFSDP_KNOWN, 15);
}

}  // namespace plugin_layout_test
