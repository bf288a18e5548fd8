#include "fsdp/checkpoint/shard_file.h"

#include <algorithm>

#include "fsdp/checkpoint/disk.h"
#include "importer/file/wire.h"

namespace ofsdp::fsdp {
namespace {

// Field numbers in ModelProto, GraphProto, TensorProto and StringStringEntryProto.
enum : uint32_t { kIrVersion = 1, kProducer = 2, kGraph = 7, kOpset = 8, kModelMetadata = 14 };
enum : uint32_t { kGraphName = 2, kInitializer = 5 };
enum : uint32_t { kDims = 1, kDataType = 2, kName = 8, kRawData = 9, kTensorMetadata = 16 };

// Returns a metadata entry as a whole field.
std::string metadata(uint32_t field, const std::string& key, const std::string& value) {
  return bytes_field(field, bytes_field(1, "onnx_fsdp." + key) + bytes_field(2, value));
}

std::string initializer_name(const Slice& slice, bool several) {
  std::string name = slice.name;
  if (slice.kind != kParameterKind && slice.kind != kStatisticKind) name += ":" + slice.kind;
  return several ? format_text("{}@{}", name, slice.first) : name;
}

// Returns the TensorProto up to the data: it ends with raw_data's tag and length.
std::string tensor_head(const SourceSlice& s, bool several) {
  std::string fields;
  append_int(fields, kDims, s.slice.count);
  append_int(fields, kDataType, 1);  // FLOAT
  append_bytes(fields, kName, initializer_name(s.slice, several));
  fields += metadata(kTensorMetadata, "kind", s.slice.kind);
  fields += metadata(kTensorMetadata, "tensor", s.slice.name);
  fields += metadata(kTensorMetadata, "global_shape", s.shape.text());
  fields += metadata(kTensorMetadata, "offset", std::to_string(s.slice.first));
  append_tag(fields, kRawData, WireType::kBytes);
  append_varint(fields, static_cast<uint64_t>(s.slice.bytes()));
  std::string head;
  append_tag(head, kInitializer, WireType::kBytes);
  append_varint(head, fields.size() + static_cast<uint64_t>(s.slice.bytes()));
  return head + fields;
}

std::string model_head(const ShardIdentity& identity, uint64_t graph_bytes) {
  std::string head;
  append_int(head, kIrVersion, 10);  // the first with tensor metadata
  append_bytes(head, kProducer, "onnx-fsdp");
  append_bytes(head, kOpset, int_field(2, 21));
  head += metadata(kModelMetadata, "save", identity.save);
  head += metadata(kModelMetadata, "rank", std::to_string(identity.rank));
  head += metadata(kModelMetadata, "world", std::to_string(identity.world));
  append_tag(head, kGraph, WireType::kBytes);
  append_varint(head, graph_bytes);
  return head;
}

PlannedFile plan_file(const ShardIdentity& identity, const std::vector<SourceSlice>& slices,
                      size_t part) {
  const std::string graph_name = bytes_field(
      kGraphName, format_text("rank {} of {}, part {}", identity.rank, identity.world, part));
  std::vector<std::string> heads;
  uint64_t graph_bytes = graph_name.size();
  for (size_t i = 0; i < slices.size(); ++i) {
    // An initializer has the tensor's plain name unless the file has several slices from it.
    const auto same = [&](const SourceSlice& other) {
      return other.slice.kind == slices[i].slice.kind && other.slice.name == slices[i].slice.name;
    };
    const bool several =
        (i > 0 && same(slices[i - 1])) || (i + 1 < slices.size() && same(slices[i + 1]));
    heads.push_back(tensor_head(slices[i], several));
    graph_bytes += heads.back().size() + static_cast<uint64_t>(slices[i].slice.bytes());
  }
  PlannedFile planned;
  planned.file.name = format_text("rank-{:05}-of-{:05}{}.onnx", identity.rank, identity.world,
                                  part == 0 ? "" : format_text(".{}", part));
  planned.file.rank = identity.rank;
  std::string pending = model_head(identity, graph_bytes) + graph_name;
  int64_t& end = planned.file.bytes;
  for (size_t i = 0; i < slices.size(); ++i) {
    pending += heads[i];
    planned.headers.push_back({end, pending});
    end += static_cast<int64_t>(pending.size());
    pending.clear();
    Slice slice = slices[i].slice;
    slice.offset = end;
    end += slice.bytes();
    planned.file.slices.push_back(std::move(slice));
    planned.sources.push_back(slices[i].source);
  }
  if (!pending.empty()) planned.headers.push_back({end, pending});
  end += static_cast<int64_t>(pending.size());
  return planned;
}

constexpr int64_t kWritebackBytes = int64_t{16} << 20;

class FileWriter {
 public:
  FileWriter(OpenFile file, const PlannedFile& planned, const std::atomic<bool>& cancelled,
             std::span<float> room)
      : file_(std::move(file)),
        planned_(planned),
        cancelled_(cancelled),
        room_(room),
        record_(planned.file) {}

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

