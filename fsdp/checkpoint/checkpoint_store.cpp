#include "fsdp/checkpoint/checkpoint_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <regex>

#include "fsdp/checkpoint/disk.h"
#include "kernels/base/host_tasks.h"
#include "kernels/base/overlap.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

constexpr const char* kBestLink = "best";

bool is_checkpoint_name(const std::string& name) { return name.starts_with("step-"); }

// Matches ".step-00000120.0123456789abc.tmp", ".step-00000120.old.tmp", ".best.tmp".
bool is_our_temporary(const std::string& name) {
  static const std::regex kForm(R"(\.(step-\d{8,}\.([0-9a-f]{13}|old)|best)\.tmp)");
  return std::regex_match(name, kForm);
}

// A checkpoint's name while another save for the same step replaces it.
std::string aside_path(const std::string& dir, const std::string& name) {
  return join_path(dir, "." + name + ".aside");
}

// If a kill left the entry aside, renames it back, or removes it if it was replaced. Returns the
// entry's name.
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
  // A file that several ranks wrote (a full checkpoint's model) is listed by each. Joins these
  // entries; slices stay in rank order.
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
  OFSDP_RETURN_IF_ERROR(remove_all(folder));  // the checkpoint for this step that it replaced
  std::erase_if(entries_, [&](const Entry& e) { return e.name == name; });
  entries_.push_back({name, manifest.sequence, manifest.evaluation});
  OFSDP_RETURN_IF_ERROR(link_best());
  return remove_old();
}

