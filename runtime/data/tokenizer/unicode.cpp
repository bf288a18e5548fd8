#include "runtime/data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

const utf8proc_uint8_t* bytes_at(std::string_view text, size_t at) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_between(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

}  // namespace

size_t invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t c = 0;
    const auto left = static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - at, 4));
    const utf8proc_ssize_t size = utf8proc_iterate(bytes_at(text, at), left, &c);
    if (size <= 0) return at;
    at += static_cast<size_t>(size);
  }
  return std::string_view::npos;
}

size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

char32_t next_character(std::string_view text, size_t& at) {
  const size_t size = character_bytes(text[at]);
  OFSDP_CHECK(size <= text.size() - at, "a character of {} bytes at {} of {}", size, at,
              text.size());
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  constexpr unsigned char kFirst[] = {0x7f, 0x1f, 0x0f, 0x07};
  char32_t c = byte(0) & kFirst[size - 1];
  for (size_t i = 1; i < size; ++i) c = c << 6 | (byte(i) & 0x3f);
  at += size;
  return c;
}

char32_t character_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return next_character(text, at);
}

size_t character_count(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void append_character(std::string& text, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

Result<std::string> normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  int options = UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (compatible) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(bytes_at(text, 0), static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (size < 0) return input_error("Unicode normalization: {}", utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
}

std::string lower_case(std::string_view text) {
  constexpr char32_t kDottedI = 0x130;  // the one whose small letter is two characters
  std::string made;
  made.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (c == kDottedI) {
      made += "i\xcc\x87";
    } else {
      append_character(made,
                       static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return made;
}

bool is_space(char32_t c) {
  constexpr char32_t kOthers[] = {0x20, 0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
  return is_between(c, 0x9, 0xd) || is_between(c, 0x2000, 0x200a) ||
         std::ranges::find(kOthers, c) != std::end(kOthers);
}

bool is_word(char32_t c) {
  if (c < 0x80) return c == '_' || std::isalnum(static_cast<int>(c)) != 0;
  // Letters in circles and squares are alphabetic.
  if (is_between(c, 0x24b6, 0x24e9) || is_between(c, 0x1f130, 0x1f149) ||
      is_between(c, 0x1f150, 0x1f169) || is_between(c, 0x1f170, 0x1f189)) {
    return true;
  }
  const utf8proc_category_t kind = category(c);
  const bool letter = kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
  return letter || is_mark(c) || kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_PC || c == 0x200c || c == 0x200d;
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return std::ispunct(static_cast<int>(c)) != 0;
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_CO;
}

bool is_mark(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

void for_each_grapheme(std::string_view text,
                       const std::function<void(std::string_view grapheme)>& visit) {
  utf8proc_int32_t state = 0, last = -1;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t before = at;
    const auto c = static_cast<utf8proc_int32_t>(next_character(text, at));
    if (last >= 0 && utf8proc_grapheme_break_stateful(last, c, &state)) {
      visit(text.substr(begin, before - begin));
      begin = before;
    }
    last = c;
  }
  if (begin < text.size()) visit(text.substr(begin));
}

}  // namespace ofsdp::runtime
