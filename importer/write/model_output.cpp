#include "importer/write/model_output.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "importer/write/output_files.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {

Result<ModelOutput> ModelOutput::begin(const OnnxFile& input, const std::string& path) {
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

Result<ModelOutput> ModelOutput::join(const OnnxFile& input, const std::string& ticket) {
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

ModelOutput::ModelOutput(ModelOutput&& other) noexcept
    : targets_(std::move(other.targets_)),
      locations_(std::move(other.locations_)),
      folder_(std::move(other.folder_)),
      copy_(std::move(other.copy_)),
      owner_(std::exchange(other.owner_, false)) {}

std::string ModelOutput::ticket() const {
  std::string text;
  for (const Target& target : targets_) text += target.temporary + '\0';
  for (const std::string& location : locations_) text += location + '\0';
  return text;
}

void ModelOutput::rescale(const std::map<int, std::vector<float>>& scales) {
  for (const auto& [initializer, values] : scales) copy_.rescale(initializer, values);
}

Status ModelOutput::write(size_t initializer, int64_t first_element,
                          std::span<const float> src) const {
  return copy_.write(folder_, static_cast<int>(initializer), first_element, src);
}

Status ModelOutput::write_state(size_t tensor, int64_t first_element,
                                std::span<const float> src) const {
  return copy_.write(folder_, copy_.layout().algorithm_tensors[tensor], first_element, src);
}

Status ModelOutput::write_scalar(size_t tensor, std::span<const std::byte> value) const {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(targets_[0].temporary));
  return write_exactly(file, copy_.layout().algorithm_tensors[tensor].offset, value);
}

Status ModelOutput::commit() {
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

void ModelOutput::discard() {
  if (!owner_) return;
  for (const Target& target : targets_) unlink(target.temporary.c_str());
  owner_ = false;
}

Status ModelOutput::create_files(const OnnxFile& input, const std::string& path) {
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

Status ModelOutput::lay_out(const OnnxFile& input) {
  folder_ = folder_of(targets_[0].temporary);
  std::vector<std::string> names;
  for (const Target& target : targets_) names.push_back(filename_of(target.temporary));
  OFSDP_ASSIGN_OR_RETURN(copy_, ModelCopy::make(input, names, locations_, {}, false));
  return ok_status();
}

}  // namespace ofsdp::importer
