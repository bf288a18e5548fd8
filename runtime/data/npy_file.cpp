// .npy: NumPy's format (NEP 1). Magic, version, length of the header, and the header: a Python
// dictionary such as {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct DescrName {
  std::string_view descr;
  DType dtype;
};
constexpr DescrName kDescrs[] = {
    {"<f4", DType::kFloat32}, {"<f8", DType::kFloat64}, {"<f2", DType::kFloat16},
    {"|i1", DType::kInt8},    {"<i2", DType::kInt16},   {"<i4", DType::kInt32},
    {"<i8", DType::kInt64},   {"|u1", DType::kUInt8},   {"<u2", DType::kUInt16},
    {"<u4", DType::kUInt32},  {"<u8", DType::kUInt64},  {"|b1", DType::kBool},
    {"<i1", DType::kInt8},    {"<u1", DType::kUInt8}};

std::optional<DType> dtype_of(std::string_view descr) {
  for (const DescrName& entry : kDescrs) {
    if (entry.descr == descr) return entry.dtype;
  }
  return std::nullopt;
}

// What stands behind 'key': in the dictionary, without leading blanks; empty when it is not there.
std::string_view value_of(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" :"), rest.size()));
  return rest;
}

Result<DType> read_descr(const std::string& path, std::string_view header) {
  const std::string_view rest = value_of(header, "'descr'");
  if (rest.empty() || rest[0] != '\'') {
    return input_error("{}: expected one number type, found descr {}", path, rest.substr(0, 40));
  }
  const std::string_view descr = rest.substr(1, rest.find('\'', 1) - 1);
  if (const std::optional<DType> dtype = dtype_of(descr)) return *dtype;
  const char* why = descr.starts_with('>') ? " (big-endian; expected little-endian '<')" : "";
  return input_error("{}: expected integers, bool or floats of 2, 4 or 8 bytes, found descr '{}'{}",
                     path, descr, why);
}

// "(60000, 28, 28)": numbers between brackets, with Python's last comma and Python 2's 10L.
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

// The dictionary, and where the data begins behind it.
struct Header {
  std::string_view text;
  uint64_t data_byte = 0;
};

Result<Header> find_header(const std::string& path, std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    std::vector<std::string> found;
    for (const char c : bytes.substr(0, 6)) {
      found.push_back(format_text("{:02x}", static_cast<unsigned char>(c)));
    }
    return input_error("{}: expected a .npy file (first bytes 93 4e 55 4d 50 59), found {}", path,
                       joined(found, " "));
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
  const std::optional<std::vector<int64_t>> axes = read_axes(value_of(header.text, "'shape'"));
  const std::string_view fortran = value_of(header.text, "'fortran_order'");
  if (!axes || !(fortran.starts_with("True") || fortran.starts_with("False"))) {
    return input_error("{}: expected a header with shape and fortran_order, found {}", path,
                       header.text.substr(0, 80));
  }
  if (fortran.starts_with("True") && axes->size() > 1) {
    return input_error("{}: expected C order (fortran_order False), found fortran_order True",
                       path);
  }
  return dense_layout(path, dtype, *axes, header.data_byte);
}

}  // namespace ofsdp::runtime
