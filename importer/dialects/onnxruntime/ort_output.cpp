#include "importer/dialects/onnxruntime/ort_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "importer/write/output_files.h"
#include "importer/write/value_writer.h"

namespace ofsdp::importer {
namespace {

constexpr const char* kModuleEval = "module_";
std::string module_eval_name(const OrtPaths& paths) {
  return kModuleEval + filename_of(paths.eval);
}

std::vector<std::string> output_names(const OrtPaths& paths) {
  std::vector<std::string> names{filename_of(paths.training), filename_of(paths.eval),
                                 filename_of(paths.checkpoint), module_eval_name(paths)};
  if (!paths.optimizer.empty()) names.push_back(filename_of(paths.optimizer));
  return names;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<OpenFile> create_file(const std::string& path) {
  {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.get() < 0) return fault("{}: cannot be written: {}", path, std::strerror(errno));
  }
  return open_for_writing(path);
}

Status write_text(const OpenFile& file, int64_t offset, std::string_view text) {
  return write_exactly(file, offset, std::as_bytes(std::span(text)));
}

Status copy_file(const std::string& from, const std::string& to) {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile source, open_for_reading(from));
  OFSDP_ASSIGN_OR_RETURN(const OpenFile target, create_file(to));
  return copy_bytes(source, 0, target, 0, source.bytes);
}

// The checkpoint as it will be, its tensors' places not yet settled.
OrtCheckpoint trained_checkpoint(const OrtCheckpoint& source, const OrtTrainedState& state) {
  OrtCheckpoint made = source;
  if (state.moments == 0) return made;
  OrtOptimizerState optimizer;
  optimizer.group = source.optimizer ? source.optimizer->group : "group0";
  optimizer.step = state.step;
  optimizer.learning_rate = state.learning_rate;
  for (const OrtTensor& tensor : source.trained) {
    OrtParameterState moments{tensor.name, {}};
    for (size_t k = 0; k < state.moments; ++k) {
      OrtTensor moment = tensor;
      moment.name = format_text("momentum{}", k);
      moments.moments.push_back(std::move(moment));
    }
    optimizer.parameters.push_back(std::move(moments));
  }
  made.optimizer = std::move(optimizer);
  return made;
}

}  // namespace

OrtOutput::OrtOutput(OrtOutput&& other) noexcept
    : paths_(std::move(other.paths_)),
      checkpoint_(std::move(other.checkpoint_)),
      head_(std::move(other.head_)),
      eval_(std::move(other.eval_)),
      target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)),
      owner_(std::exchange(other.owner_, false)) {}

Status OrtOutput::check(const OrtSource& source, const OrtTrainedState& state,
                        const std::string& path) {
  const OrtPaths& paths = source.artifacts.paths;
  std::error_code ignored;
  if (std::filesystem::equivalent(folder_of(paths.training), path, ignored)) {
    return input_error("{}: cannot be written: expected another folder than the input", path);
  }
  OFSDP_RETURN_IF_ERROR(check_output_folder(without_slash(path), output_names(paths)));
  OrtOutput output;
  return output.lay_out(source, state).with_prefix("--output " + path);
}

Result<OrtOutput> OrtOutput::begin(const OrtSource& source, const OrtTrainedState& state,
                                   const std::string& path) {
  OrtOutput output;
  output.target_ = without_slash(path);
  OFSDP_RETURN_IF_ERROR(output.lay_out(source, state));
  OFSDP_RETURN_IF_ERROR(check_output_folder(output.target_, output_names(source.artifacts.paths)));
  OFSDP_ASSIGN_OR_RETURN(output.temporary_, create_temporary_folder(output.target_));
  output.owner_ = true;
  OFSDP_RETURN_IF_ERROR(output.write_files(source));
  return output;
}

Result<OrtOutput> OrtOutput::join(const OrtSource& source, const OrtTrainedState& state,
                                  const std::string& ticket) {
  OrtOutput output;
  OFSDP_RETURN_IF_ERROR(output.lay_out(source, state));
  output.temporary_ = ticket;
  return output;
}

std::string OrtOutput::in_temporary(const std::string& path) const {
  return join_path(temporary_, filename_of(path));
}

Status OrtOutput::lay_out(const OrtSource& source, const OrtTrainedState& state) {
  paths_ = source.artifacts.paths;
  checkpoint_ = trained_checkpoint(source.artifacts.checkpoint, state);
  OFSDP_ASSIGN_OR_RETURN(head_, describe_ort_checkpoint(checkpoint_));
  OFSDP_ASSIGN_OR_RETURN(eval_, lay_out_eval_model(paths_.eval, source.artifacts.checkpoint));
  return ok_status();
}

