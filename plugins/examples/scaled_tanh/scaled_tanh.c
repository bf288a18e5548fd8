/* com.example.ScaledTanh(x), attributes alpha and beta: y = alpha tanh(beta x). In plain C, with a
 * kernel for the gradient that reads the output alone: dx = dy beta (alpha - y^2 / alpha), so x is
 * freed after the forward pass. */
#include <math.h>
#include <ofsdp_plugin.h>

enum { GRAIN = 4096 }; /* elements worth a thread */

struct task {
  const float* x; /* forward: the input; backward: the output */
  const float* dy;
  float* out;
  float alpha, beta;
};

static void forward_part(void* data, int64_t begin, int64_t end) {
  const struct task* t = (const struct task*)data;
  int64_t i;
  for (i = begin; i < end; ++i) t->out[i] = t->alpha * tanhf(t->beta * t->x[i]);
}

static void backward_part(void* data, int64_t begin, int64_t end) {
  const struct task* t = (const struct task*)data;
  int64_t i;
  for (i = begin; i < end; ++i) {
    t->out[i] = t->dy[i] * t->beta * (t->alpha - t->x[i] * t->x[i] / t->alpha);
  }
}

static int32_t infer(const ofsdp_node* node) {
  if (ofsdp_float(node, "alpha", 1) == 0) return ofsdp_fail(node, "alpha is 0");
  return ofsdp_like_input(node, 0, 0);
}

static struct task task_of(const ofsdp_node* node) {
  struct task t = {NULL, NULL, NULL, 1, 1};
  t.alpha = ofsdp_float(node, "alpha", 1);
  t.beta = ofsdp_float(node, "beta", 1);
  return t;
}

static int32_t forward(const ofsdp_node* node) {
  struct task t = task_of(node);
  t.x = (const float*)node->inputs[0]->data;
  t.out = (float*)node->outputs[0]->data;
  node->host->parallel_for(node->host, ofsdp_numel(node->inputs[0]), GRAIN, forward_part, &t);
  return OFSDP_OK;
}

static int32_t backward(const ofsdp_node* node) {
  struct task t = task_of(node);
  t.x = (const float*)node->outputs[0]->data;
  t.dy = (const float*)node->grad_outputs[0]->data;
  t.out = (float*)node->grad_inputs[0]->data;
  node->host->parallel_for(node->host, ofsdp_numel(node->inputs[0]), GRAIN, backward_part, &t);
  return OFSDP_OK;
}

#define FLOAT OFSDP_TYPE(OFSDP_FLOAT32)
static const ofsdp_operand x_operand = {sizeof(ofsdp_operand), "x", FLOAT, 0};
static const ofsdp_operand y_operand = {sizeof(ofsdp_operand), "y", FLOAT, OFSDP_SAVED};
static const ofsdp_operand* const inputs[] = {&x_operand};
static const ofsdp_operand* const outputs[] = {&y_operand};

static const ofsdp_attribute alpha = {
    sizeof(ofsdp_attribute), "alpha", OFSDP_FLOAT, 0, 0, 1, NULL, NULL, NULL, 0};
static const ofsdp_attribute beta = {
    sizeof(ofsdp_attribute), "beta", OFSDP_FLOAT, 0, 0, 1, NULL, NULL, NULL, 0};
static const ofsdp_attribute* const attributes[] = {&alpha, &beta};

static const int64_t sample_shape[] = {3, 4099};
static const ofsdp_tensor sample_x = {sizeof(ofsdp_tensor), OFSDP_FLOAT32, 2,
                                      sample_shape,         NULL,          NULL};
static const ofsdp_tensor* const sample_inputs[] = {&sample_x};
static const ofsdp_attribute sample_alpha = {
    sizeof(ofsdp_attribute), "alpha", OFSDP_FLOAT, 0, 0, 1.7159f, NULL, NULL, NULL, 0};
static const ofsdp_attribute sample_beta = {
    sizeof(ofsdp_attribute), "beta", OFSDP_FLOAT, 0, 0, 0.6667f, NULL, NULL, NULL, 0};
static const ofsdp_attribute* const sample_attributes[] = {&sample_alpha, &sample_beta};
static const ofsdp_sample plain = {sizeof(ofsdp_sample), "plain", NULL, 0, sample_inputs, 1, 1, 0};
static const ofsdp_sample scaled = {
    sizeof(ofsdp_sample), "scaled", sample_attributes, 2, sample_inputs, 1, 1, 0};
static const ofsdp_sample* const samples[] = {&plain, &scaled};

static const ofsdp_operator scaled_tanh = {sizeof(ofsdp_operator),
                                           "com.example",
                                           "ScaledTanh",
                                           1,
                                           0,
                                           inputs,
                                           1,
                                           outputs,
                                           1,
                                           attributes,
                                           2,
                                           infer,
                                           NULL,
                                           forward,
                                           backward,
                                           NULL,
                                           samples,
                                           2,
                                           NULL,
                                           NULL};
static const ofsdp_operator* const operators[] = {&scaled_tanh};
static const ofsdp_plugin plugin = {
    sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "scaled_tanh", "1.0", operators, 1, NULL, 0};

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host* host) {
  (void)host;
  return &plugin;
}
