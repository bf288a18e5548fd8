/* onnx-fsdp in C: trains ONNX models with Fully Sharded Data Parallel, as fsdp-run does.
 *
 * C99 and C++11; includes only <stddef.h> and <stdint.h>. docs/howto/python-and-c.md is the guide,
 * samples/library has whole programs.
 *
 *   runs      onnx_fsdp_train and onnx_fsdp_run_*: ranks in processes of their own, started by the
 *             program fsdp-run, which is looked for beside this library, in ../bin, and where the
 *             environment's OFSDP_PROGRAM says. The caller's process is none of them.
 *   trainers  onnx_fsdp_trainer_*: one rank in the caller's process, who brings each batch. Started
 *             by torchrun, mpirun or srun, each process is the rank that these tell it to be, and
 *             all ranks make the same calls.
 *
 * Both give the bits of the command line.
 *
 * Options    the names and texts of `fsdp-run --help` without dashes, {"lr", "0.01"}; one that may be
 *            repeated stands as often as it is said. MODEL.yaml beside MODEL.onnx counts as it does
 *            for fsdp-run.
 * Versions   every struct opens with its size, so that it may grow at its end.
 * Ownership  what a caller passes in is read during the call and not kept; of arrays that go to a run
 *            the library makes one copy, of those that go to a trainer none. What comes back is valid
 *            until the function named with it.
 * Threads    a handle is used by one thread at a time. Errors are kept by thread. A trainer computes
 *            on the threads of OpenMP, and a process has one trainer at a time.
 * Errors     every function that can fail returns a status; onnx_fsdp_error has its line. Nothing is
 *            printed but warnings and, by a run that asks for it, its own lines.
 */
#ifndef ONNX_FSDP_H
#define ONNX_FSDP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONNX_FSDP_VERSION_MAJOR 0
#define ONNX_FSDP_VERSION_MINOR 3
#define ONNX_FSDP_VERSION_PATCH 0

#define ONNX_FSDP_API __attribute__((visibility("default")))

/* The exit statuses of fsdp-run, and one for a caller who stopped. */
typedef enum onnx_fsdp_status {
  ONNX_FSDP_OK = 0,
  ONNX_FSDP_RUN_ERROR = 1,   /* a fault: disk, dead rank, NaN */
  ONNX_FSDP_INPUT_ERROR = 2, /* a wrong option, file or array */
  ONNX_FSDP_STOPPED = 3      /* as the caller asked */
} onnx_fsdp_status;

/* Element types, by ONNX's numbers (TensorProto.DataType). */
typedef enum onnx_fsdp_dtype {
  ONNX_FSDP_FLOAT32 = 1,
  ONNX_FSDP_UINT8 = 2,
  ONNX_FSDP_INT8 = 3,
  ONNX_FSDP_UINT16 = 4,
  ONNX_FSDP_INT16 = 5,
  ONNX_FSDP_INT32 = 6,
  ONNX_FSDP_INT64 = 7,
  ONNX_FSDP_BOOL = 9,
  ONNX_FSDP_FLOAT16 = 10,
  ONNX_FSDP_FLOAT64 = 11,
  ONNX_FSDP_UINT32 = 12,
  ONNX_FSDP_UINT64 = 13
} onnx_fsdp_dtype;

typedef struct onnx_fsdp_option {
  const char* name;  /* "lr" */
  const char* value; /* "0.01" */
} onnx_fsdp_option;

/* Rows of a column: the input of the model of that name, or the labels. */
typedef struct onnx_fsdp_array {
  const char* name;
  int32_t dtype;       /* onnx_fsdp_dtype */
  int32_t rank;        /* axes, at least 1 */
  const int64_t* dims; /* the first axis: samples */
  const void* data;    /* C order, without gaps */
} onnx_fsdp_array;

/* What is trained, and how. Zero is "none" in every member but `size` and `model`. */
typedef struct onnx_fsdp_settings {
  size_t size; /* sizeof(onnx_fsdp_settings) */
  const char* model;
  const onnx_fsdp_option* options;
  size_t option_count;
  const onnx_fsdp_array* data; /* of a run; none: as the option "data" says */
  size_t data_count;
  const onnx_fsdp_array* eval_data;
  size_t eval_data_count;
  int32_t prints; /* of a run: whether its lines go to this process's stdout */
} onnx_fsdp_settings;

/* "0.3.0". */
ONNX_FSDP_API const char* onnx_fsdp_version(void);

/* The line about this thread's last call that failed; valid until its next call. */
ONNX_FSDP_API const char* onnx_fsdp_error(void);

/* How often an option may be said: 0 never, it is unknown or of the command line alone; 1 once; 2
 * repeatedly. */
ONNX_FSDP_API int32_t onnx_fsdp_option_count(const char* name);

/* The command line: what the program fsdp-run does with these words. Returns its exit status. */
ONNX_FSDP_API int onnx_fsdp_command(int argc, char** argv);

