#include "runtime/data/column_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "importer/file/tensor_file.h"
#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/cut_rows.h"
#include "runtime/data/image_column.h"
#include "runtime/data/parquet_rows.h"
#include "runtime/data/text_records.h"
#include "runtime/data/token_rows.h"
#include "runtime/remote/address.h"

namespace ofsdp::runtime {

namespace {

constexpr size_t kPrefixBytes =
    128 * 1024;  // holds any .npy header of version 1 and any IDX header

constexpr std::string_view kNpy = ".npy", kTokens = ".bin", kGzip = ".gz";

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

Result<ByteSource> share_inflated(const ByteSource& source, size_t bytes,
                                  Communicator& communicator, MemoryLedger& ledger) {
  OFSDP_RETURN_IF_ERROR(check_inflated_size(source, bytes));
  const auto fill = [&](std::span<std::byte> dst) { return inflate_all(source, dst); };
  return share_made(source.path(), bytes, fill, communicator, ledger);
}

Status no_part(const std::string& path, const char* kind, const std::string& name,
               const std::vector<std::string>& there) {
  return input_error("{}: no {} '{}' (found: {}){}", path, kind, escaped(name),
                     escaped(joined(there, ", ").substr(0, 200)), did_you_mean(name, there));
}

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
  const std::string name = spec.parts[0] + std::string(kNpy);
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

Result<std::vector<std::string>> npz_columns(const ByteSource& source) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, zip_members(source));
  return array_names(members);
}

std::vector<std::string> tensor_names(const TensorFile& file) {
  std::vector<std::string> names;
  for (const FileTensor& tensor : file.tensors()) names.push_back(tensor.name);
  return names;
}

Result<std::vector<std::string>> tensor_columns(const ByteSource& source) {
  OFSDP_ASSIGN_OR_RETURN(const TensorFile file, open_safetensors(source.path()));
  return tensor_names(file);
}

Result<OpenedColumn> open_tensor(const ColumnSpec& spec, ByteSource source, Communicator&,
                                 MemoryLedger&) {
  OFSDP_ASSIGN_OR_RETURN(const TensorFile file, open_safetensors(spec.path));
  const FileTensor* tensor = file.find(spec.parts[0]);
  if (tensor == nullptr) return no_part(spec.path, "tensor", spec.parts[0], tensor_names(file));
  OFSDP_REJECT_IF(tensor->dtype == DType::kUndefined, "{}: tensor '{}': type {} is not read here",
                  spec.path, escaped(tensor->name), tensor->type);
  const std::vector<int64_t> dims(tensor->shape.axes().begin(), tensor->shape.axes().end());
  OpenedColumn opened{std::move(source), {}};
  OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, tensor->dtype, dims,
                                                     static_cast<uint64_t>(tensor->offset)));
  // If another file took the place in the meantime, the header's offsets no longer fit.
  OFSDP_REJECT_IF(opened.layout.end_byte() > opened.source.size(),
                  "{}: expected at least {} bytes, found {}", spec.path, opened.layout.end_byte(),
                  opened.source.size());
  return opened;
}

template <TextKind kKind>
Result<std::vector<std::string>> columns_of_text(const ByteSource& source) {
  return text_columns(source, kKind);
}

template <TextKind kKind>
Result<OpenedColumn> open_text(const ColumnSpec& spec, ByteSource source,
                               Communicator& communicator, MemoryLedger& ledger) {
  OFSDP_ASSIGN_OR_RETURN(const TextRows rows, read_text_rows(spec, source, kKind));
  OpenedColumn opened;
  OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, rows.dtype, rows.dims, 0));
  opened.layout.of_text = true;
  opened.classes = rows.classes;
  opened.shared_bytes = rows.bytes.size();
  const auto copy = [&](std::span<std::byte> dst) {
    std::ranges::copy(rows.bytes, dst.begin());
    return Status();
  };
  OFSDP_ASSIGN_OR_RETURN(opened.source,
                         share_made(spec.path, opened.shared_bytes, copy, communicator, ledger));
  return opened;
}

