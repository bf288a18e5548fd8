/* The C interface of a device library: one table of functions, which libofsdp_cuda.so exports as
 * `ofsdp_device_table_get`, and which a test may implement in host memory. C99.
 *
 * The table may grow at its end: `size` says how much of it a library knows, `version` changes when
 * the meaning of something older does.
 *
 * A device runs what is put on its streams in order; an event recorded on one stream and waited for
 * on another orders the two. Nothing that takes a stream waits, allocates or reads device memory on
 * the host. Between capture_begin and capture_end what is put on that stream, and on streams that
 * wait for its events, is recorded instead of run; each of them must be joined to it again by an
 * event. A graph may be launched any number of times.
 *
 * Results: 0 is success; a null handle or another number is a failure, which `error` describes.
 * Ownership: the caller drops what it makes, the device last. Threads: one a device. */
#ifndef OFSDP_DEVICE_TABLE_H
#define OFSDP_DEVICE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OFSDP_DEVICE_VERSION 3
#define OFSDP_DEVICE_ENTRY "ofsdp_device_table_get"
#define OFSDP_MOST_OPTIMIZER_STATES 4

typedef struct ofsdp_device ofsdp_device;
typedef struct ofsdp_stream ofsdp_stream;
typedef struct ofsdp_event ofsdp_event;
typedef struct ofsdp_device_graph ofsdp_device_graph;
typedef struct ofsdp_kernel ofsdp_kernel;
typedef struct ofsdp_device_optimizer ofsdp_device_optimizer;
typedef struct ofsdp_group ofsdp_group; /* ranks, each with a device, that communicate */

/* An operand: dtype 0 is absent. Numbers of dtype and layout are those of kernels/core. */
typedef struct ofsdp_device_operand {
  int32_t dtype;
  int32_t layout;
  int32_t rank;
  int32_t reserved;
  const int64_t* axes;
  const void* constant; /* of an input known while planning: its bytes, in host memory; or null */
} ofsdp_device_operand;

typedef enum {
  OFSDP_ATTRIBUTE_INT,
  OFSDP_ATTRIBUTE_FLOAT,
  OFSDP_ATTRIBUTE_STRING, /* chars, count of them */
  OFSDP_ATTRIBUTE_INTS,
  OFSDP_ATTRIBUTE_FLOATS,
  OFSDP_ATTRIBUTE_STRINGS, /* each with a 0 behind it */
  OFSDP_ATTRIBUTE_TENSOR   /* an ofsdp_device_operand whose constant is its value */
} ofsdp_attribute_kind;

typedef struct ofsdp_device_attribute {
  const char* name;
  int32_t kind;
  int32_t reserved;
  int64_t count; /* of what `values` points to */
  const void* values;
} ofsdp_device_attribute;

typedef struct ofsdp_problem {
  const char* op; /* full name: "Relu", "ofsdp.ReluGrad" */
  const ofsdp_device_attribute* attributes;
  int64_t num_attributes;
  const ofsdp_device_operand* inputs;
  int64_t num_inputs;
  const ofsdp_device_operand* outputs;
  int64_t num_outputs;
  uint64_t node_seed;
} ofsdp_problem;

/* What changes from micro-batch to micro-batch; uploaded before it. `samples` global sample numbers
 * (int64) follow. */
typedef struct ofsdp_step_numbers {
  uint64_t seed;
  int64_t step; /* updates, from 0 */
  int64_t samples;
  double lr;
  float loss_share; /* this micro-batch's share of the global mean */
  uint32_t reserved;
} ofsdp_step_numbers;

/* The first node that found values in its data that it cannot go on with: an index out of range, a
 * length. The node takes 0 instead; `note_loss` sees to it that nothing is updated behind it. */
typedef struct ofsdp_data_fault {
  uint64_t node;  /* as it was launched; 0: none */
  int64_t value;  /* one of them */
  int64_t extent; /* of what it was for; 0: not known */
} ofsdp_data_fault;

/* What the device itself keeps from update to update; the host gets copies of it, a step late. */
typedef struct ofsdp_run_state {
  float loss_weight; /* loss_share times the loss scale: what backward starts from */
  float loss;        /* of the last micro-batch */
  int64_t matches[2];
  double loss_scale, scale_used;
  double squared_norm; /* of this rank's spans, this update, scaled */
  double global_norm;  /* after clip: unscaled */
  int64_t good_updates, skipped_updates;
  int64_t steps_before;   /* of the optimizer, before the run */
  int64_t optimizer_step; /* from 1, without skipped ones */
  float gradient_factor;
  int32_t skip; /* this update's gradients are not finite */
  int32_t stop; /* a loss was NaN, or data were at fault: nothing is updated any more */
  uint32_t reserved;
  ofsdp_data_fault fault;
} ofsdp_run_state;

