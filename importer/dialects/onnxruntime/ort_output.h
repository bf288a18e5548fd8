// OrtOutput: a folder of trained artifacts, written by all ranks at once without gathering a weight.
//
//   rank 0   begin(source, state, path): a folder beside the target with copies of all files;
//            ticket() goes to the others
//   others   join(source, state, ticket)
//   all      write, write_moment for their own elements, each once; finish(); barrier
//   rank 0   commit(): the folder appears by rename, whole or not at all
//
// In it, under the names of the input: the training and optimizer models as they were; the
// checkpoint, with the optimizer's moments; the eval model with the weights inside. ONNX Runtime's
// own Module feeds the weights to its eval model, so that is there too, as it was, as
// module_eval_model.onnx.
//
// Ownership: rank 0's object owns the temporary and removes it unless it has committed. `source`
// outlives begin and join. Threads: one. Errors: kInput from `check` for a path that cannot be or
// more bytes than the formats hold; kFault otherwise.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/dialects/onnxruntime/ort_eval_model.h"

namespace ofsdp::importer {

struct OrtSource {
  const OrtArtifacts& artifacts;
  const OnnxFile& weights;  // artifacts.training, wherever it is now
};

struct OrtTrainedState {
  int64_t step = 0;  // updates that the moments have seen
  float learning_rate = 0;
  size_t moments = 0;  // of each parameter; 0: no optimizer state is written
};

class OrtOutput {
 public:
  static Status check(const OrtSource& source, const OrtTrainedState& state,
                      const std::string& path);
  static Result<OrtOutput> begin(const OrtSource& source, const OrtTrainedState& state,
                                 const std::string& path);
  static Result<OrtOutput> join(const OrtSource& source, const OrtTrainedState& state,
                                const std::string& ticket);
  OrtOutput(OrtOutput&& other) noexcept;
  OrtOutput& operator=(OrtOutput&&) = delete;
  ~OrtOutput() { discard(); }

  const std::string& ticket() const { return temporary_; }
  // Elements of the weight of that name, and of its moment k.
  Status write(const std::string& name, int64_t first, std::span<const float> src) const;
  Status write_moment(size_t k, const std::string& name, int64_t first,
                      std::span<const float> src) const;
  Status finish() const;
  Status commit();
  void discard();

 private:
  OrtOutput() = default;
  Status lay_out(const OrtSource& source, const OrtTrainedState& state);
  Status write_files(const OrtSource& source) const;
  Status write_checkpoint(const OrtSource& source) const;
  Status write_eval(const OrtSource& source) const;
  std::string in_temporary(const std::string& path) const;

  OrtPaths paths_;
  OrtCheckpoint checkpoint_;  // as it is written
  std::string head_;          // of the checkpoint's file
  OrtEvalModel eval_;
  std::string target_, temporary_;
  bool owner_ = false;
};

}  // namespace ofsdp::importer
