#include "runtime/data/column_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "importer/file/safetensors_file.h"
#include "kernels/base/escaped.h"
#include "kernels/base/nearest_name.h"
#include "kernels/base/reject.h"
#include "runtime/data/gzip.h"
#include "runtime/data/text_rows.h"
#include "runtime/data/zip_archive.h"

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

// Makes `bytes` of a file once a host: `fill` writes them.
template <typename Fill>
Result<ByteSource> share_made(const std::string& path, size_t bytes, Fill fill,
                              Communicator& communicator, MemoryLedger& ledger) {
  struct Job {
    Fill& fill;
    size_t bytes;  // the segment may be rounded up to pages
  } job{fill, bytes};
  auto run = [](void* context, std::span<std::byte> dst) -> Status {
    const Job& job = *static_cast<const Job*>(context);
    return job.fill(dst.first(job.bytes));
  };
  OFSDP_ASSIGN_OR_RETURN(const std::span<const std::byte> made,
                         communicator.share_from_rank0(ledger, bytes, path, run, &job));
  return ByteSource::memory(path, made.first(bytes));
}

Result<ByteSource> share_inflated(const ByteSource& source, size_t bytes,
                                  Communicator& communicator, MemoryLedger& ledger) {
  OFSDP_RETURN_IF_ERROR(check_inflated_size(source, bytes));
  const auto fill = [&](std::span<std::byte> dst) { return inflate_all(source, dst); };
  return share_made(source.path(), bytes, fill, communicator, ledger);
}

// A column as one opener leaves it.
struct OpenedColumn {
  ByteSource source;
  ColumnLayout layout;
  size_t shared_bytes = 0;
};

Status no_part(const std::string& path, const char* kind, const std::string& name,
               const std::vector<std::string>& there) {
  return input_error("{}: no {} '{}' (found: {}){}", path, kind, escaped(name),
                     escaped(joined(there, ", ").substr(0, 200)), did_you_mean(name, there));
}

const std::string kNpy = ".npy";

std::vector<std::string> array_names(const std::vector<ZipMember>& members) {
  std::vector<std::string> names;
  for (const ZipMember& member : members) {
    const std::string& name = member.name;
    if (name.ends_with(kNpy)) names.push_back(name.substr(0, name.size() - kNpy.size()));
  }
  return names;
}

Result<OpenedColumn> open_npz(const ColumnSpec& spec, ByteSource source, Communicator& communicator,
                              MemoryLedger& ledger) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, zip_members(source));
  const std::string name = spec.parts[0] + kNpy;
  const auto member = std::ranges::find(members, name, &ZipMember::name);
  if (member == members.end()) {
    return no_part(spec.path, "array", spec.parts[0], array_names(members));
  }
  const std::string subject = format_text("{}: array '{}'", spec.path, escaped(spec.parts[0]));
  OFSDP_ASSIGN_OR_RETURN(const uint64_t offset, member_offset(source, *member));
  Prefix prefix(std::min<uint64_t>(kPrefixBytes, member->bytes));
  if (member->deflated) {
    OFSDP_ASSIGN_OR_RETURN(const size_t found, inflate_member_prefix(source, *member, prefix));
    prefix.resize(found);
  } else {
    OFSDP_RETURN_IF_ERROR(source.read(offset, prefix));
  }
  OpenedColumn opened;
  OFSDP_ASSIGN_OR_RETURN(opened.layout, parse_npy(subject, prefix));
  OFSDP_REJECT_IF(opened.layout.end_byte() != member->bytes, "{}: expected {} bytes, found {}",
                  subject, opened.layout.end_byte(), member->bytes);
  if (!member->deflated) {
    opened.layout.first_byte += offset;
    opened.source = std::move(source);
    return opened;
  }
  opened.shared_bytes = member->bytes;
  OFSDP_ASSIGN_OR_RETURN(opened.source, share_made(
                                            spec.path, opened.shared_bytes,
                                            [&](std::span<std::byte> dst) {
                                              return inflate_member(source, *member, dst);
                                            },
                                            communicator, ledger));
  return opened;
}

Result<OpenedColumn> open_tensor(const ColumnSpec& spec, ByteSource source) {
  OFSDP_ASSIGN_OR_RETURN(const TensorFile file, open_safetensors(spec.path));
  const FileTensor* tensor = file.find(spec.parts[0]);
  if (tensor == nullptr) {
    std::vector<std::string> names;
    for (const FileTensor& one : file.tensors()) names.push_back(one.name);
    return no_part(spec.path, "tensor", spec.parts[0], names);
  }
  OFSDP_REJECT_IF(tensor->dtype == DType::kUndefined, "{}: tensor '{}': type {} is not read here",
                  spec.path, escaped(tensor->name), tensor->type);
  const std::vector<int64_t> dims(tensor->shape.axes().begin(), tensor->shape.axes().end());
  OpenedColumn opened{std::move(source), {}};
  OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, tensor->dtype, dims,
                                                     static_cast<uint64_t>(tensor->offset)));
  // The header's offsets were of another file if this one was exchanged in between.
  OFSDP_REJECT_IF(opened.layout.end_byte() > opened.source.size(),
                  "{}: expected at least {} bytes, found {}", spec.path, opened.layout.end_byte(),
                  opened.source.size());
  return opened;
}

Result<OpenedColumn> open_text(const ColumnSpec& spec, const ByteSource& source, TextKind kind,
                               Communicator& communicator, MemoryLedger& ledger) {
  OFSDP_ASSIGN_OR_RETURN(const TextRows rows, read_text_rows(spec, source, kind));
  OpenedColumn opened;
  OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, rows.dtype, rows.dims, 0));
  opened.layout.of_text = true;
  opened.shared_bytes = rows.bytes.size();
  const auto copy = [&](std::span<std::byte> dst) {
    std::ranges::copy(rows.bytes, dst.begin());
    return Status();
  };
  OFSDP_ASSIGN_OR_RETURN(opened.source,
                         share_made(spec.path, opened.shared_bytes, copy, communicator, ledger));
  return opened;
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
  if (holds_several(extension)) {
    OFSDP_REJECT_IF(gzip, "{}: expected a {} file, found gzip data", spec.path, extension);
    ColumnSpec own = spec;
    if (own.parts.empty()) own.parts = {spec.name};
    const std::optional<TextKind> text = text_kind(extension);
    OFSDP_ASSIGN_OR_RETURN(OpenedColumn opened,
                           text ? open_text(own, file.source_, *text, communicator, ledger)
                           : extension == ".npz"
                               ? open_npz(own, std::move(file.source_), communicator, ledger)
                               : open_tensor(own, std::move(file.source_)));
    file.source_ = std::move(opened.source);
    file.layout_ = std::move(opened.layout);
    file.shared_bytes_ = opened.shared_bytes;
    OFSDP_RETURN_IF_ERROR(apply_row_shape(spec, file.layout_));
    return file;
  }
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

bool ColumnFile::holds_several(const std::string& extension) {
  return text_kind(extension) || extension == ".npz" || extension == ".safetensors";
}

Result<std::vector<std::string>> ColumnFile::columns_of(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(path));
  if (const auto kind = text_kind(extension)) return text_columns(source, *kind);
  if (extension == ".npz") {
    OFSDP_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, zip_members(source));
    return array_names(members);
  }
  OFSDP_ASSIGN_OR_RETURN(const TensorFile file, open_safetensors(path));
  std::vector<std::string> names;
  for (const FileTensor& tensor : file.tensors()) names.push_back(tensor.name);
  return names;
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
