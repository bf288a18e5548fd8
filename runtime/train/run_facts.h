// Gathers what runtime/log/screen.h says about a run from its plan, and the tables of `plan` and
// --verbose.
//
// Threads: any. Errors: none.
#pragma once

#include "fsdp/comm/communicator.h"
#include "runtime/log/screen.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

// The configuration of a run as texts, of rank 0; made from the option table (runtime/cli).
struct RunTexts {
  std::string configuration;          // the effective one, as YAML; empty: none is saved
  std::vector<std::string> settings;  // those that differ from their defaults
};

struct PlannedRun {
  const ModelSetup& setup;
  const RunPlan& plan;
  const RunSettings& settings;
  const Communicator& communicator;
  const std::string& device_notice;  // a line, or empty
};

OpeningFacts opening_facts(const PlannedRun& run, const std::vector<std::string>& settings);

// Everything without a limit: the configuration, every tensor and why it is not trained.
std::string opening_tables(const PlannedRun& run);

// Tokens of a sample where labels are a row of tokens, else 1: what rates are counted in.
int64_t tokens_a_sample(const ModelSetup& setup);

}  // namespace ofsdp::runtime
