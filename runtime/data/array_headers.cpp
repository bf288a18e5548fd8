#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/column_file.h"

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
    const std::string remark =
        bytes_remark({reinterpret_cast<const char*>(prefix.data()), prefix.size()});
    return input_error(
        "{}: expected a .npy, .bin or IDX file (first bytes 00 00 08), found {:02x} {:02x} "
        "{:02x}{}",
        path, byte(0), byte(1), byte(2), remark.empty() ? unknown_kind(path) : remark);
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

}  // namespace ofsdp::runtime
