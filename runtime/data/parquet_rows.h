// Columns of .parquet files: numbers, bools, texts that are classes, and lists of numbers.
//
// A column keeps its type; bool is uint8. Several columns that make one row get one type: their own
// if they agree, else int64 if all are integers, else float64. If the value of `missing` or
// `pad_value` does not fit the type, the type becomes int64 or float64. Lists become rows of more
// axes. For lists and for missing values (null, NaN) the rules of .jsonl hold (column_file.h). A
// null or NaN inside a list is refused, and a null in place of a list. Text labels are classes; if
// the first is a number, all must be numbers. Dates, decimals and structures are refused.
//
// open_parquet is collective. The first rank of a host decodes a column into memory that its ranks
// share, a few thousand rows at a time; beyond that it needs memory for these rows only. Columns of
// classes, and those padded to their longest row, are read twice.
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

// Calls `visit(text, row)` for each text of a column, until `visit` returns an error. kInput if the
// column has another type or a null.
Status for_each_parquet_text(
    const std::string& path, const std::string& column,
    const std::function<Status(std::string_view text, int64_t row)>& visit);

}  // namespace ofsdp::runtime