// Messages and the help list the formats in this order.
constexpr DataFormat kFormats[] = {
    {".npz", "array", npz_columns, open_npz},
    {".safetensors", "tensor", tensor_columns, open_tensor},
    {".csv", "column", columns_of_text<TextKind::kComma>, open_text<TextKind::kComma>,
     /*pads=*/false, /*text=*/true},
    {".tsv", "column", columns_of_text<TextKind::kTab>, open_text<TextKind::kTab>,
     /*pads=*/false, /*text=*/true},
    {".jsonl", "field", columns_of_text<TextKind::kJsonLines>, open_text<TextKind::kJsonLines>,
     /*pads=*/true, /*text=*/true},
    {".parquet", "column", parquet_columns, open_parquet, /*pads=*/true},
};

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

std::filesystem::path without_query(const std::string& path) {
  return is_address(path) ? path.substr(0, path.find('?')) : path;
}

}  // namespace

std::span<const DataFormat> data_formats() { return kFormats; }

std::string last_ending(const std::string& path) {
  return lower_text(without_query(path).extension().string());
}

std::string data_ending(const std::string& path) {
  const std::string last = last_ending(path);
  return last == kGzip ? last_ending(without_query(path).stem().string()) : last;
}

std::string data_name(const std::string& path) {
  const std::filesystem::path name = without_query(path).stem();
  return last_ending(path) == kGzip ? name.stem().string() : name.string();
}

const DataFormat* find_format(const std::string& path) {
  const auto* const found = std::ranges::find(kFormats, data_ending(path), &DataFormat::extension);
  return found == std::end(kFormats) ? nullptr : found;
}

std::string unknown_kind(const std::string& path) {
  const std::string ending = data_ending(path);
  if (ending.empty() || ending == kNpy || ending == kTokens || find_format(path) != nullptr) {
    return "";
  }
  std::vector<std::string_view> known{kNpy, kTokens};
  for (const DataFormat& format : kFormats) known.push_back(format.extension);
  return format_text(": the ending {} is of no known kind ({})", escaped(ending),
                     joined(known, ", "));
}

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

void ColumnFile::take(OpenedColumn opened) {
  source_ = std::move(opened.source);
  layout_ = std::move(opened.layout);
  shared_bytes_ = opened.shared_bytes;
  classes_ = std::move(opened.classes);
  decoder_ = std::move(opened.decoder);
  vocabulary_ = opened.vocabulary;
}

Status ColumnFile::cut(const ColumnSpec& spec, Communicator& communicator, MemoryLedger& ledger) {
  if (spec.offsets.empty()) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(OpenedColumn opened,
                         cut_rows(spec, source_, layout_, communicator, ledger));
  opened.shared_bytes += shared_bytes_;
  take(std::move(opened));
  return ok_status();
}

Status ColumnFile::read_row(int64_t row, std::span<std::byte> dst) const {
  if (decoder_ == nullptr) {
    return read(layout_.first_byte + static_cast<uint64_t>(row) * layout_.row_stride, dst);
  }
  std::vector<std::byte> scratch(decoder_->scratch_bytes());
  return decoder_->decode(row, std::nullopt, dst, scratch);
}

// A model may name its classes by numbers, as scikit-learn's converter does: 1, 2, 3. Text is
// numbered when it is read, whole numbers of other files by the Converter.
void ColumnFile::name_numbers(const ColumnSpec& spec) {
  const bool numbers = is_integer(layout_.dtype) || is_floating(layout_.dtype);
  if (!spec.classes || !spec.known.binding || !classes_.empty() || !numbers) return;
  std::vector<int64_t> labels;
  bool counts = true;  // 0, 1, ..
  for (const std::string& name : spec.known.names) {
    const std::optional<CellNumber> number = cell_number(name);
    if (!number || !std::holds_alternative<int64_t>(*number)) return;
    counts = counts && std::get<int64_t>(*number) == std::ssize(labels);
    labels.push_back(std::get<int64_t>(*number));
  }
  if (counts) return;
  classes_ = spec.known.names;
  class_labels_ = std::move(labels);
}

