// The layout of the trained file: the input model's bytes with as few changes as possible.
//
// Most outputs are one copy of the whole file. More than values changes when
//   - an initializer of encoding kList becomes raw_data: a hole to be filled;
//   - external data files get other names: their `location` entries change;
//   - an integer scalar of a training_info, encoded as a varint, becomes raw_data.
// Then the lengths of these messages and of those around them are encoded anew, and the rest moves.
// Pure: every rank computes the same layout from the same file and names.
//
// All members are values. Threads: any. Errors: kFault when the input cannot be read any more.
#pragma once

#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

struct Piece {
  enum class Kind : uint8_t { kCopy, kLiteral, kHole };
  Kind kind = Kind::kCopy;
  int64_t target = 0;  // offset in the new file
  int64_t bytes = 0;
  int64_t source = 0;        // kCopy: offset in the input
  std::string literal = {};  // kLiteral
  int initializer = -1;      // kHole: whose elements belong there
};

struct ModelLayout {
  std::vector<Piece> pieces;  // in order, without gaps
  int64_t bytes = 0;          // of the new file
  // The input's, with their places in the new files.
  std::vector<Initializer> initializers, algorithm_tensors;
};

// `locations`: the new name of each data file, as the new model will name it.
Result<ModelLayout> lay_out_model(const OnnxFile& input, const std::vector<std::string>& locations);

}  // namespace ofsdp::importer
