// ColumnFile opens the file of one column: it knows the layout of the rows and reads their bytes.
//
// The extension selects the format: .npy (NEP 1, versions 1 to 3, C order, little-endian), .bin
// (flat tokens), .npz and .safetensors (one array of several), .csv, .tsv and .jsonl (see TextRows
// below). A file with any other name must be IDX, the big-endian format of MNIST. An .npy or IDX
// file may be gzipped. Gzipped files, compressed arrays of .npz and numbers of text are decoded
// once a host into memory that all ranks of the host share.
//
// An array of the caller (ColumnSpec::array) is read in place; `replace` takes the next array,
// which must have the same type and row shape.
//
// Row s has row_bytes() bytes at first_byte + s * row_stride. Rows of a token file may overlap.
//
// `open` is collective: all ranks must open the same columns in the same order. `read` may be
// called from any thread. Errors are kInput with the file, the expected and the found value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "kernels/core/dtype.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

// The header of .npy files (NEP 1): NumPy's names of types, and a version 1 header in C order.

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

std::optional<DType> npy_dtype(std::string_view descr);  // "<f4" -> kFloat32
std::optional<std::string_view> npy_descr(DType dtype);  // none for bfloat16
std::string npy_header(DType dtype, const std::vector<int64_t>& dims);

struct ColumnLayout {
  DType dtype = DType::kUndefined;  // as stored
  bool big_endian = false;
  bool of_text = false;  // int64 may be read as float, and a column of numbers as rows of one
  Shape row;
  int64_t count = 0;        // rows: samples
  uint64_t first_byte = 0;  // of row 0
  uint64_t row_stride = 0;  // bytes between the starts of two rows

  uint64_t row_bytes() const { return static_cast<uint64_t>(row.numel()) * dtype_size(dtype); }
  uint64_t end_byte() const;  // one past the last row
};

class ColumnFile {
 public:
  static Result<ColumnFile> open(const ColumnSpec& spec, Communicator& communicator,
                                 MemoryLedger& ledger);

  // Returns true if files with this extension (".npz") hold several columns.
  static bool holds_several(const std::string& extension);
  static Result<std::vector<std::string>> columns_of(const std::string& path);

  // REQUIRES: the file was opened from an array, like this column.
  Status replace(const ColumnArray& array);

  const ColumnLayout& layout() const { return layout_; }
  const std::string& path() const { return source_.path(); }
  size_t shared_bytes() const { return shared_bytes_; }  // decoded bytes; 0 for a plain file
  Status read(uint64_t offset, std::span<std::byte> dst) const { return source_.read(offset, dst); }

 private:
  ByteSource source_;
  ColumnLayout layout_;
  size_t shared_bytes_ = 0;
};

// Parses the header at the start of the (inflated) file. Checks the length of the header, but not
// whether the file holds all rows.
Result<ColumnLayout> parse_npy(const std::string& path, std::span<const std::byte> prefix);
Result<ColumnLayout> parse_idx(const std::string& path, std::span<const std::byte> prefix);
// Token files have no header: the number of rows follows from the length. If `spec` has no dtype,
// the bytes tell it; see [Note: width of tokens] in column_file.cpp.
Result<ColumnLayout> token_layout(const ColumnSpec& spec, const ByteSource& source);

// Returns the layout for the axes of a header; the first axis counts samples. Returns an error on
// overflow, zero samples or empty rows.
Result<ColumnLayout> dense_layout(const std::string& path, DType dtype, std::vector<int64_t> dims,
                                  uint64_t first_byte);

// Columns of text files: .csv and .tsv (RFC 4180: header, quotes, one record a line) and .jsonl
// (one JSON object a line; a field holds a number or a list of numbers, and nested lists must have
// equal lengths).
//
// If all numbers are whole, they become int64, else float64; Converter then makes the type of the
// graph. If lists differ in length, ColumnSpec::padding must be set: lists are filled up to `to` or
// to the longest. A mask column is made from the same lists.
//
// The file is not trusted: it may be cut off, huge or binary. Errors are kInput with file and line.
struct TextRows {
  DType dtype = DType::kInt64;  // or kFloat64
  std::vector<int64_t> dims;    // the first axis counts rows
  std::vector<std::byte> bytes;
};

enum class TextKind { kComma, kTab, kJsonLines };
// Returns the format for ".csv", ".tsv" or ".jsonl", none for other extensions.
std::optional<TextKind> text_kind(const std::string& extension);

Result<TextRows> read_text_rows(const ColumnSpec& spec, const ByteSource& source, TextKind kind);

// Returns the names in the header, or the fields of the first object.
Result<std::vector<std::string>> text_columns(const ByteSource& source, TextKind kind);

}  // namespace ofsdp::runtime
