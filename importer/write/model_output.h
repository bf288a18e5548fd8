// The trained .onnx file, written by all ranks at once without gathering a weight.
//
//   rank 0   begin(input, path): copies the input next to the target; ticket() goes to the others
//   others   join(input, ticket)
//   all      write(i, first, values) for their own elements, each once; finish(); barrier
//   rank 0   commit(): the file appears by rename, data files before the model
//
// The result equals the input byte for byte except for written values (model_copy.h has the
// exceptions). Initializers are named by index in input.initializers(). Elements that nobody writes
// keep the bytes of the input. Values are rounded to the dtype of the initializer, nearest even.
//
// Rank 0 owns the temporaries and removes them unless it has committed. `input` must outlive begin
// and join only. `write` is thread-safe; all else runs on one thread. Errors: kInput from begin for
// an impossible path; kFault otherwise (disk full, input changed).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_file.h"
#include "importer/write/model_copy.h"

namespace ofsdp::importer {

class ModelOutput {
 public:
  static Result<ModelOutput> begin(const OnnxFile& input, const std::string& path);

  static Result<ModelOutput> join(const OnnxFile& input, const std::string& ticket);

  ModelOutput(ModelOutput&& other) noexcept;

  ModelOutput& operator=(ModelOutput&&) = delete;
  ~ModelOutput() { discard(); }

  // Returns bytes, which may contain NULs.
  std::string ticket() const;

  // Call it before any write, on every rank. `scales`: changed by training, by initializer.
  void rescale(const std::map<int, std::vector<float>>& scales);
  Status write(size_t initializer, int64_t first_element, std::span<const float> src) const;
  // Write to OnnxContents::algorithm_tensors: optimizer state, and a scalar as the bytes of its
  // type.
  Status write_state(size_t tensor, int64_t first_element, std::span<const float> src) const;
  Status write_scalar(size_t tensor, std::span<const std::byte> value) const;

  // Rank 0: returns the model file before finish, for a last change of its graph.
  const std::string& model_temporary() const { return targets_[0].temporary; }
  // Syncs everything that this rank has written.
  Status finish() const { return copy_.sync(folder_); }
  // Rank 0, after finish on every rank.
  Status commit();

  // Rank 0: removes everything.
  void discard();

 private:
  struct Target {
    std::string path;  // empty if the rank does not need it
    std::string temporary;
  };

  ModelOutput() = default;
  Status create_files(const OnnxFile& input, const std::string& path);

  Status lay_out(const OnnxFile& input);

  std::vector<Target> targets_;         // the model, then its data files
  std::vector<std::string> locations_;  // of the data files, by their names in the new model
  std::string folder_;                  // of the temporaries
  ModelCopy copy_;
  bool owner_ = false;  // rank 0, until it has committed or discarded
};

// The weights of a model as a safetensors file: every floating-point initializer, with the name and
// type, in the order of the model.
//
//   u64 length of the header, little-endian; the header, JSON, padded with spaces to a multiple of
//   8; the tensors one after the other.
// Follows https://github.com/huggingface/safetensors (README, "Format").
//
// `values` returns the elements of an initializer as float32; they are rounded to the type. The
// file appears by rename, whole or not at all. Errors: kInput for an impossible path; kFault
// (disk); those of `values`.

TensorLayout lay_out_safetensors(const std::vector<Initializer>& tensors);

using ReadValues = std::function<Status(int initializer, int64_t first, std::span<float> dst)>;

Status write_safetensors(const OnnxFile& model, const std::string& path, const ReadValues& values);

}  // namespace ofsdp::importer
