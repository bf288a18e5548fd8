#include "runtime/data/column_file.h"

#include <algorithm>
#include <array>
#include <charconv>
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
#include "runtime/data/token_rows.h"

namespace ofsdp::runtime {

namespace {

struct DescrName {
  std::string_view descr;
  DType dtype;
};
// If a type has two names, the first is written.
constexpr DescrName kDescrs[] = {
    {"<f4", DType::kFloat32}, {"<f8", DType::kFloat64}, {"<f2", DType::kFloat16},
    {"|i1", DType::kInt8},    {"<i2", DType::kInt16},   {"<i4", DType::kInt32},
    {"<i8", DType::kInt64},   {"|u1", DType::kUInt8},   {"<u2", DType::kUInt16},
    {"<u4", DType::kUInt32},  {"<u8", DType::kUInt64},  {"|b1", DType::kBool},
    {"<i1", DType::kInt8},    {"<u1", DType::kUInt8}};

}  // namespace

std::optional<DType> npy_dtype(std::string_view descr) {
  for (const DescrName& entry : kDescrs) {
    if (entry.descr == descr) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<std::string_view> npy_descr(DType dtype) {
  for (const DescrName& entry : kDescrs) {
    if (entry.dtype == dtype) return entry.descr;
  }
  return std::nullopt;
}

// A header's length must be a multiple of 64 bytes.
std::string npy_header(DType dtype, const std::vector<int64_t>& dims) {
  constexpr size_t kPrefix = 10, kAlign = 64;
  const auto descr = npy_descr(dtype);
  OFSDP_CHECK(descr.has_value(), "{} is no type of .npy", dtype_name(dtype));
  const char* comma = dims.size() == 1 ? "," : "";
  std::string text = format_text("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 *descr, joined(dims, ", "), comma);
  text.resize((kPrefix + text.size() + kAlign) / kAlign * kAlign - kPrefix - 1, ' ');
  text += '\n';
  std::string bytes(kNpyMagic);
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(text.size() & 0xff);
  bytes += static_cast<char>(text.size() >> 8);
  return bytes + text;
}

// The layouts of .npy, IDX and token files.

namespace {

// .npy: NumPy's format (NEP 1). Magic, version, header length, and the header: a Python dictionary
// such as {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }.

// Returns the text after 'key': or "key": in the dictionary, without leading blanks; empty if the
// key is missing.
std::string_view value_of(std::string_view header, std::string_view key) {
  size_t at = header.find(format_text("'{}'", key));
  if (at == std::string_view::npos) at = header.find(format_text("\"{}\"", key));
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size() + 2);
  rest.remove_prefix(std::min(rest.find_first_not_of(" :"), rest.size()));
  return rest;
}

Result<DType> read_descr(const std::string& path, std::string_view header) {
  const std::string_view rest = value_of(header, "descr");
  if (rest.empty() || (rest[0] != '\'' && rest[0] != '"')) {
    return input_error("{}: expected one number type, found descr {}", path, rest.substr(0, 40));
  }
  const std::string_view descr = rest.substr(1, rest.find(rest[0], 1) - 1);
  if (const std::optional<DType> dtype = npy_dtype(descr)) return *dtype;
  const char* why = descr.starts_with('>')
                        ? " (big-endian; expected little-endian '<'): save it as "
                          "a.astype(a.dtype.newbyteorder('<'))"
                        : ": save it as a.astype('float32'), or 'int64' for labels";
  return input_error("{}: expected integers, bool or floats of 2, 4 or 8 bytes, found descr '{}'{}",
                     path, descr, why);
}

// Reads "(60000, 28, 28)", with Python's trailing comma and Python 2's 10L.
std::optional<std::vector<int64_t>> read_axes(std::string_view text) {
  if (!text.starts_with('(') || text.find(')') == std::string_view::npos) return std::nullopt;
  text = text.substr(1, text.find(')') - 1);
  std::vector<int64_t> axes;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" ,L"), text.size()));
    if (text.empty()) return axes;
    int64_t axis = 0;
    const auto [end, error] = std::from_chars(text.begin(), text.end(), axis);
    if (error != std::errc{} || axis < 0) return std::nullopt;
    axes.push_back(axis);
    text.remove_prefix(static_cast<size_t>(end - text.begin()));
  }
}

// The dictionary, and the offset at which the data follow.
struct Header {
  std::string_view text;
  uint64_t data_byte = 0;
};

