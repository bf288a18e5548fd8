// ModelOutput: the trained .onnx file, written by all ranks at once without gathering a weight.
//
//   rank 0   begin(input, path): copies the input next to the target; ticket() goes to the others
//   others   join(input, ticket)
//   all      write(i, first, values) for their own elements, each once; finish(); barrier
//   rank 0   commit(): the file appears by rename, data files before the model
//
// The result is the input byte for byte but for the values written (model_layout.h has the
// exceptions). Initializers are named by their index in input.initializers(); elements that nobody
// writes keep the input's bytes. Values are rounded to the initializer's dtype, nearest even.
//
// Rank 0's object owns the temporaries and removes them unless it has committed. `input` must
// outlive begin and join only. Threads: `write` from any thread; the rest from one. Errors: kInput
// from begin for a path that cannot be; kFault otherwise (disk full, input changed).
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "importer/write/model_copy.h"

namespace ofsdp::importer {

class ModelOutput {
 public:
  static Result<ModelOutput> begin(const OnnxFile& input, const std::string& path);

  static Result<ModelOutput> join(const OnnxFile& input, const std::string& ticket);

  ModelOutput(ModelOutput&& other) noexcept;

  ModelOutput& operator=(ModelOutput&&) = delete;
  ~ModelOutput() { discard(); }

  // Returns bytes, with NULs.
  std::string ticket() const;

  // Before any write, on every rank: scales that training has changed, by initializer.
  void rescale(const std::map<int, std::vector<float>>& scales);
  Status write(size_t initializer, int64_t first_element, std::span<const float> src) const;
  // Write to OnnxContents::algorithm_tensors: optimizer state, and a scalar as the bytes of its
  // type.
  Status write_state(size_t tensor, int64_t first_element, std::span<const float> src) const;
  Status write_scalar(size_t tensor, std::span<const std::byte> value) const;

  // Rank 0: the model file before it is finished, for a last change of its graph.
  const std::string& model_temporary() const { return targets_[0].temporary; }
  // Syncs what this rank has written.
  Status finish() const { return copy_.sync(folder_); }
  // Rank 0, after every rank's finish.
  Status commit();

  // Rank 0; nothing remains.
  void discard();

 private:
  struct Target {
    std::string path;  // empty where the rank does not need to know it
    std::string temporary;
  };

  ModelOutput() = default;
  Status create_files(const OnnxFile& input, const std::string& path);

  Status lay_out(const OnnxFile& input);

  std::vector<Target> targets_;         // the model, then its data files
  std::vector<std::string> locations_;  // of the data files, as the new model names them
  std::string folder_;                  // of the temporaries
  ModelCopy copy_;
  bool owner_ = false;  // rank 0, until it has committed or discarded
};

}  // namespace ofsdp::importer
