#include "runtime/cli/options/option_value.h"

#include <array>
#include <charconv>
#include <cmath>

namespace ofsdp::cli {
namespace {

struct ByteUnit {
  std::string_view name;
  int64_t bytes;
};

// Binary units first and largest first, since show_bytes takes the first that divides.
constexpr std::array<ByteUnit, 9> kByteUnits = {{{"TiB", int64_t{1} << 40},
                                                 {"GiB", int64_t{1} << 30},
                                                 {"MiB", int64_t{1} << 20},
                                                 {"KiB", int64_t{1} << 10},
                                                 {"TB", 1'000'000'000'000},
                                                 {"GB", 1'000'000'000},
                                                 {"MB", 1'000'000},
                                                 {"KB", 1'000},
                                                 {"B", 1}}};

template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text, int64_t least) {
  const std::optional<int64_t> value = parse_whole<int64_t>(text);
  return value && *value >= least ? value : std::nullopt;
}

std::optional<uint64_t> parse_unsigned(std::string_view text) {
  return parse_whole<uint64_t>(text);
}

std::optional<double> parse_number(std::string_view text) {
  const std::optional<double> value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<bool> parse_switch(std::string_view text) {
  if (text == "on" || text == "true" || text == "yes") return true;
  if (text == "off" || text == "false" || text == "no") return false;
  return std::nullopt;
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  int64_t scale = 1;
  for (const ByteUnit& unit : kByteUnits) {
    if (!text.ends_with(unit.name)) continue;
    text = trimmed(text.substr(0, text.size() - unit.name.size()));
    scale = unit.bytes;
    break;
  }
  const std::optional<double> count = parse_number(text);
  constexpr double kMax = 9e18;
  if (!count || *count <= 0 || *count * static_cast<double>(scale) > kMax) return std::nullopt;
  const auto bytes = static_cast<int64_t>(*count * static_cast<double>(scale));
  return bytes > 0 ? std::optional(bytes) : std::nullopt;
}

std::optional<Interval> parse_interval(std::string_view text) {
  for (const auto& [unit, name] : enum_names(StepUnit{})) {
    if (!text.ends_with(name)) continue;
    const auto count = parse_integer(text.substr(0, text.size() - name.size()), 1);
    return count ? std::optional(Interval{*count, unit}) : std::nullopt;
  }
  return std::nullopt;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t comma = 0; comma != std::string_view::npos; begin = comma + 1) {
    comma = text.find(',', begin);
    parts.emplace_back(trimmed(text.substr(begin, comma - begin)));
  }
  return parts;
}

std::string show_number(double value) { return format_text("{}", value); }

std::string show_bytes(int64_t bytes) {
  for (const ByteUnit& unit : kByteUnits) {
    if (bytes % unit.bytes == 0) return format_text("{}{}", bytes / unit.bytes, unit.name);
  }
  return format_text("{}B", bytes);
}

std::string show_interval(const Interval& interval) {
  return format_text("{}{}", interval.count, name_of(interval.unit));
}

// yaml-cpp's Emitter would escape tabs and line ends differently.
std::string yaml_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += format_text("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string yaml_list(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  for (const std::string& text : texts) quoted.push_back(yaml_quoted(text));
  return "[" + joined(quoted, ", ") + "]";
}

}  // namespace ofsdp::cli
