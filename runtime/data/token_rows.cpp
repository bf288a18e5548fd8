#include "runtime/data/token_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/host_tasks.h"
#include "kernels/base/names.h"
#include "kernels/base/text.h"
#include "runtime/data/parquet_rows.h"
#include "runtime/data/text_records.h"
#include "runtime/data/tokenizer/unicode.h"

namespace ofsdp::runtime {

// The counts are known to all ranks, the tokens to the first rank of a host.
struct EncodedText {
  int64_t texts = 0, tokens = 0;
  int64_t longest = 0, longest_line = 0;  // the text with the most tokens
  int64_t vocabulary = 0;                 // of the tokenizer, and above every token of the file
  int64_t padding = 0;
  std::vector<TokenId> ids;
  std::vector<int64_t> ends;           // of each text
  std::span<const std::byte> windows;  // the ids in shared memory, once a column has them there
};

namespace {

using TextVisit = std::function<Status(std::string_view text, int64_t line)>;

// The name of the field or column if the specification has none.
constexpr const char* kTextPart = "text";

Status check_utf8(const std::string& path, std::string_view text) {
  const size_t at = invalid_utf8(text);
  if (at == std::string_view::npos) return {};
  const auto line = std::ranges::count(text.substr(0, at), '\n') + 1;
  return input_error("{} line {}: expected text in UTF-8, found the byte {:02x}", path, line,
                     static_cast<unsigned char>(text[at]));
}

Status each_field(const ColumnSpec& spec, const std::string& part, std::string_view text,
                  const TextVisit& visit) {
  return for_each_line(text, [&](std::string_view line, int64_t number) -> Status {
    const std::string at = format_text("{} line {}", spec.path, number);
    OFSDP_ASSIGN_OR_RETURN(const nlohmann::json object, parse_object(at, line));
    const nlohmann::json* const value = find_field(object, part);
    OFSDP_REJECT_IF(value == nullptr, "{}: no field '{}': the key 'field' names the text", at,
                    part);
    OFSDP_REJECT_IF(!value->is_string(), "{}: field '{}': expected a text, found '{}'", at, part,
                    shown(value->dump()));
    return visit(value->get_ref<const std::string&>(), number);
  });
}

Status each_cell(const ColumnSpec& spec, const std::string& part, std::string_view text,
                 TextKind kind, const TextVisit& visit) {
  Records records(spec.path, text, kind);
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> header, records.header());
  const auto found = std::ranges::find(header, part);
  OFSDP_REJECT_IF(found == header.end(), "{}: no column '{}' in its header ({}){}", spec.path, part,
                  escaped(joined(header, ", ").substr(0, 200)), did_you_mean(part, header));
  const auto column = static_cast<size_t>(found - header.begin());
  std::vector<std::string> fields;
  while (true) {
    OFSDP_ASSIGN_OR_RETURN(const bool more, records.next(fields));
    if (!more) return {};
    OFSDP_RETURN_IF_ERROR(visit(fields[column], records.line()));
  }
}

Status each_plain_line(std::string_view text, const TextVisit& visit) {
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    OFSDP_RETURN_IF_ERROR(visit(line, number));
    at = end + 1;
  }
  return {};
}

}  // namespace

namespace {

Status each_parquet_text(const ColumnSpec& spec, const std::string& part, const TextVisit& visit) {
  return for_each_parquet_text(spec.path, part, [&](std::string_view text, int64_t row) {
    const size_t at = invalid_utf8(text);
    if (at == std::string_view::npos) return visit(text, row);
    return input_error("{} row {}: expected text in UTF-8, found the byte {:02x}", spec.path, row,
                       static_cast<unsigned char>(text[at]));
  });
}

}  // namespace