Result<ColumnFile> ColumnFile::open(const ColumnSpec& spec, Communicator& communicator,
                                    MemoryLedger& ledger, EncodedTexts* texts) {
  OFSDP_ASSIGN_OR_RETURN(ColumnFile file, open_file(spec, communicator, ledger, texts));
  file.name_numbers(spec);
  return file;
}

Result<ColumnFile> ColumnFile::open_file(const ColumnSpec& spec, Communicator& communicator,
                                         MemoryLedger& ledger, EncodedTexts* texts) {
  ColumnFile file;
  if (spec.tokenizer) {
    EncodedTexts own;
    OFSDP_ASSIGN_OR_RETURN(OpenedColumn opened, open_tokens(spec, texts != nullptr ? *texts : own,
                                                            communicator, ledger));
    file.take(std::move(opened));
    OFSDP_RETURN_IF_ERROR(apply_row_shape(spec, file.layout_));
    return file;
  }
  if (spec.array) {
    OFSDP_ASSIGN_OR_RETURN(file.layout_,
                           dense_layout(spec.path, spec.array->dtype, spec.array->dims, 0));
    file.source_ = array_source(spec.path, *spec.array, file.layout_);
    return file;
  }
  if (spec.images) {
    OFSDP_ASSIGN_OR_RETURN(OpenedColumn opened, open_images(spec, communicator, ledger));
    file.take(std::move(opened));
    OFSDP_RETURN_IF_ERROR(apply_row_shape(spec, file.layout_));
    return file;
  }
  OFSDP_ASSIGN_OR_RETURN(file.source_, ByteSource::open(spec.path));
  OFSDP_ASSIGN_OR_RETURN(const bool gzip, is_gzip(file.source_));
  const std::string extension = data_ending(spec.path);
  if (const DataFormat* const format = find_format(spec.path)) {
    OFSDP_REJECT_IF(gzip && !format->text, "{}: expected a {} file, found gzip data", spec.path,
                    extension);
    ColumnSpec own = spec;
    if (own.parts.empty()) own.parts = {spec.name};
    OFSDP_ASSIGN_OR_RETURN(OpenedColumn opened,
                           format->open(own, std::move(file.source_), communicator, ledger));
    file.take(std::move(opened));
    OFSDP_RETURN_IF_ERROR(file.cut(spec, communicator, ledger));
    OFSDP_RETURN_IF_ERROR(apply_row_shape(spec, file.layout_));
    return file;
  }
  if (extension == kTokens) {
    if (gzip) return input_error("{}: expected flat tokens, found gzip data", spec.path);
    OFSDP_ASSIGN_OR_RETURN(file.layout_, token_layout(spec, file.source_));
    OFSDP_RETURN_IF_ERROR(apply_row_shape(spec, file.layout_));
    return file;
  }
  OFSDP_ASSIGN_OR_RETURN(const Prefix prefix, read_prefix(file.source_, gzip));
  OFSDP_ASSIGN_OR_RETURN(file.layout_, extension == kNpy ? parse_npy(spec.path, prefix)
                                                         : parse_idx(spec.path, prefix));
  if (gzip) {
    file.shared_bytes_ = file.layout_.end_byte();
    OFSDP_ASSIGN_OR_RETURN(file.source_,
                           share_inflated(file.source_, file.shared_bytes_, communicator, ledger));
  }
  OFSDP_RETURN_IF_ERROR(check_length(file.layout_, file.source_));
  OFSDP_RETURN_IF_ERROR(file.cut(spec, communicator, ledger));
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
