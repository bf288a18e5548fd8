// What of a training_info has another length in the trained file: integer scalars that the file has
// as varints (the count of updates, mostly), whose next values may need more bytes. They become
// raw_data, and the lengths of the messages around them are encoded anew.
//
// Ownership: values. Threads: any. Errors: kFault when the input cannot be read any more.
#pragma once

#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

// The bytes that stand in place of [begin, end) of the input.
struct Splice {
  int64_t begin = 0;
  int64_t end = 0;
  std::string text;
  int tensor = -1;    // index in OnnxContents::algorithm_tensors
  int64_t value = 0;  // where in `text` its elements are
};

// In the order of the file.
Result<std::vector<Splice>> splice_training_info(const OnnxFile& input);

}  // namespace ofsdp::importer
