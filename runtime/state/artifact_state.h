// What of a run's state comes from the checkpoint of ONNX Runtime's training artifacts, beside the
// weights, and what goes back: the optimizer's moments and its step.
//
// Each rank reads and writes its own elements. Moment k of theirs is state k of ours: AdamW's averages
// of the gradient and of its square; SGD's momentum (which SGDOptimizerV2 keeps, but does not use).
//
// Ownership: borrows all. Threads: one. write_artifacts is collective. Errors: kInput for moments
// that are not those of the parameters, kFault for the disk.
#pragma once

#include "importer/dialects/onnxruntime/ort_output.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

class RunState;

Status load_moments(const RunPlan& plan, const ModelSetup& setup, RunState& state, int rank);

// After `updates` of this run.
OrtTrainedState trained_state(const Options& options, const ModelSetup& setup, int64_t updates);

Status write_artifacts(const RunPlan& plan, const ModelSetup& setup, RunState& state,
                       Communicator& communicator, const OrtTrainedState& trained,
                       const std::string& path);

}  // namespace ofsdp::runtime
