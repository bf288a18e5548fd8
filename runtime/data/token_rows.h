// Rows of tokens from text and a tokenizer.json (runtime/data/tokenizer/tokenizer.h).
//
// The text is a .jsonl file, with a text in a field of each line; a .csv or .tsv file, with a text
// in a column of each record; a .parquet file, with a text in a column; or any other file. Each
// text is encoded by itself, with the tokens that the tokenizer puts around a text.
//
// With ColumnSpec::sequence_length, all texts of the file follow each other, with the separator
// after each if one is given, and are cut like a token file; a plain file is one text. With
// ColumnSpec::padding, each text is a row, and so is each line of a plain file. Rows have at most
// `max_length` tokens: longer texts are cut. Without it they have as many as they need.
//
// The first rank of a host encodes the file, once for all columns that use it. It puts the tokens
// into memory that the ranks of the host share, and tells all ranks how many texts and tokens there
// are. Errors are kInput with file and line: bytes that are not UTF-8, a field that is no text, a
// text longer than `pad_to` without a `max_length` that cuts it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "fsdp/comm/communicator.h"
#include "runtime/data/column_file.h"
#include "runtime/data/data_spec.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace ofsdp::runtime {

struct EncodedText;  // token_rows.cpp

// The encoded files that the columns of a data set share.
class EncodedTexts {
 public:
  // Encodes the file of the column, unless an earlier column has used it with the same tokenizer.
  // Collective.
  Result<std::shared_ptr<EncodedText>> find(const ColumnSpec& spec, Communicator& communicator);

 private:
  std::map<std::string, std::shared_ptr<EncodedText>> texts_;
};

// REQUIRES: spec.tokenizer. Collective.
Result<OpenedColumn> open_tokens(const ColumnSpec& spec, EncodedTexts& texts,
                                 Communicator& communicator, MemoryLedger& ledger);

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& path);

// Calls `visit(text, line)` for each text of the file. Opens no tokenizer.
Status for_each_text(const ColumnSpec& spec,
                     const std::function<Status(std::string_view text, int64_t line)>& visit);

}  // namespace ofsdp::runtime
