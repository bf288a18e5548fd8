// Columns of .parquet files: numbers, bools, texts that are classes, and lists of numbers.
//
// A column keeps its type: bool is uint8, and several columns that make one row have one type:
// theirs, or int64 for integers, or float64. A value that `missing` or `pad_value` gives widens it
// to int64 or float64 if it does not fit. Lists become rows of more axes, under the rules of .jsonl
// (column_file.h), and so do missing values: nulls, and NaN; inside a list both are refused. Text
// labels are classes; if the first is a number, all are numbers. Dates, decimals and structures are
// refused.
//
// The first rank of a host decodes a column into memory that its ranks share, a few thousand rows
// at a time; the memory besides is that of these rows. Columns of classes, and those padded to
// their longest row, are read twice.
//
// Errors are kInput with file, row (from 0) and column.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/column_file.h"

namespace ofsdp::runtime {

Result<std::vector<std::string>> parquet_columns(const ByteSource& source);

Result<OpenedColumn> open_parquet(const ColumnSpec& spec, ByteSource source,
                                  Communicator& communicator, MemoryLedger& ledger);

// Calls `visit(text, row)` for each text of a column.
Status for_each_parquet_text(
    const std::string& path, const std::string& column,
    const std::function<Status(std::string_view text, int64_t row)>& visit);

}  // namespace ofsdp::runtime
