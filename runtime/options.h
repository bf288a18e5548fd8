// Options: everything a command line, a YAML file and the defaults say about a run, as plain data.
// One member for every option of the table that `fsdp-run --help` prints. runtime/cli fills it in;
// after that it is constant. `std::optional` stands for `none`, `off` or `auto`, as commented.
//
// Paths are ready to open: those from a YAML file are already relative to that file's folder.
// resolve_batch computes the batch of a number of ranks; runtime/plan/run_plan.h has everything
// else that depends on model, ranks or checkpoint.
//
// Errors: kInput from resolve_batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/manifest.h"
#include "fsdp/plan/plan.h"
#include "importer/passes/loss.h"
#include "importer/passes/passes.h"
#include "importer/passes/specialize.h"
#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/stored_state.h"

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
  kDemo,
  kCompletion,
  kMan
};
OFSDP_ENUM_NAMES(Command, {kTrain, "train"}, {kPlan, "plan"}, {kEval, "eval"}, {kExport, "export"},
                 {kConfig, "config"}, {kOps, "ops"}, {kCheckPlugin, "check-plugin"},
                 {kMakeTraining, "make-training"}, {kDoctor, "doctor"}, {kCheck, "check"},
                 {kDemo, "demo"}, {kCompletion, "completion"}, {kMan, "man"})

enum class DeviceChoice { kAuto, kCpu, kCuda };
OFSDP_ENUM_NAMES(DeviceChoice, {kAuto, "auto"}, {kCpu, "cpu"}, {kCuda, "cuda"})

enum class LossMean { kGlobal, kPerRank };
OFSDP_ENUM_NAMES(LossMean, {kGlobal, "global"}, {kPerRank, "per_rank"})

enum class QatScales { kFixed, kLearned };  // of quantized values
OFSDP_ENUM_NAMES(QatScales, {kFixed, "fixed"}, {kLearned, "learned"})

enum class OptimizerKind {
#define OPTIMIZER(name, Update, ...) k##Update,
#define VARIANT(...)
#include "kernels/optimizers/optimizers.inc"
  kPlugin  // which has a name of its own
};
constexpr auto enum_names(OptimizerKind) {
  return std::to_array<EnumName<OptimizerKind>>({
#define OPTIMIZER(name, Update, ...) {OptimizerKind::k##Update, #name},
#define VARIANT(...)
#include "kernels/optimizers/optimizers.inc"
  });
}

enum class ScheduleKind {
  kConstant,
  kStep,
  kLinear,
  kCosine,
  kPolynomial,
  kMultistep,
  kExponential,
  kInverseSqrt,
  kWsd,
  kCosineRestarts,
  kOneCycle
};
OFSDP_ENUM_NAMES(ScheduleKind, {kConstant, "constant"}, {kStep, "step"}, {kLinear, "linear"},
                 {kCosine, "cosine"}, {kPolynomial, "polynomial"}, {kMultistep, "multistep"},
                 {kExponential, "exponential"}, {kInverseSqrt, "inverse_sqrt"}, {kWsd, "wsd"},
                 {kCosineRestarts, "cosine_restarts"}, {kOneCycle, "onecycle"})

// Numbers of an evaluation besides the loss.
enum class MetricKind { kAccuracy, kTopK, kF1, kAuc, kPerplexity, kRmse, kMae, kR2 };
OFSDP_ENUM_NAMES(MetricKind, {kAccuracy, "accuracy"}, {kF1, "f1"}, {kAuc, "auc"},
                 {kPerplexity, "perplexity"}, {kRmse, "rmse"}, {kMae, "mae"}, {kR2, "r2"})

struct MetricSpec {
  MetricKind kind = MetricKind::kAccuracy;
  int64_t k = 1;                // kTopK
  std::string name;             // as given: the key of the eval row
  std::string prediction = {};  // empty: that of the loss
};

// The unit that schedules and the intervals of evaluations and checkpoints count.
enum class StepUnit { kEpoch, kStep };
OFSDP_ENUM_NAMES(StepUnit, {kEpoch, "epoch"}, {kStep, "step"})

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

