#include "importer/write/model_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "importer/file/tensor_file.h"
#include "importer/file/wire.h"
#include "importer/write/model_copy.h"
#include "kernels/base/process.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

enum class Kind { kAbsent, kFile, kFolder, kOther };

Kind kind_of(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Kind::kAbsent;
  if (S_ISREG(info.st_mode)) return Kind::kFile;
  return S_ISDIR(info.st_mode) ? Kind::kFolder : Kind::kOther;
}

bool is_input_file(const std::string& path, const OnnxFile& input) {
  const auto& data = input.contents().data_files;
  return is_same_file(path, input.file()) ||
         std::ranges::any_of(data, [&](const DataFile& d) { return is_same_file(path, d.file); });
}

bool can_take(const std::string& path, const OnnxFile& input) {
  const Kind kind = kind_of(path);
  return kind == Kind::kAbsent || (kind == Kind::kFile && !is_input_file(path, input));
}

// Returns the data files that the model now at `path` has; a second run may replace the first's.
std::vector<std::string> previous_locations(const std::string& path) {
  std::vector<std::string> locations;
  if (kind_of(path) != Kind::kFile) return locations;
  const Result<OnnxFile> previous = OnnxFile::open(path);
  if (!previous.ok()) return locations;
  for (const DataFile& data : previous->contents().data_files) locations.push_back(data.location);
  return locations;
}

std::string temporary_prefix(const std::string& target) {
  return "." + base_filename(target) + ".";
}

// Returns whether `name` is a temporary's: the prefix, thirteen hexadecimal digits, ".tmp".
bool is_temporary(std::string_view name, std::string_view prefix) {
  constexpr std::string_view kSuffix = ".tmp", kDigits = "0123456789abcdef";
  constexpr size_t kToken = 13;
  if (name.size() != prefix.size() + kToken + kSuffix.size()) return false;
  return name.starts_with(prefix) && name.ends_with(kSuffix) &&
         name.substr(prefix.size(), kToken).find_first_not_of(kDigits) == std::string_view::npos;
}

// Locks this user's file or folder until the descriptor closes. With LOCK_EX in `how`, waits for
// the lock. Returns nothing if another process has the lock, if the file is gone, or if the file
// system has no locks (then nobody removes the file).
OpenFile locked(const std::string& path, int how) {
  OpenFile file{path, UniqueFd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
  if (!file.fd.valid()) {
    file.fd = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }
  struct stat info {};
  const bool got =
      file.fd.valid() && fstat(file.fd.get(), &info) == 0 && flock(file.fd.get(), how) == 0;
  if (!got) return {};
  file.device = info.st_dev;
  file.inode = info.st_ino;
  return file;
}

// A run on another host or in another container may be writing, so locked ones stay.
void remove_stale_temporaries(const std::string& target) {
  const std::string folder = parent_folder(target);
  const std::string prefix = temporary_prefix(target);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_temporary(name, prefix)) continue;
    const OpenFile stale = locked(join_path(folder, name), LOCK_EX | LOCK_NB);
    std::error_code ignored;
    if (stale.fd.valid()) std::filesystem::remove_all(stale.path, ignored);
  }
}

// Removes stale temporaries for `target`. Returns a path for a new one.
std::string own_temporary(const std::string& target) {
  remove_stale_temporaries(target);
  return join_path(parent_folder(target),
                   format_text("{}{:013x}.tmp", temporary_prefix(target), random_word() >> 12));
}

// Keeps the new temporary locked until it is gone or has its final name. Returns false if another
// process has removed it as stale before it was locked.
bool hold(const std::string& path) {
  static std::vector<OpenFile> held;
  std::erase_if(held, [](const OpenFile& file) { return !is_same_file(file.path, file); });
  OpenFile file = locked(path, LOCK_EX);
  if (!file.fd.valid() || !is_same_file(path, file)) return kind_of(path) != Kind::kAbsent;
  held.push_back(std::move(file));
  return true;
}

// Makes a temporary for `target` by `make`, which returns whether it could. Tries again if the
// temporary was removed before it was locked.
Result<std::string> make_temporary(const std::string& target,
                                   const std::function<bool(const std::string& path)>& make) {
  while (true) {
    const std::string path = own_temporary(target);
    if (!make(path)) {
      return fault("{}: cannot be written: {}: {}", target, path, std::strerror(errno));
    }
    if (hold(path)) return path;
  }
}

