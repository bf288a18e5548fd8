#include "fsdp/checkpoint/checkpoint_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <regex>

#include "kernels/base/reject.h"

namespace ofsdp::fsdp {
namespace {

constexpr const char* kBestLink = "best";

bool is_checkpoint_name(const std::string& name) { return name.starts_with("step-"); }

// Matches ".step-00000120.0123456789abc.tmp", ".step-00000120.old.tmp", ".best.tmp".
bool is_our_temporary(const std::string& name) {
  static const std::regex kForm(R"(\.(step-\d{8,}\.([0-9a-f]{13}|old)|best)\.tmp)");
  return std::regex_match(name, kForm);
}

// The name of a checkpoint for the moment in which another save of the same step replaces it.
std::string aside_path(const std::string& dir, const std::string& name) {
  return join_path(dir, "." + name + ".aside");
}

// If a kill left the entry aside, renames it back, or removes it if it was replaced. Returns the
// name of the entry.
Result<std::string> restore_name(const std::string& dir, const std::string& entry) {
  static const std::regex kForm(R"(\.(step-\d{8,})\.aside)");
  std::smatch found;
  if (!std::regex_match(entry, found, kForm)) return entry;
  const std::string path = join_path(dir, entry), name = join_path(dir, found[1]);
  const bool replaced = !is_absent(name);
  OFSDP_RETURN_IF_ERROR(replaced ? remove_all(path) : take_name(path, name));
  return replaced ? entry : std::string(found[1]);
}

std::string part_path(const std::string& folder, int rank) {
  return join_path(folder, format_text(".part-{}.json", rank));
}

}  // namespace

std::string checkpoint_name(int64_t step) { return format_text("step-{:08}", step); }

std::string save_folder(const std::string& dir, int64_t step, const std::string& token) {
  return join_path(dir, format_text(".{}.{}.tmp", checkpoint_name(step), token));
}

Result<std::vector<std::string>> complete_checkpoints(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> found;
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, list_folder(dir));
  for (const std::string& name : all) {
    const std::string folder = join_path(dir, name);
    if (!is_checkpoint_name(name) || is_absent(join_path(folder, kManifestName))) continue;
    const auto manifest = read_manifest(folder);
    // A harmed manifest counts too, so that the run can report it.
    found.emplace_back(manifest.ok() ? manifest->sequence : INT64_MAX, name);
  }
  std::ranges::sort(found, std::greater());
  std::vector<std::string> names;
  for (auto& [sequence, name] : found) names.push_back(std::move(name));
  return names;
}

Status write_part(const std::string& folder, int rank, const std::vector<CheckpointFile>& files) {
  return write_whole_file(part_path(folder, rank), to_text(files));
}

Result<CheckpointStore> CheckpointStore::open(const std::string& dir, const Retention& retention) {
  CheckpointStore store;
  store.dir_ = dir;
  store.retention_ = retention;
  if (Status made = make_folders(dir); !made.ok()) {
    return Status(ErrorKind::kInput, "--checkpoint-dir: " + made.message());
  }
  Result<LockedFile> lock = LockedFile::lock(join_path(dir, ".lock"));
  if (!lock.ok()) return Status(ErrorKind::kInput, "--checkpoint-dir: " + lock.error().message());
  store.lock_ = *std::move(lock);
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> entries, list_folder(dir));
  for (const std::string& entry : entries) {
    OFSDP_ASSIGN_OR_RETURN(const std::string name, restore_name(dir, entry));
    const std::string path = join_path(dir, name);
    if (is_our_temporary(name)) {
      OFSDP_RETURN_IF_ERROR(remove_all(path));
      continue;
    }
    if (!is_checkpoint_name(name)) continue;
    auto manifest = read_manifest(path);
    // Only bytes prove harm: a checkpoint that cannot be read may be good, and newer than all
    // others.
    if (!manifest.ok() && manifest.error().kind() == ErrorKind::kFault)
      return std::move(manifest).status();
    if (manifest.ok()) {
      store.entries_.push_back({name, manifest->sequence, manifest->evaluation});
    }
  }
  std::ranges::sort(store.entries_, {}, [](const Entry& e) { return e.sequence; });
  return store;
}

