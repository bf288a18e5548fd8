// Reads a configuration file into an OptionReader. The file is a YAML mapping; keys are option
// names with '_' (or '-') between words. A list means commas, or occurrences of a repeated option;
// null means an absent key; `data:` may hold a mapping, which is kept as text. Paths are relative
// to the folder of the file. The file may also contain keys of `accelerate config`
// (foreign/foreign_file.h). A *.json file is DeepSpeed's unless the keys are
// Accelerate's or ours.
//
// Errors: kInput with file, line and key; an unknown key is reported with the nearest known one.
// Exceptions of yaml-cpp do not leave these functions.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "runtime/cli/options/option_reader.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// Reads any of the files above, as --config does. `source` is the rank of its values among command
// line, files and defaults (option_reader.h).
Status read_config(const std::string& path, Source source, OptionReader& reader);

// Reads a file with our own keys only: MODEL.yaml.
Status read_yaml_config(const std::string& path, Source source, OptionReader& reader);

// Settings for a run on a folder of ONNX Runtime's training artifacts. The training model replaces
// MODEL.onnx, and the optimizer replaces --optimizer and related options, as if the YAML file of
// the model had them. Flags may change numbers; a flag that contradicts the artifacts is refused.
// Errors: kInput with flag or file, expected and found.
struct OrtSettings {
  std::string folder;
  OrtPaths paths;
  std::optional<OrtOptimizer> optimizer;
};

// Reads the folder and sets the options in `reader`.
Result<OrtSettings> read_ort_settings(const std::string& folder, OptionReader& reader);

// Must be called after all sources: returns an error if another optimizer was chosen.
Status check_ort_optimizer(const OrtSettings& settings, const OptionReader& reader);

// Returns an error if an option contradicts the artifacts.
Status check_ort_options(const OrtSettings& settings, const Options& options);

// Returns the effective configuration of a run as YAML that `--config` reads from any folder. The
// run prints it and saves it next to the manifest of each checkpoint.
//
// Paths become absolute. The batch is given as the global one, so another number of ranks trains
// the same. `world`: the ranks of the run, whoever started them. Reads the current folder.

std::string effective_config(const Options& options, int world);

// Returns "lr 0.1" for each setting that differs from the default, in the order of the option
// table. Long values are shortened in the middle.
std::vector<std::string> changed_settings(const Options& options);

// fsdp-run config: asks for the options of a run and writes the answers as a YAML file for
// `--config`; kept defaults become comments. The keys of MODEL.yaml are the defaults of
// `fsdp-run config MODEL.onnx`.
//
// On a terminal, choices are made with the arrow keys. Otherwise every question is a line and
// choices are numbered; an empty line (or the end of the input) takes the default, and after a
// wrong answer the question is repeated. Defaults are the options of the command line: `fsdp-run
// config --strategy zero1 -o FILE`. The file is written whole or not at all. Errors: kInput if the
// user stops, the input ends after a wrong answer, or the file cannot be written.

// `terminal`: use arrow keys on the standard descriptors; `in` holds the lines.
Status ask_configuration(const Options& options, std::istream& in, bool terminal);

}  // namespace ofsdp::cli