Status for_each_text(const ColumnSpec& spec, const TextVisit& visit) {
  const std::string extension = data_ending(spec.path);
  if (extension == ".parquet") {
    return each_parquet_text(spec, spec.parts.empty() ? kTextPart : spec.parts[0], visit);
  }
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(spec.path));
  OFSDP_ASSIGN_OR_RETURN(const std::string text, whole_text(source));
  OFSDP_RETURN_IF_ERROR(check_utf8(spec.path, text));
  const std::string part = spec.parts.empty() ? kTextPart : spec.parts[0];
  if (extension == ".jsonl") return each_field(spec, part, text, visit);
  if (extension == ".csv") return each_cell(spec, part, text, TextKind::kComma, visit);
  if (extension == ".tsv") return each_cell(spec, part, text, TextKind::kTab, visit);
  return spec.padding ? each_plain_line(text, visit) : visit(text, 1);
}

namespace {

// Encodes the texts of a file, blocks of them at once on all cores of this process.
class TextEncoder {
 public:
  TextEncoder(const ColumnSpec& spec, const Tokenizer& tokenizer, EncodedText& made)
      : spec_(spec), tokenizer_(tokenizer), made_(made) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(find_room());
    OFSDP_RETURN_IF_ERROR(find_separator());
    OFSDP_RETURN_IF_ERROR(for_each_text(spec_, [&](std::string_view text, int64_t line) {
      if (blocks_.empty() || blocks_.back().bytes >= kBlockBytes) blocks_.emplace_back();
      blocks_.back().bytes += text.size();
      blocks_.back().texts.push_back({std::string(text), line});
      return Status();
    }));
    OFSDP_RETURN_IF_ERROR(for_each_task(cores_per_rank(1), std::ssize(blocks_), [&](int64_t i) {
      return encode(blocks_[static_cast<size_t>(i)]);
    }));
    for (Block& block : blocks_) take(block);
    made_.tokens = std::ssize(made_.ids);
    made_.texts = std::ssize(made_.ends);
    made_.padding = tokenizer_.padding();
    made_.vocabulary = std::max(made_.vocabulary, tokenizer_.vocabulary());
    return {};
  }

 private:
  static constexpr size_t kBlockBytes = size_t{1} << 20;

  struct Text {
    std::string text;
    int64_t line;
  };
  struct Block {
    size_t bytes = 0;
    std::vector<Text> texts;
    std::vector<TokenId> ids;
    std::vector<size_t> ends;  // of each text
  };

  Status find_room() {
    const Surrounding& around = tokenizer_.surrounding();
    const auto most = spec_.tokenizer->max_length;
    const auto added = std::ssize(around.before) + std::ssize(around.after);
    OFSDP_REJECT_IF(most && *most < added,
                    "{}: expected max_length to have room for the {} tokens that {} puts around a "
                    "text, found {}",
                    spec_.path, added, tokenizer_.path(), *most);
    if (most) most_ = static_cast<size_t>(*most - added);
    return {};
  }

  Status find_separator() {
    const std::string& name = spec_.tokenizer->separator;
    if (name.empty()) return {};
    separator_ = tokenizer_.find(name);
    OFSDP_REJECT_IF(!separator_, "{}: separator: expected a token, found '{}'", tokenizer_.path(),
                    escaped(name));
    return {};
  }

  Status encode(Block& block) const {
    const Surrounding& around = tokenizer_.surrounding();
    Tokenizer::SeenWords seen;
    std::vector<TokenId>& ids = block.ids;
    for (const Text& text : block.texts) {
      ids.insert(ids.end(), around.before.begin(), around.before.end());
      const size_t first = ids.size();
      OFSDP_RETURN_IF_ERROR(tokenizer_.encode(text.text, ids, seen)
                                .with_prefix(format_text("{} line {}", spec_.path, text.line)));
      if (ids.size() - first > most_) ids.resize(first + most_);
      ids.insert(ids.end(), around.after.begin(), around.after.end());
      if (separator_) ids.push_back(*separator_);
      block.ends.push_back(ids.size());
    }
    return {};
  }