Status check_folder(const std::string& path) {
  const std::string folder = parent_folder(path);
  if (kind_of(folder) == Kind::kFolder) return ok_status();
  return input_error("{}: cannot be written: expected a folder {}, found {}", path, folder,
                     kind_of(folder) == Kind::kAbsent ? "none" : "a file");
}

// If two weights had the same bytes, trained values would overwrite each other.
Status check_weights_apart(const OnnxFile& input) {
  std::vector<const Initializer*> weights;
  for (const Initializer& weight : input.initializers()) {
    if (weight.file != 0 && weight.bytes != 0) weights.push_back(&weight);
  }
  auto place = [](const Initializer* w) { return std::pair(w->file, w->offset); };
  std::ranges::sort(weights, {}, place);
  for (size_t i = 1; i < weights.size(); ++i) {
    const Initializer& a = *weights[i - 1];
    const Initializer& b = *weights[i];
    if (a.file != b.file || a.offset + a.bytes <= b.offset) continue;
    return input_error(
        "{}: cannot be written as trained: initializers '{}' (to byte {}) and '{}' (from byte {}) "
        "share bytes of their external data",
        input.path(), printable(a.name), a.offset + a.bytes, printable(b.name), b.offset);
  }
  return ok_status();
}

}  // namespace

Status check_output_path(const std::string& path) {
  if (path.empty()) return input_error("output: expected a path of a file, found an empty one");
  OFSDP_RETURN_IF_ERROR(check_folder(path));
  const Kind kind = kind_of(path);
  OFSDP_REJECT_IF(kind == Kind::kFolder || base_filename(path).empty(),
                  "{}: cannot be written: expected a path of a file, found a folder", path);
  OFSDP_REJECT_IF(kind == Kind::kOther,
                  "{}: cannot be written: expected a regular file, found a device or pipe", path);
  Result<std::string> temporary = create_temporary(path);
  if (!temporary.ok()) return {ErrorKind::kInput, temporary.error().message()};
  unlink(temporary->c_str());
  return ok_status();
}

Status check_output_path(const std::string& path, const OnnxFile& input) {
  OFSDP_RETURN_IF_ERROR(check_output_path(path));
  const auto& data_files = input.contents().data_files;
  if (data_files.empty()) return ok_status();
  OFSDP_REJECT_IF(
      is_same_file(path, input.file()),
      "{}: cannot be written: expected another file than the input, which has external data in "
      "{}",
      path, printable(data_files[0].location));
  OFSDP_REJECT_IF(is_input_file(path, input),
                  "{}: cannot be written: it holds the external data of the input {}", path,
                  input.path());
  OFSDP_RETURN_IF_ERROR(check_weights_apart(input));
  return choose_locations(path, input).status();
}

Result<std::vector<std::string>> choose_locations(const std::string& path, const OnnxFile& input) {
  constexpr int kMaxTries = 100000;
  const std::string name = base_filename(path);
  const std::vector<std::string> previous = previous_locations(path);
  auto target = [&](const std::string& location) {
    return join_path(parent_folder(path), location);
  };
  auto keeps = [&](const DataFile& data) {
    const std::string& location = data.location;
    if (location.find('/') != std::string::npos || location == name) return false;
    if (kind_of(target(location)) == Kind::kAbsent) return true;
    return std::ranges::find(previous, location) != previous.end() &&
           can_take(target(location), input);
  };
  std::vector<std::string> locations;
  const auto& data_files = input.contents().data_files;
  if (std::ranges::all_of(data_files, keeps)) {
    for (const DataFile& data : data_files) locations.push_back(data.location);
    return locations;
  }
  for (int i = 0; locations.size() < data_files.size() && i < kMaxTries; ++i) {
    const std::string location = i == 0 ? name + ".data" : format_text("{}.{}.data", name, i);
    if (can_take(target(location), input)) locations.push_back(location);
  }
  if (locations.size() == data_files.size()) return locations;
  return input_error("{}: found no free names for its {} files of external data", path,
                     data_files.size());
}

