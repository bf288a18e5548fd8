// One walk over the bytes of an .onnx file: everything in it but its weights.
//
//   skeleton           the ModelProto without the bytes of floating-point initializers of the main
//                      graph. Each of these becomes a graph input of its static type after the
//                      others, unless an input has its name already. Initializers of at most
//                      kSmallNumel elements stay: converters and shape inference read Dropout's
//                      ratio, Clip's bounds, Resize's scales. Initializers of other types stay too;
//                      external ones get raw_data. All else is kept byte for byte, in order.
//   initializers       every floating-point initializer, small ones too, in the order of the file;
//                      and integers that are a weight (quantized_uses.h), of any size, which become
//                      inputs of type float, or of their own type where nodes read their bytes
//   constants          other initializers of integers, and values of Constant nodes: scales and
//                      zero points may be among them
//   algorithm_tensors  initializers of training_info; a rank reads and writes the optimizer state
//                      of its own shards alone
//   places             the initializers that a copy with other data files or encodings changes
//
// All members are values; data files are open. Threads: any. Errors: kInput, starting with the
// path.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "importer/file/initializer.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

inline constexpr int64_t kSmallNumel = 16;

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

struct DataFile {
  std::string location;  // as the model names it
  OpenFile file;
};

struct TensorPlace {
  FieldPlace field;
  int data_file = -1;    // external: which one
  int initializer = -1;  // kList: which one
};

struct OnnxContents {
  std::string skeleton;
  std::vector<Initializer> initializers;
  std::vector<Initializer> constants;
  std::vector<DataFile> data_files;
  FieldPlace graph;
  std::vector<TensorPlace> places;
  std::vector<AlgorithmTensor> algorithm_tensors;  // of the training_info, in the order of the file
};

// `bytes` is the whole file at `path`; external data lie in the folder of `path`.
Result<OnnxContents> walk_onnx(const std::string& path, std::span<const std::byte> bytes);

}  // namespace ofsdp::importer
