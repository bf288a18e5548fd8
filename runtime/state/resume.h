// Resume finds the checkpoint from which a run goes on. `--resume latest` takes the newest one of
// the folder that is undamaged, a named folder that one or none.
//
// Before planning and loading, all ranks together check every byte once, each rank a share, and
// agree on the result. The first rank that found damage says so on stderr; a damaged checkpoint is
// kept as bad-step-N.
//
// The caller owns the reader, rank 0 the store. Collective. Errors: kInput with folder, expected
// and found.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/comm/communicator.h"
#include "runtime/data/sampler.h"
#include "runtime/options.h"
#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

// Settings that changed since the checkpoint: compares the effective configurations, which each
// checkpoint keeps next to the manifest. Lines that are not "key: value" are skipped.

// The file with the effective configuration in the folder of a checkpoint.
inline constexpr const char* kSavedConfiguration = "config.yaml";

// Returns true if the value of this key changes the trained weights, whatever the ranks and the
// device. False for data, --seed, --shuffle and --drop-last, which the manifest holds, and for the
// length of the run (--steps, --epochs).
bool changes_weights(std::string_view key);

// Returns "lr 5.0 (was 0.05), ..." for keys in both configurations; empty if none differs. Includes
// the length of the run if the schedule depends on it.
std::string changed_settings_line(const std::string& saved, const std::string& present);

// Returns the file of `--resume FILE.onnx`, which must have the same graph as the model; else
// empty.
Result<std::string> weights_to_start_from(const Options& options);

// Returns null if the run starts from the beginning.
Result<std::unique_ptr<CheckpointReader>> find_checkpoint(const Options& options,
                                                          Communicator& communicator,
                                                          CheckpointStore* store);

// Warns on stderr about settings that differ from the checkpoint. `configuration`: the effective
// one, on rank 0; if empty, nothing is compared.
void warn_of_other_settings(const CheckpointReader& checkpoint, const std::string& configuration);

ResumePoint resume_point(const CheckpointReader* checkpoint);

// The manifest of checkpoints, the check that a run may resume one, and loading. Each rank loads
// the elements that it holds, whichever rank saved them. check_resumable returns kInput with the
// difference.

// Returns the part of the manifest that is the same for every save of a run.
Manifest describe_run(const Options& options, const RunPlan& plan, const ModelSetup& setup);

// Returns an error unless the checkpoint has the same graph, teacher, trained set and optimizer;
// for an evaluation the same graph is enough.
Status check_resumable(const Manifest& manifest, const RunPlan& plan, const ModelSetup& setup);

Status load_checkpoint(CheckpointReader& reader, const RankState& state);

}  // namespace ofsdp::runtime
