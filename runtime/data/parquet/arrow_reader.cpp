// libofsdp_parquet.so: the reader of parquet files over Arrow. Exceptions do not leave this file.
#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/config.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <type_traits>

#include "runtime/data/parquet/reader.h"

namespace ofsdp::runtime {
namespace {

static_assert(ARROW_VERSION_MAJOR == kArrowMajor && ARROW_VERSION_MINOR == kArrowMinor);

constexpr int64_t kArrowBytes = int64_t{4} << 30;
constexpr int64_t kBatchRows = 4096;
constexpr int64_t kBufferBytes = int64_t{1} << 20;  // of a column's bytes at a time

using arrow::Type;

// Numbers as they are stored.
DType number_type(Type::type id) {
  switch (id) {
    case Type::BOOL:
    case Type::UINT8:
      return DType::kUInt8;
    case Type::INT8:
      return DType::kInt8;
    case Type::UINT16:
      return DType::kUInt16;
    case Type::INT16:
      return DType::kInt16;
    case Type::UINT32:
      return DType::kUInt32;
    case Type::INT32:
      return DType::kInt32;
    case Type::UINT64:
      return DType::kUInt64;
    case Type::INT64:
      return DType::kInt64;
    case Type::HALF_FLOAT:
      return DType::kFloat16;
    case Type::FLOAT:
    case Type::NA:  // nulls alone
      return DType::kFloat32;
    case Type::DOUBLE:
      return DType::kFloat64;
    default:
      return DType::kUndefined;
  }
}

// Bytes of a number, without the tables of kernels/core, which this library does not link.
size_t number_bytes(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUInt8:
      return 1;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kFloat16:
      return 2;
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kFloat32:
      return 4;
    default:
      return 8;
  }
}

bool holds_texts(Type::type id) { return id == Type::STRING || id == Type::LARGE_STRING; }

bool holds_dates(Type::type id) {
  return id == Type::DATE32 || id == Type::DATE64 || id == Type::TIMESTAMP || id == Type::TIME32 ||
         id == Type::TIME64 || id == Type::DURATION;
}

bool holds_lists(Type::type id) {
  return id == Type::LIST || id == Type::LARGE_LIST || id == Type::FIXED_SIZE_LIST;
}

// Returns the type under names that programs give to types.
const arrow::DataType& stored_type(const arrow::DataType& type) {
  if (type.id() != Type::EXTENSION) return type;
  return stored_type(*static_cast<const arrow::ExtensionType&>(type).storage_type());
}

void describe(const arrow::DataType& given, ParquetField& field) {
  const arrow::DataType& type = stored_type(given);
  if (holds_lists(type.id())) {
    ++field.lists;
    return describe(*static_cast<const arrow::BaseListType&>(type).value_type(), field);
  }
  const arrow::DataType& value =
      type.id() == Type::DICTIONARY
          ? stored_type(*static_cast<const arrow::DictionaryType&>(type).value_type())
          : type;
  field.dtype = number_type(value.id());
  field.kind = field.dtype != DType::kUndefined ? ParquetField::Kind::kNumber
               : holds_texts(value.id())        ? ParquetField::Kind::kText
               : holds_dates(value.id())        ? ParquetField::Kind::kDate
                                                : ParquetField::Kind::kOther;
}

// Takes the rows of an Arrow array into a batch.
class BatchWriter {
 public:
  BatchWriter(ParquetBatch& batch, arrow::MemoryPool* pool) : batch_(batch), pool_(pool) {}

  arrow::Status take(const arrow::Array& array, size_t depth = 0) {
    switch (array.type_id()) {
      case Type::EXTENSION:
        return take(*static_cast<const arrow::ExtensionArray&>(array).storage(), depth);
      case Type::LIST:
        return take_lists(static_cast<const arrow::ListArray&>(array), depth);
      case Type::LARGE_LIST:
        return take_lists(static_cast<const arrow::LargeListArray&>(array), depth);
      case Type::FIXED_SIZE_LIST:
        return take_lists(static_cast<const arrow::FixedSizeListArray&>(array), depth);
      case Type::DICTIONARY:
        return take_chosen(static_cast<const arrow::DictionaryArray&>(array));
      case Type::STRING:
        return take_texts(static_cast<const arrow::StringArray&>(array));
      case Type::LARGE_STRING:
        return take_texts(static_cast<const arrow::LargeStringArray&>(array));
      default:
        return take_numbers(array);
    }
  }

