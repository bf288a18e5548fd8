// SafetensorsFile: a file of named tensors, as Hugging Face writes them; only the header is read
// when it is opened.
//
//   u64 length of the header, little-endian; the header, JSON {name: {dtype, shape, data_offsets}};
//   the tensors one after the other. Follows https://github.com/huggingface/safetensors ("Format").
//
// Nothing in the header is trusted: lengths, shapes and places are checked against the file.
// Ownership: owns the descriptor. Threads: const members from any. Errors: kInput from `open`,
// naming file and tensor; kFault from `read`.
#pragma once

#include <memory>
#include <vector>

#include "importer/file/initializer.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

struct SafetensorsTensor {
  std::string name;
  std::string type{};               // as the file says: "BF16"
  DType dtype = DType::kUndefined;  // kUndefined: none of ours
  Shape shape{};
  int64_t offset = 0;  // in the file
};

const char* safetensors_type(DType dtype);  // "F32"; REQUIRES: one of the format's

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // by name
  const SafetensorsTensor* find(const std::string& name) const;               // null: none

  // Elements of a floating-point tensor, as float32.
  Status read(const SafetensorsTensor& tensor, int64_t first, std::span<float> dst) const;

 private:
  OpenFile file_;
  std::vector<SafetensorsTensor> tensors_;
};

std::shared_ptr<const ValueSource> tensor_values(std::shared_ptr<const SafetensorsFile> file,
                                                 const SafetensorsTensor& tensor);

}  // namespace ofsdp::importer
