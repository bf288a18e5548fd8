/* Operators and optimizers for fsdp-run from a shared library: fsdp-run MODEL.onnx --plugin LIB.so.
 *
 * C99 and C++11; includes only <stddef.h> and <stdint.h>. The library exports one function,
 *
 *   const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host* host);
 *
 * which gives a description that stays valid until the program ends; after NULL the program ends
 * with an error. docs/howto/plugin.md is the guide, docs/internals/plugins.md the reference,
 * plugins/examples has whole libraries.
 *
 * Versions   every struct opens with its size, so that it may grow at its end. What a library built
 *            against an older header leaves out is zero; a library built against a newer one is
 *            refused.
 * Ownership  what the library describes is the library's. What the host hands to a function (nodes,
 *            tensors, strings) is the host's and valid during that call only.
 * Threads    each rank is a process and calls every function from the thread that runs its
 *            schedule. A kernel fans out through host->parallel_for; its bodies may call set_error
 *            and log.
 * Errors     a library's function that returns int32_t returns OFSDP_OK, or OFSDP_ERROR after
 *            set_error. No exception may leave a library (the host catches one, but promises
 *            nothing then).
 * Memory     kernels allocate nothing: what they need besides their tensors is asked for by
 *            `scratch`, while planning.
 */
#ifndef OFSDP_PLUGIN_H
#define OFSDP_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OFSDP_PLUGIN_VERSION 2u

#if defined(_WIN32)
#define OFSDP_PLUGIN_EXPORT __declspec(dllexport)
#else
#define OFSDP_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

enum { OFSDP_OK = 0, OFSDP_ERROR = 1 };

/* Element types, by ONNX's numbers (TensorProto.DataType), and sets of them. */
enum {
  OFSDP_ABSENT = 0,
  OFSDP_FLOAT32 = 1,
  OFSDP_UINT8 = 2,
  OFSDP_INT8 = 3,
  OFSDP_UINT16 = 4,
  OFSDP_INT16 = 5,
  OFSDP_INT32 = 6,
  OFSDP_INT64 = 7,
  OFSDP_BOOL = 9,
  OFSDP_FLOAT16 = 10,
  OFSDP_FLOAT64 = 11,
  OFSDP_UINT32 = 12,
  OFSDP_UINT64 = 13,
  OFSDP_BFLOAT16 = 16
};
#define OFSDP_TYPE(dtype) (UINT32_C(1) << (dtype))
#define OFSDP_ANY_TYPE UINT32_C(0xffffffff)

/* A tensor: dense and row-major so far, but read the strides. dtype OFSDP_ABSENT: an optional
 * operand that the node does not have. */
typedef struct ofsdp_tensor {
  size_t struct_size;
  int32_t dtype;
  int32_t rank;
  const int64_t* shape;
  const int64_t* strides; /* in elements */
  void* data;             /* NULL where the call has no bytes of it */
} ofsdp_tensor;

/* An attribute: as an operator declares it (the value is its default), as a sample sets it, or as
 * emit is given it. The member that `type` names has the value. */
enum { OFSDP_INT = 1, OFSDP_FLOAT = 2, OFSDP_STRING = 3, OFSDP_INTS = 4, OFSDP_FLOATS = 5 };
typedef struct ofsdp_attribute {
  size_t struct_size;
  const char* name;
  int32_t type;
  int32_t required; /* of a declaration: the file must have it; otherwise the default counts */
  int64_t i;
  float f;
  const char* s;
  const int64_t* ints;
  const float* floats;
  size_t count; /* of ints or floats */
} ofsdp_attribute;

struct ofsdp_host;

/* A node, with which each function of an operator is called. The inputs and outputs that the call
 * may use have data:
 *   infer     inputs whose values are known while planning
 *   scratch   none
 *   forward   all; outputs are to be written
 *   backward  those that are declared OFSDP_SAVED; also grad_outputs (absent: no gradient comes
 *             that way) and grad_inputs, to be written (absent: nobody asks for it) */
typedef struct ofsdp_node {
  size_t struct_size;
  const struct ofsdp_host* host;
  void* context; /* the host's */
  const ofsdp_tensor* const* inputs;
  size_t num_inputs; /* as declared, as is num_outputs: one that is left out is OFSDP_ABSENT */
  const ofsdp_tensor* const* outputs; /* infer: dtype is not OFSDP_ABSENT where the node has it */
  size_t num_outputs;
  const ofsdp_tensor* const* grad_outputs; /* num_outputs, backward only */
  const ofsdp_tensor* const* grad_inputs;  /* num_inputs, backward only */
  void* scratch;                           /* 64-byte aligned; of what `scratch` asked for */
  size_t scratch_size;
  uint64_t seed; /* of the run, and the update's number from 0: for what is random on purpose */
  int64_t step;
} ofsdp_node;

