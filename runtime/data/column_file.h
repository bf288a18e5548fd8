// ColumnFile opens one column's file: it knows the layout of rows and reads their bytes.
//
// The extension, in any case, selects the format: .npy (NEP 1, versions 1 to 3, C order,
// little-endian), .bin (flat tokens), .npz and .safetensors (with several arrays), .csv, .tsv and
// .jsonl (see TextRows below), .parquet (runtime/data/parquet_rows.h). A file with any other name
// must be IDX, MNIST's big-endian format. An .npy, IDX or text file may be gzipped, with .gz in
// the name or without. Gzipped files, compressed .npz arrays, text and parquet are decoded once
// per host into memory that all of its ranks share. With a tokenizer, a text file's rows are
// tokens (runtime/data/token_rows.h).
//
// Instead of a file, a caller of the library may give an array (ColumnSpec::array). It is read in
// place, so it must stay alive while rows are read. `replace` takes the next array, which must have
// the same dtype and row shape.
//
// Row s has row_bytes() bytes at first_byte + s * row_stride. Token rows may overlap.
//
// `open` is collective: all ranks must open the same columns in the same order. `read` may be
// called from any thread. Errors are kInput with the file, the expected and the found value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "kernels/core/dtype.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

// The .npy header (NEP 1): NumPy's type names, and a version 1 header in C order.

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

std::optional<DType> npy_dtype(std::string_view descr);  // "<f4" -> kFloat32
std::optional<std::string_view> npy_descr(DType dtype);  // none for bfloat16
std::string npy_header(DType dtype, const std::vector<int64_t>& dims);

struct ColumnLayout {
  DType dtype = DType::kUndefined;  // as stored
  bool big_endian = false;
  // The file is a table, of text or .parquet: the loader may convert integers to float32 or bool,
  // and may read one number per row as a row of shape [] or [1].
  bool of_text = false;
  Shape row;
  int64_t count = 0;        // rows: samples
  uint64_t first_byte = 0;  // where row 0 begins
  uint64_t row_stride = 0;  // bytes between the starts of two rows

  uint64_t row_bytes() const { return static_cast<uint64_t>(row.numel()) * dtype_size(dtype); }
  uint64_t end_byte() const;  // one past the last row
};

class EncodedTexts;  // runtime/data/token_rows.h

// Makes rows that no file has at an offset: it decodes a file, or a part of one, for each.
//
// `decode` may be called from any thread, each with its own scratch memory. Errors of it are
// kFault with the file: what can be known before the first step is checked when it is opened.
class RowDecoder {
 public:
  virtual ~RowDecoder() = default;
  virtual size_t scratch_bytes() const = 0;  // of one thread
  virtual size_t library_bytes() const = 0;  // that a call allocates at most
  // Writes a row as the column's layout says. `draws`: the key of random changes (augment.h); none:
  // the row as it is.
  virtual Status decode(int64_t row, std::optional<uint64_t> draws, std::span<std::byte> dst,
                        std::span<std::byte> scratch) const = 0;
};

struct OpenedColumn;

class ColumnFile {
 public:
  // `texts`: those that several columns of a data set share, if there are any.
  static Result<ColumnFile> open(const ColumnSpec& spec, Communicator& communicator,
                                 MemoryLedger& ledger, EncodedTexts* texts = nullptr);

  // Reads from `array` from now on. Returns kInput if dtype or row shape differ from those of the
  // first array. REQUIRES: the column was opened from an array.
  Status replace(const ColumnArray& array);

  const ColumnLayout& layout() const { return layout_; }
  // Returns the text of each class, by number, if the file names them; else nothing.
  const std::vector<std::string>& classes() const { return classes_; }
  // Returns the stored number of each class, if the file has numbers that ColumnSpec::known names
  // classes by (1, 2, 3); else nothing: then numbers are those of the classes.
  const std::vector<int64_t>& class_labels() const { return class_labels_; }
  const std::string& path() const { return source_.path(); }
  // Returns how many ids the tokenizer has that made the rows; 0 without one.
  int64_t vocabulary() const { return vocabulary_; }
  size_t shared_bytes() const { return shared_bytes_; }  // decoded bytes; 0 for a plain file
  // If not null, it makes the rows, and `read` must not be called.
  const RowDecoder* decoder() const { return decoder_.get(); }
  Status read(uint64_t offset, std::span<std::byte> dst) const {
    OFSDP_CHECK(decoder_ == nullptr, "{}: rows have no offsets", path());
    return source_.read(offset, dst);
  }
  // Reads a row as stored, decoded or not. May allocate: not for a training step.
  Status read_row(int64_t row, std::span<std::byte> dst) const;

 private:
  static Result<ColumnFile> open_file(const ColumnSpec& spec, Communicator& communicator,
                                      MemoryLedger& ledger, EncodedTexts* texts);
  void take(OpenedColumn opened);
  void name_numbers(const ColumnSpec& spec);
  // Makes the rows between ColumnSpec::offsets, if there are any.
  Status cut(const ColumnSpec& spec, Communicator& communicator, MemoryLedger& ledger);

  ByteSource source_;
  ColumnLayout layout_;
  std::unique_ptr<const RowDecoder> decoder_;
  size_t shared_bytes_ = 0;
  int64_t vocabulary_ = 0;
  std::vector<std::string> classes_;
  std::vector<int64_t> class_labels_;
};