typedef struct ofsdp_launch {
  void* const* inputs;
  void* const* outputs;
  void* workspace;
  const ofsdp_step_numbers* numbers; /* device memory */
  int64_t samples;                   /* of the micro-batch: known when launched */
  ofsdp_data_fault* fault;           /* device memory; or null */
  uint64_t node;                     /* what it is called there, from 1 on */
} ofsdp_launch;

/* A gradient on its way: from a slot, rounded to what ranks reduce in, onto what was before. */
typedef struct ofsdp_gradient {
  const void* src;
  int32_t dtype;
  int32_t reduce_dtype;
  const float* onto; /* or null */
} ofsdp_gradient;

typedef struct ofsdp_reduce {
  ofsdp_gradient gradient;
  float* dst; /* or null: only the norm is wanted */
  int64_t count;
  int64_t norm_first, norm_count; /* elements whose squares are added to the norm; 0: none */
  double* partials;               /* count / 4096 + 2 of them */
  ofsdp_run_state* state;
} ofsdp_reduce;

typedef struct ofsdp_optimizer_settings {
  double momentum, beta1, beta2, eps, rho;
  int32_t nesterov;
  int32_t no_bias_correction; /* of adamw */
} ofsdp_optimizer_settings;

typedef struct ofsdp_device_update {
  ofsdp_gradient gradient;
  float* param;
  float* states[OFSDP_MOST_OPTIMIZER_STATES];
  int64_t count;
  double weight_decay;
  int32_t scaled; /* the gradient is multiplied by gradient_factor */
  int32_t reserved;
  const ofsdp_run_state* state; /* neither `skip` nor `stop` */
  const ofsdp_step_numbers* numbers;
} ofsdp_device_update;

/* Of a shard whose optimizer needs norms of whole parameters: a stretch that is of one of them. */
typedef struct ofsdp_parameter_part {
  int64_t begin, count; /* elements of the shard */
  int64_t parameter;    /* its squares are the two numbers from squares + 2 parameter on */
  double weight_decay;
} ofsdp_parameter_part;

typedef struct ofsdp_parameter_parts {
  float* param; /* of the shard, as the states */
  float* states[OFSDP_MOST_OPTIMIZER_STATES];
  const ofsdp_parameter_part* parts; /* host memory, read by the call; in order, apart */
  int64_t num_parts;
  double* squares;              /* of each parameter, and of what its step is the direction of */
  double* partials;             /* 2 (count / 4096 + 1) of each part */
  const ofsdp_run_state* state; /* neither `skip` nor `stop` */
  const ofsdp_step_numbers* numbers;
} ofsdp_parameter_parts;

/* What a call that has to wait for other ranks asks again and again; 0: it gives up. */
typedef struct ofsdp_patience {
  int32_t (*goes_on)(void* context);
  void* context;
} ofsdp_patience;

/* Limb i counts units of 2^(32 i - 256); those behind the last take what a value has above it. */
#define OFSDP_EXACT_LIMBS 16
typedef struct ofsdp_exact_sum {
  uint64_t limbs[OFSDP_EXACT_LIMBS + 2];
  uint64_t not_finite;
} ofsdp_exact_sum;

#define OFSDP_GROUP_KEY_BYTES 128

typedef enum { OFSDP_SUM, OFSDP_LARGEST } ofsdp_reduction;

enum {
  OFSDP_MAY_ROUND_TO_TF32 = 1, /* operands of products of float32 */
  OFSDP_MAY_VARY = 2           /* other bits from run to run: choices by time, sums in any order */
};

