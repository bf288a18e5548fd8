// A plug-in with the fault that OFSDP_BAD_PLUGIN names: com.example.ScaledTanh from the example,
// with one thing spoilt. Without the variable it is right.
#include <ofsdp_plugin.h>

#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

std::string mode() {
  const char* given = std::getenv("OFSDP_BAD_PLUGIN");
  return given == nullptr ? "" : given;
}

int32_t infer(const ofsdp_node* node) {
  const ofsdp_tensor* x = node->inputs[0];
  if (mode() == "infer_error") return ofsdp_fail(node, "x has the wrong colour");
  if (mode() == "infer_nothing") return OFSDP_OK;
  if (mode() == "infer_type") {
    return node->host->set_output(node, 0, OFSDP_INT64, x->rank, x->shape);
  }
  static int calls =
      0;  // asked again, each of the fixture's three nodes has the shape of infer_more
  const bool changes = mode() == "infer_changes" && ++calls > 3;
  if (mode() == "infer_more" || mode() == "infer_less" || changes) {
    int64_t shape[8];
    for (int32_t i = 0; i < x->rank; ++i) shape[i] = x->shape[i];
    shape[0] += mode() == "infer_less" ? -1 : 1;
    return node->host->set_output(node, 0, x->dtype, x->rank, shape);
  }
  return ofsdp_like_input(node, 0, 0);
}

int32_t forward(const ofsdp_node* node) {
  static int calls = 0;
  ++calls;
  if (mode() == "kernel_error" && node->step == 2) return ofsdp_fail(node, "the table is full");
  if (mode() == "kernel_throws") throw std::runtime_error("thrown on purpose");
  if (mode() == "hangs") {
    for (volatile int forever = 1; forever != 0;) {
    }
  }
  const float alpha = ofsdp_float(node, "alpha", 1), beta = ofsdp_float(node, "beta", 1);
  auto* x = static_cast<float*>(node->inputs[0]->data);
  auto* y = static_cast<float*>(node->outputs[0]->data);
  const int64_t count = ofsdp_numel(node->inputs[0]);
  for (int64_t i = 0; i < count; ++i) y[i] = alpha * std::tanh(beta * x[i]);
  if (mode() == "before") y[-1] = 0;
  if (mode() == "writes_input") x[0] = 0;
  if (mode() == "two_runs") y[0] += static_cast<float>(calls);
  if (mode() == "threads") y[0] += static_cast<float>(node->host->threads(node->host));
  if (mode() == "scratch") static_cast<char*>(node->scratch)[128] = 1;
  return OFSDP_OK;
}

// "wrong_gradient:1.03" is wrong by 3 %.
float gradient_factor() {
  const std::string name = "wrong_gradient";
  if (mode() == name) return 1.5f;
  return mode().rfind(name + ":", 0) == 0 ? std::stof(mode().substr(name.size() + 1)) : 1.0f;
}

int32_t backward(const ofsdp_node* node) {
  const float alpha = ofsdp_float(node, "alpha", 1), beta = ofsdp_float(node, "beta", 1);
  const auto* y = static_cast<const float*>(node->outputs[0]->data);
  const auto* dy = static_cast<const float*>(node->grad_outputs[0]->data);
  auto* dx = static_cast<float*>(node->grad_inputs[0]->data);
  const int64_t count = ofsdp_numel(node->inputs[0]);
  const float factor = gradient_factor();
  for (int64_t i = 0; i < count; ++i) dx[i] = factor * dy[i] * beta * (alpha - y[i] * y[i] / alpha);
  return OFSDP_OK;
}

int32_t unknown_operator(const ofsdp_graph* graph) {
  const int32_t input = graph->grad_output(graph, 0);
  int32_t output = 0;
  return graph->emit(graph, "Hadamard", &input, 1, nullptr, 0, &output, 1);
}

int32_t no_such_value(const ofsdp_graph* graph) {
  graph->set_grad(graph, 0, 123456);
  return OFSDP_OK;
}

int32_t forgotten(const ofsdp_graph*) { return OFSDP_OK; }

size_t scratch(const ofsdp_node*, int32_t) { return 128; }