Status CheckpointStore::gather_parts(const std::string& folder, Manifest& manifest) const {
  for (int rank = 0; rank < manifest.world; ++rank) {
    const std::string path = part_path(folder, rank);
    OFSDP_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxManifest));
    OFSDP_ASSIGN_OR_RETURN(const auto files, prefixed(path, parse_files(text)));
    manifest.files.insert(manifest.files.end(), files.begin(), files.end());
  }
  // A file that several ranks wrote (the model of a full checkpoint) is listed by each of them.
  // Joins these entries; slices stay in rank order.
  std::vector<CheckpointFile> joined;
  for (CheckpointFile& file : manifest.files) {
    const auto same = std::ranges::find(joined, file.name, &CheckpointFile::name);
    if (same == joined.end()) {
      joined.push_back(std::move(file));
      continue;
    }
    std::ranges::move(file.slices, std::back_inserter(same->slices));
  }
  manifest.files = std::move(joined);
  for (int rank = 0; rank < manifest.world; ++rank) {
    OFSDP_RETURN_IF_ERROR(remove_all(part_path(folder, rank)));
  }
  return ok_status();
}

Status CheckpointStore::commit(const std::string& folder, Manifest manifest) {
  manifest.sequence = entries_.empty() ? 1 : entries_.back().sequence + 1;
  OFSDP_RETURN_IF_ERROR(gather_parts(folder, manifest));
  OFSDP_RETURN_IF_ERROR(sync_folder(folder));
  const std::string text = to_text(manifest);
  const std::string path = join_path(folder, kManifestName);
  OFSDP_RETURN_IF_ERROR(write_whole_file(path + ".tmp", text));
  OFSDP_RETURN_IF_ERROR(take_name(path + ".tmp", path));
  OFSDP_RETURN_IF_ERROR(sync_folder(folder));
  const std::string name = checkpoint_name(manifest.step);
  OFSDP_RETURN_IF_ERROR(take_name(folder, join_path(dir_, name), aside_path(dir_, name)));
  OFSDP_RETURN_IF_ERROR(sync_folder(dir_));
  OFSDP_RETURN_IF_ERROR(remove_all(folder));  // the checkpoint of this step that it replaced
  std::erase_if(entries_, [&](const Entry& e) { return e.name == name; });
  entries_.push_back({name, manifest.sequence, manifest.evaluation});
  OFSDP_RETURN_IF_ERROR(link_best());
  return remove_old();
}

void CheckpointStore::set_aside(const std::string& name) {
  std::erase_if(entries_, [&](const Entry& e) { return e.name == name; });
  const std::string bad = join_path(dir_, "bad-" + name);
  std::string free = bad;
  for (int i = 2; !is_absent(free) && i < 1000; ++i) free = format_text("{}.{}", bad, i);
  (void)take_name(join_path(dir_, name), free);  // if this fails, it keeps the name
}

bool CheckpointStore::better(const SavedEvaluation& a, const SavedEvaluation& b) const {
  const auto number = [this](const SavedEvaluation& e) {
    const auto found = e.numbers.find(retention_.best);
    const bool there = found != e.numbers.end() && found->second;
    return there ? *found->second : std::numeric_limits<double>::quiet_NaN();
  };
  return is_better(retention_.best, number(a), number(b));
}

const CheckpointStore::Entry* CheckpointStore::best() const {
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (retention_.best.empty() || !entry.evaluation) continue;
    const SavedEvaluation none;
    if (better(*entry.evaluation, found == nullptr ? none : *found->evaluation)) found = &entry;
  }
  return found;
}

bool CheckpointStore::is_best(const SavedEvaluation& evaluation) const {
  const Entry* so_far = best();
  const SavedEvaluation none;
  return better(evaluation, so_far == nullptr ? none : *so_far->evaluation);
}

Status CheckpointStore::link_best() const {
  const Entry* entry = best();
  if (entry == nullptr) return ok_status();
  const std::string link = join_path(dir_, kBestLink);
  const std::string temporary = join_path(dir_, format_text(".{}.tmp", kBestLink));
  unlink(temporary.c_str());
  if (symlink(entry->name.c_str(), temporary.c_str()) == 0 &&
      rename(temporary.c_str(), link.c_str()) == 0) {
    return ok_status();
  }
  return fault("{}: cannot become a link to {}: {}", link, entry->name, std::strerror(errno));
}

// Renames first, so that no half-removed folder has the name of a checkpoint.
Status CheckpointStore::remove_old() {
  const std::string keep = best() == nullptr ? "" : best()->name;
  while (static_cast<int64_t>(entries_.size()) > retention_.keep) {
    const auto last = entries_.end() - retention_.keep;
    const auto old =
        std::find_if(entries_.begin(), last, [&](const Entry& e) { return e.name != keep; });
    if (old == last) break;
    const std::string folder = join_path(dir_, old->name);
    const std::string doomed = join_path(dir_, "." + old->name + ".old.tmp");
    OFSDP_RETURN_IF_ERROR(remove_all(doomed));
    OFSDP_RETURN_IF_ERROR(take_name(folder, doomed));
    OFSDP_RETURN_IF_ERROR(remove_all(doomed));
    entries_.erase(old);
  }
  return ok_status();
}

}  // namespace ofsdp::fsdp