typedef struct ofsdp_device_table {
  uint32_t version;
  uint32_t size; /* sizeof(ofsdp_device_table) of the library */

  /* The library. Texts are cut to `bytes`. */
  int32_t (*probe)(char* text, size_t bytes); /* devices; none: why */
  void (*missing)(char* text, size_t bytes);  /* libraries not found: a line each, or "" */
  ofsdp_device* (*open)(int32_t ordinal, char* error, size_t bytes);
  void (*close)(ofsdp_device*);
  void (*describe)(ofsdp_device*, char* text, size_t bytes);
  const char* (*error)(ofsdp_device*);

  /* Memory; host memory is pinned. */
  void* (*allocate)(ofsdp_device*, size_t bytes);
  void (*release)(ofsdp_device*, void*);
  void* (*allocate_host)(ofsdp_device*, size_t bytes);
  void (*release_host)(ofsdp_device*, void*);

  /* Order. */
  ofsdp_stream* (*make_stream)(ofsdp_device*, int32_t urgent);
  void (*drop_stream)(ofsdp_device*, ofsdp_stream*);
  ofsdp_event* (*make_event)(ofsdp_device*);
  void (*drop_event)(ofsdp_device*, ofsdp_event*);
  int32_t (*record)(ofsdp_device*, ofsdp_event*, ofsdp_stream*);
  int32_t (*wait)(ofsdp_device*, ofsdp_stream*, ofsdp_event*); /* the stream waits */
  int32_t (*await)(ofsdp_device*, ofsdp_event*);               /* the host waits */
  int32_t (*synchronize)(ofsdp_device*);                       /* the host waits for everything */
  int32_t (*copy)(ofsdp_device*, ofsdp_stream*, void* dst, const void* src, size_t bytes);
  int32_t (*clear)(ofsdp_device*, ofsdp_stream*, void* dst, size_t bytes); /* to 0 */

  int32_t (*capture_begin)(ofsdp_device*, ofsdp_stream*);
  ofsdp_device_graph* (*capture_end)(ofsdp_device*, ofsdp_stream*);
  int32_t (*launch)(ofsdp_device*, ofsdp_device_graph*, ofsdp_stream*);
  void (*drop_graph)(ofsdp_device*, ofsdp_device_graph*);

  /* Operators. Null from make_kernel: none accepts the problem. */
  ofsdp_kernel* (*make_kernel)(ofsdp_device*, const ofsdp_problem*, size_t* workspace_bytes);
  void (*drop_kernel)(ofsdp_device*, ofsdp_kernel*);
  int32_t (*run)(ofsdp_device*, ofsdp_kernel*, ofsdp_stream*, const ofsdp_launch*);

  /* The arithmetic of a step that is no node; float32, float16, bfloat16. */
  int32_t (*begin)(ofsdp_device*, ofsdp_stream*, ofsdp_run_state*, const ofsdp_step_numbers*,
                   int32_t begins_update, int32_t scales_loss);
  int32_t (*note_loss)(ofsdp_device*, ofsdp_stream*, ofsdp_run_state*, const float* loss,
                       int32_t stops_at_nan);
  int32_t (*convert)(ofsdp_device*, ofsdp_stream*, const void* src, int32_t from, void* dst,
                     int32_t to, int64_t count);
  int32_t (*add)(ofsdp_device*, ofsdp_stream*, const void* src, int32_t from, float* dst,
                 int64_t count);
  int32_t (*round)(ofsdp_device*, ofsdp_stream*, float* values, int32_t to, int64_t count);
  int32_t (*reduce)(ofsdp_device*, ofsdp_stream*, const ofsdp_reduce*);
  int32_t (*clip)(ofsdp_device*, ofsdp_stream*, ofsdp_run_state*, double most, int32_t scales_loss);
  /* By the names of kernels/optimizers; "assign" writes the gradient into the parameter. */
  ofsdp_device_optimizer* (*make_optimizer)(ofsdp_device*, const char* name,
                                            const ofsdp_optimizer_settings*); /* null: unknown */
  void (*drop_optimizer)(ofsdp_device*, ofsdp_device_optimizer*);
  int32_t (*update)(ofsdp_device*, ofsdp_stream*, ofsdp_device_optimizer*,
                    const ofsdp_device_update*);

  /* Several ranks. All of a group call the same in the same order, and capture and launch alike.
   * Joining, splitting, making known and leaving may wait for the others, as patient as the one who
   * joined; a group is left, or aborted and then left, before its device is closed. */
  uint64_t (*identity)(ofsdp_device*); /* the same in two processes: they share the device */
  int32_t (*can_join)(ofsdp_device*, int32_t ranks_on_device, char* text,
                      size_t bytes);                   /* 0: why */
  int32_t (*make_group_key)(ofsdp_device*, void* key); /* by place 0, for all */
  ofsdp_group* (*join_group)(ofsdp_device*, const void* key, int32_t place, int32_t count,
                             const ofsdp_patience*);
  ofsdp_group* (*split_group)(ofsdp_device*, ofsdp_group*, int32_t color, int32_t place);
  void (*leave_group)(ofsdp_device*, ofsdp_group*);
  void (*abort_group)(ofsdp_device*, ofsdp_group*);    /* what waits in it ends; any thread */
  int32_t (*check_group)(ofsdp_device*, ofsdp_group*); /* what went wrong in it; never waits */
  /* Memory that groups reach directly, if it is made known to them; `release` takes it. A group has
   * `same_offsets` where every call gives what its other ranks give, counted from `data`. */
  void* (*allocate_shared)(ofsdp_device*, size_t bytes);
  int32_t (*make_known)(ofsdp_device*, ofsdp_group*, void* data, size_t bytes,
                        int32_t same_offsets);
  /* In place: src is dst's part of this place; or dst is src's; or they are the same. */
  int32_t (*all_gather)(ofsdp_device*, ofsdp_stream*, ofsdp_group*, const void* src, void* dst,
                        size_t bytes_each);
  int32_t (*reduce_scatter)(ofsdp_device*, ofsdp_stream*, ofsdp_group*, const void* src, void* dst,
                            int32_t dtype, int64_t count_each);
  int32_t (*all_reduce)(ofsdp_device*, ofsdp_stream*, ofsdp_group*, const void* src, void* dst,
                        int32_t dtype, int64_t count, int32_t reduction);
  /* For who waits without blocking. */
  int32_t (*reached)(ofsdp_device*, ofsdp_event*); /* 1: yes, 0: not yet, -1: failed */
  int32_t (*mark)(ofsdp_device*, ofsdp_stream*, int64_t* pinned, int64_t value);
  /* As record, for the host to wait for; in a capture it is of the graph: each launch records it
   * anew, and no stream may wait for it. */
  int32_t (*signal)(ofsdp_device*, ofsdp_event*, ofsdp_stream*);

  /* Of operators made from then on: what they may do to be faster, of OFSDP_MAY_*. */
  int32_t (*allow)(ofsdp_device*, uint32_t what);

  /* Behind `update` of all units, by an optimizer whose steps need norms of whole parameters: the
   * parts' squares are added to `squares`; then, once ranks have added them up, the step. */
  int32_t (*add_squares)(ofsdp_device*, ofsdp_stream*, ofsdp_device_optimizer*,
                         const ofsdp_parameter_parts*);
  int32_t (*take_step)(ofsdp_device*, ofsdp_stream*, ofsdp_device_optimizer*,
                       const ofsdp_parameter_parts*);

  /* An event that also says when; not of a capture. Both must have been reached. */
  ofsdp_event* (*make_timed_event)(ofsdp_device*);
  int32_t (*elapsed)(ofsdp_device*, ofsdp_event* first, ofsdp_event* then, double* microseconds);

  /* What others may put work onto the stream with, between calls of the table and under its rules: a
   * cudaStream_t. It lives as long as the stream, in the context of the thread that opened the device. */
  void* (*native_stream)(ofsdp_device*, ofsdp_stream*);

  /* Place p of all `places` is given `bytes_each` from src + offsets[p] (host memory, read by the
   * call), and has them at its dst + this place * bytes_each. dst lies apart from src. */
  int32_t (*exchange_parts)(ofsdp_device*, ofsdp_stream*, ofsdp_group*, const void* src,
                            const size_t* offsets, int32_t places, void* dst, size_t bytes_each);

  /* A sum of squares that depends on no order and no cut (runtime/engine/exact_squares.h). `sum` is 0 at
   * first and again once it is taken: as OFSDP_EXACT_LIMBS doubles, whole numbers, least significant
   * first, which ranks add up; NaN in the first where a value was not finite. */
  int32_t (*add_exact_squares)(ofsdp_device*, ofsdp_stream*, const float* values, int64_t count,
                               ofsdp_exact_sum* sum);
  int32_t (*take_exact_sum)(ofsdp_device*, ofsdp_stream*, ofsdp_exact_sum* sum, double* limbs);
  int32_t (*exact_norm)(ofsdp_device*, ofsdp_stream*, const double* limbs, ofsdp_run_state*);
} ofsdp_device_table;

/* Null: the library does not know that version. */
typedef const ofsdp_device_table* (*ofsdp_device_entry)(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif
