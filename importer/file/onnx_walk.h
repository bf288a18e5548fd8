// One walk over the bytes of an .onnx file: what it holds, without its weights.
//
//   skeleton      the ModelProto without the bytes of floating-point initializers of the main
//   graph.
//                 Each of these becomes a graph input of its static type behind the others (unless
//                 an input has its name already), except those of at most kSmallNumel elements,
//                 which stay, because converters and shape inference read Dropout's ratio, Clip's
//                 bounds, Resize's scales. Other initializers stay; external ones get raw_data.
//                 All else is kept byte for byte, in order.
//   initializers  every floating-point initializer, small ones too, in the order of the file
//   algorithm_tensors  initializers of training_info (training_walk.h)
//   places        the initializers that a copy with other data files or encodings has to change
//
// Ownership: values; data files are open. Threads: any.
// Errors: kInput, starting with the path.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "importer/file/initializer.h"
#include "importer/file/training_walk.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

inline constexpr int64_t kSmallNumel = 16;

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
  std::vector<DataFile> data_files;
  FieldPlace graph;
  std::vector<TensorPlace> places;
  std::vector<AlgorithmTensor> algorithm_tensors;  // of the training_info, in the order of the file
};

// `bytes` is the whole file at `path`; external data lie in the folder of `path`.
Result<OnnxContents> walk_onnx(const std::string& path, std::span<const std::byte> bytes);

}  // namespace ofsdp::importer
