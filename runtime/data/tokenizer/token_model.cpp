#include <algorithm>
#include <limits>
#include <queue>

#include "kernels/base/text.h"
#include "runtime/data/tokenizer/components.h"
#include "runtime/data/tokenizer/unicode.h"

namespace ofsdp::runtime {
namespace {

// "<0x0A>"
std::string byte_token(char byte) {
  return format_text("<0x{:02X}>", static_cast<unsigned char>(byte));
}

Status no_unknown_token(const std::string& token, std::string_view piece) {
  return input_error("unk_token: expected a token of the vocabulary, found '{}', for the text '{}'",
                     escaped(token), escaped(piece.substr(0, 40)));
}

Result<TokenId> token_id(const Part& part, const nlohmann::json& value) {
  const bool fits =
      value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int32_t>::max();
  if (!fits) return part.wrong("vocab", "numbers of tokens from 0");
  return value.get<TokenId>();
}

Result<Vocabulary> read_vocabulary(const Part& part) {
  const auto found = part.json().find("vocab");
  if (found == part.json().end() || !found->is_object()) {
    return part.wrong("vocab", "an object of tokens and numbers");
  }
  Vocabulary vocabulary;
  vocabulary.reserve(found->size());
  for (const auto& [token, id] : found->items()) {
    OFSDP_ASSIGN_OR_RETURN(vocabulary[token], token_id(part, id));
  }
  return vocabulary;
}

// Byte pair encoding: starts with characters and joins the pair that comes first in `merges`, the
// leftmost of equals, until no pair is in it.
class PairModel : public TokenModel {
 public:
  static Result<std::unique_ptr<TokenModel>> make(const Part& part) {
    OFSDP_RETURN_IF_ERROR(
        part.check_keys({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                         "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
    if (part.has("dropout") && part.json()["dropout"] != 0) {
      return part.wrong("dropout", "null, since tokens must not be random");
    }
    auto model = std::make_unique<PairModel>();
    OFSDP_RETURN_IF_ERROR(model->read(part));
    return std::unique_ptr<TokenModel>(std::move(model));
  }

  Status encode(std::string_view piece, std::vector<TokenId>& ids) const override {
    const TokenId* const whole = ignore_merges_ ? find(piece) : nullptr;
    if (whole != nullptr) {
      ids.push_back(*whole);
      return {};
    }
    std::vector<TokenId> symbols;
    OFSDP_RETURN_IF_ERROR(split(piece, symbols));
    merge(symbols, ids);
    return {};
  }

 private:
  struct Merge {
    uint32_t rank = 0;
    TokenId made = 0;
  };

  static uint64_t pair(TokenId left, TokenId right) { return uint64_t{left} << 32 | right; }

  Status read(const Part& part) {
    OFSDP_ASSIGN_OR_RETURN(vocabulary_, read_vocabulary(part));
    OFSDP_ASSIGN_OR_RETURN(fuse_unk_, part.flag("fuse_unk", false));
    OFSDP_ASSIGN_OR_RETURN(byte_fallback_, part.flag("byte_fallback", false));
    OFSDP_ASSIGN_OR_RETURN(ignore_merges_, part.flag("ignore_merges", false));
    if (part.has("unk_token")) {
      OFSDP_ASSIGN_OR_RETURN(unk_token_, part.text("unk_token"));
    }
    if (part.has("continuing_subword_prefix")) {
      OFSDP_ASSIGN_OR_RETURN(prefix_, part.text("continuing_subword_prefix"));
    }
    if (part.has("end_of_word_suffix")) {
      OFSDP_ASSIGN_OR_RETURN(suffix_, part.text("end_of_word_suffix"));
    }
    for (int byte = 0; byte < 256 && byte_fallback_; ++byte) {
      const TokenId* const id = find(byte_token(static_cast<char>(byte)));
      bytes_.push_back(id == nullptr ? std::nullopt : std::optional(*id));
    }
    return read_merges(part);
  }

  // A merge is "a b" or ["a", "b"].
  Status read_merges(const Part& part) {
    const auto merges = part.json().find("merges");
    if (merges == part.json().end() || !merges->is_array()) {
      return part.wrong("merges", "a list of pairs of tokens");
    }
    uint32_t rank = 0;
    merges_.reserve(merges->size());
    for (const auto& merge : *merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t blank = text.find(' ');
        if (blank != text.npos) left = text.substr(0, blank);
        if (blank != text.npos) right = text.substr(blank + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0];
        right = merge[1];
      }
      const std::string rest = right.starts_with(prefix_) ? right.substr(prefix_.size()) : right;
      const TokenId *a = find(left), *b = find(right), *made = find(left + rest);
      if (a == nullptr || b == nullptr || made == nullptr) {
        return input_error("{}: merges: expected pairs of the vocabulary's tokens, found {}",
                           part.place(), escaped(merge.dump().substr(0, 60)));
      }
      merges_[pair(*a, *b)] = {rank++, *made};
    }
    return {};
  }

  // Appends the token of each character. A character without one becomes unk_token, or bytes, or
  // nothing.
  Status split(std::string_view piece, std::vector<TokenId>& symbols) const {
    bool unknown = false;  // an unk_token that is not appended yet
    const auto append_unknown = [&]() -> Status {
      if (!unknown) return {};
      unknown = false;
      const TokenId* const id = find(*unk_token_);
      if (id == nullptr) return no_unknown_token(*unk_token_, piece);
      symbols.push_back(*id);
      return {};
    };
    std::string text;
    for (size_t at = 0; at < piece.size();) {
      const size_t size = character_bytes(piece[at]);
      text = at > 0 ? prefix_ : "";
      text += piece.substr(at, size);
      at += size;
      if (at == piece.size()) text += suffix_;
      if (const TokenId* const id = find(text)) {
        OFSDP_RETURN_IF_ERROR(append_unknown());
        symbols.push_back(*id);
      } else if (append_bytes(text, symbols) || !unk_token_) {
        continue;
      } else {
        if (!fuse_unk_) OFSDP_RETURN_IF_ERROR(append_unknown());
        unknown = true;
      }
    }
    return append_unknown();
  }

  bool append_bytes(std::string_view text, std::vector<TokenId>& symbols) const {
    if (!byte_fallback_) return false;
    const auto id = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
    if (!std::ranges::all_of(text, [&](char c) { return id(c).has_value(); })) return false;
    for (const char c : text) symbols.push_back(*id(c));
    return true;
  }

  struct Symbol {
    TokenId id;
    int64_t before, after;  // indices; -1: none
    bool gone = false;
  };
  struct Candidate {
    uint32_t rank;
    int64_t left;
    TokenId made;
    bool operator<(const Candidate& other) const {  // the queue's top is the largest
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  void merge(const std::vector<TokenId>& tokens, std::vector<TokenId>& ids) const {
    std::vector<Symbol> symbols;
    const auto count = std::ssize(tokens);
    for (int64_t i = 0; i < count; ++i) {
      symbols.push_back({tokens[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    }
    const auto at = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    std::priority_queue<Candidate> queue;
    const auto find_merge = [&](int64_t left) {
      return merges_.find(pair(at(left).id, at(at(left).after).id));
    };
    const auto consider = [&](int64_t left) {
      if (left < 0 || at(left).after < 0) return;
      const auto found = find_merge(left);
      if (found != merges_.end()) queue.push({found->second.rank, left, found->second.made});
    };
    for (int64_t i = 0; i < count; ++i) consider(i);
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = at(best.left);
      if (left.gone || left.after < 0) continue;
      const auto found = find_merge(best.left);
      if (found == merges_.end() || found->second.made != best.made) continue;  // out of date
      left.id = best.made;
      at(left.after).gone = true;
      left.after = at(left.after).after;
      if (left.after >= 0) at(left.after).before = best.left;
      consider(left.before);
      consider(best.left);
    }
    for (const Symbol& symbol : symbols) {
      if (!symbol.gone) ids.push_back(symbol.id);
    }
  }

  std::unordered_map<uint64_t, Merge> merges_;
  std::optional<std::string> unk_token_;
  std::string prefix_, suffix_;
  std::vector<std::optional<TokenId>> bytes_;
  bool fuse_unk_ = false, byte_fallback_ = false, ignore_merges_ = false;
};

// WordPiece: the longest token that begins a word, then the longest for the rest.
class WordPieceModel : public TokenModel {
 public:
  static Result<std::unique_ptr<TokenModel>> make(const Part& part) {
    OFSDP_RETURN_IF_ERROR(part.check_keys(
        {"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}));
    auto model = std::make_unique<WordPieceModel>();
    OFSDP_ASSIGN_OR_RETURN(model->vocabulary_, read_vocabulary(part));
    OFSDP_ASSIGN_OR_RETURN(model->unk_token_, part.text("unk_token"));
    OFSDP_ASSIGN_OR_RETURN(model->prefix_, part.text("continuing_subword_prefix"));
    OFSDP_ASSIGN_OR_RETURN(model->longest_, part.number("max_input_chars_per_word"));
    return std::unique_ptr<TokenModel>(std::move(model));
  }

  Status encode(std::string_view piece, std::vector<TokenId>& ids) const override {
    const size_t begun = ids.size();
    bool known = std::cmp_less_equal(character_count(piece), longest_);
    for (size_t begin = 0; known && begin < piece.size();) {
      const size_t end = longest_token(piece, begin, ids);
      known = end > begin;
      begin = end;
    }
    if (known) return {};
    const TokenId* const unknown = find(unk_token_);
    if (unknown == nullptr) return no_unknown_token(unk_token_, piece);
    ids.resize(begun);
    ids.push_back(*unknown);
    return {};
  }

 private:
  // Appends the token and returns its end; `begin` if there is none.
  size_t longest_token(std::string_view piece, size_t begin, std::vector<TokenId>& ids) const {
    std::string text = begin > 0 ? prefix_ : "";
    const size_t before = text.size();
    text += piece.substr(begin);
    while (text.size() > before) {
      if (const TokenId* const id = find(text)) {
        ids.push_back(*id);
        return begin + text.size() - before;
      }
      while ((static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
      text.pop_back();
    }
    return begin;
  }

  std::string unk_token_, prefix_;
  int64_t longest_ = 0;
};

// A tree of bytes, for all tokens that begin at a place.
class TokenTree {
 public:
  TokenTree() : nodes_(1) {}

  void add(std::string_view token, TokenId id) {
    uint32_t node = 0;
    for (const char c : token) {
      const uint64_t key = uint64_t{node} << 8 | static_cast<unsigned char>(c);
      const auto [edge, fresh] = edges_.emplace(key, static_cast<uint32_t>(nodes_.size()));
      if (fresh) nodes_.emplace_back();
      node = edge->second;
    }
    nodes_[node] = id;
  }

  // Calls `visit(length, id)` for each token with which `text` begins, shortest first.
  template <typename Visit>
  void for_each_prefix(std::string_view text, Visit visit) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
      if (edge == edges_.end()) return;
      node = edge->second;
      if (nodes_[node]) visit(i + 1, *nodes_[node]);
    }
  }

 private:
  std::vector<std::optional<TokenId>> nodes_;
  std::unordered_map<uint64_t, uint32_t> edges_;
};

// Unigram: the tokens with the largest sum of scores (Kudo 2018), by the Viterbi algorithm in the
// order of SentencePiece, so ties end alike.
class UnigramModel : public TokenModel {
 public:
  static Result<std::unique_ptr<TokenModel>> make(const Part& part) {
    OFSDP_RETURN_IF_ERROR(part.check_keys({"unk_id", "vocab", "byte_fallback"}));
    auto model = std::make_unique<UnigramModel>();
    OFSDP_RETURN_IF_ERROR(model->read(part));
    return std::unique_ptr<TokenModel>(std::move(model));
  }

  Status encode(std::string_view piece, std::vector<TokenId>& ids) const override {
    std::vector<Node> nodes(piece.size() + 1);
    for (size_t begin = 0; begin < piece.size();) {
      const size_t size = character_bytes(piece[begin]);
      const double score = nodes[begin].score;
      bool single = false;
      tree_.for_each_prefix(piece.substr(begin), [&](size_t length, TokenId id) {
        reach(nodes[begin + length], begin, id, score + scores_[id]);
        single = single || length == size;
      });
      if (!single) {
        if (!unknown_) return no_unknown_token("", piece);
        reach(nodes[begin + size], begin, *unknown_, (lowest_ - kUnknownPenalty) + score);
      }
      begin += size;
    }
    return append_path(piece, nodes, ids);
  }

 private:
  static constexpr double kUnknownPenalty = 10;

  struct Node {
    double score = 0;
    size_t begin = 0;  // of the token that ends here
    TokenId id = 0;
    bool reached = false;
  };

  static void reach(Node& node, size_t begin, TokenId id, double score) {
    if (!node.reached || score > node.score) node = {score, begin, id, true};
  }

  Status read(const Part& part) {
    const auto vocab = part.json().find("vocab");
    if (vocab == part.json().end() || !vocab->is_array() || vocab->empty()) {
      return part.wrong("vocab", "a list of tokens and scores");
    }
    lowest_ = std::numeric_limits<double>::infinity();
    for (const auto& entry : *vocab) {
      const bool fits =
          entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
      if (!fits) return part.wrong("vocab", "a list of tokens and scores");
      const auto& token = entry[0].get_ref<const std::string&>();
      const auto id = static_cast<TokenId>(scores_.size());
      vocabulary_[token] = id;
      scores_.push_back(entry[1].get<double>());
      lowest_ = std::min(lowest_, scores_.back());
    }
    for (const auto& [token, id] : vocabulary_) tree_.add(token, id);
    OFSDP_ASSIGN_OR_RETURN(byte_fallback_, part.flag("byte_fallback", false));
    if (!part.has("unk_id")) return {};
    OFSDP_ASSIGN_OR_RETURN(const int64_t unknown, part.number("unk_id"));
    if (unknown >= std::ssize(scores_)) return part.wrong("unk_id", "a token of the vocabulary");
    unknown_ = static_cast<TokenId>(unknown);
    return {};
  }

  // Adjacent unknown texts are one.
  Status append_path(std::string_view piece, const std::vector<Node>& nodes,
                     std::vector<TokenId>& ids) const {
    std::vector<std::string_view> texts;
    bool joins = false;
    for (size_t end = piece.size(); end > 0;) {
      const Node& node = nodes[end];
      const bool unknown = unknown_ && node.id == *unknown_;
      const std::string_view text = piece.substr(node.begin, end - node.begin);
      if (unknown && joins) {
        texts.back() = piece.substr(node.begin, text.size() + texts.back().size());
      } else {
        texts.push_back(text);
      }
      joins = unknown;
      end = node.begin;
    }
    for (size_t i = texts.size(); i-- > 0;) OFSDP_RETURN_IF_ERROR(append(texts[i], ids));
    return {};
  }

  Status append(std::string_view text, std::vector<TokenId>& ids) const {
    const TokenId* const id = find(text);
    if (id == nullptr && byte_fallback_ && append_bytes(text, ids)) return {};
    if (id == nullptr && !unknown_) return no_unknown_token("", text);
    ids.push_back(id != nullptr ? *id : *unknown_);
    return {};
  }

  bool append_bytes(std::string_view text, std::vector<TokenId>& ids) const {
    const size_t begun = ids.size();
    for (const char c : text) {
      const TokenId* const id = find(byte_token(c));
      if (id == nullptr) {
        ids.resize(begun);
        return false;
      }
      ids.push_back(*id);
    }
    return true;
  }

  TokenTree tree_;
  std::vector<double> scores_;
  double lowest_ = 0;
  std::optional<TokenId> unknown_;
  bool byte_fallback_ = false;
};

constexpr Kind<std::unique_ptr<TokenModel>> kTokenModels[] = {
    {"BPE", PairModel::make},
    {"Unigram", UnigramModel::make},
    {"WordPiece", WordPieceModel::make},
};

}  // namespace

const TokenId* TokenModel::find(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? nullptr : &found->second;
}

// Old files of BPE do not give a type.
Result<std::unique_ptr<TokenModel>> make_token_model(const Part& part) {
  if (!part.has("type") && part.has("merges")) return PairModel::make(part);
  return make_kind(part, kTokenModels);
}

}  // namespace ofsdp::runtime