Result<Header> find_header(const std::string& path, std::string_view bytes) {
  if (!bytes.starts_with(kNpyMagic)) {
    std::vector<std::string> found;
    for (const char c : bytes.substr(0, 6)) {
      found.push_back(format_text("{:02x}", static_cast<unsigned char>(c)));
    }
    return input_error("{}: expected a .npy file (first bytes 93 4e 55 4d 50 59), found {}{}", path,
                       joined(found, " "), bytes_remark(bytes));
  }
  if (bytes.size() < 12) {
    return input_error("{}: truncated: expected a header of at least 12 bytes, found {}", path,
                       bytes.size());
  }
  auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])); };
  if (byte(6) < 1 || byte(6) > 3) {
    return input_error("{}: expected .npy version 1, 2 or 3, found {}", path, byte(6));
  }
  const size_t start = byte(6) == 1 ? 10 : 12;
  uint64_t length = byte(8) | byte(9) << 8;
  if (start == 12) length |= byte(10) << 16 | byte(11) << 24;
  if (start + length > bytes.size()) {
    return input_error("{}: truncated: expected a header of {} bytes, found {}", path,
                       start + length, bytes.size());
  }
  return Header{bytes.substr(start, length), start + length};
}

}  // namespace

Result<ColumnLayout> parse_npy(const std::string& path, std::span<const std::byte> prefix) {
  const std::string_view bytes(reinterpret_cast<const char*>(prefix.data()), prefix.size());
  OFSDP_ASSIGN_OR_RETURN(const Header header, find_header(path, bytes));
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, read_descr(path, header.text));
  const std::optional<std::vector<int64_t>> axes = read_axes(value_of(header.text, "shape"));
  const std::string_view fortran = value_of(header.text, "fortran_order");
  if (!axes || !(fortran.starts_with("True") || fortran.starts_with("False"))) {
    return input_error("{}: expected a header with shape and fortran_order, found {}", path,
                       header.text.substr(0, 80));
  }
  // If at most one axis is longer than 1, or there is no element, both orders have the same bytes.
  const bool empty = std::ranges::find(*axes, 0) != axes->end();
  const auto long_axes = std::ranges::count_if(*axes, [](int64_t axis) { return axis > 1; });
  if (fortran.starts_with("True") && !empty && long_axes > 1) {
    return input_error(
        "{}: expected C order (fortran_order False), found fortran_order True: save it as "
        "numpy.ascontiguousarray(a)",
        path);
  }
  return dense_layout(path, dtype, *axes, header.data_byte);
}

namespace {

// IDX, MNIST's format (http://yann.lecun.com/exdb/mnist): two zero bytes, the type, the axis count,
// each axis as a big-endian uint32, then the elements in big-endian order.
std::optional<DType> idx_dtype(unsigned type) {
  switch (type) {
    case 0x08:
      return DType::kUInt8;
    case 0x09:
      return DType::kInt8;
    case 0x0b:
      return DType::kInt16;
    case 0x0c:
      return DType::kInt32;
    case 0x0d:
      return DType::kFloat32;
    case 0x0e:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<ColumnLayout> parse_idx(const std::string& path, std::span<const std::byte> prefix) {
  auto byte = [&](size_t i) { return static_cast<unsigned>(prefix[i]); };
  if (prefix.size() < 4) {
    return input_error("{}: truncated: expected a header of at least 4 bytes, found {}", path,
                       prefix.size());
  }
  const std::optional<DType> dtype = idx_dtype(byte(2));
  if (byte(0) != 0 || byte(1) != 0 || !dtype) {
    return input_error(
        "{}: expected a .npy, .bin or IDX file (first bytes 00 00 08), found {:02x} {:02x} "
        "{:02x}{}",
        path, byte(0), byte(1), byte(2),
        bytes_remark({reinterpret_cast<const char*>(prefix.data()), prefix.size()}));
  }
  const size_t header = 4 + 4 * size_t{byte(3)};
  if (prefix.size() < header) {
    return input_error("{}: truncated: expected a header of {} bytes, found {}", path, header,
                       prefix.size());
  }
  std::vector<int64_t> axes;
  for (size_t i = 4; i < header; i += 4) {
    axes.push_back(int64_t{byte(i)} << 24 | byte(i + 1) << 16 | byte(i + 2) << 8 | byte(i + 3));
  }
  OFSDP_ASSIGN_OR_RETURN(ColumnLayout layout, dense_layout(path, *dtype, std::move(axes), header));
  layout.big_endian = dtype_size(layout.dtype) > 1;
  return layout;
}

namespace {

// Token files: little-endian uint16 or uint32 and nothing else. Row s of `sequence_length` L has
// the tokens [s * stride, s * stride + L), one later with next_token.
//
// [Note: width of tokens] Such a file does not say how wide the tokens are. Vocabularies have far
// fewer than 2^20 entries, so every second 16-bit word in a uint32 file is nearly zero, which does
// not happen in a uint16 file. If the specification has a `dtype`, it is used without a check.
constexpr size_t kProbeBytes = 64 * 1024;
constexpr size_t kFewestWords = 8;     // fewer words prove nothing
constexpr size_t kManyWords = 256;     // so many words may prove it although not all are zero
constexpr uint16_t kMaxHighWord = 15;  // a token's high word if it is below 2^20

Result<DType> guess_width(const ByteSource& source) {
  if (source.size() % 4 != 0) return DType::kUInt16;
  std::vector<uint16_t> words(std::min<uint64_t>(source.size(), kProbeBytes) / 2);
  OFSDP_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(words))));
  uint16_t low = 0, high = 0;
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    low = std::max(low, words[i]);
    high = std::max(high, words[i + 1]);
  }
  const bool zeros = high == 0 && low > 0 && words.size() >= 2 * kFewestWords;
  const bool small = high <= kMaxHighWord && low > kMaxHighWord && words.size() >= 2 * kManyWords;
  return zeros || small ? DType::kUInt32 : DType::kUInt16;
}