Status check_output_folder(const std::string& path, const std::vector<std::string>& names) {
  if (path.empty()) return input_error("output: expected a path of a folder, found an empty one");
  OFSDP_RETURN_IF_ERROR(check_folder(path));
  const Kind kind = kind_of(path);
  OFSDP_REJECT_IF(kind != Kind::kAbsent && kind != Kind::kFolder,
                  "{}: cannot be written: expected a path of a folder, found a file", path);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (std::ranges::find(names, name) != names.end() && entry->is_regular_file(error)) continue;
    return input_error(
        "{}: cannot be written: expected a new folder, or one of an earlier --output, found '{}' "
        "in it",
        path, printable(name));
  }
  Result<std::string> temporary = create_temporary_folder(path);
  if (!temporary.ok()) return {ErrorKind::kInput, temporary.error().message()};
  rmdir(temporary->c_str());
  return ok_status();
}

Result<std::string> create_temporary_folder(const std::string& target) {
  return make_temporary(target,
                        [](const std::string& path) { return mkdir(path.c_str(), 0777) == 0; });
}

// NFS and CIFS have no flags.
bool take_free_name(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  return (errno == EINVAL || errno == ENOSYS) && rename(from.c_str(), to.c_str()) == 0;
}

Status replace_folder(const std::string& temporary, const std::string& path) {
  const bool replaces = kind_of(path) == Kind::kFolder;
  const bool done = replaces ? exchange_names(temporary, path, temporary + ".aside")
                             : take_free_name(temporary, path);
  OFSDP_FAULT_IF(!done, "{}: cannot be renamed from {}: {}", path, temporary, std::strerror(errno));
  OFSDP_RETURN_IF_ERROR(sync_folder(parent_folder(path)));
  std::error_code ignored;
  if (replaces) std::filesystem::remove_all(temporary, ignored);
  return ok_status();
}

Result<std::string> create_temporary(const std::string& target) {
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  return make_temporary(target, [](const std::string& path) {
    return UniqueFd(open(path.c_str(), kNew, 0666)).valid();
  });
}

Status write_whole(const std::string& path,
                   const std::function<Status(const std::string& temporary)>& fill) {
  OFSDP_ASSIGN_OR_RETURN(const std::string temporary, create_temporary(path));
  Status status = fill(temporary);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = fault("{}: cannot be renamed from {}: {}", path, temporary, std::strerror(errno));
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

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
  return sync_folder(parent_folder(targets_[0].path));
}

void ModelOutput::discard() {
  if (!owner_) return;
  for (const Target& target : targets_) unlink(target.temporary.c_str());
  owner_ = false;
}

Status ModelOutput::create_files(const OnnxFile& input, const std::string& path) {
  std::vector<std::string> paths = {path};
  for (size_t i = 0; i < input.contents().data_files.size(); ++i) {
    paths.push_back(join_path(parent_folder(path), locations_[i]));
  }
  for (const std::string& target : paths) {
    OFSDP_ASSIGN_OR_RETURN(std::string temporary, create_temporary(target));
    targets_.push_back({target, std::move(temporary)});
  }
  return ok_status();
}

Status ModelOutput::lay_out(const OnnxFile& input) {
  folder_ = parent_folder(targets_[0].temporary);
  std::vector<std::string> names;
  for (const Target& target : targets_) names.push_back(base_filename(target.temporary));
  OFSDP_ASSIGN_OR_RETURN(copy_, ModelCopy::make(input, names, locations_, {}, false));
  return ok_status();
}

TensorLayout lay_out_safetensors(const std::vector<Initializer>& tensors,
                                 const std::map<std::string, std::string>& metadata) {
  TensorLayout layout;
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}, {"producer", "onnx-fsdp"}}}};
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  int64_t end = 0;
  for (Initializer place : tensors) {
    place.file = 0;
    if (place.quantization != nullptr) {  // the values that were trained, not their integers
      place.quantization = nullptr;
      place.bits = 0;
      place.dtype = DType::kFloat32;
    }
    place.values = nullptr;
    place.encoding = Initializer::Encoding::kDense;
    place.stride = static_cast<int64_t>(dtype_size(place.dtype));
    place.offset = end;
    place.bytes = place.shape.numel() * place.stride;
    end += place.bytes;
    header[place.name] = {{"dtype", safetensors_type(place.dtype)},
                          {"shape", place.shape.axes()},
                          {"data_offsets", {place.offset, end}}};
    layout.places.push_back(std::move(place));
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (size_t i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  layout.texts.push_back({0, length + text});
  for (Initializer& place : layout.places) {
    place.offset += static_cast<int64_t>(length.size() + text.size());
  }
  return layout;
}

}  // namespace ofsdp::importer
