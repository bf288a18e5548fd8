// Reads a configuration file into an OptionReader: YAML, a mapping whose keys are the options'
// names with '_' (or '-') between words. A list means commas, or occurrences of a repeated option;
// null is the same as an absent key; `data:` may hold a mapping, which is kept as text. Paths are
// relative to the file's folder. The same file may have the keys that `accelerate config` writes
// (foreign/accelerate.h). A file called *.json is DeepSpeed's (foreign/deepspeed.h) unless its keys
// are Accelerate's or ours.
//
// Ownership: none. Threads: one. Errors: kInput naming file, line and key; unknown keys with the
// nearest known one. The only user of yaml-cpp's exceptions here.
#pragma once

#include <string>

#include "runtime/cli/options/option_reader.h"

namespace ofsdp::cli {

Status read_config(const std::string& path, Source source, OptionReader& reader);

Status read_yaml_config(const std::string& path, Source source, OptionReader& reader);

}  // namespace ofsdp::cli
