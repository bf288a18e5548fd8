// ColumnFile: one column's file, opened: the layout of its rows, and their bytes.
//
// Kinds, told by the name: .npy (NEP 1, versions 1 to 3, C order, little-endian), .bin (flat
// tokens), .npz and .safetensors (one array of several), .csv, .tsv and .jsonl (text_rows.h), and
// everything else must be IDX (the format of MNIST; big-endian). An .npy or IDX file may be
// gzipped: it is inflated once a host into memory that all its ranks share, as are compressed
// arrays of .npz and the numbers of text.
//
// A caller's array (ColumnSpec::array) is read where it lies; `replace` takes the next one of the
// same type and rows.
//
// Row s is the row_bytes() bytes at first_byte + s * row_stride; rows of a token file may overlap.
// Ownership: owns the descriptor; inflated bytes belong to the communicator. Threads: `open` is
// collective over the ranks (all open the same columns in the same order); `read` from any thread.
// Errors: kInput naming the file, what was expected and what was found.
#pragma once

#include "fsdp/comm/communicator.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

struct ColumnLayout {
  DType dtype = DType::kUndefined;  // as stored
  bool big_endian = false;
  bool of_text = false;  // whole numbers may also be read as floats, and numbers as rows of one
  Shape row;
  int64_t count = 0;        // rows: samples
  uint64_t first_byte = 0;  // of row 0
  uint64_t row_stride = 0;  // bytes from a row to the next

  uint64_t row_bytes() const { return static_cast<uint64_t>(row.numel()) * dtype_size(dtype); }
  uint64_t end_byte() const;  // one past the last row
};

class ColumnFile {
 public:
  static Result<ColumnFile> open(const ColumnSpec& spec, Communicator& communicator,
                                 MemoryLedger& ledger);

  // Whether files of this ending (".npz") hold several columns, and the names of a file's own.
  static bool holds_several(const std::string& extension);
  static Result<std::vector<std::string>> columns_of(const std::string& path);

  // REQUIRES: opened from an array, as `array`'s column was.
  Status replace(const ColumnArray& array);

  const ColumnLayout& layout() const { return layout_; }
  const std::string& path() const { return source_.path(); }
  size_t shared_bytes() const { return shared_bytes_; }  // inflated; 0 for a plain file
  Status read(uint64_t offset, std::span<std::byte> dst) const { return source_.read(offset, dst); }

 private:
  ByteSource source_;
  ColumnLayout layout_;
  size_t shared_bytes_ = 0;
};

// The layout a header says, from the first bytes of the (inflated) file. Of the length nothing is
// checked here but the header's own.
Result<ColumnLayout> parse_npy(const std::string& path, std::span<const std::byte> prefix);
Result<ColumnLayout> parse_idx(const std::string& path, std::span<const std::byte> prefix);
// Tokens have no header: rows follow from the length. The dtype, where the specification has none,
// is told from the bytes; see [Note: width of tokens] in column_formats.cpp.
Result<ColumnLayout> token_layout(const ColumnSpec& spec, const ByteSource& source);

// The layout of `dims` (first axis: samples) of which the header said so; checks for overflow, zero
// samples and empty rows. Shared by the parsers.
Result<ColumnLayout> dense_layout(const std::string& path, DType dtype, std::vector<int64_t> dims,
                                  uint64_t first_byte);

}  // namespace ofsdp::runtime
