// The initialization graphs of a model's training_info: each is a model without inputs, with the
// initializers to which its outputs are bound.
//
// All members are values. Threads: any. Errors: kInput naming file, training_info and binding.
#pragma once

#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

struct InitialBinding {
  Initializer initializer;
  int training_info = -1;  // whose algorithm has it; -1: the model's graph
  std::string output;
};

struct Initialization {
  OnnxFile model;
  std::vector<InitialBinding> bindings;
};

Result<std::vector<Initialization>> read_initializations(const OnnxFile& file);

}  // namespace ofsdp::importer
