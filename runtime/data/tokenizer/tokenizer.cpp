#include "runtime/data/tokenizer/tokenizer.h"

#include <algorithm>

#include "importer/file/tensor_file.h"
#include "kernels/base/text.h"
#include "runtime/data/tokenizer/unicode.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kLongestSeen = 64;  // bytes of a word that is kept
constexpr size_t kMostSeen = 200000;

size_t blanks_before(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const char32_t c = character_before(text, begin);
    if (!is_space(c)) break;
    do --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
  }
  return begin;
}

size_t blanks_after(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size() && is_space(next_character(text, at));) end = at;
  return end;
}

bool begins_with_word(std::string_view text) {
  size_t at = 0;
  return !text.empty() && is_word(next_character(text, at));
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word(character_before(text, text.size()));
}

}  // namespace

void AddedTokens::add(const Token& token, std::string_view text) {
  begins_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    auto& next = nodes_[node].next;
    const auto edge = std::ranges::find(next, byte, &std::pair<unsigned char, uint32_t>::first);
    if (edge != next.end()) {
      node = edge->second;
      continue;
    }
    const auto made = static_cast<uint32_t>(nodes_.size());
    next.emplace_back(byte, made);
    nodes_.emplace_back();
    node = made;
  }
  if (nodes_[node].token < 0) nodes_[node].token = std::ssize(tokens_);
  tokens_.push_back(token);
}

std::optional<AddedTokens::Match> AddedTokens::longest_at(std::string_view text, size_t at) const {
  std::optional<Match> longest;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto& next = nodes_[node].next;
    const auto edge = std::ranges::find(next, static_cast<unsigned char>(text[i]),
                                        &std::pair<unsigned char, uint32_t>::first);
    if (edge == next.end()) break;
    node = edge->second;
    const int64_t token = nodes_[node].token;
    if (token >= 0) longest = Match{&tokens_[static_cast<size_t>(token)], i + 1};
  }
  return longest;
}

template <typename Visit>
Status AddedTokens::split(std::string_view text, Visit visit) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const bool begins = begins_[static_cast<unsigned char>(text[at])];
    const std::optional<Match> match = begins ? longest_at(text, at) : std::nullopt;
    if (!match) {
      ++at;
      continue;
    }
    size_t begin = at, end = match->end;
    at = end;
    const Token& token = *match->token;
    const bool word = ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end));
    if (token.single_word && word) continue;
    if (token.lstrip) begin = std::max(blanks_before(text.substr(0, begin)), done);
    if (token.rstrip) end += blanks_after(text.substr(end));
    if (done < begin) OFSDP_RETURN_IF_ERROR(visit(nullptr, done, begin));
    OFSDP_RETURN_IF_ERROR(visit(&token, begin, end));
    done = end;
  }
  return done < text.size() ? visit(nullptr, done, text.size()) : Status();
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view json,
                                                    const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const nlohmann::json parsed, prefixed(path, parse_unique(json)));
  OFSDP_REJECT_IF(!parsed.is_object() || !parsed.contains("model"),
                  "{}: expected a tokenizer.json, a JSON object with the key 'model'", path);
  auto tokenizer = std::make_unique<Tokenizer>();
  tokenizer->path_ = path;
  OFSDP_RETURN_IF_ERROR(tokenizer->read(Part(parsed, path)));
  return tokenizer;
}

Status Tokenizer::read(const Part& file) {
  OFSDP_RETURN_IF_ERROR(
      file.check_keys({"version", "truncation", "padding", "added_tokens", "normalizer",
                       "pre_tokenizer", "post_processor", "decoder", "model"}));
  OFSDP_ASSIGN_OR_RETURN(const Part model, file.part("model"));
  OFSDP_ASSIGN_OR_RETURN(model_, make_token_model(model));
  for (const auto& [token, id] : model_->vocabulary()) {
    vocabulary_ = std::max(vocabulary_, int64_t{id} + 1);
  }
  if (file.has("normalizer")) {
    OFSDP_ASSIGN_OR_RETURN(const Part part, file.part("normalizer"));
    OFSDP_ASSIGN_OR_RETURN(normalizer_, make_normalizer(part));
  }
  if (file.has("pre_tokenizer")) {
    OFSDP_ASSIGN_OR_RETURN(const Part part, file.part("pre_tokenizer"));
    OFSDP_ASSIGN_OR_RETURN(pre_tokenizer_, make_pre_tokenizer(part));
  }
  if (file.has("post_processor")) {
    OFSDP_ASSIGN_OR_RETURN(const Part part, file.part("post_processor"));
    OFSDP_ASSIGN_OR_RETURN(surrounding_, read_surrounding(part));
  }
  OFSDP_RETURN_IF_ERROR(read_added(file));
  find_padding(file);
  return {};
}