  // Appends the block's tokens to the file's.
  void take(Block& block) {
    const auto before = std::ssize(made_.ids);
    int64_t begin = 0;
    for (size_t i = 0; i < block.ends.size(); ++i) {
      const auto end = static_cast<int64_t>(block.ends[i]);
      if (end - begin > made_.longest) {
        made_.longest = end - begin;
        made_.longest_line = block.texts[i].line;
      }
      made_.ends.push_back(before + end);
      begin = end;
    }
    for (const TokenId id : block.ids)
      made_.vocabulary = std::max(made_.vocabulary, int64_t{id} + 1);
    made_.ids.insert(made_.ids.end(), block.ids.begin(), block.ids.end());
    block = {};
  }

  const ColumnSpec& spec_;
  const Tokenizer& tokenizer_;
  EncodedText& made_;
  std::vector<Block> blocks_;
  size_t most_ = std::string::npos;  // tokens of the text itself
  std::optional<TokenId> separator_;
};

constexpr uint64_t kLargestTokenizer = uint64_t{256} << 20;  // bytes

Status encode_file(const ColumnSpec& spec, EncodedText& made) {
  OFSDP_ASSIGN_OR_RETURN(const auto tokenizer, open_tokenizer(spec.tokenizer->path));
  return TextEncoder(spec, *tokenizer, made).run();
}

// Tells all ranks the first rank's counts.
Status share_counts(EncodedText& text, Communicator& communicator) {
  int64_t* const counts[] = {&text.texts,        &text.tokens,     &text.longest,
                             &text.longest_line, &text.vocabulary, &text.padding};
  std::vector<double> mine, all;
  for (const int64_t* count : counts) mine.push_back(static_cast<double>(*count));
  all.resize(mine.size() * static_cast<size_t>(communicator.size()));
  OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, {"counts of a text", -1, -1}));
  for (size_t i = 0; i < mine.size(); ++i) *counts[i] = static_cast<int64_t>(all[i]);
  return {};
}

std::string text_key(const ColumnSpec& spec) {
  const TokenizerSpec& by = *spec.tokenizer;
  return format_text("{}\n{}\n{}\n{}\n{}\n{}", spec.path, joined(spec.parts, "\n"), by.path,
                     by.separator, by.max_length.value_or(0), int{spec.padding.has_value()});
}

constexpr int64_t kMostElements = int64_t{1} << 36;

// Writes rows of `length` tokens. `mask`: 1 for a token and 0 for padding.
Status write_rows(const ColumnSpec& spec, const EncodedText& text, int64_t length,
                  std::span<std::byte> dst) {
  const auto fill =
      static_cast<int32_t>(spec.padding->value.value_or(static_cast<double>(text.padding)));
  const bool mask = spec.padding->mask;
  std::vector<int32_t> row(static_cast<size_t>(length));
  int64_t begin = 0;
  std::byte* at = dst.data();
  for (const int64_t end : text.ends) {
    const int64_t first = begin + (spec.next_token && !mask ? 1 : 0);
    std::ranges::fill(row, mask ? 0 : fill);
    for (int64_t i = first; i < end; ++i) {
      const TokenId id = text.ids[static_cast<size_t>(i)];
      row[static_cast<size_t>(i - first)] = mask ? 1 : static_cast<int32_t>(id);
    }
    std::memcpy(at, row.data(), row.size() * sizeof(int32_t));
    at += row.size() * sizeof(int32_t);
    begin = end;
  }
  return {};
}

// Writes the number of tokens in each row.
Status write_lengths(const EncodedText& text, std::span<std::byte> dst) {
  int64_t begin = 0;
  std::byte* at = dst.data();
  for (const int64_t end : text.ends) {
    const auto length = static_cast<int32_t>(end - begin);
    std::memcpy(at, &length, sizeof length);
    at += sizeof length;
    begin = end;
  }
  return {};
}

