// Planning a run. compile_run turns settings and an opened model (ModelSetup) into a CompiledRun:
// all programs, bytes and collectives of the run, before anything is allocated. `fsdp-run plan`
// prints it; to train, runner.h maps the memory, loads the weights and makes an engine that
// executes it.
//
// compile_run decides, in this order: which optimizer updates each parameter (choose_optimizer),
// which samples each micro-batch has (Sampler), and which units the parameters form
// (fsdp/plan/plan.h; a unit is a group of parameters that is gathered and reduced together). Then,
// for each kind of micro-batch that can occur (batch size, row length, position in the update,
// evaluation), it
// makes the graph, the kernels, the schedule and the arena (program/step_program.h), and finally
// the rank's memory map (program/memory_map.h).
#pragma once

#include <string>

#include "fsdp/comm/communicator.h"
#include "fsdp/plan/plan.h"
#include "kernels/core/device.h"
#include "kernels/core/optimizer.h"
#include "runtime/compile/program/lower.h"
#include "runtime/compile/program/memory_map.h"
#include "runtime/compile/program/step_program.h"
#include "runtime/data/sampler.h"
#include "runtime/engine/device/device_rules.h"
#include "runtime/engine/orthogonal_plan.h"
#include "runtime/engine/update_table.h"
#include "runtime/train/setup/metric_layout.h"
#include "runtime/train/setup/model_setup.h"

