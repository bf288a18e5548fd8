#include "runtime/cli/command_table.h"

#include <array>

#include "kernels/base/format.h"

namespace ofsdp::cli {
namespace {

constexpr auto kCommands = std::to_array<CommandEntry>({
    {Command::kTrain, "MODEL.onnx", "MODEL.onnx [options]", "train"},
    {Command::kPlan, "MODEL.onnx", "plan   MODEL.onnx [options]",
     "what would happen, without doing it\n"
     "(--json, --html FILE; for ranks that are not here:\n"
     "--world N, --topology FILE; --operations: what\n"
     "rank 0 runs, line by line; --explain: kernels)"},
    {Command::kEval, "MODEL.onnx", "eval   MODEL.onnx [options]",
     "loss and metrics on the evaluation data"},
    {Command::kDoctor, "MODEL.onnx", "doctor MODEL.onnx [options]",
     "what would go wrong, each with the flag that\n"
     "mends it (--find-lr, --picture FILE.svg)"},
    {Command::kCheck, "MODEL.onnx", "check  MODEL.onnx [options]",
     "loss and gradient of the first batch against\n"
     "references in double (--directions, --limit, --json)"},
    {Command::kExport, "CKPT_DIR", "export CKPT_DIR -o OUT.onnx",
     "a checkpoint made into one ONNX file\n"
     "(--inference, --verify, --format safetensors)"},
    {Command::kConfig, "", "config [-o FILE]", "ask the questions, write the YAML"},
    {Command::kOps, "", "ops [--json]", "every operator: domain, versions, what is there"},
    {Command::kMakeTraining, "MODEL.onnx", "make-training MODEL.onnx -o OUT.onnx",
     "the model with the training that the options\n"
     "say (--form training_info), or its gradient graph\n"
     "(--form graph)"},
    {Command::kCheckPlugin, "LIB.so", "check-plugin LIB.so",
     "tries a plug-in's operators on its own samples"},
    {Command::kDemo, "", "demo [--output-dir DIR]",
     "makes a small model and data (in onnx-fsdp-demo),\n"
     "trains on two ranks and evaluates"},
    {Command::kCompletion, "bash, zsh or fish", "completion SHELL", ""},
    {Command::kMan, "", "man", ""},
});

}  // namespace

std::span<const CommandEntry> command_table() { return kCommands; }

bool takes_options_of_a_run(Command command) {
  return command != Command::kDemo && command != Command::kCompletion && command != Command::kMan;
}

std::string help_of_commands() {
  std::string help;
  for (const CommandEntry& entry : kCommands) {
    if (entry.text.empty()) continue;
    help += format_text("fsdp-run {:<27}  ", entry.synopsis);
    for (const char c : entry.text) {
      help += c;
      if (c == '\n') help += std::string(38, ' ');
    }
    help += '\n';
  }
  return help;
}

}  // namespace ofsdp::cli
