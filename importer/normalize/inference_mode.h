// Turns a model file into one for inference: Dropout and BatchNormalization lose their training
// switches, in the main graph, the branches and the functions. Everything else stays.
//
// Rewrites the file in place (a temporary that nobody has seen yet); external data stay. Errors:
// kInput naming a node if something reads the training outputs.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace ofsdp::importer {

Status make_inference_model(const std::string& path);

}  // namespace ofsdp::importer
