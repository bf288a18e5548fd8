#include <algorithm>
#include <string>

#include "kernels/base/text.h"
#include "runtime/data/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace ofsdp::runtime {
namespace {

constexpr std::string_view kDigits = "0123456789";

// Writes an Oniguruma pattern as PCRE2 reads it.
//
// [Note: two regular expressions] The two agree on literals, classes, groups, look-around and
// greedy quantifiers. They differ in \s, \w, \d, \h and \v, in classes within classes, in &&, in
// {,n} and in a sign after {n,m}. The first six are spelled out; the others are refused, and so is
// all that no tokenizer is known to use.
class Translator {
 public:
  explicit Translator(std::string_view text) : text_(text) {}

  Result<std::string> run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      OFSDP_RETURN_IF_ERROR(c == '\\'  ? escape(false)
                            : c == '[' ? bracket()
                            : c == '(' ? group()
                            : c == '{' ? braces()
                                       : copy(1));
    }
    return std::move(made_);
  }

 private:
  Status refuse(size_t count) const {
    return input_error("regular expression '{}': '{}' is not supported here", escaped(text_),
                       escaped(text_.substr(at_, count)));
  }

  Status copy(size_t count) {
    made_ += text_.substr(at_, count);
    at_ = std::min(at_ + count, text_.size());
    return {};
  }

  Status put(std::string_view text, size_t count) {
    made_ += text;
    at_ += count;
    return {};
  }

  Status escape(bool in_class) {
    constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    constexpr std::string_view kLatinDigits = "\\xb2\\xb3\\xb9\\xbc-\\xbe";  // outside of classes
    if (at_ + 1 == text_.size()) return refuse(1);
    const char c = text_[at_ + 1];
    const auto one_of = [&](std::string_view set) { return set.find(c) != set.npos; };
    if (c == 's') return put("\\p{White_Space}", 2);
    if (c == 'S') return put("\\P{White_Space}", 2);
    if (c == 'd') return put("\\p{Nd}", 2);
    if (c == 'D') return put("\\P{Nd}", 2);
    if (c == 'v') return put("\\x0b", 2);
    if (c == 'w' && in_class) return put(kWord, 2);
    if (c == 'w') return put(format_text("[{}{}]", kWord, kLatinDigits), 2);
    if (c == 'W' && !in_class) return put(format_text("[^{}{}]", kWord, kLatinDigits), 2);
    if (c == 'h') return put(in_class ? "0-9a-fA-F" : "[0-9a-fA-F]", 2);
    if (c == 'u') return code_unit();
    if (c == 'p' || c == 'P') return property();
    if (c == 'x') return copy(2);
    if (one_of("nrtfae") || (!in_class && one_of("AzZG"))) return copy(2);
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) != 0) return refuse(2);
    return copy(1 + character_bytes(c));
  }

  Status code_unit() {
    const std::string_view digits = text_.substr(at_ + 2, 4);
    const bool four = digits.size() == 4 &&
                      digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    return four ? put(format_text("\\x{{{}}}", digits), 6) : refuse(2);
  }

  Status property() {
    const size_t end = text_.find('}', at_);
    const bool whole = at_ + 2 < text_.size() && text_[at_ + 2] == '{' && end != text_.npos;
    return whole ? copy(end + 1 - at_) : refuse(2);
  }

  // A class within a class, if it is not negated, adds its characters to the outer one.
  Status bracket() {
    OFSDP_RETURN_IF_ERROR(copy(1));
    if (at_ < text_.size() && text_[at_] == '^') OFSDP_RETURN_IF_ERROR(copy(1));
    int open = 1;
    for (bool first = true; at_ < text_.size(); first = false) {
      const char c = text_[at_];
      const std::string_view two = text_.substr(at_, 2);
      if (two == "&&" || two == "[^" || two == "[:" || two == "[]") return refuse(2);
      if (c == ']' && first) return refuse(1);
      if (c == ']' && --open == 0) return copy(1);
      if (c == '[') ++open;
      if (c == '[' || c == ']') {
        ++at_;
        continue;
      }
      OFSDP_RETURN_IF_ERROR(c == '\\' ? escape(true) : copy(1));
    }
    return refuse(1);
  }

  Status group() {
    if (at_ + 1 < text_.size() && text_[at_ + 1] == '*') return refuse(2);
    if (at_ + 1 == text_.size() || text_[at_ + 1] != '?') return copy(1);
    for (const std::string_view begin : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (text_.substr(at_).starts_with(begin)) return copy(begin.size());
    }
    const bool first = at_ == 0 && text_.starts_with("(?i)");
    return first ? copy(4) : refuse(3);
  }

  Status braces() {
    size_t end = text_.find_first_not_of(kDigits, at_ + 1);
    const bool number = end != text_.npos && end > at_ + 1;
    if (number && text_[end] == ',') end = text_.find_first_not_of(kDigits, end + 1);
    if (!number || end == text_.npos || text_[end] != '}') return refuse(2);
    const char next = end + 1 < text_.size() ? text_[end + 1] : '\0';
    if (next == '+' || next == '?') return refuse(end + 2 - at_);
    return copy(end + 1 - at_);
  }

  const std::string_view text_;
  std::string made_;
  size_t at_ = 0;
};

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Result<Pattern> Pattern::regex(std::string_view text) {
  OFSDP_ASSIGN_OR_RETURN(const std::string translated, Translator(text).run());
  int code = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code* const made =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &offset, context.get());
  OFSDP_REJECT_IF(made == nullptr, "regular expression '{}': {}", escaped(text),
                  pcre2_message(code));
  pcre2_jit_compile(made, PCRE2_JIT_COMPLETE);  // without it, matching is slower
  Pattern pattern;
  pattern.text_ = text;
  pattern.code_ = std::shared_ptr<const void>(made, [](const void* held) {
    pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(held)));
  });
  return pattern;
}

Pattern Pattern::literal(std::string_view text) {
  Pattern pattern;
  pattern.text_ = text;
  return pattern;
}

Status Pattern::for_each_match(std::string_view text, const Visit& visit) const {
  if (code_ == nullptr) return for_each_literal(text, visit);
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(match.get());
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t last = std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    const auto run = [&](uint32_t options) {
      return pcre2_match(code, subject, text.size(), at, options, match.get(), nullptr);
    };
    int count = run(PCRE2_NO_UTF_CHECK);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = run(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (count == PCRE2_ERROR_NOMATCH) break;
    OFSDP_REJECT_IF(count < 0, "regular expression '{}': {}", escaped(text_), pcre2_message(count));
    if (found[0] == found[1] && found[1] == last) {
      at += at < text.size() ? character_bytes(text[at]) : 1;
      continue;
    }
    at = last = found[1];
    OFSDP_RETURN_IF_ERROR(visit(found[0], found[1]));
  }
  return {};
}

Status Pattern::for_each_literal(std::string_view text, const Visit& visit) const {
  if (text_.empty()) return {};
  for (size_t at = text.find(text_); at != text.npos; at = text.find(text_, at + text_.size())) {
    OFSDP_RETURN_IF_ERROR(visit(at, at + text_.size()));
  }
  return {};
}

}  // namespace ofsdp::runtime
