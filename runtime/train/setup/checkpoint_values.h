// The weights of a checkpoint in place of a model file's: predict, check and doctor with --resume,
// and export.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "importer/edit/model_edits.h"
#include "importer/file/onnx_file.h"

namespace ofsdp::runtime {

// Returns the kind of the tensors that a checkpoint's trained model consists of: the average, if
// the run kept one, unless `averages` (--ema-use) is false.
std::string weights_kind(const Manifest& manifest, bool averages);

// The trained set and the edits of the run that saved a checkpoint.
struct SavedRun {
  std::set<std::string> trained;  // parameter names
  ModelEdits edits;
  std::vector<std::string> classes = {};  // names of its labels
  // The values for the model's file. Null: the caller loads them itself.
  std::shared_ptr<InitialSource> values = {};
  std::string graph = {}, folder = {};  // hash of the edited model; the checkpoint, for messages
};

// Return the run, without and with its values. Errors: kInput if the edits cannot be read.
Result<SavedRun> saved_run(const CheckpointReader& checkpoint);
Result<SavedRun> saved_run(std::unique_ptr<CheckpointReader> checkpoint, bool averages);

// Names in a refusal the edits (--untie, --replace-head, --lora) that the saved run had and this
// one has not, or has with other numbers; another status stays as it is.
Status with_edits_of(const ModelEdits& saved, const ModelEdits& present, Status refusal);

// Makes `file`, the model with the edits `present`, read the checkpoint's values. Returns kInput if
// it is another model than the checkpoint's.
Status take_values(const SavedRun& saved, const ModelEdits& present, OnnxFile& file);

// Returns the edits of a command that follows a checkpoint: `given`, or else those of its run.
// Values that the run has not trained are drawn or read as that run did.
ModelEdits edits_with(const SavedRun& saved, ModelEdits given);

}  // namespace ofsdp::runtime