Status Tokenizer::read_added(const Part& file) {
  if (!file.has("added_tokens")) return {};
  OFSDP_ASSIGN_OR_RETURN(const std::vector<Part> parts, file.list("added_tokens"));
  for (const Part& part : parts) {
    OFSDP_RETURN_IF_ERROR(part.check_keys(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    AddedTokens::Token token;
    OFSDP_ASSIGN_OR_RETURN(token.content, part.text("content"));
    OFSDP_ASSIGN_OR_RETURN(const int64_t id, part.number("id"));
    OFSDP_ASSIGN_OR_RETURN(token.single_word, part.flag("single_word", false));
    OFSDP_ASSIGN_OR_RETURN(token.lstrip, part.flag("lstrip", false));
    OFSDP_ASSIGN_OR_RETURN(token.rstrip, part.flag("rstrip", false));
    OFSDP_ASSIGN_OR_RETURN(token.normalized, part.flag("normalized", true));
    token.id = static_cast<TokenId>(id);
    const TokenId* const in_model = model_->find(token.content);
    if (in_model != nullptr && *in_model != token.id) {
      return part.wrong("id", "the number that the token has in the vocabulary");
    }
    if (token.content.empty() || !added_.emplace(token.content, token.id).second) continue;
    Piece text{token.content};
    if (token.normalized && normalizer_) OFSDP_RETURN_IF_ERROR(normalizer_(text));
    if (text.text.empty()) return part.wrong("content", "a text that the normalizer keeps");
    (token.normalized ? normalized_ : raw_).add(token, text.text);
  }
  return {};
}

// The file's own padding, else the token that has a usual name; else 0.
void Tokenizer::find_padding(const Part& file) {
  const auto padding = file.json().find("padding");
  if (padding != file.json().end() && padding->is_object()) {
    const auto id = padding->find("pad_id");
    if (id != padding->end() && id->is_number_unsigned()) {
      padding_ = id->get<TokenId>();
      return;
    }
  }
  for (const char* name : {"[PAD]", "<pad>", "<|pad|>"}) {
    if (const auto id = find(name)) {
      padding_ = *id;
      return;
    }
  }
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  const auto added = added_.find(token);
  if (added != added_.end()) return added->second;
  const TokenId* const id = model_->find(token);
  return id == nullptr ? std::nullopt : std::optional(*id);
}

Status Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids, SeenWords& seen) const {
  return raw_.split(text, [&](const AddedTokens::Token* token, size_t begin, size_t end) -> Status {
    if (token != nullptr) {
      ids.push_back(token->id);
      return {};
    }
    const PieceView part{text.substr(begin, end - begin), begin == 0};
    if (!normalizer_) return encode_normalized(part, ids, seen);
    Piece piece{std::string(part.text), part.first};
    OFSDP_RETURN_IF_ERROR(normalizer_(piece).with_prefix(path_));
    return encode_normalized({piece.text, piece.first}, ids, seen);
  });
}

Status Tokenizer::encode_normalized(PieceView piece, std::vector<TokenId>& ids,
                                    SeenWords& seen) const {
  return normalized_.split(
      piece.text, [&](const AddedTokens::Token* token, size_t begin, size_t end) -> Status {
        if (token != nullptr) {
          ids.push_back(token->id);
          return {};
        }
        const PieceView part{piece.text.substr(begin, end - begin), piece.first && begin == 0};
        if (!pre_tokenizer_) return encode_piece(part.text, ids, seen);
        return pre_tokenizer_(part,
                              [&](PieceView one) { return encode_piece(one.text, ids, seen); });
      });
}

Status Tokenizer::encode_piece(std::string_view piece, std::vector<TokenId>& ids,
                               SeenWords& seen) const {
  if (piece.size() > kLongestSeen) return model_->encode(piece, ids).with_prefix(path_);
  const auto known = seen.find(piece);
  if (known != seen.end()) {
    ids.insert(ids.end(), known->second.begin(), known->second.end());
    return {};
  }
  std::vector<TokenId> made;
  OFSDP_RETURN_IF_ERROR(model_->encode(piece, made).with_prefix(path_));
  ids.insert(ids.end(), made.begin(), made.end());
  if (seen.size() < kMostSeen) seen.emplace(piece, std::move(made));
  return {};
}

}  // namespace ofsdp::runtime