// An open column from a file with several.
struct OpenedColumn {
  ByteSource source;
  ColumnLayout layout;
  size_t shared_bytes = 0;
  std::vector<std::string> classes = {};
  int64_t vocabulary = 0;
  std::unique_ptr<const RowDecoder> decoder = nullptr;
};

// A format with several columns in a file.
struct DataFormat {
  std::string_view extension;  // ".npz"
  const char* part;            // YAML key that names a column in such a file
  Result<std::vector<std::string>> (*columns)(const ByteSource& source);
  Result<OpenedColumn> (*open)(const ColumnSpec& spec, ByteSource source,
                               Communicator& communicator, MemoryLedger& ledger);
  bool pads = false;  // a field's lists may differ in length; shorter ones are padded
  bool text = false;  // may be gzipped
};
std::span<const DataFormat> data_formats();
const DataFormat* find_format(const std::string& path);  // null: one column, or unknown

// Parts of the name of a data file, or of its address: for data/T.CSV.gz or https://a/T.CSV.gz?key
std::string last_ending(const std::string& path);  // ".gz": in lower case
std::string data_ending(const std::string& path);  // ".csv": the same of what is gzipped
std::string data_name(const std::string& path);    // "T"
// Returns ": the ending .x is of no known kind (.npy, ..)"; empty for known ones and for none.
std::string unknown_kind(const std::string& path);

// Makes `bytes` bytes that a host's ranks share; `fill(span)` writes them on one rank. Collective.
template <typename Fill>
Result<std::span<const std::byte>> share_bytes(const std::string& path, size_t bytes, Fill fill,
                                               Communicator& communicator, MemoryLedger& ledger) {
  struct Job {
    Fill& fill;
    size_t bytes;  // the segment may be rounded up to pages
  } job{fill, bytes};
  auto run = [](void* context, std::span<std::byte> dst) -> Status {
    const Job& job = *static_cast<const Job*>(context);
    return job.fill(dst.first(job.bytes));
  };
  OFSDP_ASSIGN_OR_RETURN(const std::span<const std::byte> made,
                         communicator.share_from_rank0(ledger, bytes, path, run, &job));
  return made.first(bytes);
}

template <typename Fill>
Result<ByteSource> share_made(const std::string& path, size_t bytes, Fill fill,
                              Communicator& communicator, MemoryLedger& ledger) {
  OFSDP_ASSIGN_OR_RETURN(const std::span<const std::byte> made,
                         share_bytes(path, bytes, fill, communicator, ledger));
  return ByteSource::memory(path, made);
}

// The headers of files with one column (array_headers.cpp).

// Parses the header with which the (inflated) file begins. Checks the header's length, but not
// whether the file holds all rows.
Result<ColumnLayout> parse_npy(const std::string& path, std::span<const std::byte> prefix);
Result<ColumnLayout> parse_idx(const std::string& path, std::span<const std::byte> prefix);
// Token files have no header: the length gives the row count. If `spec` has no dtype,
// it is inferred from the bytes; see [Note: width of tokens] in array_headers.cpp.
Result<ColumnLayout> token_layout(const ColumnSpec& spec, const ByteSource& source);

// Returns the layout for a header's axes; the first axis counts samples. Returns an error on
// overflow, zero samples or empty rows.
Result<ColumnLayout> dense_layout(const std::string& path, DType dtype, std::vector<int64_t> dims,
                                  uint64_t first_byte);

inline constexpr const char* kClassesFile = "classes.txt";  // next to a trained file, one a line

// Returns ", which looks like KIND: REMEDY" for a file in a format that is not read here, judged by
// its first bytes; empty for unknown bytes or a file that cannot be read.
std::string file_remark(const std::string& path);
std::string bytes_remark(std::string_view prefix);

// Text columns: .csv and .tsv (RFC 4180: header, quotes, one record per line) and .jsonl (one JSON
// object per line; a field holds a number or a number list, and nested lists must have equal
// lengths). Several columns, or fields with a number each, make one row.
//
// A value is missing if a cell is empty or has a word for it (NA, NaN, null, None, ?, -), or if a
// field is null or not there. ColumnSpec::missing takes its place; without it, it is an error.
//
// If ColumnSpec::classes is set and the first value is text, each row's text is a class: the column
// holds its number, and `classes` the text by number. Words for a missing value are classes, too,
// unless ColumnSpec::missing is set; an empty cell never is.
//
// If all numbers are whole, they become int64 or, if one is too large, uint64; else float64. Then
// Converter (runtime/data/dataset.h) makes the dtype of the graph's input. If lists differ in
// length, ColumnSpec::padding must be set: each list is filled with padding.value up to padding.to
// elements, or up to the longest list. If padding.mask is set, the column holds 1 for each element
// and 0 for each padding instead.
//
// The file is not trusted: it may be cut off, huge or binary. Errors are kInput with file and line.
struct TextRows {
  DType dtype = DType::kInt64;  // or kUInt64 or kFloat64
  std::vector<int64_t> dims;    // the first axis counts rows
  std::vector<std::byte> bytes;
  std::vector<std::string> classes = {};
};

enum class TextKind { kComma, kTab, kJsonLines };

Result<TextRows> read_text_rows(const ColumnSpec& spec, const ByteSource& source, TextKind kind);

// Returns the names in the header, or the first object's fields.
Result<std::vector<std::string>> text_columns(const ByteSource& source, TextKind kind);

}  // namespace ofsdp::runtime
