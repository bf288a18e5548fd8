// The model in the file as one that only infers: Dropout and BatchNormalization with their training
// switches off, in the main graph, its branches and its functions. Everything else stays.
//
// Rewrites the file in place (a temporary that nobody has seen yet); external data stay where they
// are. Threads: any. Errors: kInput naming the node whose training outputs something reads.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace ofsdp::importer {

Status make_inference_model(const std::string& path);

}  // namespace ofsdp::importer
