// fsdp-run export: a checkpoint made into one file. The model it was trained from gives everything
// but the trained values: it is looked for in the checkpoint (a full one has it), where it was, and
// next to the checkpoint.
//
//   onnx         the input file with other weights, nothing else changed; with --inference the
//                training switches off
//   safetensors  its floating-point initializers
//   --verify     runs a batch through the checkpoint's state, the new file and the input file, and
//                reports the differences
//
// CKPT_DIR is a checkpoint, or a folder of them: then the latest whole one.
// Ownership: everything lives in the call. Threads: one; one process. Errors: kInput, kFault (disk;
// a new file whose outputs are not those of the state).
#pragma once

#include "kernels/core/registry.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

Status export_checkpoint(const Options& options, const Registry& registry);

}  // namespace ofsdp::runtime
