// Columns of text files: .csv and .tsv (RFC 4180: a header, quotes, one record a line) and .jsonl
// (one JSON object a line; a field holds a number or a list of numbers, lists in it being alike).
//
// Numbers become int64 where all are whole, else float64; the graph's type decides what is made of
// them (runtime/data/convert.h). Lists of different length need ColumnSpec::padding: they are
// filled up to `to` or to the longest. A mask is made of the same lists.
//
// Errors: kInput naming file and line, what was expected and what
// was found. Nothing in a file is trusted: it may be cut off, huge or no text at all.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/byte_source.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

struct TextRows {
  DType dtype = DType::kInt64;  // or kFloat64
  std::vector<int64_t> dims;    // the first is the rows
  std::vector<std::byte> bytes;
};

enum class TextKind { kComma, kTab, kJsonLines };
// The kind that ".csv", ".tsv" or ".jsonl" ends; none for other endings.
std::optional<TextKind> text_kind(const std::string& extension);

Result<TextRows> read_text_rows(const ColumnSpec& spec, const ByteSource& source, TextKind kind);

// The header's names, or the fields of the first object.
Result<std::vector<std::string>> text_columns(const ByteSource& source, TextKind kind);

}  // namespace ofsdp::runtime
