#include "fsdp/checkpoint/block_reader.h"

#include <algorithm>

#include "fsdp/checkpoint/crc32c.h"
#include "fsdp/checkpoint/disk.h"
#include "kernels/base/reject.h"

namespace ofsdp::fsdp {

// [Note: harmed or unreadable] Bytes prove harm: a length, a checksum, a manifest, a file that is
// listed and absent. That is kInput. Whatever else the system says (EIO, ESTALE, EMFILE, EACCES) is
// a fault, since the checkpoint may be good: nobody may pass over it for that.
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

}  // namespace ofsdp::fsdp