 private:
  // Entries of null lists are none, whatever lies at their place.
  template <typename Lists>
  arrow::Status take_lists(const Lists& lists, size_t depth) {
    batch_.lengths.resize(std::max(batch_.lengths.size(), depth + 1));
    for (int64_t i = 0; i < lists.length(); ++i) {
      batch_.lengths[depth].push_back(lists.IsNull(i) ? -1 : int64_t{lists.value_length(i)});
    }
    ARROW_ASSIGN_OR_RAISE(const auto entries, lists.Flatten(pool_));
    return take(*entries, depth + 1);
  }

  void take_presence(const arrow::Array& array) {
    const int64_t count = array.length();
    batch_.values = count;
    if (array.null_count() == 0) return;
    batch_.present.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      batch_.present[static_cast<size_t>(i)] = array.IsValid(i) ? 1 : 0;
    }
  }

  template <typename Texts>
  arrow::Status take_texts(const Texts& texts) {
    take_presence(texts);
    for (int64_t i = 0; i < texts.length(); ++i) {
      batch_.texts.push_back(texts.IsNull(i) ? std::string_view() : texts.GetView(i));
    }
    return arrow::Status::OK();
  }

  arrow::Status take_numbers(const arrow::Array& array) {
    const DType dtype = number_type(array.type_id());
    if (dtype == DType::kUndefined) {
      return arrow::Status::NotImplemented("values of ", array.type()->ToString());
    }
    take_presence(array);
    const size_t size = number_bytes(dtype), count = static_cast<size_t>(array.length());
    batch_.numbers.resize(count * size);
    if (array.type_id() == Type::BOOL) {
      const auto& bools = static_cast<const arrow::BooleanArray&>(array);
      for (size_t i = 0; i < count; ++i) {
        const bool set =
            bools.IsValid(static_cast<int64_t>(i)) && bools.Value(static_cast<int64_t>(i));
        batch_.numbers[i] = std::byte{set};
      }
      return arrow::Status::OK();
    }
    const auto& buffers = array.data()->buffers;
    if (count > 0 && array.null_count() < array.length() && buffers.size() > 1 && buffers[1]) {
      const uint8_t* const from = buffers[1]->data() + static_cast<size_t>(array.offset()) * size;
      std::memcpy(batch_.numbers.data(), from, count * size);
    }
    for (size_t i = 0; i < batch_.present.size(); ++i) {
      if (batch_.present[i] == 0) std::memset(batch_.numbers.data() + i * size, 0, size);
    }
    return arrow::Status::OK();
  }

  // Takes values by their number in a list of all that occur.
  arrow::Status take_chosen(const arrow::DictionaryArray& array) {
    ParquetBatch words;
    ARROW_RETURN_NOT_OK(BatchWriter(words, pool_).take(*array.dictionary()));
    take_presence(array);
    const int64_t count = array.length();
    const Type::type id = stored_type(*array.dictionary()->type()).id();
    const bool texts = holds_texts(id);
    const size_t size = texts ? 0 : number_bytes(number_type(id));
    batch_.texts.resize(texts ? static_cast<size_t>(count) : 0);
    batch_.numbers.resize(static_cast<size_t>(count) * size);
    if (!words.present.empty()) batch_.present.resize(static_cast<size_t>(count), 1);
    for (int64_t i = 0; i < count; ++i) {
      if (array.IsNull(i)) continue;
      const int64_t word = array.GetValueIndex(i);
      if (word < 0 || word >= words.values)
        return arrow::Status::Invalid("a word beyond the dictionary");
      const auto from = static_cast<size_t>(word), to = static_cast<size_t>(i);
      if (!words.present.empty() && words.present[from] == 0) batch_.present[to] = 0;
      if (texts)
        batch_.texts[to] = words.texts[from];
      else
        std::memcpy(batch_.numbers.data() + to * size, words.numbers.data() + from * size, size);
    }
    return arrow::Status::OK();
  }

  ParquetBatch& batch_;
  arrow::MemoryPool* const pool_;
};

void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const auto& child : field.children) add_leaves(child, leaves);
}

