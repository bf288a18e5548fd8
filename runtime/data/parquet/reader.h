// ParquetReader: reads a column of a .parquet file, a batch of adjacent rows at a time.
//
// Arrow's reader is not part of the program. libofsdp_parquet.so, next to it, is compiled against
// Arrow (arrow_reader.cpp), and is loaded when a parquet file is opened. It needs libarrow
// and libparquet of one version, which PyPI's package pyarrow has; library.cpp finds them.
//
// The file is not trusted. Arrow may allocate at most 4 GiB for it. One thread at a time may
// use a reader; Arrow starts none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"

namespace ofsdp::runtime {

inline constexpr int kParquetLibraryVersion = 1;
inline constexpr int kArrowMajor = 26, kArrowMinor = 0;  // as third_party/pyarrow.txt pins it

struct ParquetField {
  enum class Kind { kNumber, kText, kDate, kOther };

  std::string name;
  std::string type;                 // in Arrow's words, for messages: "list<element: double>"
  Kind kind = Kind::kOther;         // of a value, or of the values in lists
  DType dtype = DType::kUndefined;  // of numbers, as stored; bool is uint8
  int lists = 0;                    // of lists, one in the other, around a value
};

// Adjacent rows of a field.
struct ParquetBatch {
  int64_t rows = 0;                     // 0: the field ends
  int64_t first_row = 0;                // in the file
  int group = 0;                        // the row group
  int64_t values = 0;                   // numbers or texts, of all rows
  std::vector<std::byte> numbers;       // little-endian; 0 if there is no value
  std::vector<std::string_view> texts;  // valid until the next call
  std::vector<uint8_t> present;         // of each value: 0 for null; empty: all are there
  // At each depth: entries of each list; -1: null.
  std::vector<std::vector<int64_t>> lengths;
};

class ParquetReader {
 public:
  virtual ~ParquetReader() = default;
  virtual int64_t rows() const = 0;
  virtual std::span<const ParquetField> fields() const = 0;
  // Goes to row 0 of a field. REQUIRES: its kind is kNumber or kText.
  virtual void begin(size_t field) = 0;
  // Returns false with the reason if the file is damaged.
  virtual bool next(ParquetBatch& batch, std::string& error) = 0;
};

// Returns kInput with the file if it is no parquet file, or if a library is missing.
Result<std::unique_ptr<ParquetReader>> open_parquet_reader(const std::string& path);

}  // namespace ofsdp::runtime

extern "C" {
int ofsdp_parquet_version();
// Returns a reader that the caller deletes; or null, and writes the reason to `error`, at most
// `bytes` bytes.
ofsdp::runtime::ParquetReader* ofsdp_parquet_open(const char* path, char* error, size_t bytes);
}
