#include <sodium.h>

#include <algorithm>

#include "kernels/base/text.h"
#include "runtime/data/tokenizer/components.h"
#include "runtime/data/tokenizer/unicode.h"

namespace ofsdp::runtime {
namespace {

// Keeps the characters for which `keep` is true, changed by `map`.
template <typename Keep, typename Map>
void filter_characters(Piece& piece, Keep keep, Map map) {
  std::string made;
  made.reserve(piece.text.size());
  for (size_t at = 0; at < piece.text.size();) {
    const bool at_begin = at == 0;
    const char32_t c = next_character(piece.text, at);
    if (keep(c)) {
      append_character(made, map(c));
    } else if (at_begin) {
      piece.first = false;
    }
  }
  piece.text = std::move(made);
}

char32_t same(char32_t c) { return c; }

Result<Normalizer> normal_form_of(const Part& part, NormalForm form) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  return Normalizer([form](Piece& piece) -> Status {
    OFSDP_ASSIGN_OR_RETURN(piece.text, normal_form(piece.text, form));
    return {};
  });
}

bool is_chinese(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
      {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
  return std::ranges::any_of(
      kRanges, [c](const auto& range) { return c >= range.first && c <= range.second; });
}

void clean(Piece& piece) {
  filter_characters(
      piece, [](char32_t c) { return c != 0 && c != 0xfffd && !is_control(c); },
      [](char32_t c) { return is_space(c) ? U' ' : c; });
}

void set_chinese_apart(Piece& piece) {
  std::string made;
  for (size_t at = 0; at < piece.text.size();) {
    const char32_t c = next_character(piece.text, at);
    const bool apart = is_chinese(c);
    if (apart) made += ' ';
    append_character(made, c);
    if (apart) made += ' ';
  }
  piece.text = std::move(made);
}

Result<Normalizer> bert_normalizer(const Part& part) {
  OFSDP_RETURN_IF_ERROR(
      part.check_keys({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}));
  OFSDP_ASSIGN_OR_RETURN(const bool cleans, part.flag("clean_text", true));
  OFSDP_ASSIGN_OR_RETURN(const bool chinese, part.flag("handle_chinese_chars", true));
  OFSDP_ASSIGN_OR_RETURN(const bool lowers, part.flag("lowercase", true));
  OFSDP_ASSIGN_OR_RETURN(const bool strips, part.flag("strip_accents", lowers));
  return Normalizer([=](Piece& piece) -> Status {
    if (cleans) clean(piece);
    if (chinese) set_chinese_apart(piece);
    if (strips) {
      OFSDP_ASSIGN_OR_RETURN(piece.text, normal_form(piece.text, NormalForm::kNfd));
      filter_characters(
          piece, [](char32_t c) { return !is_nonspacing_mark(c); }, same);
    }
    if (lowers) piece.text = lower_case(piece.text);
    return {};
  });
}

Result<Normalizer> strip(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"strip_left", "strip_right"}));
  OFSDP_ASSIGN_OR_RETURN(const bool left, part.flag("strip_left", true));
  OFSDP_ASSIGN_OR_RETURN(const bool right, part.flag("strip_right", true));
  return Normalizer([=](Piece& piece) -> Status {
    std::string& text = piece.text;
    size_t begin = 0, end = text.size();
    for (size_t at = 0; left && at < end && is_space(next_character(text, at));) begin = at;
    while (right && end > begin) {
      const char32_t c = character_before(text, end);
      if (!is_space(c)) break;
      do --end;
      while (end > begin && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
    }
    if (begin > 0) piece.first = false;
    text = text.substr(begin, end - begin);
    return {};
  });
}

Result<Normalizer> strip_accents(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  return Normalizer([](Piece& piece) -> Status {
    filter_characters(
        piece, [](char32_t c) { return !is_mark(c); }, same);
    return {};
  });
}

Result<Normalizer> lowercase(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  return Normalizer([](Piece& piece) -> Status {
    piece.text = lower_case(piece.text);
    return {};
  });
}

// SentencePiece's rules for control characters and odd blanks.
Result<Normalizer> nmt(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  const auto dropped = [](char32_t c) {
    return (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f ||
           c == 0x8f || c == 0x9f;
  };
  const auto blank = [](char32_t c) {
    return c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
           (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xfeff || c == 0xfffd;
  };
  return Normalizer([=](Piece& piece) -> Status {
    filter_characters(
        piece, [&](char32_t c) { return !dropped(c); },
        [&](char32_t c) { return blank(c) ? U' ' : c; });
    return {};
  });
}

Result<Normalizer> prepend(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"prepend"}));
  OFSDP_ASSIGN_OR_RETURN(const std::string text, part.text("prepend"));
  return Normalizer([text](Piece& piece) -> Status {
    if (!piece.text.empty()) piece.text.insert(0, text);
    return {};
  });
}

Result<Normalizer> replace(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"pattern", "content"}));
  OFSDP_ASSIGN_OR_RETURN(const Pattern pattern, read_pattern(part));
  OFSDP_ASSIGN_OR_RETURN(const std::string content, part.text("content"));
  return Normalizer([pattern, content](Piece& piece) -> Status {
    std::string made;
    size_t done = 0;
    OFSDP_RETURN_IF_ERROR(
        pattern.for_each_match(piece.text, [&](size_t begin, size_t end) -> Status {
          made.append(piece.text, done, begin - done);
          made += content;
          if (begin == 0 && end > 0 && content.empty()) piece.first = false;
          done = end;
          return {};
        }));
    made.append(piece.text, done);
    piece.text = std::move(made);
    return {};
  });
}

