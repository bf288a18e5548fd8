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

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "importer/write/model_copy.h"
#include "importer/write/output_files.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {

class ModelOutput {
 public:
  static Result<ModelOutput> begin(const OnnxFile& input, const std::string& path) {
    OFSDP_RETURN_IF_ERROR(check_output_path(path, input));
    ModelOutput output;
    output.owner_ = true;
    OFSDP_ASSIGN_OR_RETURN(output.locations_, choose_locations(path, input));
    OFSDP_RETURN_IF_ERROR(output.create_files(input, path));
    OFSDP_RETURN_IF_ERROR(output.lay_out(input));
    const std::atomic<bool> cancelled = false;
    OFSDP_RETURN_IF_ERROR(output.copy_.write_rest(output.folder_, cancelled).with_prefix(path));
    return output;
  }

  static Result<ModelOutput> join(const OnnxFile& input, const std::string& ticket) {
    std::vector<std::string> words;
    for (size_t begin = 0; begin < ticket.size();) {
      const size_t end = std::min(ticket.find('\0', begin), ticket.size());
      words.push_back(ticket.substr(begin, end - begin));
      begin = end + 1;
    }
    const size_t data_files = input.contents().data_files.size();
    OFSDP_FAULT_IF(words.size() != 1 + 2 * data_files,
                   "{}: expected {} names of output files from rank 0, found {}", input.path(),
                   1 + 2 * data_files, words.size());
    ModelOutput output;
    for (size_t i = 0; i <= data_files; ++i) output.targets_.push_back({"", words[i]});
    output.locations_.assign(words.begin() + static_cast<ptrdiff_t>(data_files) + 1, words.end());
    OFSDP_RETURN_IF_ERROR(output.lay_out(input));
    return output;
  }

  ModelOutput(ModelOutput&& other) noexcept
      : targets_(std::move(other.targets_)),
        locations_(std::move(other.locations_)),
        folder_(std::move(other.folder_)),
        copy_(std::move(other.copy_)),
        owner_(std::exchange(other.owner_, false)) {}

  ModelOutput& operator=(ModelOutput&&) = delete;
  ~ModelOutput() { discard(); }

  // Returns bytes, with NULs.
  std::string ticket() const {
    std::string text;
    for (const Target& target : targets_) text += target.temporary + '\0';
    for (const std::string& location : locations_) text += location + '\0';
    return text;
  }

  // Before any write, on every rank: scales that training has changed, by initializer.
  void rescale(const std::map<int, std::vector<float>>& scales) {
    for (const auto& [initializer, values] : scales) copy_.rescale(initializer, values);
  }
  Status write(size_t initializer, int64_t first_element, std::span<const float> src) const {
    return copy_.write(folder_, static_cast<int>(initializer), first_element, src);
  }
  // Write to OnnxContents::algorithm_tensors: optimizer state, and a scalar as the bytes of its
  // type.
  Status write_state(size_t tensor, int64_t first_element, std::span<const float> src) const {
    return copy_.write(folder_, copy_.layout().algorithm_tensors[tensor], first_element, src);
  }
  Status write_scalar(size_t tensor, std::span<const std::byte> value) const {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(targets_[0].temporary));
    return write_exactly(file, copy_.layout().algorithm_tensors[tensor].offset, value);
  }

  // Rank 0: the model file before it is finished, for a last change of its graph.
  const std::string& model_temporary() const { return targets_[0].temporary; }
  // Syncs what this rank has written.
  Status finish() const { return copy_.sync(folder_); }
  // Rank 0, after every rank's finish.
  Status commit() {
    OFSDP_CHECK(owner_, "commit of a file that is not this rank's");
    for (size_t i = targets_.size(); i-- > 0;) {  // the model last: it makes the others visible
      const Target& target = targets_[i];
      OFSDP_FAULT_IF(std::rename(target.temporary.c_str(), target.path.c_str()) != 0,
                     "{}: cannot be renamed from {}: {}", target.path, target.temporary,
                     std::strerror(errno));
    }
    owner_ = false;
    return sync_folder(folder_of(targets_[0].path));
  }

  // Rank 0; nothing remains.
  void discard() {
    if (!owner_) return;
    for (const Target& target : targets_) unlink(target.temporary.c_str());
    owner_ = false;
  }

 private:
  struct Target {
    std::string path;  // empty where the rank does not need to know it
    std::string temporary;
  };

  ModelOutput() = default;
  Status create_files(const OnnxFile& input, const std::string& path) {
    std::vector<std::string> paths = {path};
    for (size_t i = 0; i < input.contents().data_files.size(); ++i) {
      paths.push_back(join_path(folder_of(path), locations_[i]));
    }
    for (const std::string& target : paths) {
      OFSDP_ASSIGN_OR_RETURN(std::string temporary, create_temporary(target));
      targets_.push_back({target, std::move(temporary)});
    }
    return ok_status();
  }

  Status lay_out(const OnnxFile& input) {
    folder_ = folder_of(targets_[0].temporary);
    std::vector<std::string> names;
    for (const Target& target : targets_) names.push_back(filename_of(target.temporary));
    OFSDP_ASSIGN_OR_RETURN(copy_, ModelCopy::make(input, names, locations_, {}, false));
    return ok_status();
  }

  std::vector<Target> targets_;         // the model, then its data files
  std::vector<std::string> locations_;  // of the data files, as the new model names them
  std::string folder_;                  // of the temporaries
  ModelCopy copy_;
  bool owner_ = false;  // rank 0, until it has committed or discarded
};

}  // namespace ofsdp::importer
