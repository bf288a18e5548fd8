// --initialize: initialization graphs of a training_info take the place of the file's values.
#pragma once

#include <cstdint>

#include "importer/file/onnx_file.h"
#include "importer/training_source.h"

namespace ofsdp::runtime {

// Makes `file` read from the initialization graphs, and sets the scalars of `rules`. An initializer
// is computed at the first read and kept until another is read, so a rank holds one initializer
// besides its shards. Random values depend on `seed` and the node, so all ranks compute the same.
// Returns kInput if there are no graphs, or if a binding names a missing tensor or another shape.
Status initialize(OnnxFile& file, UpdateRules* rules, const Operators& operators, uint64_t seed);

}  // namespace ofsdp::runtime
