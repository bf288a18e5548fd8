// The model of a run, opened and edited: the first part of a ModelSetup (model_setup.h). Forms of
// a model: ONNX Runtime's training artifacts, a file with training_info, a plain file, and a plain
// file with edits (adapters, a new head, untied copies).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "importer/edit/model_edits.h"
#include "importer/training_source.h"
#include "runtime/data/data_spec.h"
#include "runtime/options.h"
#include "runtime/train/setup/checkpoint_values.h"

namespace ofsdp::runtime {

// Returns the edits that the options ask for: changes to the model before training (--lora,
// --replace-head, --untie, ...).
ModelEdits edits_of(const Options& options);

// Returns kInput if an option about adapters lacks --lora.
Status check_adapter_options(const Options& options);

// Returns a warning if --lora-alpha is not that of --lora-from; else "".
Result<std::string> other_alpha_warning(const Options& options);

// Returns the values that the losses name; a loss without a name takes the only candidate.
WantedValues wanted_of(std::span<const LossSpec> losses);

struct OpenedModel {
  std::unique_ptr<TrainingSource> source;  // refers to the registry
  std::vector<LossSpec> losses;            // of the options, or of the file's training_info
  std::string warnings;                    // for the user, a line each; the same on all ranks
};

// Opens the model of `options` and makes its edits. Collective: all ranks call it with equal
// arguments; they are those of ModelSetup::make. Returns kInput if the file cannot be imported or
// an edit does not fit, kFault if the file cannot be read, and the communicator's errors.
Result<OpenedModel> open_model(const Options& options, const ModelOrigin& origin,
                               const Registry& registry, Communicator& communicator,
                               MemoryLedger& ledger, const DataSpec* library_data,
                               const SavedRun* saved);

}  // namespace ofsdp::runtime
