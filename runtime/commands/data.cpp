#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/passes.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/data/dataset.h"
#include "runtime/data/survey.h"
#include "runtime/train/setup/data_setup.h"
#include "runtime/train/setup/image_inputs.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kUsualLength = 128;  // tokens of a row, if the model does not say it
constexpr size_t kShownClasses = 8;
constexpr size_t kShownText = 28;  // bytes of a value in the table

// A part of the data, "train" or "eval".
struct SurveyedPart {
  std::string name;
  std::vector<ColumnSurvey> columns;
};

// --- the description that a table or a text needs

std::string quoted_name(const std::string& name) {
  const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  });
  if (plain && name[0] != '-') return name;
  return OrderedJson(name).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

bool is_one_of(std::string name, std::initializer_list<std::string_view> names) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::find(names, name) != names.end();
}

bool is_label_name(const std::string& name) {
  return is_one_of(name, {"label", "labels", "target", "targets", "class", "y"});
}

bool is_row_number(const std::string& name) {
  return is_one_of(name, {"", "id", "index", "row", "unnamed: 0"});
}

// A graph input that needs a column.
struct DataInput {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> dims;  // of a row; -1: open
};

// Writes the lines of a YAML file that feed a model, or any model, from a table.
class TableAdvice {
 public:
  TableAdvice(const std::string& file, const std::vector<ColumnSurvey>& columns)
      : file_(fs::path(file).filename().string()) {
    key_ = fs::path(file).extension() == ".jsonl" ? "field" : "column";
    for (const ColumnSurvey& column : columns) free_.push_back(&column);
  }

  std::string lines(const std::vector<DataInput>& inputs) {
    const ColumnSurvey* const label = take_label(inputs);
    std::string text = "train:\n";
    for (const DataInput& input : inputs) text += line(input);
    if (inputs.empty()) text += line({"x", DType::kFloat32, {-1}});
    if (label != nullptr) {
      text += format_text("  labels: {{file: {}, {}: {}{}}}\n", quoted_name(file_), key_,
                          quoted_name(label->name), label->missing > 0 ? ", missing: -100" : "");
    }
    return text;
  }

 private:
  // Takes the column of labels: by its name, else one of classes, else the last that is left.
  const ColumnSurvey* take_label(const std::vector<DataInput>& inputs) {
    std::vector<const ColumnSurvey*> left = free_;
    for (const DataInput& input : inputs) {
      std::erase_if(left, [&](const ColumnSurvey* one) { return one->name == input.name; });
    }
    const auto find = [&](const auto& fits) {
      const auto found = std::find_if(left.rbegin(), left.rend(), fits);
      return found == left.rend() ? nullptr : *found;
    };
    const ColumnSurvey* label = find([](const auto* one) { return is_label_name(one->name); });
    if (label == nullptr) label = find([](const auto* one) { return one->type == "class"; });
    if (label == nullptr && left.size() > 1) label = find([](const auto*) { return true; });
    if (label != nullptr) take(label);
    return label;
  }

  void take(const ColumnSurvey* column) { std::erase(free_, column); }

  std::string line(const DataInput& input) {
    const auto same = std::ranges::find(free_, input.name, &ColumnSurvey::name);
    if (same != free_.end()) return one_column(input, **same);
    if (input.dtype == DType::kBool || input.name.find("mask") != std::string::npos) {
      return format_text("  {}: auto\n", quoted_name(input.name));
    }
    if (is_integer(input.dtype)) {
      const auto text = std::ranges::find(free_, std::string("text"), &ColumnSurvey::type);
      if (text != free_.end()) return text_column(input, **text);
    }
    return number_columns(input);
  }

  std::string one_column(const DataInput& input, const ColumnSurvey& column) {
    take(&column);
    if (column.type == "text" && is_integer(input.dtype)) return text_column(input, column);
    const bool pads = column.type == "list" && column.row == std::vector<int64_t>{-1};
    return format_text("  {}: {{file: {}, {}: {}{}{}}}\n", quoted_name(input.name),
                       quoted_name(file_), key_, quoted_name(column.name),
                       pads ? ", pad_to: longest" : "", missing_key(column.missing));
  }