Status OrtOutput::write_files(const OrtSource& source) const {
  OFSDP_RETURN_IF_ERROR(copy_file(paths_.training, in_temporary(paths_.training)));
  if (!paths_.optimizer.empty()) {
    OFSDP_RETURN_IF_ERROR(copy_file(paths_.optimizer, in_temporary(paths_.optimizer)));
  }
  const std::string folder = folder_of(paths_.eval);
  const std::string before = join_path(folder, module_eval_name(paths_));  // of an earlier output
  std::error_code ignored;
  const bool again = std::filesystem::is_regular_file(before, ignored);
  OFSDP_RETURN_IF_ERROR(
      copy_file(again ? before : paths_.eval, join_path(temporary_, module_eval_name(paths_))));
  OFSDP_RETURN_IF_ERROR(write_checkpoint(source));
  return write_eval(source);
}

// All values as they were: those that are trained are written over.
Status OrtOutput::write_checkpoint(const OrtSource& source) const {
  const OpenFile& from = source.weights.contents().data_files.back().file;
  OFSDP_ASSIGN_OR_RETURN(const OpenFile to, create_file(in_temporary(paths_.checkpoint)));
  OFSDP_RETURN_IF_ERROR(write_text(to, 0, head_));
  int64_t end = static_cast<int64_t>(head_.size());
  const auto copy = [&](const OrtTensor& tensor, const OrtTensor* old) -> Status {
    const auto length = static_cast<uint32_t>(tensor.bytes);
    OFSDP_RETURN_IF_ERROR(
        write_exactly(to, tensor.offset - 4, std::as_bytes(std::span(&length, 1))));
    end = std::max(end, tensor.offset + tensor.bytes);
    if (old == nullptr || old->bytes != tensor.bytes) return ok_status();
    return copy_bytes(from, old->offset, to, tensor.offset, tensor.bytes);
  };
  const OrtCheckpoint& before = source.artifacts.checkpoint;
  for (const auto* list : {&checkpoint_.trained, &checkpoint_.frozen}) {
    for (const OrtTensor& tensor : *list) {
      OFSDP_RETURN_IF_ERROR(copy(tensor, before.tensor(tensor.name)));
    }
  }
  if (checkpoint_.optimizer) {
    for (const OrtParameterState& state : checkpoint_.optimizer->parameters) {
      const OrtParameterState* old = before.state_of(state.parameter);
      for (size_t k = 0; k < state.moments.size(); ++k) {
        const bool there = old != nullptr && k < old->moments.size();
        OFSDP_RETURN_IF_ERROR(copy(state.moments[k], there ? &old->moments[k] : nullptr));
      }
    }
  }
  if (ftruncate(to.fd.get(), end) == 0) return ok_status();  // moments that are zero end it
  return fault("{}: cannot be written: {}", to.path, std::strerror(errno));
}

Status OrtOutput::write_eval(const OrtSource& source) const {
  const OpenFile& from = source.weights.contents().data_files.back().file;
  OFSDP_ASSIGN_OR_RETURN(const OpenFile to, create_file(in_temporary(paths_.eval)));
  OFSDP_RETURN_IF_ERROR(write_text(to, 0, eval_.head));
  for (const auto& [head, tensor] : eval_.tensors) {
    const OrtTensor* old = source.artifacts.checkpoint.tensor(tensor.name);
    OFSDP_RETURN_IF_ERROR(write_text(to, tensor.offset - static_cast<int64_t>(head.size()), head));
    OFSDP_RETURN_IF_ERROR(copy_bytes(from, old->offset, to, tensor.offset, tensor.bytes));
  }
  return ok_status();
}

Status OrtOutput::write(const std::string& name, int64_t first, std::span<const float> src) const {
  const OrtTensor* tensor = checkpoint_.tensor(name);
  OFSDP_CHECK(tensor != nullptr, "{}", name);
  OFSDP_ASSIGN_OR_RETURN(const OpenFile checkpoint,
                         open_for_writing(in_temporary(paths_.checkpoint)));
  OFSDP_RETURN_IF_ERROR(write_values(checkpoint, as_initializer(*tensor), first, src));
  for (const auto& [head, place] : eval_.tensors) {
    if (place.name != name) continue;
    OFSDP_ASSIGN_OR_RETURN(const OpenFile eval, open_for_writing(in_temporary(paths_.eval)));
    OFSDP_RETURN_IF_ERROR(write_values(eval, as_initializer(place), first, src));
  }
  return ok_status();
}

Status OrtOutput::write_moment(size_t k, const std::string& name, int64_t first,
                               std::span<const float> src) const {
  const OrtParameterState* state = checkpoint_.state_of(name);
  OFSDP_CHECK(state != nullptr && k < state->moments.size(), "{}", name);
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(in_temporary(paths_.checkpoint)));
  return write_values(file, as_initializer(state->moments[k]), first, src);
}

Status OrtOutput::finish() const {
  for (const std::string& name : output_names(paths_)) {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open_for_writing(join_path(temporary_, name)));
    OFSDP_RETURN_IF_ERROR(sync_file(file));
  }
  return sync_folder(temporary_);
}

Status OrtOutput::commit() {
  OFSDP_CHECK(owner_, "commit of a folder that is not this rank's");
  OFSDP_RETURN_IF_ERROR(replace_folder(temporary_, target_));
  owner_ = false;
  return ok_status();
}

void OrtOutput::discard() {
  if (!owner_) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
  owner_ = false;
}

}  // namespace ofsdp::importer
