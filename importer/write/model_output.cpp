#include "importer/write/model_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "importer/write/value_writer.h"

namespace ofsdp::importer {

ModelOutput::ModelOutput(ModelOutput&& other) noexcept
    : targets_(std::move(other.targets_)),
      locations_(std::move(other.locations_)),
      layout_(std::move(other.layout_)),
      owner_(std::exchange(other.owner_, false)) {}

Result<ModelOutput> ModelOutput::begin(const OnnxFile& input, const std::string& path) {
  OFSDP_RETURN_IF_ERROR(check_output_path(path, input));
  ModelOutput output;
  output.owner_ = true;
  OFSDP_ASSIGN_OR_RETURN(output.locations_, choose_locations(path, input));
  OFSDP_RETURN_IF_ERROR(output.create_files(input, path));
  OFSDP_ASSIGN_OR_RETURN(output.layout_, lay_out_model(input, output.locations_));
  OFSDP_RETURN_IF_ERROR(output.copy_input(input).with_prefix(path));
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
  if (words.size() != 1 + 2 * data_files) {
    return fault("{}: expected {} names of output files from rank 0, found {}", input.path(),
                 1 + 2 * data_files, words.size());
  }
  ModelOutput output;
  for (size_t i = 0; i <= data_files; ++i) output.targets_.push_back({"", words[i]});
  output.locations_.assign(words.begin() + static_cast<ptrdiff_t>(data_files) + 1, words.end());
  OFSDP_ASSIGN_OR_RETURN(output.layout_, lay_out_model(input, output.locations_));
  return output;
}

std::string ModelOutput::ticket() const {
  std::string text;
  for (const Target& target : targets_) text += target.temporary + '\0';
  for (const std::string& location : locations_) text += location + '\0';
  return text;
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

Status ModelOutput::copy_input(const OnnxFile& input) const {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile model, open_for_writing(targets_[0].temporary));
  for (const Piece& piece : layout_.pieces) {
    Status status;
    switch (piece.kind) {
      case Piece::Kind::kCopy:
        status = copy_bytes(input.file(), piece.source, model, piece.target, piece.bytes);
        break;
      case Piece::Kind::kLiteral:
        status = write_exactly(model, piece.target, std::as_bytes(std::span(piece.literal)));
        break;
      case Piece::Kind::kHole:
        status = fill_hole(input, piece.initializer);
        break;
    }
    OFSDP_RETURN_IF_ERROR(std::move(status));
  }
  for (size_t i = 1; i < targets_.size(); ++i) {
    const OpenFile& source = input.contents().data_files[i - 1].file;
    OFSDP_ASSIGN_OR_RETURN(const OpenFile data, open_for_writing(targets_[i].temporary));
    OFSDP_RETURN_IF_ERROR(copy_bytes(source, 0, data, 0, source.bytes));
  }
  return ok_status();
}

Status ModelOutput::fill_hole(const OnnxFile& input, int initializer) const {
  const auto index = static_cast<size_t>(initializer);
  const Initializer& weight = input.initializers()[index];
  std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
  OFSDP_RETURN_IF_ERROR(input.read(weight, 0, values));
  return write(index, 0, values);
}

Status ModelOutput::write(size_t initializer, int64_t first_element,
                          std::span<const float> src) const {
  const Initializer& weight = layout_.initializers[initializer];
  if (src.empty()) return ok_status();
  // Opened anew each time: a model may have more data files than a process may hold open.
  const std::string& path = targets_[static_cast<size_t>(weight.file)].temporary;
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(path));
  return write_values(file, weight, first_element, src);
}

Status ModelOutput::write_state(size_t tensor, int64_t first_element,
                                std::span<const float> src) const {
  if (src.empty()) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(targets_[0].temporary));
  return write_values(file, layout_.algorithm_tensors[tensor], first_element, src);
}

Status ModelOutput::write_scalar(size_t tensor, std::span<const std::byte> value) const {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(targets_[0].temporary));
  return write_exactly(file, layout_.algorithm_tensors[tensor].offset, value);
}

Status ModelOutput::finish() const {
  for (const Target& target : targets_) {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(target.temporary));
    OFSDP_RETURN_IF_ERROR(sync_file(file));
  }
  return ok_status();
}

Status ModelOutput::commit() {
  OFSDP_CHECK(owner_, "commit of a file that is not this rank's");
  for (size_t i = targets_.size(); i-- > 0;) {  // the model last: it makes the others visible
    const Target& target = targets_[i];
    if (std::rename(target.temporary.c_str(), target.path.c_str()) != 0) {
      return fault("{}: cannot be renamed from {}: {}", target.path, target.temporary,
                   std::strerror(errno));
    }
  }
  owner_ = false;
  return sync_folder(folder_of(targets_[0].path));
}

void ModelOutput::discard() {
  if (!owner_) return;
  for (const Target& target : targets_) unlink(target.temporary.c_str());
  owner_ = false;
}

}  // namespace ofsdp::importer