/* The graph while backward is written as known operators. A value is a number, 0 is none. Operators
 * go by their ONNX name ("Mul"); those of other domains by domain.name ("com.example.RmsNorm");
 * fsdp-run ops lists them.
 * needs_grad returns 0 or 1, emit OFSDP_OK or OFSDP_ERROR, the other functions a value. If one
 * fails, it gives 0 for each value. The program then refuses the model with an error of its own,
 * even if build_backward returns OFSDP_OK. */
typedef struct ofsdp_graph {
  size_t struct_size;
  const struct ofsdp_host* host;
  void* context; /* the host's */
  const ofsdp_node* node;
  int32_t (*input)(const struct ofsdp_graph*, size_t index);
  int32_t (*output)(const struct ofsdp_graph*, size_t index);
  int32_t (*grad_output)(const struct ofsdp_graph*, size_t index); /* 0: no gradient comes here */
  int32_t (*needs_grad)(const struct ofsdp_graph*, size_t input);
  /* A new node and its outputs. */
  int32_t (*emit)(const struct ofsdp_graph*, const char* op, const int32_t* inputs,
                  size_t num_inputs, const ofsdp_attribute* const* attributes,
                  size_t num_attributes, int32_t* outputs, size_t num_outputs);
  int32_t (*scalar)(const struct ofsdp_graph*, int32_t dtype, double value);
  int32_t (*ints)(const struct ofsdp_graph*, const int64_t* values, size_t count);
  /* `grad` summed over the axes along which `target` was broadcast */
  int32_t (*sum_to)(const struct ofsdp_graph*, int32_t grad, int32_t target);
  void (*set_grad)(const struct ofsdp_graph*, size_t input, int32_t grad);
} ofsdp_graph;

/* Offered by the program to a library. */
enum { OFSDP_LOG_INFO = 0, OFSDP_LOG_WARNING = 1 };
typedef struct ofsdp_host {
  size_t struct_size;
  uint32_t version; /* OFSDP_PLUGIN_VERSION of the program */
  void* context;    /* the host's */
  void (*log)(const struct ofsdp_host*, int32_t level, const char* message);
  int32_t (*threads)(const struct ofsdp_host*);
  /* body(data, begin, end) over [0, n), cut at fixed points into parts of at least `grain`; results
   * must not depend on the cut. */
  void (*parallel_for)(const struct ofsdp_host*, int64_t n, int64_t grain,
                       void (*body)(void* data, int64_t begin, int64_t end), void* data);
  void (*set_error)(const ofsdp_node*, const char* message); /* the first message of a call stays */
  /* infer: what an output will be. */
  int32_t (*set_output)(const ofsdp_node*, size_t index, int32_t dtype, int32_t rank,
                        const int64_t* shape);
  /* The node's attribute or the declared default; NULL: neither, or not declared. */
  const ofsdp_attribute* (*attribute)(const ofsdp_node*, const char* name);
} ofsdp_host;

/* An input or output of an operator. Optional ones come last. */
enum {
  OFSDP_OPTIONAL = 1,
  OFSDP_NO_GRADIENT = 2, /* input: carries none (indices, masks); output: none comes back */
  OFSDP_SAVED = 4,       /* backward reads its bytes; the planner frees what is not saved */
  OFSDP_KNOWN = 8        /* input: its value must be known while planning */
};
typedef struct ofsdp_operand {
  size_t struct_size;
  const char* name;
  uint32_t types; /* a set of OFSDP_TYPE */
  uint32_t flags;
} ofsdp_operand;

/* A problem for fsdp-run check-plugin. Inputs without data are filled with normal(0,1). */
typedef struct ofsdp_sample {
  size_t struct_size;
  const char* name;
  const ofsdp_attribute* const* attributes;
  size_t num_attributes;
  const ofsdp_tensor* const* inputs;
  size_t num_inputs;
  size_t num_outputs;
  double tolerance; /* of backward against finite differences, relative; 0: 1e-2 */
} ofsdp_sample;

enum { OFSDP_FORWARD = 0, OFSDP_BACKWARD = 1 };

/* An operator. `forward` is needed; without `infer` the outputs are as input 0. For the gradient
 * either `backward`, a kernel, or `build_backward`, known operators; with neither the operator has
 * none, and a model whose trained parameters need one is refused. */