namespace ofsdp::runtime {

// Batch sizes if a caller of the library brings the batches: the micro-batch sizes so far, and the
// largest number of rows of one rank in an evaluation.
struct GivenSizes {
  std::vector<int64_t> train, eval;
  int64_t eval_rows = 0;
};

struct RunSettings {
  Options options;
  BatchSizes batch;                     // for this run's rank count
  ResumePoint start;                    // update 0, or the resumed checkpoint's position
  std::vector<double> early_stop = {};  // of that checkpoint (Manifest::early_stop)
  std::string configuration;            // rank 0: the effective configuration as YAML; or empty
  // From ONNX Runtime's training artifacts: the AdamW variant, and the updates done before this
  // run.
  bool transformers_adamw = false;
  bool bias_correction = true;
  int64_t optimizer_steps = 0;
  // `eval` of a checkpoint: the kind of tensor (Slice::kind) to take as weights; else empty.
  std::string evaluated = {};
  std::optional<GivenSizes> given;  // none: the data set determines the micro-batches
};

// Collects the settings of a run that starts at update 0.
RunSettings resolve_settings(const Options& options, const ModelOrigin& origin,
                             const ModelSetup& setup, const std::string& configuration);

// Returns the training state that the trained file records after `updates` updates of this run.
TrainedState trained_state(const RunSettings& settings, int64_t updates);

// Returns true if an interval of epochs or steps ends with update `step`.
bool falls_due(const Interval& interval, const Sampler& sampler, int64_t step);

// The micro-batches that share one program.
struct ProgramKey {
  int64_t batch = 0;  // samples
  bool training = true;
  bool first_micro = true;  // the first micro-batch of an update
  bool last_micro = true;   // the last one
  int64_t length = 0;       // of cut rows (RowCuts); 0: whole rows
  auto operator<=>(const ProgramKey&) const = default;
};

// A plan that --wrap auto has compared with others.
struct Candidate {
  std::string flags;  // that make the same plan
  int64_t units = 0;
  int64_t largest_unit = 0;  // elements
  int recompute_level = 0;
  size_t bytes = 0;    // of the rank that needs most
  double seconds = 0;  // predicted for an update; 0 on a device, which nothing measures
  bool fits = false;   // --memory-limit
  bool chosen = false;
};

// The plan of a run on one rank. Owns programs and kernels; `optimizer` points into the caller's
// list or the model's source.
struct CompiledRun {
  Device* device = nullptr;  // null: the CPU
  Plan shards;
  OptimizerSettings settings;
  const OptimizerDef* optimizer = nullptr;
  // Per parameter: the rule of the model's own update (index in UpdateRules), or -1; empty: none.
  std::vector<int> rules;
  UpdatePlan updates;            // the first group has `settings` and `optimizer`
  bool parameter_norms = false;  // an optimizer needs norms of whole parameters
  // An optimizer's step needs the reduced gradient after all units are reduced (Adafactor, Muon),
  // so that gradients are kept until then.
  bool keeps_gradients = false;
  std::vector<OrthogonalUnit> orthogonal;  // per unit: the matrices that Muon updates
  int64_t watch_interval = 0;              // updates; 0: no --watch
  bool uses_average = false;               // evaluation and output take the average (--ema)
  std::string evaluated;                   // as in RunSettings
  std::string warning;                     // about --group; one line, or empty
  std::optional<Sampler> train_sampler;    // set by compile_run
  std::optional<Sampler> eval_sampler;
  std::shared_ptr<KernelCache> kernels;  // shared with the candidates of --strategy auto
  int recompute_level = 0;               // see fsdp/plan/plan.h
  std::map<ProgramKey, StepProgram> programs;
  GradientSlots slots;
  KeptValues kept;
  MetricLayout metrics;
  MemoryMap memory;
  DeviceIoMap device_io;
  std::optional<DeviceRulesPlan> device_rules;  // if a device runs the UpdateRules
  std::string choice;  // why `auto` chose this strategy or these units; one line, or empty
  // The options that `auto` stands for in this plan: no strategy and no wrap is kAuto.
  std::optional<ShardingOptions> chosen;
  std::vector<Candidate> candidates;  // of `auto`; else empty
  std::string candidates_rule;        // a line: which of them wins
  uint64_t hash = 0;  // collective_hash of all full-batch programs; equal on all ranks
};

// Compiles the run for `device`, or the CPU if null. Collective. All ranks make the same choices:
// rank 0 measures for all, and every rank compares the memory of the largest rank with
// --memory-limit.
//
// --strategy auto compiles each strategy and returns the one with the fastest predicted update
// (prediction.h) within --memory-limit. Hybrid strategies are tried if --topology has several
// hosts. --wrap auto does so with units ([Note: candidates of --wrap auto] in choice.cpp), at most
// kMostCandidates.
//
// Returns kInput if an operator has no kernel, if options do not fit the model, or if the run needs
// more than --memory-limit. The latter message lists changes that would fit: recomputation, another
// strategy, offloading, a smaller batch.
Result<std::unique_ptr<CompiledRun>> compile_run(const RunSettings& settings,
                                                 const ModelSetup& setup,
                                                 Communicator& communicator,
                                                 const std::vector<OptimizerDef>& optimizers,
                                                 Device* device = nullptr);
inline constexpr size_t kMostCandidates = 56;

// Opens the device of this rank (--device). Collective. Returns kInput with one line.
//
//   cpu   opens nothing
//   cuda  needs the CUDA library, a driver, a GPU, and options that the device's engine supports
//   auto  opens the GPU if `cuda` would succeed; else chooses the CPU and puts the reason into
//         `notice`, which stays empty if there is no CUDA library
//
// Either all ranks use a GPU or none does. The ranks of a host are assigned to the GPUs in turn; if
// there are fewer GPUs than ranks, ranks share a GPU if the library supports it.
//
// `plan --device cuda` without a GPU returns a device that only plans: it has no memory and
// executes nothing. It accepts nearly every problem, needs no workspace, and does not accept fused
// nodes, so that the plan has their parts as separate nodes.
struct ChosenDevice {
  std::unique_ptr<Device> device;  // null: the CPU; must outlive the CompiledRun
  std::string notice;              // one line, or empty
};

Result<ChosenDevice> choose_device(const Options& options, const Registry& registry,
                                   Communicator& communicator);
// Returns whether an optimizer, of the run or of a group, is a plug-in's: those have functions for
// the CPU alone, so with a device their parameters rest in host memory.
bool updates_in_host_memory(const Options& options);
// Returns true for the device of a plan without a GPU.
bool only_plans(const Device& device);

// Returns the communicator of `fsdp-run plan`: rank 0 of `world` ranks, of which the others do not
// run, divided evenly among `hosts`. It answers questions about ranks, and shares rank 0's data
// with itself; collectives of a step return kFault.
std::unique_ptr<Communicator> make_absent_ranks(int world, int hosts, bool common_memory);

// Returns the parts of `plan` that `lower` (program/lower.h) needs. They refer to `plan`.
LoweringContext lowering(const CompiledRun& plan, int rank);

// Returns true if the parameter is a running statistic (BatchNormalization), which each micro-batch
// changes.
bool is_carried(const CompiledRun& plan, int parameter);
// Returns the memory of all running statistics.
std::vector<const KeptValues::Entry*> carried_entries(const CompiledRun& plan);

// Returns "fused: attention 4, linear 25" for the training graph; or empty.
std::string fused_line(const CompiledRun& plan);

// --- Parts of compile_run

// The parts that all candidates of a choice share.
struct CandidateParts {
  const ModelSetup& setup;
  Communicator& communicator;
  const std::vector<OptimizerDef>& optimizers;
  std::shared_ptr<KernelCache> kernels;  // with the device
};

// Compiles the run as the options say. REQUIRES: neither strategy nor wrap is kAuto. --memory-limit
// is only the aim of --activation-checkpointing auto: the result may need more. Returns kInput as
// compile_run.
Result<std::unique_ptr<CompiledRun>> compile_candidate(const RunSettings& settings,
                                                       const CandidateParts& parts);

// Returns the words that make a command with the options `given` plan as `wanted` says.
// `limit`: the text of wanted.memory_limit, if that differs.
std::vector<std::string> sharding_flags(const ShardingOptions& given, const ShardingOptions& wanted,
                                        const std::string& limit = "");

// Sets the optimizers of `run`, their states and storage types, and each parameter's group, weight
// decay and matrix shape; or the update rules if the model has a training_info. Returns kInput
// naming the flag.
Status choose_optimizer(const RunSettings& settings, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, CompiledRun& run);

// Makes the kernels with which a device runs a model's own update (training_info). REQUIRES:
// run.shards has the units. Returns kInput if the device lacks a kernel.
Status plan_device_rules(const ModelSetup& setup, int rank, CompiledRun& run);

// Returns per parameter whether weight decay applies. Returns kInput if a pattern of --no-decay
// matches none.
Result<std::vector<bool>> weight_decays(const OptimizerOptions& options, const Graph& graph);

// --- The message if ranks have compiled different schedules

// Returns kFault with the first collective step that differs between two ranks in kind, unit or
// unit size. Compares the full-batch programs. Collective: all ranks call it after their hashes
// differ.
Status first_difference(const CompiledRun& plan, Communicator& communicator);

// Encodes a collective step as a double, since ranks exchange doubles; step_code_text describes it.
double step_code(const Step& step, const Plan& plan);
std::string step_code_text(double code);

// Returns the codes of all collective steps in the full-batch programs, in order.
std::vector<double> step_codes(const CompiledRun& plan);

}  // namespace ofsdp::runtime
