// A written model against the run that wrote it. Rank 0 reads the file back, imports it without
// fusion, layouts, 16-bit types and edits, and computes the losses of a few rows with the
// operators' references in double (importer/graph/reference_run.h). The run's own losses of these
// rows come from its last evaluation, or from the evaluation graph where there was none.
//
// A comparison takes about 2 seconds and 512 MiB at most, or is left out with a phrase. It fails no
// run. Threads: the main thread, after the last step.
#pragma once

#include <string>

#include "importer/normalize/onnx_import.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/rank_state.h"

namespace ofsdp::runtime {

// How far a result in this type may be from the reference, relative to the largest number.
struct TypeTolerance {
  double loss, derivative;
  double rounding;  // how much the type may change each number
};
TypeTolerance tolerance_of(DType dtype);

// Returns the nodes of the model that compute otherwise in its inference form (--output-form).
// Errors: kInput, as the training graph.
Result<TrainingSwitches> switches_of(const ModelSetup& setup);

// Returns whether the two forms of the written model give different outputs.
bool inference_form_differs(const ModelSetup& setup);

// Writes the inference form of `written`, a model file, to `path` in the same folder. Both files
// read the same external data. Errors: kInput if nodes read training outputs, kFault from the disk.
Status write_inference_form(const std::string& written, const std::string& path);

inline constexpr const char* kInferenceModel = "model.inference.onnx";  // in a run's folder

struct WrittenModel {
  std::string path;
  OutputForm form = OutputForm::kSame;
  std::string inference_path = {};  // its inference form in another file; empty: none
};

struct FileAnswer {
  std::string text;     // whole lines for the end of the run; may be empty
  std::string warning;  // one line if the file answers otherwise; else empty
};

// Says how the written model answers. `evaluated`: rank 0's micro-batch of the last evaluation;
// null or without samples: there was none. REQUIRES: rank 0, and state.fetch() after the last
// update.
FileAnswer compare_with_file(const RankState& state, const RunSettings& settings,
                             const EvaluatedBatch* evaluated, const WrittenModel& written);

}  // namespace ofsdp::runtime
