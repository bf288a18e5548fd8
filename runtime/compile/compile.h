// The door of planning. compile_run turns settings and an opened model (ModelSetup) into a
// CompiledRun: all programs, bytes and collectives of a run, before anything is allocated.
// `fsdp-run plan` prints it; RankState maps the memory, loads the weights and executes it.
//
// compile_run asks, in this order: which optimizer updates each parameter (choose_optimizer),
// which samples each micro-batch has (Sampler), which units the parameters form
// (fsdp/plan/plan.h). Then for every micro-batch that can occur (each size, each position in the
// accumulation, evaluation) it makes the graph, its kernels, schedule and arena
// (program/step_program.h), and last the memory of the whole rank (program/memory_map.h).
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

// If the caller of the library brings each batch: the micro-batch sizes so far, and the largest row
// count of an evaluation.
struct GivenSizes {
  std::vector<int64_t> train, eval;
  int64_t eval_rows = 0;
};

struct RunSettings {
  Options options;
  BatchSizes batch;           // for the present world size
  ResumePoint start;          // the beginning, or that of the resumed checkpoint
  std::string configuration;  // rank 0: the effective configuration as YAML; or empty
  // ONNX Runtime's training artifacts: their AdamW variant, and the updates done before.
  bool transformers_adamw = false;
  bool bias_correction = true;
  int64_t optimizer_steps = 0;
  // `eval` of a checkpoint: the kind of tensor (Slice::kind) to take as weights; else empty.
  std::string evaluated = {};
  std::optional<GivenSizes> given;  // none: the data set determines the micro-batches
};

RunSettings resolve_settings(const Options& options, const ModelOrigin& origin,
                             const ModelSetup& setup, const std::string& configuration);

// Returns the run's position for the trained file, after `updates` updates.
TrainedState trained_state(const RunSettings& settings, int64_t updates);

// Returns true if an interval of epochs or steps ends with update `step`.
bool falls_due(const Interval& interval, const Sampler& sampler, int64_t step);

// The micro-batches that run the same program.
struct ProgramKey {
  int64_t batch = 0;  // samples
  bool training = true;
  bool first_micro = true;  // in an update
  bool last_micro = true;
  auto operator<=>(const ProgramKey&) const = default;
};

// Owns programs and kernels; `optimizer` points into the caller's list or the source.
struct CompiledRun {
  Device* device = nullptr;  // null: the CPU
  Plan shards;
  OptimizerSettings settings;
  const OptimizerDef* optimizer = nullptr;
  std::vector<int> rules;                  // per parameter: index in UpdateRules, or -1
  UpdatePlan updates;                      // the first group has `settings` and `optimizer`
  bool parameter_norms = false;            // an optimizer needs norms of whole parameters
  bool keeps_gradients = false;            // an optimizer's step reads gradients again
  std::vector<OrthogonalUnit> orthogonal;  // per unit: the matrices that Muon takes
  int64_t watch_interval = 0;              // updates; 0: no --watch
  bool uses_average = false;               // evaluation and output take the average (--ema)
  std::string evaluated;                   // as in RunSettings
  std::string warning;                     // about --group; a line or empty
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
  std::string choice;                           // the reason of --strategy auto; a line or empty
  uint64_t hash = 0;                            // collective_hash of all full-batch programs
};

// Compiles the run for `device`, or the CPU if null. Collective: all ranks decide alike, since rank
// 0 measures for all, and memory that only rank 0 holds counts on every rank.
//
// --strategy auto compiles every strategy and takes the fastest predicted update (prediction.h)
// among those within --memory-limit. Hybrid strategies take part if --topology has several hosts.
//
// Returns kInput if an operator has no kernel, if options do not fit the model, or if the run needs
// more than --memory-limit; this message lists changes that would fit: recomputation, another
// strategy, a smaller batch.
Result<std::unique_ptr<CompiledRun>> compile_run(const RunSettings& settings,
                                                 const ModelSetup& setup,
                                                 Communicator& communicator,
                                                 const std::vector<OptimizerDef>& optimizers,
                                                 Device* device = nullptr);

// Opens the device of this rank (--device). Collective. Returns kInput with one line.
//
//   cpu   opens nothing
//   cuda  needs the CUDA library, a driver, a GPU, and options that the device's engine supports
//   auto  opens the GPU if `cuda` would succeed, else takes the CPU and gives the reason in
//         `notice`; a program without the CUDA library gives none
//
// Either all ranks have a GPU or none. A host's ranks take the GPUs in turn; if there are fewer
// GPUs than ranks, the ranks share them if the library can.
//
// `plan --device cuda` without a GPU gets a device without memory that executes nothing. It accepts
// nearly every problem, needs no workspace, and refuses joined nodes, so their parts stay apart.
struct ChosenDevice {
  std::unique_ptr<Device> device;  // null: the CPU; must outlive the CompiledRun
  std::string notice;              // a line, or empty
};

Result<ChosenDevice> choose_device(const Options& options, const Registry& registry,
                                   Communicator& communicator);
// Returns true for the device of a plan without a GPU.
bool only_plans(const Device& device);

// Returns the communicator of `fsdp-run plan`: rank 0 among `world` ranks that do not run, divided
// evenly among `hosts`. It answers who it is and shares data of rank 0; collectives of a step
// return kFault.
std::unique_ptr<Communicator> make_absent_ranks(int world, int hosts, bool common_memory);

// Returns views of `plan` with which `lower` lowers programs for one rank.
LoweringContext lowering(const CompiledRun& plan, int rank);

// Returns true for running statistics, which each micro-batch hands on to the next.
bool is_carried(const CompiledRun& plan, int parameter);
// Returns the memory of all running statistics.
std::vector<const KeptValues::Entry*> carried_entries(const CompiledRun& plan);

// Returns "fused: attention 4, linear 25" for the training graph; or empty.
std::string fused_line(const CompiledRun& plan);

// --- Parts of compile_run

// Sets the optimizers of `run`, their states and storage types, and each parameter's group, weight
// decay and matrix shape; or the update rules if the model has a training_info. Returns kInput
// naming the flag.
Status choose_optimizer(const RunSettings& settings, const ModelSetup& setup,
                        const std::vector<OptimizerDef>& optimizers, CompiledRun& run);

// Makes the kernels with which a device runs the update of a training_info. REQUIRES: `run` has
// units. Returns kInput if the device lacks a kernel.
Status plan_device_rules(const ModelSetup& setup, int rank, CompiledRun& run);

// Returns for each parameter whether it has weight decay. Returns kInput if a pattern of --no-decay
// matches none.
Result<std::vector<bool>> weight_decays(const OptimizerOptions& options, const Graph& graph);

// --- The message if ranks have compiled different schedules

// Returns kFault with the first collective step that differs between two ranks in kind, unit or
// unit size. Compares the full-batch programs. Collective: all ranks call it after their hashes
// differ.
Status first_difference(const CompiledRun& plan, Communicator& communicator);

// Encodes a step in a double, since ranks exchange doubles; and the text of such a code.
double step_code(const Step& step, const Plan& plan);
std::string step_code_text(double code);

// Returns the codes of all collective steps in the full-batch programs, in order.
std::vector<double> step_codes(const CompiledRun& plan);

}  // namespace ofsdp::runtime
