// Merged copies: initializers that an older exporter made one since their values were equal (the
// zeros and ones that norms and biases start with), though several modules train their own.
//
// find_merged names those that several modules of a repeated block read and whose values are all
// equal. untie gives every reader its own copy: NAME, NAME.1, ... in the order of the first node
// that uses the value. A reader is a node that takes NAME, or an Identity of it.
//
// Threads: any. Errors: kInput for a pattern that matches nothing; kFault when the file cannot be
// read.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::importer {

class ModelEditor;
class OnnxFile;

struct MergedCopy {
  std::string name;
  size_t readers = 0;
};
Result<std::vector<MergedCopy>> find_merged(const OnnxFile& file);

// `patterns`: names, globs or "auto", which is what find_merged finds. Returns whether anything has
// changed.
Result<bool> untie(ModelEditor& editor, const std::vector<std::string>& patterns);

}  // namespace ofsdp::importer
