// The walk over one TrainingInfoProto of an .onnx file (onnx_walk.h does the rest of the file): the
// same bytes for the skeleton but for the data of large floating-point initializers of the algorithm
// graph, and where each of that graph's initializers lies, so that a rank reads and writes the
// optimizer state of its own shards alone.
//
// Ownership: values. Threads: any. Errors: kInput, without the path. External data are refused
// here: they are for the model's own weights.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "importer/file/initializer.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {

struct FieldPlace {   // of a message, in the file
  int64_t begin = 0;  // its tag
  int64_t body = 0;
  int64_t end = 0;
};

// An initializer of an algorithm graph. Floating-point ones are read like the model's own; of the
// others (the count of updates) only scalars are of use.
struct AlgorithmTensor {
  int training_info = 0;  // which
  Initializer initializer;
  FieldPlace field;
  FieldPlace info;       // the TrainingInfoProto
  FieldPlace algorithm;  // and its graph
};

// Adds to `tensors`; gives the field for the skeleton.
Result<std::string> walk_training_info(const WireField& info, int index,
                                       std::span<const std::byte> file,
                                       std::vector<AlgorithmTensor>& tensors);

}  // namespace ofsdp::importer
