// Resume: which checkpoint a run goes on from. `--resume latest` takes the newest of the folder
// whose bytes are as they were written, a named folder that one or none.
//
// All ranks together check every byte once, each a share of them, and agree on the verdict, before
// anything is planned or loaded. The first rank that found a harmed checkpoint says on stderr what
// is wrong with it; it keeps its bytes as bad-step-N.
//
// Ownership: the reader is the caller's; the store is rank 0's. Collective. Errors: kInput, naming
// folder, expected and found.
#pragma once

#include <memory>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/comm/communicator.h"
#include "runtime/data/resume_point.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

// The file of `--resume FILE.onnx`, of the same graph as the model; empty without one.
Result<std::string> weights_to_start_from(const Options& options);

// Null: from the beginning.
Result<std::unique_ptr<CheckpointReader>> find_checkpoint(const Options& options,
                                                          Communicator& communicator,
                                                          CheckpointStore* store);

// Warns on stderr of settings that differ from the checkpoint's. `configuration`: this run's
// effective one, of rank 0; empty: nothing is compared.
void warn_of_other_settings(const CheckpointReader& checkpoint, const std::string& configuration);

ResumePoint resume_point(const CheckpointReader* checkpoint);

}  // namespace ofsdp::runtime
