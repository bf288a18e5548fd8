// Tokenizer makes token ids of text, as the `tokenizers` package does with the same tokenizer.json:
// byte-level BPE, WordPiece and Unigram, with their normalizers and pre-tokenizers (components.h).
//
// A part of the file that is not supported is kInput with the file and its key. `truncation`,
// `padding` and `decoder` of the file have no effect.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/data/tokenizer/components.h"

namespace ofsdp::runtime {

// Tokens that are found in the text as a whole, before the model sees it.
class AddedTokens {
 public:
  struct Token {
    std::string content;
    TokenId id = 0;
    bool single_word = false, lstrip = false, rstrip = false, normalized = false;
  };

  void add(const Token& token, std::string_view text);  // `text`: to look for, not empty

  // Calls `visit(token, begin, end)` for each part of `text`; the token is null between two.
  template <typename Visit>
  Status split(std::string_view text, Visit visit) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> next;
    int64_t token = -1;
  };
  struct Match {
    const Token* token;
    size_t end;
  };
  std::optional<Match> longest_at(std::string_view text, size_t at) const;

  std::vector<Token> tokens_;
  std::vector<Node> nodes_{Node()};
  std::array<bool, 256> begins_{};  // bytes with which a token begins
};

class Tokenizer {
 public:
  // Parses a tokenizer.json. Messages call the file `path`.
  static Result<std::unique_ptr<Tokenizer>> parse(std::string_view json, const std::string& path);

  // Keeps the ids of words. A caller has one for each of its threads.
  using SeenWords =
      std::unordered_map<std::string, std::vector<TokenId>, TextHash, std::equal_to<>>;

  // Appends the ids of a text, without those around it. Errors: kInput if the model has no id for
  // an unknown text. REQUIRES: `text` is valid UTF-8.
  Status encode(std::string_view text, std::vector<TokenId>& ids, SeenWords& seen) const;

  const Surrounding& surrounding() const { return surrounding_; }  // for every text
  const std::string& path() const { return path_; }
  int64_t vocabulary() const { return vocabulary_; }  // ids of the model are below it
  // Returns the id of an added token or of one of the model.
  std::optional<TokenId> find(std::string_view token) const;
  TokenId padding() const { return padding_; }

 private:
  Status read(const Part& file);
  Status read_added(const Part& file);
  void find_padding(const Part& file);
  Status encode_normalized(PieceView piece, std::vector<TokenId>& ids, SeenWords& seen) const;
  Status encode_piece(std::string_view piece, std::vector<TokenId>& ids, SeenWords& seen) const;

  std::string path_;
  Normalizer normalizer_;       // may be empty
  PreTokenizer pre_tokenizer_;  // may be empty
  std::unique_ptr<TokenModel> model_;
  Surrounding surrounding_;
  AddedTokens raw_, normalized_;  // found before and after the normalizer
  Vocabulary added_;
  int64_t vocabulary_ = 0;
  TokenId padding_ = 0;
};

}  // namespace ofsdp::runtime
