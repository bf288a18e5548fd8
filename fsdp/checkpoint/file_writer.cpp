#include "fsdp/checkpoint/file_writer.h"

#include <algorithm>

#include "fsdp/checkpoint/crc32c.h"
#include "fsdp/checkpoint/disk.h"

namespace ofsdp::fsdp {
namespace {

constexpr int64_t kWritebackBytes = int64_t{16} << 20;

class FileWriter {
 public:
  FileWriter(OpenFile file, const PlannedFile& planned, const std::atomic<bool>& cancelled)
      : file_(std::move(file)), planned_(planned), cancelled_(cancelled), record_(planned.file) {}

  Result<CheckpointFile> write() {
    OFSDP_RETURN_IF_ERROR(write_headers());
    for (size_t i = 0; i < record_.slices.size(); ++i) {
      OFSDP_RETURN_IF_ERROR(write_slice(record_.slices[i], planned_.sources[i]));
    }
    OFSDP_RETURN_IF_ERROR(sync_file(file_));
    return std::move(record_);
  }

 private:
  Status write_headers() {
    if (planned_.headers.empty()) return ok_status();
    record_.header = 0;
    for (const PlannedFile::Header& header : planned_.headers) {
      const auto bytes = std::as_bytes(std::span(header.bytes));
      record_.header = crc32c(bytes, *record_.header);
      OFSDP_RETURN_IF_ERROR(write_exactly(file_, header.offset, bytes));
    }
    return ok_status();
  }

  Status write_slice(Slice& slice, const float* source) {
    const auto all = std::as_bytes(std::span(source, static_cast<size_t>(slice.count)));
    slice.checksums.clear();
    for (int64_t at = 0; at < slice.bytes(); at += kChecksumBlock) {
      if (cancelled_) return fault("{}: not written: the run ends", file_.path);
      const int64_t bytes = std::min(kChecksumBlock, slice.bytes() - at);
      const auto block = all.subspan(static_cast<size_t>(at), static_cast<size_t>(bytes));
      slice.checksums.push_back(crc32c(block));
      OFSDP_RETURN_IF_ERROR(write_exactly(file_, slice.offset + at, block));
      OFSDP_RETURN_IF_ERROR(write_behind(slice.offset + at + bytes));
    }
    return ok_status();
  }

  Status write_behind(int64_t end) {
    if (end < behind_) behind_ = end;  // slices of a shared file may go back
    if (end - behind_ < kWritebackBytes) return ok_status();
    const int64_t begin = behind_;
    behind_ = end;
    return start_writeback(file_, begin, end - begin);
  }

  OpenFile file_;
  const PlannedFile& planned_;
  const std::atomic<bool>& cancelled_;
  CheckpointFile record_;
  int64_t behind_ = 0;
};

}  // namespace

Result<CheckpointFile> write_planned_file(const std::string& folder, const PlannedFile& planned,
                                          const std::atomic<bool>& cancelled) {
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, create_file(join_path(folder, planned.file.name)));
  return FileWriter(std::move(file), planned, cancelled).write();
}

}  // namespace ofsdp::fsdp