  // Returns elements [at, at + count) in the slice.
  std::span<const float> decode(const SliceSource& source, int64_t at, int64_t count) {
    const auto size = static_cast<size_t>(count);
    if (source.values != nullptr) return {source.values + at, size};
    OFSDP_CHECK(size <= room_.size(), "no room to decode {} elements", count);
    read_state(source.state, source.first + at, count, room_.data());
    return room_.first(size);
  }

  Status write_slice(Slice& slice, const SliceSource& source) {
    slice.checksums.clear();
    for (int64_t at = 0; at < slice.bytes(); at += kChecksumBlock) {
      if (cancelled_) return fault("{}: not written: the run ends", file_.path);
      const int64_t bytes = std::min(kChecksumBlock, slice.bytes() - at);
      const auto block = std::as_bytes(decode(source, at / 4, bytes / 4));
      slice.checksums.push_back(crc32c(block));
      OFSDP_RETURN_IF_ERROR(write_exactly(file_, slice.offset + at, block));
      OFSDP_RETURN_IF_ERROR(start_writeback_to(slice.offset + at + bytes));
    }
    return ok_status();
  }

  Status start_writeback_to(int64_t end) {
    if (end < written_back_) written_back_ = end;  // slices in a shared file may go back
    if (end - written_back_ < kWritebackBytes) return ok_status();
    const int64_t begin = written_back_;
    written_back_ = end;
    return start_writeback(file_, begin, end - begin);
  }

  OpenFile file_;
  const PlannedFile& planned_;
  const std::atomic<bool>& cancelled_;
  std::span<float> room_;
  CheckpointFile record_;
  int64_t written_back_ = 0;
};

}  // namespace

std::vector<PlannedFile> plan_shard_files(const ShardIdentity& identity,
                                          const std::vector<SourceSlice>& slices,
                                          int64_t max_bytes) {
  const int64_t max = std::max<int64_t>(max_bytes / kChecksumBlock, 1) * kChecksumBlock / 4;
  std::vector<std::vector<SourceSlice>> parts(1);
  int64_t room = max;  // elements
  for (SourceSlice rest : slices) {
    if (rest.slice.count == 0) continue;
    while (rest.slice.count > 0) {
      if (room == 0) {
        parts.emplace_back();
        room = max;
      }
      SourceSlice piece = rest;
      piece.slice.count = std::min(room, rest.slice.count);
      room -= piece.slice.count;
      rest.slice.first += piece.slice.count;
      rest.slice.count -= piece.slice.count;
      rest.source = rest.source.from(piece.slice.count);
      parts.back().push_back(std::move(piece));
    }
  }
  std::vector<PlannedFile> files;
  for (size_t i = 0; i < parts.size(); ++i) files.push_back(plan_file(identity, parts[i], i));
  return files;
}

Result<CheckpointFile> write_planned_file(const std::string& folder, const PlannedFile& planned,
                                          const std::atomic<bool>& cancelled,
                                          std::span<float> room) {
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, create_file(join_path(folder, planned.file.name)));
  return FileWriter(std::move(file), planned, cancelled, room).write();
}

}  // namespace ofsdp::fsdp