/* The plan of a run as the text that `fsdp-run plan --json` prints, or as the page of `--html`.
 * onnx_fsdp_free takes the text back. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_plan(const onnx_fsdp_settings* settings, char** json);
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_plan_page(const onnx_fsdp_settings* settings, char** html);
/* Loss and gradient of the first batch against references in double, as the text that
 * `fsdp-run check --json` prints; also where the two part. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_check(const onnx_fsdp_settings* settings, char** json);
ONNX_FSDP_API void onnx_fsdp_free(char* text);

/* Runs. */

typedef struct onnx_fsdp_run onnx_fsdp_run;

/* Starts fsdp-run with the command "train" or "eval". Ends with onnx_fsdp_run_close. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_run_start(const char* command,
                                                   const onnx_fsdp_settings* settings,
                                                   onnx_fsdp_run** run);

/* Waits at most `milliseconds` for the next row of the metrics file, a JSON object, valid until the
 * next call with this run. Null: the time is over, or, when *ended is not 0, the run has ended, with
 * the status that the call returns. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_run_next(onnx_fsdp_run* run, int32_t milliseconds,
                                                  const char** row, int32_t* ended);

/* Asks the run to stop as Ctrl-C does: it saves where --checkpoint-dir says, and ends. Rows may
 * still come; the status is then ONNX_FSDP_STOPPED. */
ONNX_FSDP_API void onnx_fsdp_run_stop(onnx_fsdp_run* run);

/* Ends processes that are still there, without waiting for an update. `run` may be null. */
ONNX_FSDP_API void onnx_fsdp_run_close(onnx_fsdp_run* run);

/* Gets each row; null about ten times a second while there is none. Not 0 stops the run. */
typedef int (*onnx_fsdp_callback)(const char* row, void* user);

/* A whole run of "train". `callback` may be null. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_train(const onnx_fsdp_settings* settings,
                                               onnx_fsdp_callback callback, void* user);

/* Trainers. */

typedef struct onnx_fsdp_trainer onnx_fsdp_trainer;

/* Checks the options and joins the other ranks. The first step or evaluation opens the model, since
 * its arrays say the shapes. `data` and `eval_data` of the settings have no meaning here. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_trainer_open(const onnx_fsdp_settings* settings,
                                                      onnx_fsdp_trainer** trainer);

typedef struct onnx_fsdp_step {
  size_t size;  /* sizeof(onnx_fsdp_step) */
  int64_t step; /* from 1 */
  double loss;  /* before the update, of all ranks */
  double grad_norm;
  double lr;
  double step_ms;
  int32_t skipped; /* 1: float16, the gradients were not finite and nothing was updated */
} onnx_fsdp_step;

typedef struct onnx_fsdp_metric {
  const char* name; /* "accuracy", as in the option "eval-metrics" */
  double value;     /* NaN where the data have none */
} onnx_fsdp_metric;

typedef struct onnx_fsdp_evaluation {
  size_t size; /* sizeof(onnx_fsdp_evaluation) */
  int64_t step;
  double loss;                     /* NaN: no label was kept */
  const onnx_fsdp_metric* metrics; /* valid until the trainer's next call */
  size_t metric_count;
} onnx_fsdp_evaluation;

/* One update with this rank's rows, at most batch-size x grad-accum of them. An option that is not
 * given has the rows of the first call. `result` may be null. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_trainer_step(onnx_fsdp_trainer* trainer,
                                                      const onnx_fsdp_array* batch, size_t count,
                                                      onnx_fsdp_step* result);

/* Loss and metrics of any number of rows. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_trainer_evaluate(onnx_fsdp_trainer* trainer,
                                                          const onnx_fsdp_array* rows, size_t count,
                                                          onnx_fsdp_evaluation* result);

/* Writes the trained file. */
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_trainer_save(onnx_fsdp_trainer* trainer, const char* path);

/* The trained parameters where they lie, float32; of one rank alone. They change with every step
 * until a call with another number of rows moves them. Ends with onnx_fsdp_parameters_close, before
 * or after the trainer's end. */
typedef struct onnx_fsdp_parameters onnx_fsdp_parameters;
ONNX_FSDP_API onnx_fsdp_status onnx_fsdp_trainer_parameters(onnx_fsdp_trainer* trainer,
                                                            onnx_fsdp_parameters** parameters);
ONNX_FSDP_API size_t onnx_fsdp_parameters_count(const onnx_fsdp_parameters* parameters);
ONNX_FSDP_API onnx_fsdp_array onnx_fsdp_parameters_at(const onnx_fsdp_parameters* parameters,
                                                      size_t index);
ONNX_FSDP_API void onnx_fsdp_parameters_close(onnx_fsdp_parameters* parameters);

/* Leaves the other ranks. `trainer` may be null. */
ONNX_FSDP_API void onnx_fsdp_trainer_close(onnx_fsdp_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif /* ONNX_FSDP_H */
