// --loss plugin:com.example.HuberLoss: (prediction, labels) -> a scalar, the mean over all elements
// of d^2 / 2 where |d| <= 1 and |d| - 1/2 elsewhere, with d = prediction - labels. Labels are a
// float32 column without a gradient. dprediction = dy clamp(d, -1, 1) / elements.
#include <ofsdp_plugin.h>

#include <cmath>

namespace {

float difference(const ofsdp_node* node, int64_t i) {
  return static_cast<const float*>(node->inputs[0]->data)[i] -
         static_cast<const float*>(node->inputs[1]->data)[i];
}

int32_t infer(const ofsdp_node* node) {
  if (ofsdp_numel(node->inputs[0]) != ofsdp_numel(node->inputs[1])) {
    return ofsdp_fail(node, "prediction and labels differ in their number of elements");
  }
  return node->host->set_output(node, 0, OFSDP_FLOAT32, 0, nullptr);
}

// In order and in double, on one thread: the same bits every time.
int32_t forward(const ofsdp_node* node) {
  const int64_t count = ofsdp_numel(node->inputs[0]);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double d = std::fabs(difference(node, i));
    sum += d <= 1 ? d * d / 2 : d - 0.5;
  }
  *static_cast<float*>(node->outputs[0]->data) = static_cast<float>(count == 0 ? 0 : sum / count);
  return OFSDP_OK;
}

int32_t backward(const ofsdp_node* node) {
  const int64_t count = ofsdp_numel(node->inputs[0]);
  const float factor = *static_cast<const float*>(node->grad_outputs[0]->data) / count;
  float* grad = static_cast<float*>(node->grad_inputs[0]->data);
  for (int64_t i = 0; i < count; ++i) {
    const float d = difference(node, i);
    grad[i] = factor * (d > 1 ? 1.0f : (d < -1 ? -1.0f : d));
  }
  return OFSDP_OK;
}

constexpr uint32_t kFloat = OFSDP_TYPE(OFSDP_FLOAT32);
const ofsdp_operand kPrediction = {sizeof(ofsdp_operand), "prediction", kFloat, OFSDP_SAVED};
const ofsdp_operand kLabels = {sizeof(ofsdp_operand), "labels", kFloat,
                               OFSDP_SAVED | OFSDP_NO_GRADIENT};
const ofsdp_operand kLoss = {sizeof(ofsdp_operand), "loss", kFloat, 0};
const ofsdp_operand* const kInputs[] = {&kPrediction, &kLabels};
const ofsdp_operand* const kOutputs[] = {&kLoss};

const int64_t kShape[] = {6, 4};
const ofsdp_tensor kTensor = {sizeof(ofsdp_tensor), OFSDP_FLOAT32, 2, kShape, nullptr, nullptr};
const ofsdp_tensor* const kSampleInputs[] = {&kTensor, &kTensor};
const ofsdp_sample kSample = {sizeof(ofsdp_sample), "small", nullptr, 0, kSampleInputs, 2, 1, 0};
const ofsdp_sample* const kSamples[] = {&kSample};

const ofsdp_operator kHuberLoss = {sizeof(ofsdp_operator),
                                   "com.example",
                                   "HuberLoss",
                                   1,
                                   0,
                                   kInputs,
                                   2,
                                   kOutputs,
                                   1,
                                   nullptr,
                                   0,
                                   infer,
                                   nullptr,
                                   forward,
                                   backward,
                                   nullptr,
                                   kSamples,
                                   1,
                                   nullptr,
                                   nullptr};
const ofsdp_operator* const kOperators[] = {&kHuberLoss};
const ofsdp_plugin kPlugin = {
    sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "huber_loss", "1.0", kOperators, 1, nullptr, 0};

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) { return &kPlugin; }
