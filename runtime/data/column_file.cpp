#include "runtime/data/column_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "runtime/data/gzip.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kPrefixBytes =
    128 * 1024;  // holds every .npy header of version 1, and any IDX one

using Prefix = std::vector<std::byte>;

Result<Prefix> read_prefix(const ByteSource& source, bool gzip) {
  Prefix prefix(gzip ? kPrefixBytes : std::min<uint64_t>(kPrefixBytes, source.size()));
  if (gzip) {
    OFSDP_ASSIGN_OR_RETURN(const size_t found, inflate_prefix(source, prefix));
    prefix.resize(found);
  } else {
    OFSDP_RETURN_IF_ERROR(source.read(0, prefix));
  }
  return prefix;
}

// Also a file without .gz in its name may be gzipped: downloads often lose the ending.
Result<bool> is_gzip(const ByteSource& source) {
  std::array<std::byte, 2> magic{};
  if (source.size() >= magic.size()) OFSDP_RETURN_IF_ERROR(source.read(0, magic));
  const bool gzip = starts_like_gzip(magic);
  if (!gzip && source.path().ends_with(".gz")) {
    return input_error("{}: expected gzip data (first bytes 1f 8b), found {:02x} {:02x}",
                       source.path(), static_cast<unsigned>(magic[0]),
                       static_cast<unsigned>(magic[1]));
  }
  return gzip;
}

std::string inner_extension(std::filesystem::path path) {
  if (path.extension() == ".gz") path = path.stem();
  return path.extension().string();
}

Result<ByteSource> share_inflated(const ByteSource& source, size_t bytes,
                                  Communicator& communicator, MemoryLedger& ledger) {
  OFSDP_RETURN_IF_ERROR(check_inflated_size(source, bytes));
  struct Job {
    const ByteSource& source;
    size_t bytes;  // the segment may be rounded up to pages
  } job{source, bytes};
  auto fill = [](void* context, std::span<std::byte> dst) {
    const Job& job = *static_cast<const Job*>(context);
    return inflate_all(job.source, dst.first(job.bytes));
  };
  OFSDP_ASSIGN_OR_RETURN(const std::span<const std::byte> inflated,
                         communicator.share_from_rank0(ledger, bytes, source.path(), fill, &job));
  return ByteSource::memory(source.path(), inflated.first(bytes));
}

ByteSource array_source(const std::string& name, const ColumnArray& array,
                        const ColumnLayout& layout) {
  return ByteSource::memory(name, {array.data, layout.end_byte()});
}

Status check_length(const ColumnLayout& layout, const ByteSource& source) {
  if (source.size() == layout.end_byte()) return ok_status();
  return input_error("{}: expected {} bytes ({} rows of {}{}), found {}", source.path(),
                     layout.end_byte(), layout.count, dtype_name(layout.dtype), layout.row.text(),
                     source.size());
}

Status apply_row_shape(const ColumnSpec& spec, ColumnLayout& layout) {
  if (!spec.row) return ok_status();
  if (spec.row->numel() != layout.row.numel()) {
    return input_error("{}: shape {} has {} elements, expected the {} of a row {}", spec.path,
                       spec.row->text(), spec.row->numel(), layout.row.numel(), layout.row.text());
  }
  layout.row = *spec.row;
  return ok_status();
}

}  // namespace

uint64_t ColumnLayout::end_byte() const {
  return first_byte + static_cast<uint64_t>(count - 1) * row_stride + row_bytes();
}

Result<ColumnLayout> dense_layout(const std::string& path, DType dtype, std::vector<int64_t> dims,
                                  uint64_t first_byte) {
  if (dims.empty())
    return input_error("{}: expected a first axis of samples, found a scalar", path);
  Result<int64_t> numel = checked_numel(dims);
  if (!numel.ok()) return std::move(numel).status().with_prefix(path);
  const Shape whole(dims);
  if (dims[0] == 0)
    return input_error("{}: expected at least 1 sample, found 0 (shape {})", path, whole.text());
  if (*numel == 0) return input_error("{}: rows have no elements (shape {})", path, whole.text());
  ColumnLayout layout;
  layout.dtype = dtype;
  layout.count = dims[0];
  layout.row = Shape(std::vector<int64_t>(dims.begin() + 1, dims.end()));
  layout.first_byte = first_byte;
  layout.row_stride = layout.row_bytes();
  return layout;
}

Result<ColumnFile> ColumnFile::open(const ColumnSpec& spec, Communicator& communicator,
                                    MemoryLedger& ledger) {
  ColumnFile file;
  if (spec.array) {
    OFSDP_ASSIGN_OR_RETURN(file.layout_,
                           dense_layout(spec.path, spec.array->dtype, spec.array->dims, 0));
    file.source_ = array_source(spec.path, *spec.array, file.layout_);
    return file;
  }
  OFSDP_ASSIGN_OR_RETURN(file.source_, ByteSource::open(spec.path));
  OFSDP_ASSIGN_OR_RETURN(const bool gzip, is_gzip(file.source_));
  const std::string extension = inner_extension(spec.path);
  if (extension == ".bin") {
    if (gzip) return input_error("{}: expected flat tokens, found gzip data", spec.path);
    OFSDP_ASSIGN_OR_RETURN(file.layout_, token_layout(spec, file.source_));
    OFSDP_RETURN_IF_ERROR(apply_row_shape(spec, file.layout_));
    return file;
  }
  OFSDP_ASSIGN_OR_RETURN(const Prefix prefix, read_prefix(file.source_, gzip));
  OFSDP_ASSIGN_OR_RETURN(file.layout_, extension == ".npy" ? parse_npy(spec.path, prefix)
                                                           : parse_idx(spec.path, prefix));
  if (gzip) {
    file.shared_bytes_ = file.layout_.end_byte();
    OFSDP_ASSIGN_OR_RETURN(file.source_,
                           share_inflated(file.source_, file.shared_bytes_, communicator, ledger));
  }
  OFSDP_RETURN_IF_ERROR(check_length(file.layout_, file.source_));
  OFSDP_RETURN_IF_ERROR(apply_row_shape(spec, file.layout_));
  return file;
}

Status ColumnFile::replace(const ColumnArray& array) {
  OFSDP_ASSIGN_OR_RETURN(ColumnLayout layout, dense_layout(path(), array.dtype, array.dims, 0));
  if (layout.dtype != layout_.dtype || !(layout.row == layout_.row)) {
    return input_error("{}: expected rows of {}{} as in the first batch, found {}{}", path(),
                       dtype_name(layout_.dtype), layout_.row.text(), dtype_name(layout.dtype),
                       layout.row.text());
  }
  source_ = array_source(path(), array, layout);
  layout_ = std::move(layout);
  return ok_status();
}

}  // namespace ofsdp::runtime
