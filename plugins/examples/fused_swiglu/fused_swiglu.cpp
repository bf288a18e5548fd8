// com.example.SwiGlu(gate, up): y = gate sigmoid(gate) up, in one pass. The gradient is written as
// known operators; the planner sees the values that they read and saves them, and may fuse the
// operators:
//
//   s      = sigmoid(gate)
//   dup    = dy gate s
//   dgate  = dy up s (1 + gate (1 - s))
//
// https://arxiv.org/abs/2002.05202
#include <ofsdp_plugin.h>

#include <cstring>

// Compiled for the instruction sets that the build names, of which the loader chooses (without
// FMA, so the bits are the same).
#ifdef EXAMPLE_TARGETS
#define EXAMPLE_MULTIARCH __attribute__((target_clones(EXAMPLE_TARGETS)))
#else
#define EXAMPLE_MULTIARCH
#endif

namespace {

constexpr int64_t kGrain = 4096;  // elements worth a thread

struct Task {
  const float* gate;
  const float* up;
  float* y;
};

int32_t infer(const ofsdp_node* node) {
  const ofsdp_tensor* gate = node->inputs[0];
  const ofsdp_tensor* up = node->inputs[1];
  bool same = gate->rank == up->rank;
  for (int32_t i = 0; same && i < gate->rank; ++i) same = gate->shape[i] == up->shape[i];
  if (!same) return ofsdp_fail(node, "gate and up differ in shape");
  return ofsdp_like_input(node, 0, 0);
}

// e^x for x in [-87, 88] by Cephes' polynomial, without a branch, so that the loop
// below becomes vector code; std::exp is a call for each element.
inline float exponential(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f;  // the sum's last bits are round(x / ln 2)
  const float n = shifted - 12582912.0f;
  const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = static_cast<int32_t>((static_cast<uint32_t>(bits) - 0x4b400000u + 127u) << 23);
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return y * power;
}

constexpr int64_t kBlock = 1024;  // elements that stay in the cache between the two loops

EXAMPLE_MULTIARCH void swiglu(const float* __restrict gate, const float* __restrict up,
                              float* __restrict y, int64_t count) {
  // In a separate loop the comparisons are vector code.
  for (int64_t i = 0; i < count; ++i) {
    const float x = -gate[i] < -87.0f ? -87.0f : -gate[i];
    y[i] = x > 88.0f ? 88.0f : x;
  }
  for (int64_t i = 0; i < count; ++i) y[i] = gate[i] / (1 + exponential(y[i])) * up[i];
}

void forward_part(void* data, int64_t begin, int64_t end) {
  const Task& t = *static_cast<const Task*>(data);
  for (int64_t i = begin; i < end; i += kBlock) {
    swiglu(t.gate + i, t.up + i, t.y + i, end - i < kBlock ? end - i : kBlock);
  }
}

int32_t forward(const ofsdp_node* node) {
  Task task = {static_cast<const float*>(node->inputs[0]->data),
               static_cast<const float*>(node->inputs[1]->data),
               static_cast<float*>(node->outputs[0]->data)};
  node->host->parallel_for(node->host, ofsdp_numel(node->inputs[0]), kGrain, forward_part, &task);
  return OFSDP_OK;
}

int32_t emit(const ofsdp_graph* graph, const char* op, int32_t a, int32_t b = 0) {
  const int32_t inputs[] = {a, b};
  int32_t output = 0;
  graph->emit(graph, op, inputs, b == 0 ? 1 : 2, nullptr, 0, &output, 1);
  return output;
}

int32_t build_backward(const ofsdp_graph* graph) {
  const int32_t gate = graph->input(graph, 0), up = graph->input(graph, 1);
  const int32_t dy = graph->grad_output(graph, 0);
  const int32_t s = emit(graph, "Sigmoid", gate);
  if (graph->needs_grad(graph, 1) != 0) {
    graph->set_grad(graph, 1, emit(graph, "Mul", dy, emit(graph, "Mul", gate, s)));
  }
  if (graph->needs_grad(graph, 0) != 0) {
    const int32_t one = graph->scalar(graph, graph->node->inputs[0]->dtype, 1);
    const int32_t rest = emit(graph, "Mul", gate, emit(graph, "Sub", one, s));
    const int32_t slope = emit(graph, "Mul", s, emit(graph, "Add", one, rest));
    graph->set_grad(graph, 0, emit(graph, "Mul", emit(graph, "Mul", dy, up), slope));
  }
  return OFSDP_OK;
}

constexpr uint32_t kFloat = OFSDP_TYPE(OFSDP_FLOAT32);
const ofsdp_operand kGate = {sizeof(ofsdp_operand), "gate", kFloat, 0};
const ofsdp_operand kUp = {sizeof(ofsdp_operand), "up", kFloat, 0};
const ofsdp_operand kY = {sizeof(ofsdp_operand), "y", kFloat, 0};
const ofsdp_operand* const kInputs[] = {&kGate, &kUp};
const ofsdp_operand* const kOutputs[] = {&kY};

const int64_t kShape[] = {5, 2051};
const ofsdp_tensor kSampleTensor = {
    sizeof(ofsdp_tensor), OFSDP_FLOAT32, 2, kShape, nullptr, nullptr};
const ofsdp_tensor* const kSampleInputs[] = {&kSampleTensor, &kSampleTensor};
const ofsdp_sample kSample = {sizeof(ofsdp_sample), "plain", nullptr, 0, kSampleInputs, 2, 1, 0};
const ofsdp_sample* const kSamples[] = {&kSample};

const ofsdp_operator kSwiGlu = {sizeof(ofsdp_operator),
                                "com.example",
                                "SwiGlu",
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
                                nullptr,
                                build_backward,
                                kSamples,
                                1,
                                nullptr,
                                nullptr};
const ofsdp_operator* const kOperators[] = {&kSwiGlu};
const ofsdp_plugin kPlugin = {
    sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "fused_swiglu", "1.0", kOperators, 1, nullptr, 0};

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) { return &kPlugin; }
