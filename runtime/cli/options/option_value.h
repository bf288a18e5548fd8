// Parses option values: numbers, switches, byte counts, intervals. The whole text must be read and
// numbers must be finite; nothing is rounded or cut off.
//
// A parser returns none for a text that it cannot read; the caller knows flag and file and makes
// the message. The `show` functions write forms that can be read again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/options.h"

namespace ofsdp::cli {

std::optional<int64_t> parse_integer(std::string_view text, int64_t least = INT64_MIN);
std::optional<uint64_t> parse_unsigned(std::string_view text);
std::optional<double> parse_number(std::string_view text);      // finite
std::optional<bool> parse_switch(std::string_view text);        // on off true false yes no
std::optional<int64_t> parse_bytes(std::string_view text);      // 12GiB, 1.5GB, 4096; above 0
std::optional<Interval> parse_interval(std::string_view text);  // 1epoch, 200step
std::vector<std::string> split_list(std::string_view text);     // at commas; removes spaces around

std::string show_number(double value);  // the shortest text that reads back as the same double
std::string show_bytes(int64_t bytes);
std::string show_interval(const Interval& interval);
std::string yaml_quoted(const std::string& text);
std::string yaml_list(const std::vector<std::string>& texts);  // ["a", "b"]

}  // namespace ofsdp::cli
