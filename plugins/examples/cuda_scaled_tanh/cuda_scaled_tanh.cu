// com.example.ScaledTanh as in ../scaled_tanh, y = alpha tanh(beta x), for the CPU and for CUDA:
// cuda_forward and cuda_backward get the same node with device addresses and only put kernels onto
// `stream`; CUDA's launch error becomes the node's error. The gradient reads the output alone: dx =
// dy beta (alpha - y^2 / alpha).
#include <cuda_runtime.h>
#include <ofsdp_plugin.h>

#include <cmath>

namespace {

constexpr int64_t kGrain = 4096;  // elements worth a CPU thread
constexpr int kBlock = 256;       // threads per block

struct Task {
  const float* x;  // forward: the input; backward: the output
  const float* dy;
  float* out;
  float alpha, beta;
};

__host__ __device__ void forward_element(const Task& t, int64_t i) {
  t.out[i] = t.alpha * tanhf(t.beta * t.x[i]);
}
__host__ __device__ void backward_element(const Task& t, int64_t i) {
  t.out[i] = t.dy[i] * t.beta * (t.alpha - t.x[i] * t.x[i] / t.alpha);
}

__global__ void forward_kernel(Task t, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < count) forward_element(t, i);
}
__global__ void backward_kernel(Task t, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < count) backward_element(t, i);
}

void forward_part(void* data, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) forward_element(*static_cast<const Task*>(data), i);
}
void backward_part(void* data, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) backward_element(*static_cast<const Task*>(data), i);
}

Task forward_task(const ofsdp_node* node) {
  return {static_cast<const float*>(node->inputs[0]->data), nullptr,
          static_cast<float*>(node->outputs[0]->data), ofsdp_float(node, "alpha", 1),
          ofsdp_float(node, "beta", 1)};
}
Task backward_task(const ofsdp_node* node) {
  return {static_cast<const float*>(node->outputs[0]->data),
          static_cast<const float*>(node->grad_outputs[0]->data),
          static_cast<float*>(node->grad_inputs[0]->data), ofsdp_float(node, "alpha", 1),
          ofsdp_float(node, "beta", 1)};
}

int32_t infer(const ofsdp_node* node) {
  if (ofsdp_float(node, "alpha", 1) == 0) return ofsdp_fail(node, "alpha is 0");
  return ofsdp_like_input(node, 0, 0);
}

int32_t forward(const ofsdp_node* node) {
  Task task = forward_task(node);
  node->host->parallel_for(node->host, ofsdp_numel(node->inputs[0]), kGrain, forward_part, &task);
  return OFSDP_OK;
}
int32_t backward(const ofsdp_node* node) {
  Task task = backward_task(node);
  node->host->parallel_for(node->host, ofsdp_numel(node->inputs[0]), kGrain, backward_part, &task);
  return OFSDP_OK;
}

int32_t launch(const ofsdp_node* node, void (*kernel)(Task, int64_t), const Task& task,
               void* stream) {
  const int64_t count = ofsdp_numel(node->inputs[0]);
  if (count == 0) return OFSDP_OK;
  const unsigned blocks = static_cast<unsigned>((count + kBlock - 1) / kBlock);
  kernel<<<blocks, kBlock, 0, static_cast<cudaStream_t>(stream)>>>(task, count);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? OFSDP_OK : ofsdp_fail(node, cudaGetErrorString(error));
}
int32_t cuda_forward(const ofsdp_node* node, void* stream) {
  return launch(node, forward_kernel, forward_task(node), stream);
}
int32_t cuda_backward(const ofsdp_node* node, void* stream) {
  return launch(node, backward_kernel, backward_task(node), stream);
}

constexpr uint32_t kFloat = OFSDP_TYPE(OFSDP_FLOAT32);
const ofsdp_operand kX = {sizeof(ofsdp_operand), "x", kFloat, 0};
const ofsdp_operand kY = {sizeof(ofsdp_operand), "y", kFloat, OFSDP_SAVED};
const ofsdp_operand* const kInputs[] = {&kX};
const ofsdp_operand* const kOutputs[] = {&kY};
const ofsdp_attribute kAlpha = {
    sizeof(ofsdp_attribute), "alpha", OFSDP_FLOAT, 0, 0, 1, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute kBeta = {
    sizeof(ofsdp_attribute), "beta", OFSDP_FLOAT, 0, 0, 1, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute* const kAttributes[] = {&kAlpha, &kBeta};

const int64_t kShape[] = {3, 4099};
const ofsdp_tensor kTensor = {sizeof(ofsdp_tensor), OFSDP_FLOAT32, 2, kShape, nullptr, nullptr};
const ofsdp_tensor* const kSampleInputs[] = {&kTensor};
const ofsdp_sample kSample = {sizeof(ofsdp_sample), "plain", nullptr, 0, kSampleInputs, 1, 1, 0};
const ofsdp_sample* const kSamples[] = {&kSample};

const ofsdp_operator kScaledTanh = {sizeof(ofsdp_operator),
                                    "com.example",
                                    "ScaledTanh",
                                    1,
                                    0,
                                    kInputs,
                                    1,
                                    kOutputs,
                                    1,
                                    kAttributes,
                                    2,
                                    infer,
                                    nullptr,
                                    forward,
                                    backward,
                                    nullptr,
                                    kSamples,
                                    1,
                                    cuda_forward,
                                    cuda_backward};
const ofsdp_operator* const kOperators[] = {&kScaledTanh};
const ofsdp_plugin kPlugin = {sizeof(ofsdp_plugin),
                              OFSDP_PLUGIN_VERSION,
                              "cuda_scaled_tanh",
                              "1.0",
                              kOperators,
                              1,
                              nullptr,
                              0};

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) { return &kPlugin; }
