// Options: everything a command line, a YAML file and the defaults say about a run, as plain data.
// One member for every option of the table that `fsdp-run --help` prints. runtime/cli fills it in;
// after that it is constant. `std::optional` stands for `none`, `off` or `auto`, as commented.
//
// Paths are ready to open: those from a YAML file are already relative to that file's folder.
// resolve_batch computes the batch of a number of ranks; runtime/compile/compile.h has everything
// else that depends on model, ranks or checkpoint.
//
// Errors: kInput from resolve_batch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/manifest.h"
#include "fsdp/plan/plan.h"
#include "importer/edit/model_edits.h"
#include "importer/passes/loss.h"
#include "importer/passes/passes.h"
#include "importer/passes/specialize.h"
#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "runtime/compile/program/schedule.h"
#include "runtime/data/data_spec.h"
#include "runtime/data/sampler.h"
#include "runtime/engine/lr_schedule.h"
#include "runtime/engine/update_options.h"
#include "runtime/log/screen.h"
#include "runtime/log/terminal_plot.h"

namespace ofsdp::runtime {

enum class Command {
  kTrain,
  kPlan,
  kEval,
  kExport,
  kConfig,
  kOps,
  kCheckPlugin,
  kMakeTraining,
  kDoctor,
  kCheck,
  kPredict,
  kData,
  kPrepare,
  kDemo,
  kResume,
  kCompletion,
  kMan,
  kHelp,
  kVersion
};
OFSDP_ENUM_NAMES(Command, {kTrain, "train"}, {kPlan, "plan"}, {kEval, "eval"}, {kExport, "export"},
                 {kConfig, "config"}, {kOps, "ops"}, {kCheckPlugin, "check-plugin"},
                 {kMakeTraining, "make-training"}, {kDoctor, "doctor"}, {kCheck, "check"},
                 {kPredict, "predict"}, {kData, "data"}, {kPrepare, "prepare"}, {kDemo, "demo"},
                 {kResume, "resume"}, {kCompletion, "completion"}, {kMan, "man"}, {kHelp, "help"},
                 {kVersion, "version"})

enum class DeviceChoice { kAuto, kCpu, kCuda };
OFSDP_ENUM_NAMES(DeviceChoice, {kAuto, "auto"}, {kCpu, "cpu"}, {kCuda, "cuda"})

// The written model is as the file has it, or has its training switches off.
enum class OutputForm { kSame, kInference };
OFSDP_ENUM_NAMES(OutputForm, {kSame, "same"}, {kInference, "inference"})

enum class LossMean { kGlobal, kPerRank };
OFSDP_ENUM_NAMES(LossMean, {kGlobal, "global"}, {kPerRank, "per_rank"})

enum class QatScales { kFixed, kLearned };  // of quantized values
OFSDP_ENUM_NAMES(QatScales, {kFixed, "fixed"}, {kLearned, "learned"})

enum class Recompute { kNone, kUnit, kAuto };
OFSDP_ENUM_NAMES(Recompute, {kNone, "none"}, {kUnit, "unit"}, {kAuto, "auto"})

enum class CheckpointType { kSharded, kFull, kLocal };
OFSDP_ENUM_NAMES(CheckpointType, {kSharded, "sharded"}, {kFull, "full"}, {kLocal, "local"})

enum class Determinism { kOn, kOff, kAcrossRanks };
OFSDP_ENUM_NAMES(Determinism, {kOn, "on"}, {kOff, "off"}, {kAcrossRanks, "across_ranks"})

enum class MatmulPrecision { kHighest, kHigh };  // of float32 on CUDA: float32, TF32
OFSDP_ENUM_NAMES(MatmulPrecision, {kHighest, "highest"}, {kHigh, "high"})

// The place where a value was given, weakest first: a stronger source overrules a weaker one.
enum class Source { kDefault, kModelYaml, kConfigFile, kFlag };

struct ShardingOptions : PlanOptions, PrefetchOptions {
  DType buffer_dtype = DType::kFloat32;
  MatmulPrecision matmul_precision = MatmulPrecision::kHighest;
  Recompute activation_checkpointing = Recompute::kNone;
  std::optional<int64_t> memory_limit;  // bytes; none
};

// A host of --hostfile and the slots of it that the run takes.
struct HostSlots {
  std::string name;
  std::vector<int64_t> slots;
  bool some = false;  // --include or --exclude has left others out
};

struct LaunchOptions {
  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  std::optional<int64_t> min_nodes;    // none: nnodes
  std::optional<int64_t> node_rank;    // auto: in order of arrival
  std::string rdzv_endpoint;           // empty: none
  std::string rdzv_id;                 // empty: none
  bool standalone = false;             // this host alone, whatever rdzv_endpoint says
  std::string master_addr;             // of rdzv_endpoint; empty: none
  std::optional<int64_t> master_port;  // none
  std::string hostfile;                // empty: none
  std::string include;                 // HOST[:SLOT,...]@...; empty: all
  std::string exclude;                 // empty: none
  std::string rsh = "ssh -o BatchMode=yes";
  bool no_ssh = false;                // somebody else starts a launcher on each host
  std::optional<int64_t> most_hosts;  // of the hostfile: --nnodes, --nproc-per-node as given
  std::optional<int64_t> most_slots;
  std::vector<HostSlots> hosts;  // what these say; empty without a hostfile
  int64_t max_restarts = 0;
  std::optional<int64_t> threads;  // auto: cores / ranks on this host
  DeviceChoice device = DeviceChoice::kAuto;
  bool cuda_graph = true;
  double timeout_seconds = 300;
  Determinism deterministic = Determinism::kOn;
};

// --teacher: a model whose outputs the trained one follows too.
struct TeacherOptions : Distillation {
  std::string path;  // empty: none
};

struct EditOptions : ModelEdits {
  std::string adapter;  // the file to write; empty: none
};

struct GivenCount {
  std::optional<int64_t> value;
  Source source = Source::kDefault;
  std::string said = {};  // for messages: "c.yaml line 3: batch_size"; empty: its flag
};

// As given; resolve_batch makes the numbers of a run.
struct BatchOptions {
  GivenCount batch_size;
  GivenCount grad_accum;
  GivenCount global_batch_size;
  std::vector<double> weights = {};  // --batch-weights, a rank each; empty: equal
};

struct Interval {
  int64_t count = 1;
  StepUnit unit = StepUnit::kEpoch;
  bool operator==(const Interval&) const = default;
};

struct RunOptions : OrderOptions {
  std::optional<int64_t> epochs = 1;  // none: as many as --steps takes (never none without steps)
  std::optional<int64_t> steps;       // none
  DataChoice data;
  DataChoice eval_data;
  std::optional<int64_t> loader_threads;  // auto: the rank's cores, at most 16
  Interval eval_interval;
  std::vector<MetricSpec> eval_metrics{{.name = "accuracy"}};
  bool asks_metrics = false;          // else a loss without accuracy has none, without a word
  std::optional<int64_t> early_stop;  // evaluations in a row without a better value; none
};

struct CheckpointOptions {
  std::string dir;  // empty: none
  Interval interval;
  int64_t keep = Retention().keep;
  std::string keep_best;  // "loss" or a metric; empty: none
  CheckpointType type = CheckpointType::kSharded;
  bool sync = false;
  bool save_on_signal = true;
  bool overwrite = false;  // checkpoints of another run in `dir`
  std::string resume;      // empty: none; "latest", a folder or a model file
};

// Returns the options of a command that starts from a checkpoint and saves none.
inline CheckpointOptions read_only(const CheckpointOptions& given) {
  CheckpointOptions options;
  options.dir = given.dir;
  options.resume = given.resume;
  return options;
}

// The folder that keeps a training run (runtime/train/setup/run_folder.h).
struct RunFolderOptions {
  std::optional<std::string> dir;  // --run-dir; empty: no folder; none: not given
  std::string name;                // --run-name; empty: date and model
  // Decided by the command line and the run; all are empty in a library call.
  std::string parent;              // the folder in which this command makes one
  std::string taken;               // the folder of the run that `resume` continues
  std::string path;                // the folder, once it is made
  bool keeps_model = false;        // the trained model goes there, as there is no --output
  bool keeps_checkpoints = false;  // they go there, as there is no --checkpoint-dir
};

// The options of `plan` alone.
struct PlanReportOptions {
  std::optional<int64_t> world;      // ranks that need not be there; none: those that are
  std::string topology;              // empty: this machine
  std::string html;                  // empty: none
  bool operations = false;           // the lowered programs instead of the report
  bool schedule = false;             // print the steps of each program
  bool explain = false;              // print the implementation of each node
  std::optional<int64_t> fit;        // bytes: say what to change so that a rank needs no more
  std::string fit_text;              // the same as given
  std::vector<std::string> compare;  // two YAML files; empty: none
};

// The options of `doctor` alone.
struct DoctorOptions {
  bool find_lr = false;
  std::string picture;  // of --find-lr, an SVG file; empty: none
};

// The options of `check` alone.
struct CheckOptions {
  int64_t directions = 4;     // of each parameter
  double limit_seconds = 60;  // of the reference
};

struct Options {
  Command command = Command::kTrain;
  std::string model;       // MODEL.onnx; the operand of other commands: a folder, a shell
  std::string config;      // the --config file; empty: none
  bool help = false;       // --help: print the help and do nothing else
  bool version = false;    // --version: print the version and do nothing else
  bool json = false;       // the result as one JSON object on stdout, and nothing else
  bool inference = false;  // of `export`, like the next two
  bool verify = false;
  std::string format;
  std::vector<std::string> predictions;        // of `predict`: outputs; empty: all floating ones
  OutputForm output_form = OutputForm::kSame;  // of the file that `train` writes
  std::vector<std::string> train;              // empty: the rule
  std::vector<std::string> freeze;
  QatScales qat_scales = QatScales::kFixed;
  bool sync_batch_norm = false;
  BatchAxes batch_axes;                        // --batch-axis
  bool free_batch = false;                     // a batch axis that the file fixes is taken for any
  std::map<std::string, Shape> sample_shapes;  // of inputs, for --data synthetic
  // --input: the value, as given, of an input that is the same in every batch
  std::map<std::string, std::string> inputs;
  NhwcWeights nhwc_weights = NhwcWeights::kAuto;
  std::vector<std::string> plugins;  // as given; load_plugins finds them
  bool plugin_override = false;
  std::string form = "training_info";  // of `make-training`: that or "graph"
  bool training_info = true;           // whether to follow that of the model
  bool initialize = false;             // run its initialization graphs
  std::string demo_folder = "onnx-fsdp-demo";
  std::string make_plugin;  // of `plan`: the folder for a skeleton; empty: none
  ShardingOptions sharding;
  LaunchOptions launch;
  // At least one; the loss is their weighted sum. --prediction, --labels and other flags about a
  // loss set the first, from which `losses_of` completes the others.
  std::vector<LossSpec> losses{LossSpec{}};
  LossMean loss_mean = LossMean::kGlobal;
  std::string class_weights;  // --class-weights as a file; empty: the first loss has the numbers
  TeacherOptions teacher;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  BatchOptions batch;
  RunOptions run;
  EditOptions edit;
  CheckpointOptions checkpoint;
  OutputOptions files;
  PictureOptions pictures;
  RunFolderOptions folder;
  PlanReportOptions report;
  DoctorOptions doctor;
  CheckOptions check;
  PassSwitches passes;  // no flag says them
};

// Returns whether a command prints lines on stdout besides its result.
inline bool prints_screen(const Options& options) { return !options.json && !options.files.quiet; }

// The ranks that a command asks for, on all hosts.
int64_t asked_ranks(const LaunchOptions& options);

// Returns whether the run ends with a trained model or an adapter in a file.
inline bool writes_trained(const Options& options) {
  return !options.files.output.empty() || !options.edit.adapter.empty();
}

// Returns the names and globs of the weights that options name, for OnnxFile::open.
std::vector<std::string> named_weights(const Options& options);

// Returns whether the run has a place for checkpoints.
inline bool saves_checkpoints(const Options& options) {
  const RunFolderOptions& folder = options.folder;
  return !options.checkpoint.dir.empty() || !folder.parent.empty() || !folder.taken.empty();
}

// Returns whether training waits for each save. A save into the run's own folder, which nobody has
// asked for, takes no memory for a copy and no time that matters: [Note: saves of a folder].
inline bool saves_in_step(const Options& options) {
  const bool own = options.checkpoint.dir.empty() && saves_checkpoints(options);
  return options.checkpoint.sync || options.folder.keeps_checkpoints || own;
}

// Returns whether rows of one rank meet those of others within a micro-batch.
inline bool joins_rows(const Options& options) {
  return options.sync_batch_norm || loss_traits(options.losses[0].kind).joins_rows;
}

// Facts about the model that parsing and the first look at files have found.
struct ModelOrigin {
  std::string artifacts = {};  // the folder of training artifacts that `model` is of; empty: none
  std::string weights = {};    // the file to start from when it is not `model`; empty: none
  std::vector<std::string> settings = {};  // the files that options were read from
  std::string overriding = {};  // the first given option that a training_info answers itself
  // The AdamW of the artifacts:
  bool transformers_adamw = false;
  bool bias_correction = true;
};

struct BatchSizes {
  int64_t batch_size = 8;
  int64_t grad_accum = 1;
  int64_t global_batch_size = 0;
  int64_t slices = 0;  // of the global batch under --deterministic across_ranks; else 0
  std::vector<double> weights = {};  // BatchOptions::weights; batch_size is then the mean
};

// Computes batch_size x grad_accum x ranks = global_batch_size:
//   a batch size or accumulation from a weaker source than the global batch is dropped first;
//   a missing batch size is computed from grad_accum (1 if missing), a missing grad_accum from
//   batch_size. A quotient that is not whole and three values that disagree are input errors.
// `joins`: rows of all ranks meet in a micro-batch. Then a slice of --deterministic across_ranks is
// a whole micro-batch, and one rank computes it.
Result<BatchSizes> resolve_batch(const BatchOptions& given, Determinism determinism, int ranks,
                                 bool joins = false);
inline Result<BatchSizes> resolve_batch(const Options& options, int ranks) {
  return resolve_batch(options.batch, options.launch.deterministic, ranks, joins_rows(options));
}

// --batch-weights: returns the number of samples of each rank in a full micro-batch, proportional
// to the weights and rounded to whole samples; empty if all have batch_size. Returns kInput unless
// each rank has a weight and gets a sample.
Result<std::vector<int64_t>> batch_parts(const BatchSizes& batch, int ranks);

}  // namespace ofsdp::runtime