  std::string text_column(const DataInput& input, const ColumnSurvey& column) {
    take(&column);
    const int64_t fixed = input.dims.size() == 1 ? input.dims[0] : -1;
    const int64_t length = fixed > 0 ? fixed : kUsualLength;
    return format_text(
        "  {}: {{text: {}, {}: {}, tokenizer: tokenizer.json, max_length: {}, pad_to: {}}}\n",
        quoted_name(input.name), quoted_name(file_), key_, quoted_name(column.name), length,
        fixed > 0 ? std::to_string(length) : "longest");
  }

  // Takes the columns of numbers; if there are more than the input has places, no row numbers.
  std::string number_columns(const DataInput& input) {
    int64_t wanted = 1;  // below 1: open
    for (const int64_t dim : input.dims) wanted *= dim;
    std::vector<const ColumnSurvey*> numbers;
    for (const ColumnSurvey* column : free_) {
      if (column->is_number() && column->type != "list") numbers.push_back(column);
    }
    if (wanted > 0 && std::ssize(numbers) > wanted) {
      std::erase_if(numbers, [](const ColumnSurvey* one) { return is_row_number(one->name); });
    }
    if (wanted > 0 && std::ssize(numbers) > wanted) numbers.resize(static_cast<size_t>(wanted));
    std::vector<std::string> names;
    int64_t missing = 0;
    for (const ColumnSurvey* column : numbers) {
      names.push_back(quoted_name(column->name));
      missing += column->missing;
      take(column);
    }
    if (names.empty()) names.push_back("NAME");  // for the user to fill in
    return format_text("  {}: {{file: {}, {}: [{}]{}}}\n", quoted_name(input.name),
                       quoted_name(file_), key_, joined(names, ", "), missing_key(missing));
  }

  static std::string missing_key(int64_t missing) { return missing > 0 ? ", missing: 0" : ""; }

  const std::string file_;
  std::string key_;
  std::vector<const ColumnSurvey*> free_;
};

// The lines for a plain text, whose tokens follow each other.
std::string text_advice(const std::string& file, const std::vector<DataInput>& inputs) {
  const std::string name = quoted_name(fs::path(file).filename().string());
  const DataInput* tokens = nullptr;
  for (const DataInput& input : inputs) {
    if (tokens == nullptr && is_integer(input.dtype)) tokens = &input;
  }
  const int64_t fixed = tokens != nullptr && tokens->dims.size() == 1 ? tokens->dims[0] : -1;
  const std::string keys = format_text("text: {}, tokenizer: tokenizer.json, sequence_length: {}",
                                       name, fixed > 0 ? fixed : kUsualLength);
  return format_text("train:\n  {}: {{{}}}\n  labels: {{{}, next_token: true}}\n",
                     tokens != nullptr ? quoted_name(tokens->name) : "input_ids", keys, keys);
}

// --- the screen

std::string number_text(double number) { return format_text("{:.6g}", number); }

std::string range_of(const ColumnSurvey& column) {
  if (!column.classes.empty()) {
    std::vector<std::string> some(column.classes);
    if (some.size() > kShownClasses) some.resize(kShownClasses);
    return format_text("{} classes: {}{}", column.classes.size(), joined(some, ", "),
                       some.size() < column.classes.size() ? ", .." : "");
  }
  if (column.type == "text" && column.distinct > 0) {
    const bool more = column.distinct > kMostDistinct;
    return format_text("{}{} texts", more ? "more than " : "",
                       more ? kMostDistinct : column.distinct);
  }
  if (!column.least) return "";
  return format_text("{} .. {}", number_text(*column.least), number_text(*column.most));
}

std::string row_text(const std::vector<int64_t>& row) {
  std::vector<std::string> axes;
  for (const int64_t axis : row) axes.push_back(axis < 0 ? "?" : std::to_string(axis));
  return format_text("[{}]", joined(axes, ", "));
}

using TableRow = std::vector<std::string>;

