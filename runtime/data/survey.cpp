#include "runtime/data/survey.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fsdp/comm/communicator.h"
#include "kernels/base/text.h"
#include "runtime/data/column_file.h"
#include "runtime/data/dataset.h"
#include "runtime/data/text_records.h"
#include "runtime/data/token_rows.h"

namespace ofsdp::runtime {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostShown = 60;  // bytes of a value
constexpr size_t kLongText = 40;   // bytes; longer texts on average are no classes
constexpr size_t kManyClasses = 100;

std::optional<TextKind> table_kind(const std::string& path) {
  const std::string extension = data_ending(path);
  if (extension == ".csv") return TextKind::kComma;
  if (extension == ".tsv") return TextKind::kTab;
  if (extension == ".jsonl") return TextKind::kJsonLines;
  return std::nullopt;
}

// Gathers the values of a column of a table.
class ValueSurvey {
 public:
  void add_cell(std::string_view text) {
    show(text);
    ++rows_;
    if (is_missing_cell(text)) {
      ++missing_;
      return;
    }
    keep(text);
    if (const auto number = cell_number(text)) {
      add_number(std::visit([](auto value) { return static_cast<double>(value); }, *number));
    } else if (is_date_cell(text)) {
      ++dates_;
    } else {
      add_text(text);
    }
  }

  void add_value(const Json* value) {
    show(value == nullptr ? "" : value->dump());
    ++rows_;
    if (value == nullptr || value->is_null()) {
      ++missing_;
      return;
    }
    keep(value->is_string() ? value->get_ref<const std::string&>() : value->dump());
    if (value->is_number()) {
      add_number(value->get<double>());
    } else if (value->is_boolean()) {
      add_number(value->get<bool>() ? 1 : 0);
    } else if (value->is_string()) {
      add_text(value->get_ref<const std::string&>());
    } else if (value->is_array()) {
      add_list(*value);
    } else {
      add_text(value->dump());
    }
  }

  ColumnSurvey finish(const std::string& file, const std::string& name) const {
    ColumnSurvey made;
    made.file = file;
    made.name = name;
    made.rows = rows_;
    made.missing = missing_;
    made.first = first_;
    made.type = type();
    if (lists_ > 0) made.row = {length_};
    if (numbers_ > 0) {
      made.least = least_;
      made.most = most_;
    }
    if (made.type == "class" || made.type == "text") made.distinct = std::ssize(texts_);
    if (made.type == "class") made.classes.assign(texts_.begin(), texts_.end());
    const int64_t filled = rows_ - missing_;
    const bool mixed = filled > 0 && numbers_ > 0 && lists_ == 0 && numbers_ < filled;
    if (mixed) {
      made.problem = format_text("{} of {} values are numbers, and {} are not", numbers_, filled,
                                 filled - numbers_);
    }
    return made;
  }

 private:
  void show(std::string_view text) {
    if (first_.size() < kFirstRows) first_.emplace_back(text.substr(0, kMostShown));
  }

  void add_number(double number) {
    ++numbers_;
    least_ = numbers_ == 1 ? number : std::min(least_, number);
    most_ = numbers_ == 1 ? number : std::max(most_, number);
    whole_ = whole_ && number == std::floor(number);
  }

  void add_text(std::string_view text) {
    ++text_count_;
    text_bytes_ += text.size();
  }

  // Among texts a number is a text, too.
  void keep(std::string_view text) {
    if (std::ssize(texts_) <= kMostDistinct) texts_.emplace(text);
  }

  void add_list(const Json& list) {
    ++lists_;
    const auto length = std::ssize(list);
    length_ = lists_ == 1 || length == length_ ? length : -1;
    for (const Json& entry : list) {
      if (entry.is_number()) add_number(entry.get<double>());
    }
  }

  std::string type() const {
    if (lists_ > 0) return "list";
    if (text_count_ == 0 && dates_ == 0) {
      return numbers_ == 0 ? "nothing" : number_type();
    }
    if (text_count_ == 0 && numbers_ == 0) return "date";
    const auto filled = static_cast<size_t>(rows_ - missing_);
    const bool few = texts_.size() <= kManyClasses && 2 * texts_.size() <= filled;
    return few && text_bytes_ <= kLongText * text_count_ ? "class" : "text";
  }

  // As the reader of tables chooses it.
  std::string number_type() const {
    if (whole_ && least_ >= -0x1p63 && most_ < 0x1p63) return "int64";
    return whole_ && least_ >= 0 && most_ < 0x1p64 ? "uint64" : "float64";
  }

  std::vector<std::string> first_;
  std::set<std::string> texts_;  // the values' texts, at most kMostDistinct + 1
  int64_t rows_ = 0, missing_ = 0, numbers_ = 0, dates_ = 0, lists_ = 0, length_ = 0;
  size_t text_count_ = 0, text_bytes_ = 0;
  double least_ = 0, most_ = 0;
  bool whole_ = true;
};

Result<std::vector<ColumnSurvey>> survey_records(const std::string& path, std::string_view text,
                                                 TextKind kind) {
  Records records(path, text, kind);
  OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> header, records.header());
  std::vector<ValueSurvey> columns(header.size());
  std::vector<std::string> fields;
  while (true) {
    OFSDP_ASSIGN_OR_RETURN(const bool more, records.next(fields));
    if (!more) break;
    for (size_t i = 0; i < fields.size(); ++i) columns[i].add_cell(trimmed_text(fields[i]));
  }
  std::vector<ColumnSurvey> made;
  for (size_t i = 0; i < header.size(); ++i) made.push_back(columns[i].finish(path, header[i]));
  return made;
}