Result<OpenedColumn> padded_rows(const ColumnSpec& spec, const EncodedText& text,
                                 Communicator& communicator, MemoryLedger& ledger) {
  const int64_t length = spec.padding->to.value_or(text.longest);
  OFSDP_REJECT_IF(text.longest > length,
                  "{} line {}: expected at most the {} tokens of pad_to, found {}: `max_length: "
                  "{}` cuts longer texts",
                  spec.path, text.longest_line, length, text.longest, length);
  OFSDP_REJECT_IF(length > 0 && text.texts > kMostElements / length,
                  "{}: expected at most {} tokens after padding, found {} rows of {}", spec.path,
                  kMostElements, text.texts, length);
  const double fill = spec.padding->value.value_or(0);
  OFSDP_REJECT_IF(fill != std::trunc(fill) || std::abs(fill) >= 0x1p31,
                  "{}: expected a pad_value of {}, found {}", spec.path, dtype_name(DType::kInt32),
                  fill);
  OpenedColumn opened;
  std::vector<int64_t> dims{text.texts};
  if (!spec.padding->lengths) dims.push_back(length);
  OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, DType::kInt32, dims, 0));
  opened.shared_bytes = opened.layout.end_byte();
  OFSDP_ASSIGN_OR_RETURN(opened.source, share_made(
                                            spec.path, opened.shared_bytes,
                                            [&](std::span<std::byte> dst) {
                                              return spec.padding->lengths
                                                         ? write_lengths(text, dst)
                                                         : write_rows(spec, text, length, dst);
                                            },
                                            communicator, ledger));
  return opened;
}

Result<OpenedColumn> windows(ColumnSpec spec, EncodedText& text, Communicator& communicator,
                             MemoryLedger& ledger) {
  OpenedColumn opened;
  const auto bytes = static_cast<size_t>(text.tokens) * sizeof(TokenId);
  OFSDP_REJECT_IF(bytes == 0, "{}: expected text, found no token", spec.path);
  if (text.windows.empty()) {
    opened.shared_bytes = bytes;
    const auto copy = [&](std::span<std::byte> dst) {
      std::memcpy(dst.data(), text.ids.data(), bytes);
      return Status();
    };
    OFSDP_ASSIGN_OR_RETURN(text.windows, share_bytes(spec.path, bytes, copy, communicator, ledger));
  }
  opened.source = ByteSource::memory(spec.path, text.windows);
  spec.dtype = DType::kUInt32;
  OFSDP_ASSIGN_OR_RETURN(opened.layout, token_layout(spec, opened.source));
  return opened;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(path));
  OFSDP_REJECT_IF(source.size() > kLargestTokenizer, "{}: expected at most {} bytes, found {}",
                  path, kLargestTokenizer, source.size());
  OFSDP_ASSIGN_OR_RETURN(const std::string json, whole_text(source));
  return Tokenizer::parse(json, path);
}

Result<std::shared_ptr<EncodedText>> EncodedTexts::find(const ColumnSpec& spec,
                                                        Communicator& communicator) {
  std::shared_ptr<EncodedText>& text = texts_[text_key(spec)];
  if (text != nullptr) return text;
  auto made = std::make_shared<EncodedText>();
  if (communicator.is_first_on_host()) OFSDP_RETURN_IF_ERROR(encode_file(spec, *made));
  OFSDP_RETURN_IF_ERROR(share_counts(*made, communicator));
  text = std::move(made);
  return text;
}

Result<OpenedColumn> open_tokens(const ColumnSpec& spec, EncodedTexts& texts,
                                 Communicator& communicator, MemoryLedger& ledger) {
  OFSDP_ASSIGN_OR_RETURN(const auto text, texts.find(spec, communicator));
  OFSDP_REJECT_IF(text->texts == 0, "{}: expected at least 1 text, found none", spec.path);
  OFSDP_ASSIGN_OR_RETURN(OpenedColumn opened, spec.padding
                                                  ? padded_rows(spec, *text, communicator, ledger)
                                                  : windows(spec, *text, communicator, ledger));
  const bool counted = spec.padding && (spec.padding->mask || spec.padding->lengths);
  if (!counted) opened.vocabulary = text->vocabulary;
  return opened;
}

}  // namespace ofsdp::runtime