typedef struct ofsdp_operator {
  size_t struct_size;
  const char* domain; /* "com.example"; "" or "ai.onnx": replaces ours, with --plugin-override */
  const char* name;
  int32_t since_version; /* of the domain's opset in the file; 0: any */
  int32_t until_version; /* the last; 0: any */
  const ofsdp_operand* const* inputs;
  size_t num_inputs;
  const ofsdp_operand* const* outputs;
  size_t num_outputs;
  const ofsdp_attribute* const* attributes;
  size_t num_attributes;
  int32_t (*infer)(const ofsdp_node*);
  size_t (*scratch)(const ofsdp_node*, int32_t phase); /* bytes; NULL: none */
  int32_t (*forward)(const ofsdp_node*);
  int32_t (*backward)(const ofsdp_node*);
  int32_t (*build_backward)(const ofsdp_graph*);
  const ofsdp_sample* const* samples;
  size_t num_samples;
  /* As forward and backward for --device cuda, which refuses a node if one that it needs is NULL.
   * Every address is of device memory, those of known inputs and of scratch too. They put their
   * work onto `stream`, a cudaStream_t of the calling thread's current device. They neither wait,
   * nor allocate, nor use another stream without joining it again. The call may be captured into a
   * graph, which is replayed without another call, with the same addresses. Kernels therefore get
   * by value all that is read of the node on the host. `step` is -1: draws that differ by update
   * need the CPU. An error of theirs ends the run. */
  int32_t (*cuda_forward)(const ofsdp_node*, void* stream);
  int32_t (*cuda_backward)(const ofsdp_node*, void* stream);
} ofsdp_operator;

/* An optimizer, fsdp-run --optimizer plugin:NAME: the update of a span of a parameter shard in
 * float32. A span is any part of any parameter, so the update must be elementwise. `direction` and
 * `step_length` say what depends on a whole parameter. */
typedef struct ofsdp_update {
  size_t struct_size;
  float* param; /* updated in place */
  const float* grad;
  float* const* state; /* one pointer for each of `states`; zero before the first update */
  int64_t count;
  int64_t step; /* from 1 */
  double lr;
  double weight_decay; /* of this span */
  double momentum;     /* this and all below as the command line says */
  double beta1;
  double beta2;
  double eps;
  double rho;
  int32_t nesterov;
} ofsdp_update;
typedef struct ofsdp_optimizer {
  size_t struct_size;
  const char* name;
  const char* const* states;
  size_t num_states;
  void (*update)(const ofsdp_host*, const ofsdp_update*);
  /* Since version 2, both or neither: for steps whose length depends on norms of a whole parameter,
   * over all ranks. `update` then leaves this step out: it advances the states and may decay param.
   * After `update` of every span the program does param -= step_length * direction. It calls
   * `direction` more than once for a span; each call must write the same `count` floats. Then grad
   * is NULL. */
  void (*direction)(const ofsdp_host*, const ofsdp_update*, float* direction);
  /* `whole` is the parameter: count, step, lr and the flags; param, grad and state are NULL,
   * weight_decay is 0. Norms are Euclidean, `param_norm` that before the step. */
  double (*step_length)(const ofsdp_host*, const ofsdp_update* whole, double param_norm,
                        double direction_norm);
} ofsdp_optimizer;

typedef struct ofsdp_plugin {
  size_t struct_size;
  uint32_t version; /* OFSDP_PLUGIN_VERSION of the header it was built against */
  const char* name;
  const char* release; /* its own version, for messages */
  const ofsdp_operator* const* operators;
  size_t num_operators;
  const ofsdp_optimizer* const* optimizers;
  size_t num_optimizers;
} ofsdp_plugin;

typedef const ofsdp_plugin* (*ofsdp_plugin_entry_function)(const ofsdp_host*);
OFSDP_PLUGIN_EXPORT const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host* host);

/* Short forms. */
static inline int32_t ofsdp_fail(const ofsdp_node* node, const char* message) {
  node->host->set_error(node, message);
  return OFSDP_ERROR;
}

static inline int64_t ofsdp_numel(const ofsdp_tensor* tensor) {
  int64_t count = 1;
  int32_t axis;
  for (axis = 0; axis < tensor->rank; ++axis) count *= tensor->shape[axis];
  return count;
}

static inline float ofsdp_float(const ofsdp_node* node, const char* name, float otherwise) {
  const ofsdp_attribute* found = node->host->attribute(node, name);
  return found != NULL && found->type == OFSDP_FLOAT ? found->f : otherwise;
}

static inline int64_t ofsdp_int(const ofsdp_node* node, const char* name, int64_t otherwise) {
  const ofsdp_attribute* found = node->host->attribute(node, name);
  return found != NULL && found->type == OFSDP_INT ? found->i : otherwise;
}

static inline int32_t ofsdp_like_input(const ofsdp_node* node, size_t output, size_t input) {
  const ofsdp_tensor* like = node->inputs[input];
  return node->host->set_output(node, output, like->dtype, like->rank, like->shape);
}

#ifdef __cplusplus
}
#endif

#endif /* OFSDP_PLUGIN_H */
