// com.example.RmsNorm(x, scale), attribute epsilon: y = x r scale over the last axis, with
// r = 1/sqrt(mean(x^2) + epsilon). In C++, with a kernel for the gradient:
//
//   dx     = r (g - x r^2 mean(g x))   with g = dy scale
//   dscale = sum over rows of dy x r
//
// r is a second output that no model names: declared optional and saved, so that forward leaves it
// to backward. https://arxiv.org/abs/1910.07467
#include <ofsdp_plugin.h>

#include <cmath>

// Compiled for the instruction sets that the build names, of which the loader chooses (without
// FMA, so the bits are the same).
#ifdef EXAMPLE_TARGETS
#define EXAMPLE_MULTIARCH __attribute__((target_clones(EXAMPLE_TARGETS)))
#else
#define EXAMPLE_MULTIARCH
#endif

namespace {

constexpr int64_t kGrain = 16;  // rows worth a thread

struct Rows {
  const float* x;
  const float* scale;
  float* r;
  float* y;
  const float* dy;
  float* dx;
  int64_t width;
  float epsilon;
};

int64_t width_of(const ofsdp_tensor* x) { return x->shape[x->rank - 1]; }
int64_t rows_of(const ofsdp_tensor* x) {
  const int64_t width = width_of(x);
  return width == 0 ? 0 : ofsdp_numel(x) / width;
}

int32_t infer(const ofsdp_node* node) {
  const ofsdp_tensor* x = node->inputs[0];
  const ofsdp_tensor* scale = node->inputs[1];
  if (x->rank < 1) return ofsdp_fail(node, "x has no axis, expected at least one");
  if (scale->rank != 1 || scale->shape[0] != width_of(x)) {
    return ofsdp_fail(node, "scale must have one axis, as long as the last of x");
  }
  ofsdp_like_input(node, 0, 0);
  return node->host->set_output(node, 1, OFSDP_FLOAT32, x->rank - 1, x->shape);
}

// The sum of a b c, in double and in lanes, so that the compiler may use vectors; their order
// is fixed.
EXAMPLE_MULTIARCH double sum_of_products(const float* a, const float* b, const float* c,
                                         int64_t count) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {}, sum = 0;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lanes[k] += static_cast<double>(c == nullptr ? a[i + k] : a[i + k] * c[i + k]) * b[i + k];
    }
  }
  for (; i < count; ++i) sum += static_cast<double>(c == nullptr ? a[i] : a[i] * c[i]) * b[i];
  for (int64_t k = 0; k < kLanes; ++k) sum += lanes[k];
  return sum;
}

EXAMPLE_MULTIARCH void scaled_row(const float* __restrict x, const float* __restrict scale, float r,
                                  int64_t width, float* __restrict y) {
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * r * scale[i];
}

void forward_rows(void* data, int64_t begin, int64_t end) {
  const Rows& t = *static_cast<const Rows*>(data);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = t.x + row * t.width;
    float* y = t.y + row * t.width;
    const double squares = sum_of_products(x, x, nullptr, t.width);
    const float r = static_cast<float>(1 / std::sqrt(squares / t.width + t.epsilon));
    scaled_row(x, t.scale, r, t.width, y);
    if (t.r != nullptr) t.r[row] = r;
  }
}

int32_t forward(const ofsdp_node* node) {
  const ofsdp_tensor* x = node->inputs[0];
  Rows rows = {static_cast<const float*>(x->data),
               static_cast<const float*>(node->inputs[1]->data),
               static_cast<float*>(node->outputs[1]->data),
               static_cast<float*>(node->outputs[0]->data),
               nullptr,
               nullptr,
               width_of(x),
               ofsdp_float(node, "epsilon", 1e-5f)};
  node->host->parallel_for(node->host, rows_of(x), kGrain, forward_rows, &rows);
  return OFSDP_OK;
}

EXAMPLE_MULTIARCH void gradient_row(const float* __restrict x, const float* __restrict dy,
                                    const float* __restrict scale, float r, float factor,
                                    int64_t width, float* __restrict dx) {
  for (int64_t i = 0; i < width; ++i) dx[i] = r * (dy[i] * scale[i] - x[i] * factor);
}

void backward_rows(void* data, int64_t begin, int64_t end) {
  const Rows& t = *static_cast<const Rows*>(data);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = t.x + row * t.width;
    const float* dy = t.dy + row * t.width;
    float* dx = t.dx + row * t.width;
    const double mean = sum_of_products(dy, x, t.scale, t.width);
    const float r = t.r[row];
    const float factor = static_cast<float>(mean / t.width) * r * r;
    gradient_row(x, dy, t.scale, r, factor, t.width, dx);
  }
}