void CheckpointStore::set_aside(const std::string& name) {
  std::erase_if(entries_, [&](const Entry& e) { return e.name == name; });
  if (linked_best() == name) {
    (void)link_best();
    if (linked_best() == name)
      unlink(join_path(dir_, kBestLink).c_str());  // no other has an evaluation
  }
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
  return is_better(retention_.lower, number(a), number(b));
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

std::string CheckpointStore::linked_best() const {
  std::error_code error;
  return std::filesystem::read_symlink(join_path(dir_, kBestLink), error).string();
}

// Renames first, so that no half-removed folder has a checkpoint's name. Without --keep-best the
// best checkpoint of an earlier run stays, since its link does.
Status CheckpointStore::remove_old() {
  const std::string keep = best() == nullptr ? linked_best() : best()->name;
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

// [Note: harmed or unreadable] Only bytes prove harm: a length, a checksum, a manifest, a file that
// is listed but absent. That is kInput. Any other system error (EIO, ESTALE, EMFILE, EACCES) is
// kFault, since the checkpoint may be good and must not be passed over.
Result<OpenFile> open_listed(const std::string& folder, const CheckpointFile& file) {
  const std::string path = join_path(folder, file.name);
  Result<OpenFile> opened = open_for_reading(path);
  if (opened.ok()) {
    OFSDP_REJECT_IF(opened->bytes != file.bytes, "{}: expected {} bytes, found {}", file.name,
                    file.bytes, opened->bytes);
    return opened;
  }
  const std::string& why = opened.error().message();
  OFSDP_REJECT_IF(is_absent(path), "{} is missing: {}", file.name, why);
  return Status(ErrorKind::kFault, why);
}

BlockReader::BlockReader(std::string folder)
    : folder_(std::move(folder)), block_(static_cast<size_t>(kChecksumBlock)) {}

Status BlockReader::use_file(const CheckpointFile& file) {
  if (name_ == file.name) return ok_status();
  name_.clear();
  OFSDP_ASSIGN_OR_RETURN(file_, prefixed(folder_, open_listed(folder_, file)));
  name_ = file.name;
  return ok_status();
}

Status BlockReader::read(const CheckpointFile& file, const Slice& slice, int64_t block,
                         std::span<std::byte> dst) {
  const int64_t at = slice.offset + block * kChecksumBlock;
  OFSDP_RETURN_IF_ERROR(use_file(file));
  OFSDP_RETURN_IF_ERROR(read_exactly(file_, at, dst));
  const uint32_t expected = slice.checksums[static_cast<size_t>(block)];
  const uint32_t found = crc32c(dst);
  if (expected == found) return ok_status();
  return input_error(
      "{}: {} of '{}': expected checksum {:08x} of {} bytes at byte {}, found {:08x}", file_.path,
      slice.kind, slice.name, expected, dst.size(), at, found);
}

Result<std::span<const std::byte>> BlockReader::read(const CheckpointFile& file, const Slice& slice,
                                                     int64_t block) {
  const int64_t bytes = std::min(kChecksumBlock, slice.bytes() - block * kChecksumBlock);
  const auto whole = std::span(block_).first(static_cast<size_t>(bytes));
  OFSDP_RETURN_IF_ERROR(read(file, slice, block, whole));
  return std::span<const std::byte>(whole);
}

Status BlockReader::check_header(const CheckpointFile& file, const std::string& save) {
  if (!file.header) return ok_status();
  OFSDP_RETURN_IF_ERROR(use_file(file));
  uint32_t found = 0;
  int64_t at = 0;
  auto add_until = [&](int64_t end) -> Status {
    while (at < end) {
      const auto part = std::span(block_).first(
          static_cast<size_t>(std::min(end - at, static_cast<int64_t>(block_.size()))));
      OFSDP_RETURN_IF_ERROR(read_exactly(file_, at, part));
      found = crc32c(part, found);
      at += static_cast<int64_t>(part.size());
    }
    return ok_status();
  };
  for (const Slice& slice : file.slices) {
    OFSDP_RETURN_IF_ERROR(add_until(slice.offset));
    at = slice.offset + slice.bytes();
  }
  OFSDP_RETURN_IF_ERROR(add_until(file.bytes));
  if (found == *file.header) return ok_status();
  return input_error(
      "{}: its ONNX header has checksum {:08x}, expected {:08x}: it was changed, or is the file of "
      "another save than {}",
      file_.path, found, *file.header, save);
}

namespace {

// Sorts extents by first element and cuts off elements that an earlier one has.
template <typename Extents>
void sort_and_cut(Extents& extents) {
  std::ranges::stable_sort(extents, {}, [](const auto& e) { return e.first; });
  Extents kept;
  int64_t end = 0;
  for (auto e : extents) {
    const int64_t skip = std::max<int64_t>(end - e.first, 0);
    if (skip >= e.count) continue;
    e.first += skip;
    e.at += skip;
    e.count -= skip;
    end = e.first + e.count;
    kept.push_back(e);
  }
  extents = std::move(kept);
}

struct Range {
  int64_t begin, end;
  bool has(int64_t i) const { return i >= begin && i < end; }
};

Range part_of(int64_t count, int64_t share, int64_t shares) {
  return {count * share / shares, count * (share + 1) / shares};
}

}  // namespace

Result<CheckpointReader> CheckpointReader::open(const std::string& folder, int share, int shares) {
  CheckpointReader reader(folder);
  OFSDP_ASSIGN_OR_RETURN(reader.manifest_, read_manifest(folder));
  OFSDP_RETURN_IF_ERROR(reader.check_sizes(share, shares).with_prefix(folder));
  for (size_t f = 0; f < reader.manifest_.files.size(); ++f) {
    for (size_t s = 0; s < reader.manifest_.files[f].slices.size(); ++s) reader.index_slice(f, s);
  }
  OFSDP_RETURN_IF_ERROR(reader.check_coverage().with_prefix(folder));
  return reader;
}

Status CheckpointReader::check_sizes(int share, int shares) const {
  const Range files = part_of(std::ssize(manifest_.files), share, shares);
  for (int64_t f = files.begin; f < files.end; ++f) {
    const CheckpointFile& file = manifest_.files[static_cast<size_t>(f)];
    OFSDP_RETURN_IF_ERROR(open_listed(folder_, file).status());
  }
  return ok_status();
}

void CheckpointReader::index_slice(size_t file, size_t slice) {
  const CheckpointFile& f = manifest_.files[file];
  const Slice& s = f.slices[slice];
  const Extent extent{file, slice, 0, s.first, s.count};
  if (s.kind == kStatisticKind) {
    statistics_.emplace(std::pair(s.name, f.rank), extent);
  } else if (manifest_.type == "local" &&
             (s.kind == kParameterKind || manifest_.state_tensors.empty())) {
    index_unit(file, slice);
  } else {
    extents_[{s.kind, s.name}].push_back(extent);
  }
}

// Adds the parameters in an element range of a unit.
void CheckpointReader::index_unit(size_t file, size_t slice) {
  const Slice& s = manifest_.files[file].slices[slice];
  const auto add = [&](const UnitLayout::Part& p, int64_t first, int64_t at, int64_t count) {
    extents_[{s.kind, p.name}].push_back({file, slice, at, first, count});
    return ok_status();
  };
  (void)for_each_part(manifest_.units[std::stoul(s.name)].params, s.first, s.count, add);
}

Status CheckpointReader::check_coverage() {
  for (auto& [key, extents] : extents_) sort_and_cut(extents);
  std::vector<StateTensor> tensors = saved_states(manifest_);
  for (const NamedTensor& tensor : manifest_.trained) {
    tensors.push_back({kParameterKind, tensor.name, tensor.shape});
  }
  for (const auto& [kind, name, shape] : tensors) {
    int64_t end = 0;
    for (const Extent& e : extents_[{kind, name}]) end = e.first == end ? end + e.count : end;
    if (end == shape.numel()) continue;
    return input_error("{} of '{}': expected {} elements, found the first {}", kind, name,
                       shape.numel(), end);
  }
  for (const NamedTensor& tensor : manifest_.statistics) {
    const auto found = statistics_.find({tensor.name, 0});
    if (found != statistics_.end() && found->second.count == tensor.shape.numel()) continue;
    return input_error("running statistics '{}' of rank 0 are not in it", tensor.name);
  }
  return ok_status();
}

// Divides the blocks into equal parts, each with a reader.
Status CheckpointReader::verify(int share, int shares, int threads) const {
  struct Block {
    size_t file;
    const Slice* slice;
    int64_t block;
  };
  int64_t blocks = 0, number = 0;
  for (const CheckpointFile& file : manifest_.files) {
    for (const Slice& slice : file.slices) blocks += slice.blocks();
  }
  const Range my_files = part_of(std::ssize(manifest_.files), share, shares);
  const Range my_blocks = part_of(blocks, share, shares);
  std::vector<Block> mine;
  std::vector<size_t> headers;
  for (size_t f = 0; f < manifest_.files.size(); ++f) {
    if (my_files.has(static_cast<int64_t>(f))) headers.push_back(f);
    for (const Slice& slice : manifest_.files[f].slices) {
      for (int64_t block = 0; block < slice.blocks(); ++block, ++number) {
        if (my_blocks.has(number)) mine.push_back({f, &slice, block});
      }
    }
  }
  const auto parts = std::max<size_t>(1, static_cast<size_t>(threads));
  return for_each_task(threads, static_cast<int64_t>(parts), [&](int64_t i) -> Status {
    const auto part = static_cast<size_t>(i);
    BlockReader reader(folder_);
    for (size_t h = part; h < headers.size(); h += parts) {
      OFSDP_RETURN_IF_ERROR(reader.check_header(manifest_.files[headers[h]], manifest_.save));
    }
    for (size_t k = mine.size() * part / parts; k < mine.size() * (part + 1) / parts; ++k) {
      const auto& [file, slice, block] = mine[k];
      OFSDP_RETURN_IF_ERROR(reader.read(manifest_.files[file], *slice, block).status());
    }
    return ok_status();
  });
}

Status CheckpointReader::read_extent(const Extent& extent, int64_t first, std::span<float> dst) {
  const CheckpointFile& file = manifest_.files[extent.file];
  const Slice& slice = file.slices[extent.slice];
  int64_t at = (extent.at + first - extent.first) * 4;  // byte in the slice
  auto rest = std::as_writable_bytes(dst);
  while (!rest.empty()) {
    const int64_t block = at / kChecksumBlock;
    const int64_t begin = block * kChecksumBlock;
    const auto bytes = static_cast<size_t>(std::min(kChecksumBlock, slice.bytes() - begin));
    const auto part = std::min(rest.size(), bytes - static_cast<size_t>(at - begin));
    if (part == bytes) {
      OFSDP_RETURN_IF_ERROR(blocks_.read(file, slice, block, rest.first(part)));
    } else {
      OFSDP_ASSIGN_OR_RETURN(const auto whole, blocks_.read(file, slice, block));
      std::memcpy(rest.data(), whole.data() + (at - begin), part);
    }
    rest = rest.subspan(part);
    at += static_cast<int64_t>(part);
  }
  return ok_status();
}

Status CheckpointReader::read(const std::string& kind, const std::string& name, int64_t first,
                              std::span<float> dst) {
  const auto found = extents_.find({kind, name});
  if (found == extents_.end()) return input_error("{}: no {} of '{}'", folder_, kind, name);
  for (const Extent& e : found->second) {
    if (dst.empty()) return ok_status();
    const int64_t skip = first - e.first;
    if (skip < 0 || skip >= e.count) continue;
    const auto part = dst.first(std::min(dst.size(), static_cast<size_t>(e.count - skip)));
    OFSDP_RETURN_IF_ERROR(read_extent(e, first, part));
    first += static_cast<int64_t>(part.size());
    dst = dst.subspan(part.size());
  }
  if (dst.empty()) return ok_status();
  return input_error("{}: {} of '{}' has no element {}", folder_, kind, name, first);
}

Status CheckpointReader::read_statistic(const std::string& name, int rank, std::span<float> dst) {
  auto found = statistics_.find({name, rank});
  if (found == statistics_.end()) found = statistics_.find({name, 0});
  OFSDP_REJECT_IF(
      found == statistics_.end() || found->second.count != static_cast<int64_t>(dst.size()),
      "{}: no running statistics '{}' of {} elements", folder_, name, dst.size());
  return read_extent(found->second, found->second.first, dst);
}

}  // namespace ofsdp::fsdp
