// TensorFile: an open file of named, dense tensors. safetensors_file.h and ort_adapter_file.h open
// files of their formats.
//
// TensorLayout: such tensors as they will lie in a file that ranks write together, and the bytes
// around them.
//
// Ownership: owns the descriptor. Threads: const members from any. Errors: kFault (disk).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "importer/file/initializer.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

struct FileTensor {
  std::string name;
  std::string type{};               // as the format calls it: "BF16"
  DType dtype = DType::kUndefined;  // kUndefined: none of ours
  Shape shape{};
  int64_t offset = 0;  // in the file
};

class TensorFile {
 public:
  TensorFile(OpenFile file, std::vector<FileTensor> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  const std::vector<FileTensor>& tensors() const { return tensors_; }
  const FileTensor* find(const std::string& name) const;  // null: none

  // Elements of a floating-point tensor, as float32.
  Status read(const FileTensor& tensor, int64_t first, std::span<float> dst) const;

 private:
  OpenFile file_;
  std::vector<FileTensor> tensors_;
};

std::shared_ptr<const ValueSource> tensor_values(std::shared_ptr<const TensorFile> file,
                                                 const FileTensor& tensor);

struct TensorLayout {
  struct Text {
    int64_t offset = 0;
    std::string bytes;
  };
  std::vector<Text> texts;
  std::vector<Initializer> places;  // of the tensors, in the order in which they were given
};

Status write_texts(const OpenFile& file, const TensorLayout& layout);

}  // namespace ofsdp::importer