class ArrowReader : public ParquetReader {
 public:
  arrow::Status open(const std::string& path) {
    ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(path, &pool_));
    parquet::ReaderProperties how(&pool_);
    how.enable_buffered_stream();
    how.set_buffer_size(kBufferBytes);
    how.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties rows(/*use_threads=*/false);
    rows.set_batch_size(kBatchRows);
    rows.set_pre_buffer(false);
    ARROW_ASSIGN_OR_RAISE(
        file_, parquet::arrow::FileReader::Make(
                   &pool_, parquet::ParquetFileReader::Open(std::move(file), how), rows));
    metadata_ = file_->parquet_reader()->metadata();
    for (const auto& from : file_->manifest().schema_fields) {
      ParquetField& field = fields_.emplace_back();
      field.name = from.field->name();
      field.type = from.field->type()->ToString();
      describe(*from.field->type(), field);
      leaves_.emplace_back();
      add_leaves(from, leaves_.back());
    }
    return check_groups();
  }

  int64_t rows() const override { return metadata_->num_rows(); }
  std::span<const ParquetField> fields() const override { return fields_; }

  void begin(size_t field) override {
    field_ = field;
    group_ = 0;
    row_ = group_begin_ = 0;
    batches_.reset();
  }

  bool next(ParquetBatch& batch, std::string& error) override {
    batch = {};
    try {
      const arrow::Status status = read(batch);
      if (status.ok()) return true;
      error = status.message();
    } catch (const std::exception& e) {
      error = e.what();
    }
    error = "row group " + std::to_string(group_) + ": " + error;
    return false;
  }

 private:
  // The rows of all groups are those of the file.
  arrow::Status check_groups() {
    int64_t left = rows();
    for (int g = 0; g < metadata_->num_row_groups(); ++g) {
      const int64_t own = metadata_->RowGroup(g)->num_rows();
      if (own < 0 || own > left) left = -1;
      left -= own;
      if (left < 0) break;
    }
    if (left == 0) return arrow::Status::OK();
    return arrow::Status::Invalid("row groups whose rows do not add up to the ", rows(),
                                  " of the footer");
  }

  arrow::Status read(ParquetBatch& batch) {
    while (true) {
      if (!batches_ && group_ == metadata_->num_row_groups()) return arrow::Status::OK();
      if (!batches_) {
        ARROW_ASSIGN_OR_RAISE(batches_, file_->GetRecordBatchReader({group_}, leaves_[field_]));
        group_begin_ = row_;
      }
      std::shared_ptr<arrow::RecordBatch> rows;
      ARROW_RETURN_NOT_OK(batches_->ReadNext(&rows));
      if (rows != nullptr && rows->num_rows() > 0) return take(*rows, batch);
      if (rows != nullptr) continue;
      const int64_t expected = metadata_->RowGroup(group_)->num_rows();
      if (row_ - group_begin_ != expected) {
        return arrow::Status::Invalid("expected ", expected, " rows, found ", row_ - group_begin_);
      }
      batches_.reset();
      ++group_;
    }
  }

  arrow::Status take(const arrow::RecordBatch& rows, ParquetBatch& batch) {
    if (rows.num_columns() != 1) return arrow::Status::Invalid("expected 1 column");
    const int64_t expected = metadata_->RowGroup(group_)->num_rows();
    const int64_t found = row_ - group_begin_ + rows.num_rows();
    if (found > expected) return arrow::Status::Invalid("expected ", expected, " rows, found more");
    held_ = rows.column(0);
    batch.rows = rows.num_rows();
    batch.first_row = row_;
    batch.group = group_;
    row_ += batch.rows;
    ARROW_RETURN_NOT_OK(held_->Validate());
    return BatchWriter(batch, &pool_).take(*held_);
  }

  arrow::CappedMemoryPool pool_{arrow::default_memory_pool(), kArrowBytes};
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<ParquetField> fields_;
  std::vector<std::vector<int>> leaves_;  // of each field, as the file numbers its columns
  size_t field_ = 0;
  int group_ = 0;
  int64_t row_ = 0, group_begin_ = 0;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::Array> held_;  // the texts of the last batch
};

ParquetReader* open(const char* path, std::string& why) {
  try {
    auto reader = std::make_unique<ArrowReader>();
    const arrow::Status status = reader->open(path);
    if (status.ok()) return reader.release();
    why = status.message();
  } catch (const std::exception& e) {
    why = e.what();
  }
  return nullptr;
}

}  // namespace
}  // namespace ofsdp::runtime

#define OFSDP_EXPORTED extern "C" __attribute__((visibility("default")))

OFSDP_EXPORTED int ofsdp_parquet_version() { return ofsdp::runtime::kParquetLibraryVersion; }

OFSDP_EXPORTED ofsdp::runtime::ParquetReader* ofsdp_parquet_open(const char* path, char* error,
                                                                 size_t bytes) {
  std::string why;
  ofsdp::runtime::ParquetReader* const reader = ofsdp::runtime::open(path, why);
  if (reader == nullptr) std::snprintf(error, bytes, "%s", why.c_str());
  return reader;
}
