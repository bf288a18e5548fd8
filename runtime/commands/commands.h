// The commands of fsdp-run besides train, plan and eval.
//
// fsdp-run export writes a checkpoint as one file. Everything but the trained values comes from the
// model: it is looked for in the checkpoint (a full one contains it), at the original path, and
// next to the checkpoint. `onnx` is the input file with other weights; with --inference training
// switches are turned off. `safetensors` holds the floating-point initializers. --verify runs a
// batch through the state of the checkpoint, the new file and the input file, and reports the
// differences.
//
// CKPT_DIR is a checkpoint, or a folder of checkpoints: then the latest undamaged one is used.
// Errors: kInput, kFault (disk; the outputs of the new file differ from the state's).
#pragma once

#include <map>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "importer/file/onnx_file.h"
#include "kernels/base/status.h"
#include "kernels/core/registry.h"
#include "runtime/options.h"
#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

// The differences of three forward passes on one made-up batch, training switches off: the graph
// with the values of a checkpoint, the exported file, and the input file. Errors: kInput if the
// model cannot be run alone; those of the reader.
struct ForwardDifference {
  double exported = 0;  // largest difference between the outputs of the exported file and the state
  double input = 0;     // the same for the input file
  double magnitude = 0;  // the largest output of the state
};

// The forward pass of one file on the same batch.
struct ForwardSample {
  struct Input {
    std::string name;
    TensorDesc desc;
    std::vector<std::byte> bytes;
  };
  std::vector<Input> inputs;
  std::map<std::string, std::vector<float>> outputs;
};

Result<ForwardSample> sample_forward(const OnnxFile& file, const Registry& registry);

Result<ForwardDifference> compare_forwards(const OnnxFile& input, const std::string& exported,
                                           CheckpointReader& checkpoint, const Registry& registry);

Status export_checkpoint(const Options& options, const Registry& registry);

// fsdp-run doctor prints a line for each problem or improvement of a run with these options, with
// the flag that helps. Writes nothing but the picture of --find-lr.
//
// 1. the plan for the requested ranks: memory. 2. the model: merged copies, frozen statistics, the
// loss. 3. the data: labels and values of the first rows (doctor_data.cpp). 4. updates of one rank
// on the CPU, on a copy of the weights. 5. with --find-lr, a sweep of learning rates.
//
// If a finding would end the run, later steps are skipped. Errors: kInput if the command cannot be
// examined; kFault.

// `context` has the requested number of ranks, but the others need not run.
Status run_doctor(const RunContext& context);

// fsdp-run demo: a whole run in seconds, without network, Python or a model. Makes a small network
// and data in a folder, evaluates it, trains it with full_shard on two ranks, and evaluates the
// trained file. Each of the three is a command of this program; it is printed, run as a user would
// run it, and kept in commands.sh in the folder.
//
// Must be called by the main thread, since the kernel ends the child with the thread that forks it.
// Returns the exit status of the first command that failed and reported why, else 0. Errors: kInput
// if the folder holds other files, or the command was started as a rank; kFault (disk, no process).

Result<int> run_demo(const Options& options);

// fsdp-run make-training writes a model file that contains the training of the command, for other
// programs to inspect and run. `training_info` is the model with a training_info (loss, Gradient,
// optimizer), which fsdp-run also trains. `graph` is forward, loss and backward in standard
// operators for one batch size, with the gradients as outputs PARAM_grad; our own operators are
// functions in the file.
//
// Takes the options of a training run; opens the data only for their shapes. Errors: kInput; kFault
// (disk).

Status make_training(const Options& options, const ModelOrigin& origin, const Registry& registry);

}  // namespace ofsdp::runtime
