// Numbers as people read them: "98.7 MiB", "1,199,882", "2:05". Metrics and other files keep bytes
// and seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ofsdp::base {

// Bytes with three digits, in the largest unit that leaves at least 1: {98.7, 1, "MiB"}.
struct ByteCount {
  double value = 0;
  int decimals = 0;
  const char* unit = "B";
};
ByteCount byte_count(uint64_t bytes);

std::string readable_bytes(uint64_t bytes);
std::string readable_count(int64_t count);     // with commas
std::string readable_seconds(double seconds);  // "2.93 s", "2:05", "1:02:05"
// Without an exponent: digits after the point that leave three in all, three at most.
int decimals_of_three_digits(double value);
std::string readable_number(double value, int decimals);
std::string readable_number(double value);  // three digits, or all before the point
// Returns ", which is more than ..." if the text is a number that neither int64 nor float64 holds;
// else "". It follows the text in a message that says which numbers are expected.
std::string beyond_numbers(std::string_view text);
std::string plural(int64_t count, const char* noun);  // "1 rank", "2 ranks"

}  // namespace ofsdp::base
