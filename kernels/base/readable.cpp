#include "kernels/base/readable.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "kernels/base/format.h"

namespace ofsdp::base {

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
  switch (decimals) {
    case 0:
      return format_text("{:.0f}", value);
    case 1:
      return format_text("{:.1f}", value);
    case 2:
      return format_text("{:.2f}", value);
    default:
      return format_text("{:.3f}", value);
  }
}

std::string readable_number(double value) {
  return readable_number(value, decimals_of_three_digits(value));
}

std::string beyond_numbers(std::string_view text) {
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
