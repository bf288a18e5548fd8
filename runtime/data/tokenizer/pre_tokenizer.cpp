#include <algorithm>
#include <array>

#include "kernels/base/text.h"
#include "runtime/data/tokenizer/components.h"
#include "runtime/data/tokenizer/unicode.h"

namespace ofsdp::runtime {
namespace {

// The place of a delimiter's matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Sends a piece on in parts: matches and the texts between them come in order and touch.
class Splitter {
 public:
  Splitter(PieceView piece, Behavior behavior, const PieceSink& sink)
      : piece_(piece), behavior_(behavior), sink_(sink) {}

  Status add(size_t begin, size_t end, bool match) {
    switch (behavior_) {
      case Behavior::kRemoved:
        return match ? Status() : send(begin, end);
      case Behavior::kIsolated:
        return send(begin, end);
      case Behavior::kContiguous:
        if (held_ && match == match_) return extend(end);
        match_ = match;
        return hold(begin, end);
      case Behavior::kMergedWithPrevious:
        return match ? join(begin, end) : hold(begin, end);
      case Behavior::kMergedWithNext:
        return match ? hold(begin, end) : join(begin, end);
    }
    return {};
  }

  Status finish() {
    if (!held_) return {};
    held_ = false;
    return send(begin_, end_);
  }

 private:
  Status extend(size_t end) {
    end_ = end;
    return {};
  }

  Status hold(size_t begin, size_t end) {
    OFSDP_RETURN_IF_ERROR(finish());
    held_ = true;
    begin_ = begin;
    end_ = end;
    return {};
  }

  // Sends the part together with the one that is held, if there is one.
  Status join(size_t begin, size_t end) {
    if (held_) begin = begin_;
    held_ = false;
    return send(begin, end);
  }

  Status send(size_t begin, size_t end) {
    if (begin == end) return {};
    return sink_({piece_.text.substr(begin, end - begin), piece_.first && begin == 0});
  }

  const PieceView piece_;
  const Behavior behavior_;
  const PieceSink& sink_;
  size_t begin_ = 0, end_ = 0;  // the bytes that are held
  bool held_ = false, match_ = false;
};

// Characters for which `matches` is true are matches, one each.
template <typename Matches>
Status split_characters(PieceView piece, Matches matches, Behavior behavior,
                        const PieceSink& sink) {
  Splitter splitter(piece, behavior, sink);
  size_t done = 0;
  for (size_t at = 0; at < piece.text.size();) {
    const size_t begin = at;
    if (!matches(next_character(piece.text, at))) continue;
    if (done < begin) OFSDP_RETURN_IF_ERROR(splitter.add(done, begin, false));
    OFSDP_RETURN_IF_ERROR(splitter.add(begin, at, true));
    done = at;
  }
  if (done < piece.text.size()) {
    OFSDP_RETURN_IF_ERROR(splitter.add(done, piece.text.size(), false));
  }
  return splitter.finish();
}

Status split_pattern(PieceView piece, const Pattern& pattern, bool invert, Behavior behavior,
                     const PieceSink& sink) {
  Splitter splitter(piece, behavior, sink);
  size_t done = 0;
  OFSDP_RETURN_IF_ERROR(pattern.for_each_match(piece.text, [&](size_t begin, size_t end) -> Status {
    if (done < begin) OFSDP_RETURN_IF_ERROR(splitter.add(done, begin, invert));
    OFSDP_RETURN_IF_ERROR(splitter.add(begin, end, !invert));
    done = end;
    return {};
  }));
  if (done < piece.text.size()) {
    OFSDP_RETURN_IF_ERROR(splitter.add(done, piece.text.size(), invert));
  }
  return splitter.finish();
}

Result<Behavior> read_behavior(const Part& part) {
  constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  OFSDP_ASSIGN_OR_RETURN(const std::string found, part.text("behavior"));
  for (const auto& [name, behavior] : kNames) {
    if (name == found) return behavior;
  }
  return part.wrong("behavior",
                    "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<PreTokenizer> byte_level_pieces(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"add_prefix_space", "trim_offsets", "use_regex"}));
  OFSDP_ASSIGN_OR_RETURN(const bool prefix, part.flag("add_prefix_space", true));
  OFSDP_ASSIGN_OR_RETURN(const bool splits, part.flag("use_regex", true));
  OFSDP_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::regex(kGpt2Pattern));
  return PreTokenizer([=](PieceView piece, const PieceSink& sink) -> Status {
    std::string prefixed, bytes;
    if (prefix && !piece.text.starts_with(' ')) {
      prefixed = format_text(" {}", piece.text);
      piece.text = prefixed;
    }
    const auto send = [&](PieceView one) -> Status {
      bytes.clear();
      append_byte_characters(bytes, one.text);
      return sink({bytes, one.first});
    };
    return splits ? split_pattern(piece, pattern, false, Behavior::kIsolated, send) : send(piece);
  });
}

Result<PreTokenizer> split(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"pattern", "behavior", "invert"}));
  OFSDP_ASSIGN_OR_RETURN(const Pattern pattern, read_pattern(part));
  OFSDP_ASSIGN_OR_RETURN(const Behavior behavior, read_behavior(part));
  OFSDP_ASSIGN_OR_RETURN(const bool invert, part.flag("invert", false));
  return PreTokenizer([=](PieceView piece, const PieceSink& sink) {
    return split_pattern(piece, pattern, invert, behavior, sink);
  });
}

Result<PreTokenizer> bert_pieces(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  return PreTokenizer([](PieceView piece, const PieceSink& sink) {
    return split_characters(piece, is_space, Behavior::kRemoved, [&](PieceView word) {
      return split_characters(word, is_punctuation, Behavior::kIsolated, sink);
    });
  });
}

