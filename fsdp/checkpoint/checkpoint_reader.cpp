#include "fsdp/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>

#include "fsdp/checkpoint/disk.h"
#include "kernels/base/for_each_task.h"
#include "kernels/base/overlap.h"
#include "kernels/base/reject.h"

namespace ofsdp::fsdp {

// [Note: harmed or unreadable] Only bytes prove harm: a length, a checksum, a manifest, a file that
// is listed but absent. That is kInput. Any other error of the system (EIO, ESTALE, EMFILE, EACCES)
// is kFault, since the checkpoint may be good and must not be passed over.
Result<OpenFile> open_listed(const std::string& folder, const std::string& name) {
  const std::string path = join_path(folder, name);
  Result<OpenFile> opened = open_for_reading(path);
  if (opened.ok()) return opened;
  const std::string& why = opened.error().message();
  OFSDP_REJECT_IF(is_absent(path), "{} is missing: {}", name, why);
  return Status(ErrorKind::kFault, why);
}

BlockReader::BlockReader(std::string folder)
    : folder_(std::move(folder)), block_(static_cast<size_t>(kChecksumBlock)) {}

Status BlockReader::use_file(const std::string& name) {
  if (name_ == name) return ok_status();
  name_.clear();
  OFSDP_ASSIGN_OR_RETURN(file_, open_listed(folder_, name));
  name_ = name;
  return ok_status();
}

Status BlockReader::read(const CheckpointFile& file, const Slice& slice, int64_t block,
                         std::span<std::byte> dst) {
  const int64_t at = slice.offset + block * kChecksumBlock;
  OFSDP_RETURN_IF_ERROR(use_file(file.name));
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
  OFSDP_RETURN_IF_ERROR(use_file(file.name));
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

}  // namespace

Result<CheckpointReader> CheckpointReader::open(const std::string& folder) {
  CheckpointReader reader(folder);
  OFSDP_ASSIGN_OR_RETURN(reader.manifest_, read_manifest(folder));
  OFSDP_RETURN_IF_ERROR(reader.check_sizes().with_prefix(folder));
  for (size_t f = 0; f < reader.manifest_.files.size(); ++f) {
    for (size_t s = 0; s < reader.manifest_.files[f].slices.size(); ++s) reader.index_slice(f, s);
  }
  OFSDP_RETURN_IF_ERROR(reader.check_coverage().with_prefix(folder));
  return reader;
}

Status CheckpointReader::check_sizes() const {
  for (const CheckpointFile& file : manifest_.files) {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile opened, open_listed(folder_, file.name));
    if (opened.bytes == file.bytes) continue;
    return input_error("{}: expected {} bytes, found {}", file.name, file.bytes, opened.bytes);
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

// Adds the parameters in a range of a unit's elements.
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
  std::vector<Block> mine;
  std::vector<size_t> headers;
  int64_t number = 0;
  for (size_t f = 0; f < manifest_.files.size(); ++f) {
    if (static_cast<int>(f) % shares == share) headers.push_back(f);
    for (const Slice& slice : manifest_.files[f].slices) {
      for (int64_t block = 0; block < slice.blocks(); ++block, ++number) {
        if (number % shares == share) mine.push_back({f, &slice, block});
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