Result<Normalizer> byte_level(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  return Normalizer([](Piece& piece) -> Status {
    std::string made;
    append_byte_characters(made, piece.text);
    piece.text = std::move(made);
    return {};
  });
}

Result<Normalizer> normalizers_in_order(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"normalizers"}));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<Part> parts, part.list("normalizers"));
  std::vector<Normalizer> all;
  for (const Part& one : parts) {
    OFSDP_ASSIGN_OR_RETURN(all.emplace_back(), make_normalizer(one));
  }
  return Normalizer([all](Piece& piece) -> Status {
    for (const Normalizer& one : all) OFSDP_RETURN_IF_ERROR(one(piece));
    return {};
  });
}

// A map of texts to texts as SentencePiece stores it: the size of a double array of 32-bit units
// (github.com/s-yata/darts-clone), the units, and the new texts, each with a zero at its end.
class CharacterMap {
 public:
  static Result<CharacterMap> decode(const Part& part, std::string_view bytes) {
    const auto word = [&](size_t at) {
      uint32_t value = 0;
      for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
      return value;
    };
    CharacterMap map;
    const size_t size = bytes.size() < 4 ? 0 : word(0);
    const bool fits = size > 0 && size % 4 == 0 && size <= bytes.size() - 4;
    if (!fits) return part.wrong("precompiled_charsmap", "a map of characters");
    for (size_t at = 4; at < 4 + size; at += 4) map.units_.push_back(word(at));
    map.texts_ = bytes.substr(4 + size);
    if (!map.texts_.empty() && map.texts_.back() != '\0') map.texts_ += '\0';
    return map;
  }

  // Returns the new text; none if the map has no prefix of `key`. The shortest prefix decides.
  std::optional<std::string_view> find(std::string_view key) const {
    size_t node = offset(units_[0]);
    for (const char c : key) {
      const auto label = static_cast<unsigned char>(c);
      if (label == 0) break;
      node ^= label;
      if (node >= units_.size() || (units_[node] & (0x80000000u | 0xff)) != label) break;
      const bool leaf = (units_[node] >> 8 & 1) != 0;
      node ^= offset(units_[node]);
      if (node >= units_.size()) break;
      if (leaf) return text_at(units_[node] & 0x7fffffffu);
    }
    return std::nullopt;
  }

 private:
  static size_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  std::optional<std::string_view> text_at(size_t at) const {
    if (at >= texts_.size()) return std::nullopt;
    return std::string_view(texts_).substr(at, texts_.find('\0', at) - at);
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

Result<std::string> from_base64(const Part& part, const std::string& text) {
  std::string bytes(text.size(), '\0');
  size_t size = 0;
  const int failed =
      sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &size, nullptr, sodium_base64_VARIANT_ORIGINAL);
  if (failed != 0) return part.wrong("precompiled_charsmap", "base64");
  bytes.resize(size);
  return bytes;
}

// SentencePiece's map is for short graphemes as a whole, else for their characters.
void map_grapheme(const CharacterMap& map, std::string_view grapheme, std::string& made) {
  constexpr size_t kShort = 6;
  if (grapheme.size() < kShort) {
    if (const auto text = map.find(grapheme)) {
      made += *text;
      return;
    }
  }
  for (size_t at = 0; at < grapheme.size();) {
    const std::string_view one = grapheme.substr(at, character_bytes(grapheme[at]));
    made += map.find(one).value_or(one);
    at += one.size();
  }
}

Result<Normalizer> precompiled(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"precompiled_charsmap"}));
  if (!part.has("precompiled_charsmap")) return Normalizer([](Piece&) { return Status(); });
  OFSDP_ASSIGN_OR_RETURN(const std::string base64, part.text("precompiled_charsmap"));
  OFSDP_ASSIGN_OR_RETURN(const std::string bytes, from_base64(part, base64));
  OFSDP_ASSIGN_OR_RETURN(CharacterMap decoded, CharacterMap::decode(part, bytes));
  const auto map = std::make_shared<const CharacterMap>(std::move(decoded));
  return Normalizer([map](Piece& piece) -> Status {
    std::string made;
    for_each_grapheme(piece.text,
                      [&](std::string_view grapheme) { map_grapheme(*map, grapheme, made); });
    const size_t invalid = invalid_utf8(made);
    OFSDP_REJECT_IF(invalid != made.npos, "precompiled_charsmap: expected texts in UTF-8");
    piece.text = std::move(made);
    return {};
  });
}

template <NormalForm kForm>
Result<Normalizer> form(const Part& part) {
  return normal_form_of(part, kForm);
}

constexpr Kind<Normalizer> kNormalizers[] = {
    {"BertNormalizer", bert_normalizer},
    {"ByteLevel", byte_level},
    {"Lowercase", lowercase},
    {"NFC", form<NormalForm::kNfc>},
    {"NFD", form<NormalForm::kNfd>},
    {"NFKC", form<NormalForm::kNfkc>},
    {"NFKD", form<NormalForm::kNfkd>},
    {"Nmt", nmt},
    {"Precompiled", precompiled},
    {"Prepend", prepend},
    {"Replace", replace},
    {"Sequence", normalizers_in_order},
    {"Strip", strip},
    {"StripAccents", strip_accents},
};

}  // namespace

Result<Normalizer> make_normalizer(const Part& part) {
  return make_kind<Normalizer>(part, kNormalizers);
}

}  // namespace ofsdp::runtime