Result<PreTokenizer> whitespace_split(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  return PreTokenizer([](PieceView piece, const PieceSink& sink) {
    return split_characters(piece, is_space, Behavior::kRemoved, sink);
  });
}

// \w+|[^\w\s]+
Result<PreTokenizer> whitespace(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({}));
  return PreTokenizer([](PieceView piece, const PieceSink& sink) {
    return split_characters(piece, is_space, Behavior::kRemoved, [&](PieceView word) {
      return split_characters(word, is_word, Behavior::kContiguous, sink);
    });
  });
}

Result<PreTokenizer> punctuation(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"behavior"}));
  Behavior behavior = Behavior::kIsolated;
  if (part.has("behavior")) {
    OFSDP_ASSIGN_OR_RETURN(behavior, read_behavior(part));
  }
  return PreTokenizer([=](PieceView piece, const PieceSink& sink) {
    return split_characters(piece, is_punctuation, behavior, sink);
  });
}

Result<PreTokenizer> digits(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"individual_digits"}));
  OFSDP_ASSIGN_OR_RETURN(const bool each, part.flag("individual_digits", false));
  const Behavior behavior = each ? Behavior::kIsolated : Behavior::kContiguous;
  return PreTokenizer([=](PieceView piece, const PieceSink& sink) {
    return split_characters(piece, is_numeric, behavior, sink);
  });
}

Result<char32_t> one_character(const Part& part, std::string_view key) {
  OFSDP_ASSIGN_OR_RETURN(const std::string text, part.text(key));
  if (character_count(text) != 1) return part.wrong(key, "one character");
  size_t at = 0;
  return next_character(text, at);
}

Result<PreTokenizer> delimiter_split(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"delimiter"}));
  OFSDP_ASSIGN_OR_RETURN(const char32_t delimiter, one_character(part, "delimiter"));
  return PreTokenizer([=](PieceView piece, const PieceSink& sink) {
    return split_characters(
        piece, [=](char32_t c) { return c == delimiter; }, Behavior::kRemoved, sink);
  });
}

// The pieces that get the sign of a blank in front.
enum class PrependScheme { kAlways, kFirst, kNever };

// Older files have add_prefix_space in place of prepend_scheme.
Result<PrependScheme> read_scheme(const Part& part) {
  OFSDP_ASSIGN_OR_RETURN(const bool prefix, part.flag("add_prefix_space", true));
  if (!part.has("prepend_scheme")) return prefix ? PrependScheme::kAlways : PrependScheme::kNever;
  OFSDP_ASSIGN_OR_RETURN(const std::string scheme, part.text("prepend_scheme"));
  if (scheme == "always") return PrependScheme::kAlways;
  if (scheme == "first") return PrependScheme::kFirst;
  if (scheme == "never") return PrependScheme::kNever;
  return part.wrong("prepend_scheme", "always, first or never");
}

Result<PreTokenizer> metaspace(const Part& part) {
  OFSDP_RETURN_IF_ERROR(
      part.check_keys({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}));
  OFSDP_ASSIGN_OR_RETURN(const char32_t sign, one_character(part, "replacement"));
  OFSDP_ASSIGN_OR_RETURN(const PrependScheme scheme, read_scheme(part));
  OFSDP_ASSIGN_OR_RETURN(const bool splits, part.flag("split", true));
  std::string text;
  append_character(text, sign);
  return PreTokenizer([=](PieceView piece, const PieceSink& sink) -> Status {
    std::string made;
    for (const char c : piece.text) c == ' ' ? made += text : made += c;
    const bool prepends =
        scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && piece.first);
    if (prepends && !made.starts_with(text)) made.insert(0, text);
    const PieceView whole{made, piece.first};
    if (!splits) return sink(whole);
    return split_characters(
        whole, [=](char32_t c) { return c == sign; }, Behavior::kMergedWithNext, sink);
  });
}

Status run_from(const std::vector<PreTokenizer>& all, size_t index, PieceView piece,
                const PieceSink& sink) {
  if (index == all.size()) return sink(piece);
  return all[index](piece, [&](PieceView one) { return run_from(all, index + 1, one, sink); });
}

Result<PreTokenizer> pre_tokenizers_in_order(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"pretokenizers"}));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<Part> parts, part.list("pretokenizers"));
  std::vector<PreTokenizer> all;
  for (const Part& one : parts) {
    OFSDP_ASSIGN_OR_RETURN(all.emplace_back(), make_pre_tokenizer(one));
  }
  return PreTokenizer(
      [all](PieceView piece, const PieceSink& sink) { return run_from(all, 0, piece, sink); });
}

constexpr Kind<PreTokenizer> kPreTokenizers[] = {
    {"BertPreTokenizer", bert_pieces},
    {"ByteLevel", byte_level_pieces},
    {"CharDelimiterSplit", delimiter_split},
    {"Digits", digits},
    {"Metaspace", metaspace},
    {"Punctuation", punctuation},
    {"Sequence", pre_tokenizers_in_order},
    {"Split", split},
    {"Whitespace", whitespace},
    {"WhitespaceSplit", whitespace_split},
};

// GPT-2 shows bytes as printable characters: themselves where they are, else the next ones from
// U+0100 on.
std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> made{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
                           (byte >= 0xae && byte <= 0xff);
    made[byte] = printable ? byte : next++;
  }
  return made;
}

}  // namespace

void append_byte_characters(std::string& made, std::string_view bytes) {
  static const std::array<char32_t, 256> kCharacters = byte_characters();
  for (const char c : bytes) append_character(made, kCharacters[static_cast<unsigned char>(c)]);
}

Result<PreTokenizer> make_pre_tokenizer(const Part& part) {
  return make_kind<PreTokenizer>(part, kPreTokenizers);
}

}  // namespace ofsdp::runtime
