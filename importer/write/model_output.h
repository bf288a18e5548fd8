// ModelOutput: the trained .onnx file, written by all ranks at once without gathering a weight.
// Below: output files' names and temporaries, and the layout of safetensors files.
//
//   rank 0   begin(input, path): copies the input next to the target; ticket() goes to the others
//   others   join(input, ticket)
//   all      write(i, first, values) for their own elements, each once; finish(); barrier
//   rank 0   commit(): the file appears by rename, data files before the model
//
// The result equals the input byte for byte except for written values (model_copy.h has the
// exceptions). Initializers are named by index in input.initializers(). Elements that nobody writes
// keep the input's bytes. Values are rounded to the initializer's dtype, nearest even.
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

// A trained model's files: their names, and the temporaries that become them.
//
// A temporary lies next to the target as `.NAME.TOKEN.tmp` with a random TOKEN, so a rename makes
// it the target whole or not at all. The process that creates it keeps a lock on it (flock) until
// it is gone or has its final name. If the process ends, the kernel releases the lock. A killed run
// can leave one; the next run with that target removes files without a lock.
//
// Threads: these functions run on rank 0's main thread. Errors: kInput naming the path for
// impossible targets; kFault for later failures.

// Before the first step: checks that `path` can be created or replaced, in an existing, writable
// folder.
Status check_output_path(const std::string& path);

// The same, and checks that writing the trained `input` there destroys no input file. It does not
// refuse the input's own path if the input has no external data, since
// runtime/train/setup/run_files.h has refused that before.
Status check_output_path(const std::string& path, const OnnxFile& input);

// Returns the data files' names next to `path`, in input order. Keeps the input's names if
// possible; if another file has the name (mostly the input's own) or it leads into a folder, they
// become NAME.data, NAME.1.data, ... after the output's NAME.
Result<std::vector<std::string>> choose_locations(const std::string& path, const OnnxFile& input);

// Creates an empty temporary for `target` and removes stale ones. A caller that fails removes it.
Result<std::string> create_temporary(const std::string& target);
Result<std::string> create_temporary_folder(const std::string& target);

// Lets `fill` write a temporary, which becomes `path` on success.
Status write_whole(const std::string& path,
                   const std::function<Status(const std::string& temporary)>& fill);

// Before the first step: checks that `path` can become a folder, or is one with only files from
// `names`, which may be replaced as a whole.
Status check_output_folder(const std::string& path, const std::vector<std::string>& names);

// Renames the temporary to `path` and removes the previous folder. If it is killed in between,
// `path` is a whole folder, the new or the previous one, if the file system can swap names.
Status replace_folder(const std::string& temporary, const std::string& path);

class ModelOutput {
 public:
  static Result<ModelOutput> begin(const OnnxFile& input, const std::string& path);

  static Result<ModelOutput> join(const OnnxFile& input, const std::string& ticket);

  ModelOutput(ModelOutput&& other) noexcept;

  ModelOutput& operator=(ModelOutput&&) = delete;
  ~ModelOutput() { discard(); }

  // Returns bytes, which may contain NULs.
  std::string ticket() const;

  // If training has changed scales of quantized weights: call it on every rank, before any write.
  // `scales` has the new ones by the index of the weight (OnnxFile::rescaled). It writes nothing:
  // `write` takes real values and makes integers of them by these scales. Initializers that hold
  // scales are written by `write` too.
  void rescale(const std::map<int, std::vector<float>>& scales);
  Status write(size_t initializer, int64_t first_element, std::span<const float> src) const;
  // Write to OnnxContents::algorithm_tensors: optimizer state, and a scalar as bytes in the stored
  // type.
  Status write_state(size_t tensor, int64_t first_element, std::span<const float> src) const;
  Status write_scalar(size_t tensor, std::span<const std::byte> value) const;

  // Rank 0: returns the model file before finish, for a last change to the graph.
  const std::string& model_temporary() const { return targets_[0].temporary; }
  // Syncs everything that this rank has written.
  Status finish() const { return copy_.sync(folder_); }
  // Rank 0, after finish on every rank.
  Status commit();

  // Rank 0: removes the temporaries; after commit it does nothing.
  void discard();

 private:
  struct Target {
    std::string path;  // empty if the rank does not need it
    std::string temporary;
  };

  ModelOutput() = default;
  Status create_files(const OnnxFile& input, const std::string& path);

  Status lay_out(const OnnxFile& input);

  std::vector<Target> targets_;         // the model, then the data files
  std::vector<std::string> locations_;  // the data files' names in the new model
  std::string folder_;                  // where the temporaries lie
  ModelCopy copy_;
  bool owner_ = false;  // rank 0, until it has committed or discarded
};

// Lays out tensors as a safetensors file, in the given order, with name, dtype and shape, and with
// more metadata.
//
//   u64 header length, little-endian; the header, JSON, padded with spaces to a multiple of
//   8; the tensors one after the other.
// Follows https://github.com/huggingface/safetensors (README, "Format").
TensorLayout lay_out_safetensors(const std::vector<Initializer>& tensors,
                                 const std::map<std::string, std::string>& metadata = {});

}  // namespace ofsdp::importer
