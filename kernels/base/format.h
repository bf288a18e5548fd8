// Text from a format string and values, in {fmt}'s language ("{}", "{:.3g}"). The values lose their
// types at the call and {fmt} is included by format.cpp alone: to compile a message costs its
// caller one function call.
//
//   format_text("{} of {} ranks", done, world)      the text; placeholders are counted while
//                                                   compiling
//   joined(names, ", ")                             the elements of a range, with a separator
//
// A specification that does not fit the value ("{:d}" of a string) is our own bug and aborts.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

// A value without its type; a view: the text it names must outlive the call.
class FormatArgument {
 public:
  enum class Kind : uint8_t { kBool, kChar, kSigned, kUnsigned, kFloat, kDouble, kText, kAddress };

  // Not of values that convert to bool, such as a pointer.
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

// A literal with the right number of placeholders.
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
template <typename T>
struct SameType {
  using Type = T;
};
template <typename... Arguments>
using FormatOf =
    typename SameType<FormatString<Arguments...>>::Type;  // no deduction from the literal

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

}  // namespace ofsdp::base
