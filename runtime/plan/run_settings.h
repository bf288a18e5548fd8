// RunSettings: the options of a run with everything that depends on its model, its ranks and the
// checkpoint that it resumes. resolve_settings is the one place that computes it; planning, loop
// and reports read it.
//
// Errors: none.
#pragma once

#include <string>

#include "runtime/data/sampler.h"
#include "runtime/plan/model_setup.h"

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

}  // namespace ofsdp::runtime
