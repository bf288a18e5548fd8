#include "kernels/base/text.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace ofsdp::base {

namespace {

// Returns how many bytes at `at` form a control character: C0, delete, or C1 in UTF-8.
size_t control_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x20 || byte(at) == 0x7f) return 1;
  const bool c1 = byte(at) == 0xc2 && at + 1 < text.size() && (byte(at + 1) & 0xe0) == 0x80;
  return c1 ? 2 : 0;
}

enum class Shown { kOneLine, kLines, kJson };

std::string shown(std::string_view text, Shown how) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); ++at) {
    const bool plain = how != Shown::kOneLine && text[at] == '\n';
    const size_t control = plain ? 0 : control_bytes(text, at);
    if (control == 0) out += text[at];
    if (control != 0 && how == Shown::kJson) {  // the last byte is the character's number
      out += format_text("\\u{:04x}", static_cast<unsigned char>(text[at + control - 1]));
    }
    for (size_t i = 0; i < control && how != Shown::kJson; ++i) {
      out += format_text("\\x{:02x}", static_cast<unsigned char>(text[at + i]));
    }
    at += control == 2 ? 1 : 0;
  }
  return out;
}

}  // namespace

std::string format_values(std::string_view format, const FormatArgument* values, size_t count) {
  using Kind = FormatArgument::Kind;
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  store.reserve(count, 0);
  for (size_t i = 0; i < count; ++i) {
    const FormatArgument& value = values[i];
    switch (value.kind()) {
      case Kind::kBool:
        store.push_back(value.whole() != 0);
        break;
      case Kind::kChar:
        store.push_back(static_cast<char>(value.whole()));
        break;
      case Kind::kSigned:
        store.push_back(value.whole());
        break;
      case Kind::kUnsigned:
        store.push_back(static_cast<uint64_t>(value.whole()));
        break;
      case Kind::kFloat:
        store.push_back(static_cast<float>(value.real()));
        break;
      case Kind::kDouble:
        store.push_back(value.real());
        break;
      case Kind::kText:
        store.push_back(value.text());
        break;
      case Kind::kAddress:
        store.push_back(value.address());
        break;
    }
  }
  try {
    return fmt::vformat(format, store);
  } catch (const fmt::format_error& error) {
    std::fprintf(stderr, "format '%.*s': internal error: %s\n", static_cast<int>(format.size()),
                 format.data(), error.what());
    std::abort();
  }
}

std::string escaped(std::string_view text) { return shown(text, Shown::kOneLine); }
std::string escaped_lines(std::string_view text) { return shown(text, Shown::kLines); }
std::string escaped_json(std::string_view text) { return shown(text, Shown::kJson); }

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

void print_lines(std::FILE* stream, std::string_view text) {
  const std::string lines = escaped_lines(text);
  std::fwrite(lines.data(), 1, lines.size(), stream);
}

ByteCount byte_count(uint64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return {value, decimals, kUnits[unit]};
}

std::string readable_bytes(uint64_t bytes) {
  const ByteCount count = byte_count(bytes);
  return readable_number(count.value, count.decimals) + " " + count.unit;
}

std::string readable_count(int64_t count) {
  const std::string text = std::to_string(count);
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && text[i - 1] != '-';
    if (between && (text.size() - i) % 3 == 0) shown += ',';
    shown += text[i];
  }
  return shown;
}

std::string readable_seconds(double seconds) {
  if (seconds < 60) return format_text("{:.3g} s", seconds);
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e9));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? format_text("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : format_text("{}:{:02}", minutes, whole % 60);
}

int decimals_of_three_digits(double value) {
  const double size = std::abs(value);
  return size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
}

std::string readable_number(double value, int decimals) {
  return format_text("{:.{}f}", value, decimals);
}

std::string readable_number(double value) {
  return readable_number(value, decimals_of_three_digits(value));
}

std::string out_of_range_hint(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto is_beyond = [text](auto value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc::result_out_of_range && end == text.data() + text.size();
  };
  if (text.starts_with('-') || text.find("e-") != text.npos || text.find("E-") != text.npos)
    return "";
  if (is_beyond(int64_t{0})) return ", which is more than 2^63-1";
  return is_beyond(double{0}) ? ", which is more than a float64 holds" : "";
}

std::string plural(int64_t count, const char* noun) {
  return format_text("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace ofsdp::base