// Each column sums rows in order: the same bits for any thread count.
struct Columns {
  Rows rows;
  int64_t count;
  float* dscale;
};

EXAMPLE_MULTIARCH void add_row(const float* __restrict x, const float* __restrict dy, float r,
                               int64_t count, float* __restrict sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += dy[i] * x[i] * r;
}

void scale_columns(void* data, int64_t begin, int64_t end) {
  const Columns& t = *static_cast<const Columns*>(data);
  for (int64_t i = begin; i < end; ++i) t.dscale[i] = 0;
  for (int64_t row = 0; row < t.count; ++row) {
    const int64_t at = row * t.rows.width;
    add_row(t.rows.x + at + begin, t.rows.dy + at + begin, t.rows.r[row], end - begin,
            t.dscale + begin);
  }
}

int32_t backward(const ofsdp_node* node) {
  const ofsdp_tensor* x = node->inputs[0];
  Rows rows = {static_cast<const float*>(x->data),
               static_cast<const float*>(node->inputs[1]->data),
               static_cast<float*>(node->outputs[1]->data),
               nullptr,
               static_cast<const float*>(node->grad_outputs[0]->data),
               nullptr,
               width_of(x),
               0};
  if (node->grad_inputs[0]->dtype != OFSDP_ABSENT) {
    rows.dx = static_cast<float*>(node->grad_inputs[0]->data);
    node->host->parallel_for(node->host, rows_of(x), kGrain, backward_rows, &rows);
  }
  if (node->grad_inputs[1]->dtype != OFSDP_ABSENT) {
    Columns columns = {rows, rows_of(x), static_cast<float*>(node->grad_inputs[1]->data)};
    node->host->parallel_for(node->host, rows.width, kGrain, scale_columns, &columns);
  }
  return OFSDP_OK;
}

constexpr uint32_t kFloat = OFSDP_TYPE(OFSDP_FLOAT32);
const ofsdp_operand kX = {sizeof(ofsdp_operand), "x", kFloat, OFSDP_SAVED};
const ofsdp_operand kScale = {sizeof(ofsdp_operand), "scale", kFloat, OFSDP_SAVED};
const ofsdp_operand kY = {sizeof(ofsdp_operand), "y", kFloat, 0};
const ofsdp_operand kR = {sizeof(ofsdp_operand), "r", kFloat,
                          OFSDP_OPTIONAL | OFSDP_NO_GRADIENT | OFSDP_SAVED};
const ofsdp_operand* const kInputs[] = {&kX, &kScale};
const ofsdp_operand* const kOutputs[] = {&kY, &kR};

const ofsdp_attribute kEpsilon = {
    sizeof(ofsdp_attribute), "epsilon", OFSDP_FLOAT, 0, 0, 1e-5f, nullptr, nullptr, nullptr, 0};
const ofsdp_attribute* const kAttributes[] = {&kEpsilon};

const int64_t kCube[] = {3, 5, 7}, kWide[] = {40, 33}, kSeven[] = {7}, kThirtyThree[] = {33};
ofsdp_tensor tensor(int32_t rank, const int64_t* shape) {
  return {sizeof(ofsdp_tensor), OFSDP_FLOAT32, rank, shape, nullptr, nullptr};
}
const ofsdp_tensor kSampleTensors[] = {tensor(3, kCube), tensor(1, kSeven), tensor(2, kWide),
                                       tensor(1, kThirtyThree)};
const ofsdp_tensor* const kSmall[] = {&kSampleTensors[0], &kSampleTensors[1]};
const ofsdp_tensor* const kLarge[] = {&kSampleTensors[2], &kSampleTensors[3]};
const ofsdp_sample kSampleList[] = {
    {sizeof(ofsdp_sample), "three axes", nullptr, 0, kSmall, 2, 1, 0},
    {sizeof(ofsdp_sample), "many rows", nullptr, 0, kLarge, 2, 2, 0}};
const ofsdp_sample* const kSamples[] = {&kSampleList[0], &kSampleList[1]};

const ofsdp_operator kRmsNorm = {sizeof(ofsdp_operator),
                                 "com.example",
                                 "RmsNorm",
                                 1,
                                 0,
                                 kInputs,
                                 2,
                                 kOutputs,
                                 2,
                                 kAttributes,
                                 1,
                                 infer,
                                 nullptr,
                                 forward,
                                 backward,
                                 nullptr,
                                 kSamples,
                                 2,
                                 nullptr,
                                 nullptr};
const ofsdp_operator* const kOperators[] = {&kRmsNorm};
const ofsdp_plugin kPlugin = {
    sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "rms_norm", "1.0", kOperators, 1, nullptr, 0};

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) { return &kPlugin; }