const uint32_t kFloat = OFSDP_TYPE(OFSDP_FLOAT32);
const ofsdp_operand kX = {sizeof(ofsdp_operand), "x", kFloat, 0};
const ofsdp_operand kSavedX = {sizeof(ofsdp_operand), "x", kFloat, OFSDP_SAVED};
const ofsdp_operand kY = {sizeof(ofsdp_operand), "y", kFloat, OFSDP_SAVED};
const ofsdp_operand* const kInputs[] = {&kX};
const ofsdp_operand* const kSavedInputs[] = {&kSavedX};
const ofsdp_operand* const kOutputs[] = {&kY};
const ofsdp_attribute kAlpha = {
    sizeof(ofsdp_attribute), "alpha", OFSDP_FLOAT, 0, 0, 1, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute kBeta = {
    sizeof(ofsdp_attribute), "beta", OFSDP_FLOAT, 0, 0, 1, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute* const kAttributes[] = {&kAlpha, &kBeta};
const int64_t kShape[] = {4, 16};
const ofsdp_tensor kTensor = {sizeof(ofsdp_tensor), OFSDP_FLOAT32, 2, kShape, nullptr, nullptr};
const ofsdp_tensor* const kSampleInputs[] = {&kTensor};
const ofsdp_sample kSample = {sizeof(ofsdp_sample), "small", nullptr, 0, kSampleInputs, 1, 1, 0};
const ofsdp_sample* const kSamples[] = {&kSample};

ofsdp_operator right_operator() {
  ofsdp_operator op = {};
  op.struct_size = sizeof(ofsdp_operator);
  op.domain = "com.example";
  op.name = "ScaledTanh";
  op.since_version = 1;
  op.inputs = kInputs;
  op.num_inputs = 1;
  op.outputs = kOutputs;
  op.num_outputs = 1;
  op.attributes = kAttributes;
  op.num_attributes = 2;
  op.infer = infer;
  op.scratch = scratch;
  op.forward = forward;
  op.backward = backward;
  op.samples = kSamples;
  op.num_samples = 1;
  return op;
}

// An optimizer for version 1: the host must not read beyond the smaller struct.
void descend(const ofsdp_host*, const ofsdp_update* u) {
  for (int64_t i = 0; i < u->count; ++i) u->param[i] -= static_cast<float>(u->lr) * u->grad[i];
}
void never(const ofsdp_host*, const ofsdp_update*, float*) { std::abort(); }
double no_length(const ofsdp_host*, const ofsdp_update*, double, double) { std::abort(); }
const ofsdp_optimizer kOlder = {
    offsetof(ofsdp_optimizer, direction), "descend", nullptr, 0, descend, never, no_length};
const ofsdp_optimizer kHalf = {
    sizeof(ofsdp_optimizer), "half", nullptr, 0, descend, never, nullptr};
const ofsdp_optimizer* const kOlderList[] = {&kOlder};
const ofsdp_optimizer* const kHalfList[] = {&kHalf};

ofsdp_operator spoilt_operator() {
  ofsdp_operator op = right_operator();
  if (mode() == "saves_input") op.inputs = kSavedInputs;
  if (mode() == "older") op.struct_size = offsetof(ofsdp_operator, cuda_forward);
  if (mode() == "built_in") op.domain = "", op.name = "Relu", op.num_attributes = 0;
  if (mode() == "own_domain") op.domain = "ofsdp";
  if (mode() == "no_name") op.name = nullptr;
  if (mode() == "no_forward") op.forward = nullptr;
  if (mode() == "no_backward") op.backward = nullptr;
  if (mode() == "no_attribute") op.num_attributes = 1;
  if (mode() == "opset") op.since_version = 3;
  if (mode() == "both_backwards") op.build_backward = forgotten;
  if (mode() == "unknown_operator") op.backward = nullptr, op.build_backward = unknown_operator;
  if (mode() == "no_such_value") op.backward = nullptr, op.build_backward = no_such_value;
  if (mode() == "forgotten") op.backward = nullptr, op.build_backward = forgotten;
  return op;
}

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) {
  static ofsdp_operator op;
  static const ofsdp_operator* const operators[] = {&op, &op};
  static ofsdp_plugin plugin = {
      sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "bad", "1", operators, 1, nullptr, 0};
  op = spoilt_operator();
  if (mode() == "nothing") return nullptr;
  if (mode() == "newer") plugin.version = OFSDP_PLUGIN_VERSION + 1;
  if (mode() == "no_version") plugin.version = 0;
  if (mode() == "empty") plugin.num_operators = 0;
  if (mode() == "older") {
    plugin.version = 1;
    plugin.optimizers = kOlderList, plugin.num_optimizers = 1;
  }
  if (mode() == "half_an_optimizer") plugin.optimizers = kHalfList, plugin.num_optimizers = 1;
  if (mode() == "twice") plugin.num_operators = 2;
  return &plugin;
}
