// The parts of a tokenizer.json, as the `tokenizers` package defines them: a normalizer changes a
// text, a pre-tokenizer cuts it into pieces, a model makes ids of each piece, and a post-processor
// adds ids around them. tokenizer.cpp puts them together.
//
// A part is read from its JSON object. A type or key that is not listed here is kInput with the
// file and the part's place in it. Parts are immutable; any thread may use them.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/data/tokenizer/unicode.h"

namespace ofsdp::runtime {

// A JSON object of tokenizer.json with its place, for messages.
class Part {
 public:
  using Json = nlohmann::json;
  Part(const Json& json, std::string place) : json_(json), place_(std::move(place)) {}

  const std::string& place() const { return place_; }
  const Json& json() const { return json_; }

  Result<std::string> type() const;
  // Returns an error for a key that is neither `type` nor listed.
  Status check_keys(std::initializer_list<std::string_view> keys) const;
  Status wrong(std::string_view key, const char* expected) const;

  bool has(std::string_view key) const;  // true if it is there and not null
  Result<Part> part(std::string_view key) const;
  Result<std::vector<Part>> list(std::string_view key) const;
  Result<std::string> text(std::string_view key) const;
  Result<bool> flag(std::string_view key, bool absent) const;
  Result<int64_t> number(std::string_view key) const;  // at least 0, below 2^31

 private:
  const Json& json_;
  std::string place_;
};

// A type of part and its maker.
template <typename Made>
struct Kind {
  std::string_view type;
  Result<Made> (*make)(const Part& part);
};
Status unknown_type(const Part& part, const std::string& type,
                    const std::vector<std::string_view>& known);

template <typename Made, size_t kCount>
Result<Made> make_kind(const Part& part, const Kind<Made> (&kinds)[kCount]) {
  OFSDP_ASSIGN_OR_RETURN(const std::string type, part.type());
  std::vector<std::string_view> known;
  for (const Kind<Made>& kind : kinds) {
    if (kind.type == type) return kind.make(part);
    known.push_back(kind.type);
  }
  return unknown_type(part, type, known);
}

// Reads `pattern`: {"String": text} or {"Regex": text}.
Result<Pattern> read_pattern(const Part& part);

// A text on its way to pieces. `first`: it begins where the whole text does.
struct Piece {
  std::string text;
  bool first = true;
};
struct PieceView {
  std::string_view text;
  bool first = true;
};

using Normalizer = std::function<Status(Piece& piece)>;
Result<Normalizer> make_normalizer(const Part& part);

// Sends the pieces on, in order; none is empty.
using PieceSink = std::function<Status(PieceView piece)>;
using PreTokenizer = std::function<Status(PieceView piece, const PieceSink& sink)>;
Result<PreTokenizer> make_pre_tokenizer(const Part& part);

// Appends the printable characters that stand for bytes in GPT-2's vocabulary.
void append_byte_characters(std::string& made, std::string_view bytes);

using TokenId = uint32_t;

// Lets a map be searched by a view.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>>;

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of a piece, which is not empty. Errors: kInput if an unknown text has no id.
  virtual Status encode(std::string_view piece, std::vector<TokenId>& ids) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const TokenId* find(std::string_view token) const;

 protected:
  Vocabulary vocabulary_;
};
Result<std::unique_ptr<TokenModel>> make_token_model(const Part& part);

// The ids before and after a text's own.
struct Surrounding {
  std::vector<TokenId> before, after;
};
Result<Surrounding> read_surrounding(const Part& part);

}  // namespace ofsdp::runtime