struct ShardingOptions {
  Strategy strategy = Strategy::kFullShard;
  std::optional<int64_t> shard_size;  // ranks of one host
  WrapPolicy wrap = WrapPolicy::kTransformer;
  std::vector<std::string> wrap_layers;  // empty: found from the graph
  int64_t min_params = 100000;
  double bucket_mb = 0;  // MiB; 0: no units are joined
  std::vector<std::string> ignore;
  DType param_dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  DType buffer_dtype = DType::kFloat32;
  MatmulPrecision matmul_precision = MatmulPrecision::kHighest;
  Recompute activation_checkpointing = Recompute::kNone;
  CpuOffload cpu_offload = CpuOffload::kNone;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  std::optional<int64_t> prefetch_depth;  // auto
  std::optional<int64_t> memory_limit;    // bytes; none
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

enum class MuonAdjust { kOriginal, kMatchRmsAdamw };  // of rates to a matrix's shape
OFSDP_ENUM_NAMES(MuonAdjust, {kOriginal, "original"}, {kMatchRmsAdamw, "match_rms_adamw"})

// A --loss that says its prediction itself: KIND:PREDICTION:LABELS[*WEIGHT].
struct NamedLoss {
  std::string said;  // as given
  LossKind kind = LossKind::kCrossEntropy;
  std::string prediction;
  std::string labels;
  double weight = 1;
};

struct LossOptions {
  LossKind kind = LossKind::kAuto;
  std::string output;  // the graph output of kOutput and kContrastive, the operator of kOperator
  LossMean mean = LossMean::kGlobal;
  std::string prediction;  // empty: the only candidate
  std::string labels;      // empty: the only candidate
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  std::string other = {};  // kContrastive: the output that `output` is paired with
  double temperature = 0.07;
  // Losses whose weighted sum is the loss; none: the one that the members above say. Where there
  // are any, `kind`, `prediction` and `labels` are those of the first.
  std::vector<NamedLoss> named = {};
};

// --teacher: a model whose outputs the trained one follows too.
struct TeacherOptions {
  std::string path;     // empty: none
  double weight = 0.5;  // of the divergence from it; the loss has the rest
  double temperature = 2;
};

// Every member is final: an option that was not given has the default of `kind`, as in PyTorch.
struct UpdateOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  std::string plugin;  // kPlugin: its name
  double lr = 1e-3;
  double weight_decay = 1e-2;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double rho = 0.9;
};

// --group: what the parameters that `pattern` matches have of their own.
struct GroupOptions {
  std::string said;  // PATTERN:key=value[,key=value]
  std::string pattern;
  std::optional<OptimizerKind> kind;  // none: the run's, like the next two
  std::string plugin;                 // kPlugin: its name
  std::optional<double> lr;
  bool lr_is_share = false;  // of the run's
  std::optional<double> weight_decay;
  UpdateOptions update;  // of these and the run's
};

struct OptimizerOptions : UpdateOptions {
  MuonAdjust muon_adjust = MuonAdjust::kOriginal;
  bool no_decay_auto = false;
  std::vector<std::string> no_decay;
  std::vector<GroupOptions> groups;
  StateDType state_dtype = StateDType::kFloat32;
  std::optional<double> ema;  // off
  bool ema_use = true;
  std::optional<double> clip_grad_norm;  // off
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  std::optional<int64_t> total_steps;  // the run's
  double min_lr_ratio = 0;
  double power = 1;
  int64_t step_size = 1;
  double gamma = 0.1;
  StepUnit unit = StepUnit::kEpoch;
  std::vector<int64_t> milestones = {};
  std::optional<int64_t> decay_steps = {};    // auto: a tenth of the total
  std::optional<int64_t> restart_steps = {};  // none, which cosine_restarts refuses
  int64_t restart_mult = 1;
  double pct_start = 0.3;
  double div_factor = 25;
  double final_div_factor = 1e4;
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
};

// The source of samples: a folder or YAML file, made up, or written in a YAML file under `data:`.
struct DataChoice {
  enum class Kind { kComputed, kNone, kPath, kSynthetic, kInline };
  Kind kind = Kind::kComputed;   // as the contract's default: next to the model, or in the data
  std::string path = {};         // kPath
  std::string yaml = {};         // kInline: the mapping as text
  std::string base_folder = {};  // kInline: what its files are relative to
  std::string origin = {};       // kInline: the file it stood in, for messages
};

struct Interval {
  int64_t count = 1;
  StepUnit unit = StepUnit::kEpoch;
  bool operator==(const Interval&) const = default;
};