// The names of the fields that hold values; a field b of an object a is a.b.
void add_field_names(const Json& object, const std::string& before,
                     std::vector<std::string>& names) {
  for (const auto& [name, value] : object.items()) {
    const std::string path = before + name;
    if (value.is_object()) {
      add_field_names(value, path + ".", names);
    } else if (std::ranges::find(names, path) == names.end()) {
      names.push_back(path);
    }
  }
}

// A field is there from the first object that has it; it is missing in the ones before.
Result<std::vector<ColumnSurvey>> survey_objects(const std::string& path, std::string_view text) {
  std::vector<std::string> names;
  const auto each = [&](const auto& visit) {
    return for_each_line(text, [&](std::string_view line, int64_t number) -> Status {
      OFSDP_ASSIGN_OR_RETURN(const Json object,
                             parse_object(format_text("{} line {}", path, number), line));
      visit(object);
      return {};
    });
  };
  OFSDP_RETURN_IF_ERROR(each([&](const Json& object) { add_field_names(object, "", names); }));
  std::vector<ValueSurvey> columns(names.size());
  OFSDP_RETURN_IF_ERROR(each([&](const Json& object) {
    for (size_t i = 0; i < names.size(); ++i) columns[i].add_value(find_field(object, names[i]));
  }));
  std::vector<ColumnSurvey> made;
  for (size_t i = 0; i < names.size(); ++i) made.push_back(columns[i].finish(path, names[i]));
  return made;
}

// The rows to survey; null: all.
struct SurveyedRows {
  std::shared_ptr<const RowSplit> rows = nullptr;
  bool evaluation = false;
  int64_t pictures = 0;  // at most
};

// A column that is opened once, for all parts of a split; or a reason why it cannot be.
struct OpenColumn {
  ColumnSpec spec;
  std::optional<ColumnFile> file;
  std::string problem;
};

// Reads a column's rows, converted to double where a type is no text.
class StoredSurvey {
 public:
  StoredSurvey(const OpenColumn& column, SurveyedRows part) : part_(std::move(part)) {
    made_.name = column.spec.name;
    made_.file = column.spec.path;
    made_.problem = column.problem;
    if (!column.file) return;
    const Status status = run(column.spec, *column.file);
    if (!status.ok()) made_.problem = status.message();
  }

  ColumnSurvey take() { return std::move(made_); }

 private:
  Status run(const ColumnSpec& spec, const ColumnFile& file) {
    const ColumnLayout& layout = file.layout();
    made_.rows = layout.count;
    made_.row = layout.row.axes();
    made_.type = spec.tokenizer            ? "tokens"
                 : !file.classes().empty() ? "class"
                                           : std::string(dtype_name(layout.dtype));
    made_.classes = file.classes();
    made_.distinct = std::ssize(made_.classes);
    if (part_.rows != nullptr) made_.rows = part_.rows->size(part_.evaluation);
    std::vector<std::byte> row(layout.row_bytes());
    for (int64_t i = 0; i < made_.rows; ++i) {
      const int64_t stored = part_.rows == nullptr ? i : part_.rows->row(part_.evaluation, i);
      OFSDP_RETURN_IF_ERROR(file.read_row(stored, row));
      if (layout.big_endian) {
        swap_bytes(row.data(), static_cast<size_t>(layout.row.numel()), dtype_size(layout.dtype));
      }
      add_row(layout, row);
      if (is_shown(i)) show(layout, row);
    }
    return {};
  }

  // Evenly spaced rows, the same for all columns.
  bool is_shown(int64_t i) const {
    const int64_t shown = std::min(part_.pictures, made_.rows);
    return shown > 0 && (i == 0 || i * shown / made_.rows != (i - 1) * shown / made_.rows);
  }

  void show(const ColumnLayout& layout, const std::vector<std::byte>& row) {
    if (layout.row.numel() == 1) {
      made_.captions.push_back(
          number_or_class(to_doubles({layout.dtype, layout.row}, row.data())[0]));
    } else if (layout.dtype == DType::kUInt8) {
      if (auto picture = picture_of(layout.row, row)) made_.pictures.push_back(*std::move(picture));
    }
  }

  // Rows of [H, W], [H, W, depth] or [depth, H, W].
  static std::optional<Picture> picture_of(const Shape& axes, const std::vector<std::byte>& row) {
    const auto is_depth = [](int64_t axis) { return axis == 1 || axis == 3; };
    if (axes.rank() == 2) return Picture{axes[0], axes[1], 1, row};
    if (axes.rank() != 3) return std::nullopt;
    if (!is_depth(axes[0]) && is_depth(axes[2])) return Picture{axes[0], axes[1], axes[2], row};
    if (!is_depth(axes[0])) return std::nullopt;
    const int64_t plane = axes[1] * axes[2];
    Picture made{axes[1], axes[2], axes[0], row};
    for (int64_t i = 0; i < plane * axes[0]; ++i) {
      made.pixels[static_cast<size_t>(i % plane * axes[0] + i / plane)] =
          row[static_cast<size_t>(i)];
    }
    return made;
  }

