// Unicode for tokenizers: UTF-8, normal forms, categories and regular expressions.
//
// Normal forms and categories come from utf8proc (Unicode 15), regular expressions from PCRE2
// (Unicode 14): together 1 MB, where ICU has 35 MB. Characters that are newer than a library's
// tables count as unassigned. Texts must be valid UTF-8 (see invalid_utf8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace ofsdp::runtime {

// Returns the offset of the first byte that is not valid UTF-8; npos if there is none.
size_t invalid_utf8(std::string_view text);

// Returns the character at `at`, and moves `at` to its end.
char32_t next_character(std::string_view text, size_t& at);
// Returns the character that ends at `end`, which is above 0.
char32_t character_before(std::string_view text, size_t end);
// Returns how many bytes the character has that starts with this byte.
size_t character_bytes(char first);
size_t character_count(std::string_view text);
void append_character(std::string& text, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
Result<std::string> normal_form(std::string_view text, NormalForm form);
std::string lower_case(std::string_view text);  // without context: final sigma is no exception

bool is_space(char32_t c);            // White_Space
bool is_word(char32_t c);             // letters, marks, decimal digits, connectors, joiners
bool is_numeric(char32_t c);          // N
bool is_punctuation(char32_t c);      // P, and all symbols of ASCII
bool is_control(char32_t c);          // Cc, Cf, Co; but no tab and no line end
bool is_mark(char32_t c);             // M
bool is_nonspacing_mark(char32_t c);  // Mn

// Calls `visit` for each extended grapheme cluster.
void for_each_grapheme(std::string_view text,
                       const std::function<void(std::string_view grapheme)>& visit);

// A regular expression as Oniguruma reads it, which the `tokenizers` package uses, or a literal
// text. A construct that PCRE2 reads in another way is kInput.
class Pattern {
 public:
  static Result<Pattern> regex(std::string_view text);
  static Pattern literal(std::string_view text);

  // Calls `visit(begin, end)` for each match, in order, until it fails. An empty match at the end
  // of the last match is none. Errors: those of `visit`; kInput if a match needs too many steps.
  using Visit = std::function<Status(size_t begin, size_t end)>;
  Status for_each_match(std::string_view text, const Visit& visit) const;

 private:
  Status for_each_literal(std::string_view text, const Visit& visit) const;

  std::shared_ptr<const void> code_;  // null: `text_` is a literal
  std::string text_;
};

}  // namespace ofsdp::runtime
