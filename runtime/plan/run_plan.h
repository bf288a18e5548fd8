// RunPlan: everything a run will execute and hold, decided before anything is allocated: the units,
// a program for every micro-batch that can occur (each size, each place in the accumulation,
// evaluation), the gradient slots, the constants, and the bytes of every region. `fsdp-run plan`
// prints it; RankState makes it real.
//
// A plan over --memory-limit is made all the same: plan_choice.h refuses it.
//
// Ownership: owns programs and kernels. Threads: one. Errors: kInput (no kernel; options that do
// not fit the model).
#pragma once

#include <string>

#include "fsdp/plan/recompute.h"
#include "kernels/core/optimizer.h"
#include "runtime/data/sampler.h"
#include "runtime/engine/device/device_rules.h"
#include "runtime/engine/orthogonal_plan.h"
#include "runtime/engine/update_plan.h"
#include "runtime/plan/metric_plan.h"
#include "runtime/plan/model_setup.h"
#include "runtime/program/lower.h"
#include "runtime/program/program.h"
#include "runtime/program/rank_memory.h"

namespace ofsdp::runtime {

// Batches of a caller of the library, who brings each: the sizes of micro-batches met so far, and
// the most rows of an evaluation.
struct GivenSizes {
  std::vector<int64_t> train, eval;
  int64_t eval_rows = 0;
};

struct RunSettings {
  Options options;
  BatchSizes batch;           // of this number of ranks
  ResumePoint start;          // the beginning, or the point of the resumed checkpoint
  std::string configuration;  // rank 0: the effective configuration as YAML; empty: none
  // Training artifacts say how their AdamW computes, and how many updates its state has seen.
  bool transformers_adamw = false;
  bool bias_correction = true;
  int64_t optimizer_steps = 0;
  // An evaluation of a checkpoint: the kind of its tensors that become the weights; else empty.
  std::string evaluated = {};
  std::optional<GivenSizes> given;  // none: the data say which micro-batches there are
};

RunSettings resolve_settings(const Options& options, const ModelOrigin& origin,
                             const ModelSetup& setup, const std::string& configuration);

// The part of the trained file about a run after `updates` of it.
TrainedState trained_state(const RunSettings& settings, int64_t updates);

// Whether an interval of epochs or steps ends with update `step`.
bool falls_due(const Interval& interval, const Sampler& sampler, int64_t step);

struct ProgramKey {
  int64_t batch = 0;
  bool training = true;
  bool first_micro = true;
  bool last_micro = true;
  auto operator<=>(const ProgramKey&) const = default;
};

struct RunPlan {
  Device* device = nullptr;  // null: the CPU
  Plan plan;
  OptimizerSettings settings;
  const OptimizerDef* optimizer = nullptr;
  std::vector<int> rules;                  // per parameter the rule of the source's update, or -1
  UpdatePlan updates;                      // settings and optimizer are of its first group
  bool parameter_norms = false;            // which an optimizer needs
  bool keeps_gradients = false;            // until an optimizer takes its steps
  std::vector<OrthogonalUnit> orthogonal;  // what Muon takes of each unit
  int64_t watch_interval = 0;              // updates; 0: no norms are kept
  bool uses_average = false;               // evaluation and output take the average of --ema
  std::string evaluated;                   // as in RunSettings
  std::string warning;                     // about --group; a line or empty
  std::optional<Sampler> train_sampler;    // always there once planned
  std::optional<Sampler> eval_sampler;
  std::shared_ptr<KernelCache> kernels;  // shared by the plans among which one is chosen
  int recompute_level = 0;               // of the training graphs; see fsdp/plan/recompute.h
  std::map<ProgramKey, ProgramPlan> programs;
  GradientSlots slots;
  KeptPlan kept;
  MetricPlan metrics;  // of the evaluation
  RankMemoryPlan memory;
  DeviceIoPlan device_io;
  std::optional<DeviceRulesPlan> device_rules;  // where a device follows them itself
  std::string choice;  // why this one, where --strategy auto chose; a line or empty
  uint64_t hash = 0;   // of everything that communicates; equal on all ranks

  static Result<std::unique_ptr<RunPlan>> make(const RunSettings& settings, const ModelSetup& setup,
                                               const Communicator& communicator,
                                               const std::vector<OptimizerDef>& optimizers,
                                               std::shared_ptr<KernelCache> kernels = nullptr);
};

// The context with which the programs of rank `rank` are lowered; views of the plan.
LoweringContext lowering(const RunPlan& plan, int rank);

// Whether a parameter is carried from micro-batch to micro-batch: running statistics.
bool is_carried(const RunPlan& plan, int parameter);
// The constants-and-buffers entries of all such parameters.
std::vector<const KeptPlan::Entry*> carried_entries(const RunPlan& plan);

// "fused: attention 4, linear 25", of the training graph; empty without any.
std::string fused_line(const RunPlan& plan);

}  // namespace ofsdp::runtime