  std::string number_or_class(double number) const {
    const auto index = static_cast<size_t>(std::max(number, 0.0));
    const bool named = index < made_.classes.size() && number >= 0;
    return named ? made_.classes[index] : format_text("{}", number);
  }

  void add_row(const ColumnLayout& layout, const std::vector<std::byte>& row) {
    const std::vector<double> numbers = to_doubles({layout.dtype, layout.row}, row.data());
    for (const double number : numbers) {
      if (!std::isfinite(number)) {
        ++made_.not_finite;
      } else if (!made_.least) {
        made_.least = made_.most = number;
      } else {
        made_.least = std::min(*made_.least, number);
        made_.most = std::max(*made_.most, number);
      }
    }
    if (made_.first.size() == kFirstRows) return;
    std::vector<std::string> some;
    for (size_t i = 0; i < std::min<size_t>(numbers.size(), 8); ++i) {
      some.push_back(number_or_class(numbers[i]));
    }
    made_.first.push_back(joined(some, " ") + (numbers.size() > some.size() ? " .." : ""));
  }

  SurveyedRows part_;
  ColumnSurvey made_;
};

// The columns of a set, open. The files of a communicator's memory must not outlive it.
class OpenColumns {
 public:
  OpenColumns(const ColumnSet& set, int64_t pictures) : set_(set), pictures_(pictures) {
    EncodedTexts texts;
    for (const ColumnSpec& spec : set.columns) {
      OpenColumn& column = columns_.emplace_back();
      column.spec = spec;
      column.spec.classes = true;  // texts may be labels
      // A picture has axes, also if the model takes flat rows.
      if (pictures > 0 && spec.images && spec.images->has_pixels()) column.spec.row.reset();
      auto file = ColumnFile::open(column.spec, *communicator_, ledger_, &texts);
      if (file.ok()) {
        column.file.emplace(*std::move(file));
      } else {
        column.problem = file.error().message();
      }
    }
  }

  std::vector<ColumnSurvey> survey(bool evaluation) const {
    std::vector<ColumnSurvey> made;
    for (const OpenColumn& column : columns_) {
      made.push_back(StoredSurvey(column, {split_, evaluation, pictures_}).take());
    }
    return made;
  }

  // A set that cannot be cut is shown whole; a run will say why.
  void cut() {
    const auto first = std::ranges::find_if(columns_, [](const auto& c) { return !!c.file; });
    if (!set_.split || first == columns_.end()) return;
    std::vector<int64_t> classes;
    const std::string& name = set_.split->stratify;
    for (const OpenColumn& column : columns_) {
      if (name.empty() || column.spec.name != name || !column.file) continue;
      auto found = row_classes(name, *column.file);
      if (!found.ok()) return;
      classes = *std::move(found);
    }
    auto made = RowSplit::make(set_.origin, first->file->layout().count, set_.split->part,
                               set_.split->seed, classes);
    if (made.ok()) split_ = *std::move(made);
  }

 private:
  const ColumnSet& set_;
  const int64_t pictures_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
  MemoryLedger ledger_;
  std::vector<OpenColumn> columns_;
  std::shared_ptr<const RowSplit> split_;
};

}  // namespace

bool is_table(const std::string& path) { return table_kind(path).has_value(); }

Result<std::vector<ColumnSurvey>> survey_table(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(path));
  OFSDP_ASSIGN_OR_RETURN(const std::string text, whole_text(source));
  const TextKind kind = *table_kind(path);
  return kind == TextKind::kJsonLines ? survey_objects(path, text)
                                      : survey_records(path, text, kind);
}

Result<ColumnSurvey> survey_text(const std::string& path) {
  ColumnSurvey made;
  made.name = std::filesystem::path(path).filename().string();
  made.file = path;
  made.type = "text";
  ColumnSpec spec;
  spec.path = path;
  spec.padding.emplace();  // a text for each line
  OFSDP_RETURN_IF_ERROR(for_each_text(spec, [&](std::string_view line, int64_t) -> Status {
    ++made.rows;
    if (made.first.size() < kFirstRows) made.first.emplace_back(line.substr(0, kMostShown));
    return {};
  }));
  return made;
}

std::vector<SurveyedPart> survey_parts(const DataSpec& spec, int64_t pictures) {
  OpenColumns train(spec.train, pictures);
  train.cut();
  std::vector<SurveyedPart> parts{{"train", train.survey(false)}};
  if (!spec.eval) return parts;
  const bool same = spec.train.split.has_value();  // the other rows of the same columns
  parts.push_back(
      {"eval", same ? train.survey(true) : OpenColumns(*spec.eval, pictures).survey(true)});
  return parts;
}

}  // namespace ofsdp::runtime