struct RunOptions {
  std::optional<int64_t> epochs = 1;  // none: as many as --steps takes (never none without steps)
  std::optional<int64_t> steps;       // none
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;
  DataChoice data;
  DataChoice eval_data;
  Interval eval_interval;
  std::vector<MetricSpec> eval_metrics{{.name = "accuracy"}};
  std::optional<int64_t> early_stop;  // evaluations in a row without a better value; none
};

struct CheckpointOptions {
  std::string dir;  // empty: none
  Interval interval;
  int64_t keep = 2;
  std::string keep_best;  // "loss" or a metric; empty: none
  CheckpointType type = CheckpointType::kSharded;
  bool sync = false;
  bool save_on_signal = true;
  bool overwrite = false;  // checkpoints of another run in `dir`
  std::string resume;      // empty: none; "latest", a folder or a model file
};

// Changes to the model before it is trained (importer/edit/model_edits.h).
struct EditOptions {
  std::vector<std::string> untie;
  std::optional<int64_t> replace_head;  // none
  std::vector<std::string> lora;        // patterns; empty: no adapters
  int64_t lora_rank = 8;
  double lora_alpha = 16;
  double lora_dropout = 0;
  std::string lora_from;  // empty: drawn
  std::string adapter;    // the file to write; empty: none
};

struct OutputOptions {
  std::string output;            // empty: none
  std::string metrics;           // empty: none
  std::string trace;             // empty: none
  std::vector<std::string> log;  // as given: csv:FILE, tensorboard:FOLDER
  int64_t log_interval = 10;
  int64_t watch = 0;     // updates from one whose norms are kept to the next; 0: none are
  bool verbose = false;  // all tables before the first step
};

// The options of `plan` alone.
struct PlanReportOptions {
  std::optional<int64_t> world;  // ranks that need not be there; none: those that are
  std::string topology;          // empty: this machine
  std::string html;              // empty: none
  bool operations = false;       // the lowered programs instead of the report
  bool explain = false;          // print the implementation of each node
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
  std::string model;       // MODEL.onnx; `export`: the checkpoint folder; `completion`: the shell
  std::string config;      // the --config file; empty: none
  bool help = false;       // --help: print the help and do nothing else
  bool version = false;    // --version: print the version and do nothing else
  bool json = false;       // of `ops`, `plan` and `check`
  bool inference = false;  // of `export`, like the next two
  bool verify = false;
  std::string format = "onnx";
  std::vector<std::string> train;  // empty: the rule
  std::vector<std::string> freeze;
  QatScales qat_scales = QatScales::kFixed;
  bool sync_batch_norm = false;
  BatchAxes batch_axes;  // --batch-axis
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
  LossOptions loss;
  TeacherOptions teacher;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  BatchOptions batch;
  RunOptions run;
  EditOptions edit;
  CheckpointOptions checkpoint;
  OutputOptions files;
  PlanReportOptions report;
  DoctorOptions doctor;
  CheckOptions check;
  PassSwitches passes;  // no flag says them
};

// The ranks that a command asks for, on all hosts.
int64_t asked_ranks(const LaunchOptions& options);

// Returns whether the run ends with a trained model or an adapter in a file.
inline bool writes_trained(const Options& options) {
  return !options.files.output.empty() || !options.edit.adapter.empty();
}

// Returns whether rows of one rank meet those of others within a micro-batch.
inline bool joins_rows(const Options& options) {
  return options.sync_batch_norm || options.loss.kind == LossKind::kContrastive;
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
};

// Computes batch_size x grad_accum x ranks = global_batch_size:
//   a batch size or accumulation from a weaker source than the global batch is dropped first;
//   a missing batch size is computed from grad_accum (1 if missing), a missing grad_accum from
//   batch_size. A quotient that is not whole and three values that disagree are input errors.
// `joins`: rows of one rank meet those of others. Then a slice of --deterministic across_ranks is
// the micro-batch that all ranks share, and lies on one rank.
Result<BatchSizes> resolve_batch(const BatchOptions& given, Determinism determinism, int ranks,
                                 bool joins = false);
inline Result<BatchSizes> resolve_batch(const Options& options, int ranks) {
  return resolve_batch(options.batch, options.launch.deterministic, ranks, joins_rows(options));
}

}  // namespace ofsdp::runtime