Result<DType> token_width(const ColumnSpec& spec, const ByteSource& source) {
  DType dtype = spec.dtype.value_or(DType::kUndefined);
  if (!spec.dtype) {
    OFSDP_ASSIGN_OR_RETURN(dtype, guess_width(source));
  }
  if (source.size() % dtype_size(dtype) == 0) return dtype;
  return input_error("{}: expected whole {} tokens of {} bytes, found {} bytes", spec.path,
                     dtype_name(dtype), dtype_size(dtype), source.size());
}

}  // namespace

Result<ColumnLayout> token_layout(const ColumnSpec& spec, const ByteSource& source) {
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, token_width(spec, source));
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  const int64_t tokens = static_cast<int64_t>(source.size()) / size;
  const int64_t length = *spec.sequence_length;
  const int64_t stride = spec.stride.value_or(length);
  const int64_t extra = spec.next_token || spec.reserve_next ? 1 : 0;
  // `tokens - length` cannot overflow; `length + extra` could.
  if (tokens - length < extra) {
    return input_error(
        "{}: a row of sequence_length {}{} needs more tokens than the {} of the file", spec.path,
        length, extra != 0 ? " and the token behind it" : "", tokens);
  }
  ColumnLayout layout;
  layout.dtype = dtype;
  layout.row = Shape{length};
  layout.count = (tokens - length - extra) / stride + 1;
  layout.first_byte = static_cast<uint64_t>(spec.next_token ? size : 0);
  // With one row only, a stride past the file's end must not overflow.
  layout.row_stride = static_cast<uint64_t>(layout.count > 1 ? stride * size : length * size);
  return layout;
}

namespace {

constexpr size_t kPrefixBytes =
    128 * 1024;  // holds any .npy header of version 1 and any IDX header

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

// A file without .gz in the name may be gzipped too: downloads often drop the extension.
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
  const auto fill = [&](std::span<std::byte> dst) { return inflate_all(source, dst); };
  return share_made(source.path(), bytes, fill, communicator, ledger);
}

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
    {".csv", "column", columns_of_text<TextKind::kComma>, open_text<TextKind::kComma>},
    {".tsv", "column", columns_of_text<TextKind::kTab>, open_text<TextKind::kTab>},
    {".jsonl", "field", columns_of_text<TextKind::kJsonLines>, open_text<TextKind::kJsonLines>,
     true},
    {".parquet", "column", parquet_columns, open_parquet, true},
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

}  // namespace

std::span<const DataFormat> data_formats() { return kFormats; }

const DataFormat* find_format(std::string_view extension) {
  const auto* const found = std::ranges::find(kFormats, extension, &DataFormat::extension);
  return found == std::end(kFormats) ? nullptr : found;
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

Result<ColumnFile> ColumnFile::open(const ColumnSpec& spec, Communicator& communicator,
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
  const std::string extension = inner_extension(spec.path);
  if (const DataFormat* const format = find_format(extension)) {
    OFSDP_REJECT_IF(gzip, "{}: expected a {} file, found gzip data", spec.path, extension);
    ColumnSpec own = spec;
    if (own.parts.empty()) own.parts = {spec.name};
    OFSDP_ASSIGN_OR_RETURN(OpenedColumn opened,
                           format->open(own, std::move(file.source_), communicator, ledger));
    file.take(std::move(opened));
    OFSDP_RETURN_IF_ERROR(file.cut(spec, communicator, ledger));
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