// Left-aligned columns, two blanks between them.
std::string aligned(const std::vector<TableRow>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const TableRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const TableRow& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string part_table(const SurveyedPart& part) {
  std::vector<TableRow> rows{{"column", "type", "row", "rows", "missing", "range", "first rows"}};
  for (const ColumnSurvey& column : part.columns) {
    std::vector<std::string> first;
    for (const std::string& value : column.first) first.push_back(value.substr(0, kShownText));
    const std::string missing = column.not_finite > 0
                                    ? format_text("{} NaN or inf", column.not_finite)
                                    : std::to_string(column.missing);
    rows.push_back({escaped(column.name), column.type, row_text(column.row),
                    std::to_string(column.rows), missing, escaped(range_of(column)),
                    escaped(joined(first, " | "))});
  }
  std::string text = aligned(rows);
  for (const ColumnSurvey& column : part.columns) {
    if (column.problem.empty()) continue;
    text += format_text("column '{}': {}\n", escaped(column.name), escaped(column.problem));
  }
  return text;
}

OrderedJson json_of(const ColumnSurvey& column) {
  OrderedJson json{{"name", column.name},   {"file", column.file},
                   {"type", column.type},   {"row", column.row},
                   {"rows", column.rows},   {"missing", column.missing},
                   {"first", column.first}, {"not_finite", column.not_finite}};
  json["least"] = column.least ? OrderedJson(*column.least) : OrderedJson();
  json["most"] = column.most ? OrderedJson(*column.most) : OrderedJson();
  json["classes"] = column.classes;
  json["problem"] = column.problem.empty() ? OrderedJson() : OrderedJson(column.problem);
  return json;
}

// --- the command

class DataSurvey {
 public:
  DataSurvey(const Options& options, const Registry& registry)
      : options_(options), registry_(registry), given_(options.run.data.path) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(read_model());
    OFSDP_RETURN_IF_ERROR(read_data());
    Status fed = options_.model.empty() ? Status() : feed();
    options_.json ? say_json() : say();
    return fed;
  }

 private:
  Status read_model() {
    if (options_.model.empty()) return {};
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::open(options_.model));
    file.fix_inputs({}, input_numbers(options_));
    OFSDP_ASSIGN_OR_RETURN(graph_, import_onnx(file, {registry_, &ort_operators()}));
    for (const ValueId id : graph_->inputs) {
      const Value& input = graph_->value(id);
      DataInput& made = inputs_.emplace_back(DataInput{input.name, input.desc.dtype, {}});
      for (size_t i = 1; i < input.declared.size(); ++i) {
        made.dims.push_back(input.declared[i].size);
      }
    }
    return {};
  }

  Status read_data() {
    const std::string extension = fs::path(given_).extension().string();
    if (is_table(given_)) {
      OFSDP_ASSIGN_OR_RETURN(const auto columns, survey_table(given_));
      parts_.push_back({"", columns});
      description_ = TableAdvice(given_, columns).lines(inputs_);
      return {};
    }
    std::error_code error;
    if ((extension == ".txt" || extension == ".md") && fs::is_regular_file(given_, error)) {
      description_ = text_advice(given_, inputs_);
      OFSDP_ASSIGN_OR_RETURN(const ColumnSurvey lines, survey_text(given_));
      parts_.push_back({"", {lines}});
      return {};
    }
    OFSDP_ASSIGN_OR_RETURN(spec_, read_data_spec(given_));
    OFSDP_RETURN_IF_ERROR(name_images(spec_.train));
    if (spec_.eval) OFSDP_RETURN_IF_ERROR(name_images(*spec_.eval));
    parts_.push_back({"train", survey_columns(spec_.train)});
    if (spec_.eval) parts_.push_back({"eval", survey_columns(*spec_.eval)});
    return {};
  }

  // The model's inputs name a folder's images; without a model they are `images`.
  Status name_images(ColumnSet& set) {
    if (graph_) return fit_images(set, *graph_, options_.losses, 1);
    for (ColumnSpec& column : set.columns) {
      if (column.name.empty()) column.name = "images";
    }
    return {};
  }

  // Binds the columns to the model's inputs, as a run does, and reads the first row.
  Status feed() {
    if (!description_.empty()) {
      const std::string folder = fs::path(given_).parent_path().string();
      OFSDP_ASSIGN_OR_RETURN(spec_, parse_data_yaml(description_, folder, given_));
    }
    const ColumnSet& set = spec_.train.columns.empty() && spec_.eval ? *spec_.eval : spec_.train;
    std::vector<std::string> names;
    std::vector<WantedColumn> wanted;
    for (const DataInput& input : inputs_) {
      names.push_back(input.name);
      wanted.push_back({input.name, input.dtype, input.dims});
    }
    const auto communicator = make_self_communicator();
    MemoryLedger ledger;
    OFSDP_ASSIGN_OR_RETURN(const auto data, Dataset::open(set, names, *communicator, ledger));
    OFSDP_RETURN_IF_ERROR(data->bind(wanted));
    const std::vector<int64_t> first{0};
    for (size_t i = 0; i < wanted.size(); ++i) {
      const BoundColumn& column = data->columns()[i];
      std::vector<std::byte> row(column.row_bytes());
      OFSDP_RETURN_IF_ERROR(data->read_rows(static_cast<int>(i), first, row.data()));
      fed_.push_back({column, to_doubles({column.dtype, column.row}, row.data())});
    }
    return {};
  }

  void say() const {
    std::string text;
    for (const SurveyedPart& part : parts_) {
      text += format_text("{}{}{}\n", escaped(given_), part.name.empty() ? "" : ": ", part.name);
      text += part_table(part) + "\n";
    }
    if (!fed_.empty()) text += format_text("{} gets of row 0\n{}\n", options_.model, fed_table());
    if (!description_.empty()) {
      text += "A YAML file for --data, next to it:\n\n" + escaped_lines(description_);
    }
    while (text.ends_with("\n\n")) text.pop_back();
    print_lines(stdout, text);
  }

  std::string fed_table() const {
    std::vector<TableRow> rows{{"input", "type", "row", "values"}};
    for (const Fed& fed : fed_) {
      std::vector<std::string> some;
      for (size_t i = 0; i < std::min(fed.values.size(), kShownClasses); ++i) {
        some.push_back(number_text(fed.values[i]));
      }
      rows.push_back({escaped(fed.column.name), std::string(dtype_name(fed.column.dtype)),
                      fed.column.row.text(),
                      joined(some, " ") + (some.size() < fed.values.size() ? " .." : "")});
    }
    return aligned(rows);
  }

  void say_json() const {
    OrderedJson object;
    object["data"] = given_;
    for (const SurveyedPart& part : parts_) {
      OrderedJson columns = OrderedJson::array();
      for (const ColumnSurvey& column : part.columns) columns.push_back(json_of(column));
      object[part.name.empty() ? "columns" : part.name] = columns;
    }
    if (!options_.model.empty()) {
      object["inputs"] = OrderedJson::array();
      for (const Fed& fed : fed_) {
        object["inputs"].push_back({{"name", fed.column.name},
                                    {"type", dtype_name(fed.column.dtype)},
                                    {"row", fed.column.row.axes()},
                                    {"values", fed.values}});
      }
    }
    object["description"] = description_.empty() ? OrderedJson() : OrderedJson(description_);
    print_lines(
        stdout,
        escaped_json(object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)) + "\n");
  }

  struct Fed {
    BoundColumn column;
    std::vector<double> values;  // of the first row
  };

  const Options& options_;
  const Registry& registry_;
  const std::string given_;
  std::optional<Graph> graph_;  // none: no model is given
  std::vector<DataInput> inputs_;
  std::vector<SurveyedPart> parts_;
  DataSpec spec_;
  std::string description_;  // for a table or a text; else empty
  std::vector<Fed> fed_;
};

}  // namespace

Status show_data(const Options& options, const Registry& registry) {
  return DataSurvey(options, registry).run();
}

}  // namespace ofsdp::runtime
