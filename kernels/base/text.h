// Text for people: messages, escaped names, readable numbers.
//
// Messages use {fmt}'s language ("{}", "{:.3g}"). Values lose their types at the call and only
// text.cpp includes {fmt}, so a message costs the caller one function call to compile.
//
//   format_text("{} of {} ranks", done, world)      the compiler counts placeholders
//   joined(names, ", ")                             a range's elements with a separator
//
// If a specification does not fit the value ("{:d}" with a string), the program aborts.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

// A value without its type. Views text, which must outlive the call.
class FormatArgument {
 public:
  enum class Kind : uint8_t { kBool, kChar, kSigned, kUnsigned, kFloat, kDouble, kText, kAddress };

  // Takes bool alone, not types that convert to bool, such as pointers.
  FormatArgument(std::same_as<bool> auto value)  // NOLINT: implicit
      : kind_(Kind::kBool), bits_{.whole = value} {}
  FormatArgument(const void* address)  // NOLINT
      : kind_(Kind::kAddress), bits_{.address = address} {}
  FormatArgument(char value) : kind_(Kind::kChar), bits_{.whole = value} {}           // NOLINT
  FormatArgument(float value) : kind_(Kind::kFloat), bits_{.real = double{value}} {}  // NOLINT
  FormatArgument(double value) : kind_(Kind::kDouble), bits_{.real = value} {}        // NOLINT
  template <std::signed_integral T>
  FormatArgument(T value) : kind_(Kind::kSigned), bits_{.whole = value} {}  // NOLINT
  template <std::unsigned_integral T>
  FormatArgument(T value)  // NOLINT
      : kind_(Kind::kUnsigned), bits_{.whole = static_cast<int64_t>(value)} {}
  FormatArgument(std::string_view text)  // NOLINT
      : kind_(Kind::kText), bits_{.text = {text.data(), text.size()}} {}
  FormatArgument(const std::string& text) : FormatArgument(std::string_view(text)) {}  // NOLINT
  FormatArgument(const char* text) : FormatArgument(std::string_view(text)) {}         // NOLINT

  Kind kind() const { return kind_; }
  int64_t whole() const { return bits_.whole; }
  double real() const { return bits_.real; }
  const void* address() const { return bits_.address; }
  std::string_view text() const { return {bits_.text.data, bits_.text.size}; }

 private:
  struct Text {
    const char* data;
    size_t size;
  };
  union Bits {
    int64_t whole;
    double real;
    const void* address;
    Text text;
  };
  Kind kind_;
  Bits bits_;
};

// A literal with as many placeholders as arguments.
template <typename... Arguments>
class FormatString {
 public:
  consteval FormatString(const char* text) : text_(text) {  // NOLINT: implicit
    size_t placeholders = 0;
    for (const char* at = text; *at != 0; ++at) {
      if (*at != '{') continue;
      if (at[1] == '{') {
        ++at;
      } else {
        ++placeholders;
      }
    }
    if (placeholders != sizeof...(Arguments)) throw "as many placeholders as values";
  }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};
template <typename... Arguments>
using FormatOf = std::type_identity_t<FormatString<Arguments...>>;  // no deduction from the literal

std::string format_values(std::string_view format, const FormatArgument* values, size_t count);
inline std::string format_values(std::string_view format,
                                 std::initializer_list<FormatArgument> values) {
  return format_values(format, values.begin(), values.size());
}

template <typename... Arguments>
std::string format_text(FormatOf<Arguments...> format, const Arguments&... values) {
  return format_values(format.text(), {FormatArgument(values)...});
}

template <typename Range>
std::string joined(const Range& range, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& element : range) {
    if (!first) text += separator;
    text += format_values("{}", {FormatArgument(element)});
    first = false;
  }
  return text;
}

// Strangers may have named files, nodes and tensors, and terminals obey control characters: these
// functions write such characters as \x1b and the like.
//
// Print all lines for people with `print_lines`. It keeps newlines, so `escaped` must treat names
// in tables first. Errors escape their values themselves (status.h). If writing fails, the stream's
// error state is set.

std::string escaped(std::string_view text);        // one line
std::string escaped_lines(std::string_view text);  // newlines stay
std::string escaped_json(std::string_view text);   // for JSON: characters that JSON need not escape

void print_lines(std::FILE* stream, std::string_view text);

// A cell of a CSV file, quoted if RFC 4180 asks for it.
std::string csv_cell(std::string_view text);

// Numbers as people read them: "98.7 MiB", "1,199,882", "2:05". Metrics and other files keep bytes
// and seconds.

// Three digits, in the largest unit that leaves at least 1: {98.7, 1, "MiB"}.
struct ByteCount {
  double value = 0;
  int decimals = 0;
  const char* unit = "B";
};
ByteCount byte_count(uint64_t bytes);

std::string readable_bytes(uint64_t bytes);
std::string readable_count(int64_t count);     // with commas
std::string readable_seconds(double seconds);  // "2.93 s", "2:05", "1:02:05"
// Returns how many decimals give `value` three digits, at most three.
int decimals_of_three_digits(double value);
std::string readable_number(double value, int decimals);
std::string readable_number(double value);  // three digits, or all before the point
// Returns ", which is more than ..." if neither int64 nor float64 holds the number in `text`, else
// "". Follows the text in messages that say which numbers are expected.
std::string out_of_range_hint(std::string_view text);
std::string plural(int64_t count, const char* noun);  // "1 rank", "2 ranks"

}  // namespace ofsdp::base
