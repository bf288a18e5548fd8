// The operators in plugins/examples/{rms_norm,fused_swiglu,scaled_tanh} once more, for the CPU and,
// as functions for CUDA, for the tests' device (tests/device/native_stream.h). There each call is
// put onto the stream with its arguments and runs when the device reaches it. RmsNorm asks for
// scratch in both directions and leaves the factors in an output that no model names.
//
// OFSDP_DEVICE_PLUGIN: `no_backward`, ScaledTanh has no cuda_backward; `fails`, cuda_forward of
// ScaledTanh fails at the fourth call, in the second update.
#include <ofsdp_plugin.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "tests/device/native_stream.h"

namespace {

bool mode(const char* name) {
  const char* given = std::getenv("OFSDP_DEVICE_PLUGIN");
  return given != nullptr && std::string(given) == name;
}

float* floats(const ofsdp_tensor* tensor) { return static_cast<float*>(tensor->data); }

struct Task {
  const float *x, *by, *dy;
  float *y, *r, *dx, *dby;
  double* rows;  // scratch
  int64_t count, width;
  float alpha, beta;
};

int64_t width_of(const ofsdp_tensor* x) { return x->shape[x->rank - 1]; }

template <Task (*make)(const ofsdp_node*), void (*work)(const Task&)>
int32_t here(const ofsdp_node* node) {
  work(make(node));
  return OFSDP_OK;
}

template <Task (*make)(const ofsdp_node*), void (*work)(const Task&)>
int32_t there(const ofsdp_node* node, void* stream) {
  if (node->step != -1) return ofsdp_fail(node, "a device was told the step");
  const Task task = make(node);
  auto* native = static_cast<ofsdp_native_stream*>(stream);
  native->enqueue(
      native, [](void* data) { work(*static_cast<const Task*>(data)); }, &task, sizeof(task));
  return OFSDP_OK;
}

// ScaledTanh; backward reads only the output.

Task tanh_task(const ofsdp_node* node) {
  Task t = {};
  const bool backward = node->grad_inputs[0]->data != nullptr;
  t.x = floats(node->inputs[0]);
  t.y = floats(node->outputs[0]);
  if (backward) t.dy = floats(node->grad_outputs[0]), t.dx = floats(node->grad_inputs[0]);
  t.count = ofsdp_numel(node->inputs[0]);
  t.alpha = ofsdp_float(node, "alpha", 1), t.beta = ofsdp_float(node, "beta", 1);
  return t;
}
void tanh_forward(const Task& t) {
  for (int64_t i = 0; i < t.count; ++i) t.y[i] = t.alpha * std::tanh(t.beta * t.x[i]);
}
void tanh_backward(const Task& t) {
  for (int64_t i = 0; i < t.count; ++i) {
    t.dx[i] = t.dy[i] * t.beta * (t.alpha - t.y[i] * t.y[i] / t.alpha);
  }
}
int32_t tanh_that_may_fail(const ofsdp_node* node, void* stream) {
  static int calls = 0;
  if (mode("fails") && ++calls == 4) return ofsdp_fail(node, "the stream is full");
  return there<tanh_task, tanh_forward>(node, stream);
}

// RmsNorm.

Task norm_task(const ofsdp_node* node) {
  Task t = {};
  t.x = floats(node->inputs[0]), t.by = floats(node->inputs[1]);
  t.y = floats(node->outputs[0]), t.r = floats(node->outputs[1]);
  if (node->grad_outputs[0]->data != nullptr) {
    t.dy = floats(node->grad_outputs[0]);
    t.dx = floats(node->grad_inputs[0]), t.dby = floats(node->grad_inputs[1]);
  }
  t.rows = static_cast<double*>(node->scratch);
  t.width = width_of(node->inputs[0]);
  t.count = ofsdp_numel(node->inputs[0]) / t.width;
  t.alpha = ofsdp_float(node, "epsilon", 1e-5f);
  return t;
}
void norm_forward(const Task& t) {
  for (int64_t row = 0; row < t.count; ++row) t.rows[row] = 0;
  for (int64_t i = 0; i < t.count * t.width; ++i) {
    t.rows[i / t.width] += static_cast<double>(t.x[i]) * t.x[i];
  }
  for (int64_t i = 0; i < t.count * t.width; ++i) {
    const double mean = t.rows[i / t.width] / static_cast<double>(t.width);
    const auto r = static_cast<float>(1 / std::sqrt(mean + t.alpha));
    t.y[i] = t.x[i] * r * t.by[i % t.width];
    if (t.r != nullptr) t.r[i / t.width] = r;
  }
}
void norm_backward(const Task& t) {
  for (int64_t row = 0; row < t.count; ++row) t.rows[row] = 0;
  for (int64_t i = 0; i < t.count * t.width; ++i) {
    t.rows[i / t.width] += static_cast<double>(t.dy[i]) * t.by[i % t.width] * t.x[i];
  }
  for (int64_t i = 0; t.dby != nullptr && i < t.width; ++i) t.dby[i] = 0;
  for (int64_t i = 0; i < t.count * t.width; ++i) {
    const int64_t column = i % t.width;
    const float r = t.r[i / t.width];
    const float mean = static_cast<float>(t.rows[i / t.width] / static_cast<double>(t.width));
    if (t.dx != nullptr) t.dx[i] = r * (t.dy[i] * t.by[column] - t.x[i] * mean * r * r);
    if (t.dby != nullptr) t.dby[column] += t.dy[i] * t.x[i] * r;
  }
}
int32_t norm_infer(const ofsdp_node* node) {
  const ofsdp_tensor* x = node->inputs[0];
  ofsdp_like_input(node, 0, 0);
  return node->host->set_output(node, 1, OFSDP_FLOAT32, x->rank - 1, x->shape);
}
size_t norm_scratch(const ofsdp_node* node, int32_t) {
  const int64_t rows = ofsdp_numel(node->inputs[0]) / width_of(node->inputs[0]);
  return static_cast<size_t>(rows) * sizeof(double);
}

// SwiGlu; the gradient is made of known operators.

Task gate_task(const ofsdp_node* node) {
  Task t = {};
  t.x = floats(node->inputs[0]), t.by = floats(node->inputs[1]), t.y = floats(node->outputs[0]);
  t.count = ofsdp_numel(node->inputs[0]);
  return t;
}
void gate_forward(const Task& t) {
  for (int64_t i = 0; i < t.count; ++i) t.y[i] = t.x[i] / (1 + std::exp(-t.x[i])) * t.by[i];
}
int32_t emit(const ofsdp_graph* graph, const char* op, int32_t a, int32_t b = 0) {
  const int32_t inputs[] = {a, b};
  int32_t output = 0;
  graph->emit(graph, op, inputs, b == 0 ? 1 : 2, nullptr, 0, &output, 1);
  return output;
}
int32_t gate_build_backward(const ofsdp_graph* graph) {
  const int32_t gate = graph->input(graph, 0), up = graph->input(graph, 1);
  const int32_t dy = graph->grad_output(graph, 0), s = emit(graph, "Sigmoid", gate);
  const int32_t one = graph->scalar(graph, OFSDP_FLOAT32, 1);
  const int32_t rest = emit(graph, "Mul", gate, emit(graph, "Sub", one, s));
  const int32_t slope = emit(graph, "Mul", s, emit(graph, "Add", one, rest));
  graph->set_grad(graph, 1, emit(graph, "Mul", dy, emit(graph, "Mul", gate, s)));
  graph->set_grad(graph, 0, emit(graph, "Mul", emit(graph, "Mul", dy, up), slope));
  return OFSDP_OK;
}

const uint32_t kFloat = OFSDP_TYPE(OFSDP_FLOAT32);
const ofsdp_operand kX = {sizeof(ofsdp_operand), "x", kFloat, 0};
const ofsdp_operand kSaved = {sizeof(ofsdp_operand), "saved", kFloat, OFSDP_SAVED};
const ofsdp_operand kLeft = {sizeof(ofsdp_operand), "left", kFloat,
                             OFSDP_OPTIONAL | OFSDP_NO_GRADIENT | OFSDP_SAVED};
const ofsdp_operand* const kPlain[] = {&kX, &kX};
const ofsdp_operand* const kKept[] = {&kSaved, &kSaved};
const ofsdp_operand* const kNormed[] = {&kX, &kLeft};
const ofsdp_attribute kAlpha = {
    sizeof(ofsdp_attribute), "alpha", OFSDP_FLOAT, 0, 0, 1, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute kBeta = {
    sizeof(ofsdp_attribute), "beta", OFSDP_FLOAT, 0, 0, 1, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute kEpsilon = {
    sizeof(ofsdp_attribute), "epsilon", OFSDP_FLOAT, 0, 0, 1e-5f, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute* const kScales[] = {&kAlpha, &kBeta};
const ofsdp_attribute* const kEpsilons[] = {&kEpsilon};

ofsdp_operator blank(const char* name) {
  ofsdp_operator op = {};
  op.struct_size = sizeof(op);
  op.domain = "com.example";
  op.name = name;
  op.num_inputs = op.num_outputs = 1;
  return op;
}

ofsdp_operator scaled_tanh() {
  ofsdp_operator op = blank("ScaledTanh");
  op.inputs = kPlain, op.outputs = kKept;
  op.attributes = kScales, op.num_attributes = 2;
  op.forward = here<tanh_task, tanh_forward>;
  op.backward = here<tanh_task, tanh_backward>;
  op.cuda_forward = tanh_that_may_fail;
  if (!mode("no_backward")) op.cuda_backward = there<tanh_task, tanh_backward>;
  return op;
}

ofsdp_operator rms_norm() {
  ofsdp_operator op = blank("RmsNorm");
  op.inputs = kKept, op.num_inputs = 2;
  op.outputs = kNormed, op.num_outputs = 2;
  op.attributes = kEpsilons, op.num_attributes = 1;
  op.infer = norm_infer;
  op.scratch = norm_scratch;
  op.forward = here<norm_task, norm_forward>;
  op.backward = here<norm_task, norm_backward>;
  op.cuda_forward = there<norm_task, norm_forward>;
  op.cuda_backward = there<norm_task, norm_backward>;
  return op;
}

ofsdp_operator swiglu() {
  ofsdp_operator op = blank("SwiGlu");
  op.inputs = kPlain, op.num_inputs = 2;
  op.outputs = kPlain;
  op.forward = here<gate_task, gate_forward>;
  op.build_backward = gate_build_backward;
  op.cuda_forward = there<gate_task, gate_forward>;
  return op;
}

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) {
  static const ofsdp_operator list[] = {scaled_tanh(), rms_norm(), swiglu()};
  static const ofsdp_operator* const operators[] = {&list[0], &list[1], &list[2]};
  static const ofsdp_plugin plugin = {
      sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "on devices", "1", operators, 3, nullptr, 0};
  return &plugin;
}
