// --initialize: the initialization graphs of a model's training_info, run in place of the values
// that the file has. Each initializer's value is computed when it is first read and held until
// another is, so a rank never holds more than one of them besides its shards; random values depend
// on --seed and the node alone, so all ranks compute the same.
//
// Ownership: the registry outlives it; OnnxFile shares it. Threads: one. Errors: kInput from make
// (no initialization; a binding to a missing tensor; shapes that differ), errors of kernels from
// read.
#pragma once

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/graph/lowering.h"
#include "importer/graph/update_rules.h"

namespace ofsdp::runtime {

// Gives `file` the values of its initialization graphs, and `rules` those of its scalars.
Status initialize(OnnxFile& file, UpdateRules* rules, const Operators& operators, uint64_t seed);

}  // namespace ofsdp::runtime
