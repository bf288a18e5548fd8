#include <algorithm>
#include <chrono>
#include <climits>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/contact_sheet.h"
#include "runtime/commands/description.h"
#include "runtime/data/column_file.h"
#include "runtime/data/dataset.h"
#include "runtime/data/survey.h"
#include "runtime/remote/cache.h"
#include "runtime/report/plan_report.h"
#include "runtime/train/setup/data_setup.h"
#include "runtime/train/setup/image_inputs.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kShownClasses = 8;
constexpr size_t kShownText = 28;  // bytes of a value in the table

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
  OrderedJson json{{"name", column.name},   {"file", address_of(column.file)},
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

// The tables of a folder: one for training, perhaps one for evaluation.
struct Tables {
  std::string train, eval;  // paths
};

// Returns nothing if the folder has no table for training, or several without a name that says
// which.
std::optional<Tables> tables_in(const std::string& folder) {
  std::map<int, std::string> train, eval;  // by the place of the name among those of the part
  std::vector<std::string> others;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string path = i->path().string(), name = data_name(i->path().string());
    if (!is_table(path)) continue;
    if (training_name(name) >= 0) {
      train.emplace(training_name(name), path);
    } else if (evaluation_name(name) >= 0) {
      eval.emplace(evaluation_name(name), path);
    } else {
      others.push_back(path);
    }
  }
  if (train.empty() && others.size() != 1) return std::nullopt;
  return Tables{train.empty() ? others[0] : train.begin()->second,
                eval.empty() ? "" : eval.begin()->second};
}

bool has_column(const std::vector<ColumnSurvey>& columns, const std::string& name) {
  return std::ranges::find(columns, name, &ColumnSurvey::name) != columns.end();
}

// The part that the name of an array tells, as in X_train and test_labels.
struct PartName {
  int training = -1, evaluation = -1;  // places among the names of parts
  std::string base;                    // the name without the part
};

PartName part_name(const std::string& name) {
  for (const char separator : {'_', '-', '.'}) {
    const size_t first = name.find(separator), last = name.rfind(separator);
    if (first == std::string::npos || first == 0 || last + 1 == name.size()) continue;
    for (const auto& [part, base] : {std::pair(name.substr(0, first), name.substr(first + 1)),
                                     std::pair(name.substr(last + 1), name.substr(0, last))}) {
      const PartName made{training_name(part), evaluation_name(part), base};
      if (made.training >= 0 || made.evaluation >= 0) return made;
    }
  }
  return {-1, -1, name};
}

// Makes two parts of arrays that the names divide.
void divide_by_names(DataSpec& spec) {
  int training = -1, best = INT_MAX;
  for (const ColumnSpec& column : spec.train.columns) {
    const PartName name = part_name(column.name);
    training = std::max(training, name.training);
    if (name.evaluation >= 0) best = std::min(best, name.evaluation);
  }
  if (spec.eval || training < 0) return;
  ColumnSet train{spec.train.origin, {}}, eval{spec.train.origin, {}};
  for (ColumnSpec& column : spec.train.columns) {
    PartName name = part_name(column.name);
    if (name.evaluation >= 0 && name.evaluation != best) continue;
    column.name = std::move(name.base);
    (name.evaluation < 0 ? train : eval).columns.push_back(std::move(column));
  }
  spec.train = std::move(train);
  if (!eval.columns.empty()) spec.eval = std::move(eval);
}

bool has_labels(const std::string& lines) { return lines.find("  labels: {") != lines.npos; }

std::vector<fs::path> with_folders_below(const fs::path& folder) {
  std::vector<fs::path> list{folder};
  std::error_code error;
  fs::directory_iterator i(folder.empty() ? "." : folder, error);
  for (const fs::directory_iterator end; !error && i != end; i.increment(error)) {
    if (i->is_directory(error)) list.push_back(i->path());
  }
  std::sort(list.begin() + 1, list.end());
  return list;
}

// The file that `prepare` writes by default: next to the data, with its name; of an address here.
fs::path description_of(const std::string& data) {
  if (is_address(data)) return data_name(data) + ".yaml";
  fs::path path = fs::path(data).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.replace_filename(data_name(path.string()) + ".yaml");
}

class DataSurvey {
 public:
  DataSurvey(const Options& options, const Registry& registry)
      : options_(options), registry_(registry), given_(options.run.data.path) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(read_model());
    OFSDP_RETURN_IF_ERROR(read_data());
    Status fed = options_.model.empty() ? Status() : feed();
    options_.json ? say_json() : say();
    const std::string& page = options_.report.html;
    if (!fed.ok() || page.empty()) return fed;
    const std::string sheet = contact_sheet(given_, parts_);
    OFSDP_REJECT_IF(sheet.empty(), "--html {}: expected a column of images, found none", page);
    return write_page(page, sheet);
  }

  // Writes the description, after the model was fed with it.
  Status prepare() {
    const std::string& output = options_.files.output;
    file_ = output.empty() ? description_of(given_) : fs::path(output);
    OFSDP_RETURN_IF_ERROR(check_file());
    OFSDP_RETURN_IF_ERROR(read_model());
    OFSDP_RETURN_IF_ERROR(read_data());
    complete();
    OFSDP_RETURN_IF_ERROR(feed());
    OFSDP_RETURN_IF_ERROR(write_page(file_.string(), description_));
    print_lines(stdout, format_text("{}:\n\n{}\nto train: fsdp-run {} --data {}{}\n",
                                    escaped(file_.string()), escaped_lines(description_),
                                    options_.model.empty() ? "MODEL.onnx"
                                                           : escaped(address_of(options_.model)),
                                    escaped(file_.string()), loss_words()));
    return {};
  }

 private:
  // A model without a loss needs one.
  std::string loss_words() const {
    const auto is_loss = [this](ValueId id) { return graph_->value(id).declared.empty(); };
    if (graph_ && std::ranges::any_of(graph_->outputs, is_loss)) return "";
    const std::string loss = graph_ ? fitting_loss(*graph_, labels_) : "";
    if (!loss.empty()) return " --loss " + loss + head_words(loss);
    return format_text(" --loss LOSS\nLOSS: {} leave it open; see fsdp-run help --loss",
                       !graph_               ? "data without a model"
                       : labels_.row.empty() ? "data without labels"
                                             : "the model's outputs and the labels");
  }

  // Labels of more classes than the prediction has need another last layer.
  std::string head_words(const std::string& loss) const {
    const int64_t scores = scores_a_row(*graph_);
    const bool over_classes = loss != "mse" && !loss.starts_with("bce");
    if (!over_classes || scores == 0 || labels_.classes <= scores) return "";
    return format_text(
        " --replace-head {}\nthe labels have {} classes, the prediction has {}: --replace-head "
        "makes "
        "a new last layer",
        labels_.classes, labels_.classes, scores);
  }

  Status check_file() const {
    std::error_code error;
    const std::string extension = last_ending(given_);
    OFSDP_REJECT_IF(extension == ".yaml" || extension == ".yml",
                    "{}: expected data, found a description: give it to --data", given_);
    OFSDP_REJECT_IF(fs::exists(file_, error),
                    "{}: expected no such file, found one: -o FILE.yaml names another",
                    file_.string());
    return {};
  }

  // Adds the lines of arrays and images, and a part for evaluation.
  void complete() {
    const auto place_of = [this](const std::string& path) { return place(path); };
    if (description_.empty() && !parts_.empty()) {
      const auto lines = [&](const ColumnSet& set, const SurveyedPart& part) {
        return describe_columns(set, part.columns, inputs_, place_of);
      };
      description_ = "train:\n" + lines(spec_.train, parts_[0]);
      if (parts_.size() > 1) {
        const std::string others = lines(*spec_.eval, parts_[1]);
        has_eval_ =
            input_without_columns(others).empty() && has_labels(others) == has_labels(description_);
        description_ += has_eval_ ? "eval:\n" + others
                                  : "# the part for evaluation lacks columns: it is left out\n";
      }
    }
    if (!has_eval_) description_ += describe_split(parts_[0].columns, description_);
  }

  // Returns the path or the address as the description has it.
  std::string place(const std::string& path) const {
    const std::string address = address_of(path);
    if (is_address(address)) return address;
    std::error_code error;
    const fs::path near = fs::proximate(path, folder().empty() ? "." : folder(), error);
    return error ? path : near.string();
  }

  // Returns the folder of the description; empty: this one.
  std::string folder() const {
    if (file_.empty() && is_address(given_)) return "";
    return (file_.empty() ? fs::path(given_) : file_).parent_path().string();
  }

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

  Status read_tables(const Tables& tables) {
    OFSDP_ASSIGN_OR_RETURN(auto columns, survey_table(tables.train));
    parts_.push_back({"", columns});
    std::vector<ColumnSurvey> others;
    if (!tables.eval.empty()) {
      OFSDP_ASSIGN_OR_RETURN(others, survey_table(tables.eval));
      parts_.push_back({"eval", others});
    }
    for (ColumnSurvey& column : columns) {  // the parts get the same keys
      const auto same = std::ranges::find(others, column.name, &ColumnSurvey::name);
      if (same != others.end()) column.missing += same->missing;
    }
    const auto lines = [&](const std::string& table, const std::vector<ColumnSurvey>& from) {
      return describe_table(place(table), from, inputs_);
    };
    description_ = "train:\n" + lines(tables.train, columns);
    if (tables.eval.empty()) return {};
    const auto is_needed = [&](const ColumnSurvey& column) {
      std::vector<ColumnSurvey> left(columns);
      std::erase_if(left, [&](const ColumnSurvey& one) { return one.name == column.name; });
      return lines(tables.train, left) != lines(tables.train, columns);
    };
    for (const ColumnSurvey& column : columns) {
      if (has_column(others, column.name) || !is_needed(column)) continue;
      description_ += format_text("# {} has no column '{}': it is left out\n",
                                  escaped(place(tables.eval)), escaped(column.name));
      return {};
    }
    has_eval_ = true;
    description_ += "eval:\n" + lines(tables.eval, columns);
    return {};
  }

  Status read_data() {
    const std::string extension = data_ending(given_);
    const bool text = extension == ".txt" || extension == ".md", table = is_table(given_);
    std::string file = given_;
    if (table || text) {
      OFSDP_ASSIGN_OR_RETURN(file, prefixed("--data", local_file(given_)));
    }
    if (table) return read_tables({file, ""});
    std::error_code error;
    if (text && fs::is_regular_file(file, error)) {
      description_ = "train:\n" + describe_text(place(file), inputs_);
      OFSDP_ASSIGN_OR_RETURN(const ColumnSurvey lines, survey_text(file));
      parts_.push_back({"", {lines}});
      return {};
    }
    if (const auto tables = tables_in(given_)) return read_tables(*tables);
    OFSDP_ASSIGN_OR_RETURN(spec_, read_data_spec(given_));
    if (!file_.empty()) divide_by_names(spec_);
    OFSDP_RETURN_IF_ERROR(name_images(spec_.train));
    if (spec_.eval) OFSDP_RETURN_IF_ERROR(name_images(*spec_.eval));
    parts_ = survey_parts(spec_, options_.report.html.empty() ? 0 : kSheetRows);
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

  // Lets the other columns, of labels, be opened too.
  static void take_labels(ColumnSet& set, std::vector<std::string>& names) {
    for (const std::string& name : set.names()) {
      if (std::ranges::find(names, name) != names.end()) continue;
      set.take_classes(name, {});
      names.push_back(name);
    }
  }

  // Names a tokenizer near the model or the data if none lies next to the YAML file.
  Status find_tokenizer() {
    const fs::path beside = fs::path(folder()) / kTokenizerFile;
    std::error_code error;
    if (!names_tokenizer(description_) || fs::exists(beside, error)) return {};
    for (const fs::path& near : {fs::path(options_.model).parent_path(), fs::path(folder())}) {
      for (const fs::path& one : with_folders_below(near)) {
        if (!fs::exists(one / kTokenizerFile, error)) continue;
        description_ = with_tokenizer(description_, place((one / kTokenizerFile).string()));
        return {};
      }
    }
    return input_error(
        "{}: no such file: put the model's there, or name its place in the YAML file",
        beside.string());
  }

  // Binds the columns to the model's inputs, as a run does, and reads the first row.
  Status feed() {
    if (!description_.empty()) {
      const std::string input = input_without_columns(description_);
      OFSDP_REJECT_IF(!input.empty(),
                      "{}: expected columns for input {}, found none that fit: name them in a YAML "
                      "file",
                      given_, input);
      OFSDP_RETURN_IF_ERROR(find_tokenizer());
      OFSDP_ASSIGN_OR_RETURN(spec_, parse_data_yaml(description_, folder(), given_));
      if (graph_) OFSDP_RETURN_IF_ERROR(name_images(spec_.train));
    }
    const ColumnSet& set = spec_.train.columns.empty() && spec_.eval ? *spec_.eval : spec_.train;
    std::vector<std::string> names;
    std::vector<WantedColumn> wanted;
    for (const DataInput& input : inputs_) {
      names.push_back(input.name);
      wanted.push_back({input.name, input.dtype, input.dims});
    }
    ColumnSet whole = set;
    if (!file_.empty()) take_labels(whole, names);
    const auto communicator = make_self_communicator();
    MemoryLedger ledger;
    OFSDP_ASSIGN_OR_RETURN(const auto data, Dataset::open(whole, names, *communicator, ledger));
    OFSDP_RETURN_IF_ERROR(data->bind(wanted));
    if (data->stored("labels") != nullptr) survey_labels(*data, *whole.find("labels"));
    const std::vector<int64_t> first{0};
    for (size_t i = 0; i < wanted.size(); ++i) {
      const BoundColumn& column = data->columns()[i];
      std::vector<std::byte> row(column.row_bytes());
      OFSDP_RETURN_IF_ERROR(data->read_rows(static_cast<int>(i), first, row.data()));
      fed_.push_back({column, to_doubles({column.dtype, column.row}, row.data())});
    }
    return {};
  }

  void survey_labels(const Dataset& data, const ColumnSpec& spec) {
    const ColumnLayout& layout = *data.stored("labels");
    labels_.row = {layout.count};
    for (const int64_t axis : layout.row.axes()) labels_.row.push_back(axis);
    labels_.named = !data.classes("labels").empty();
    labels_.classes = std::ssize(data.classes("labels"));
    labels_.whole = is_integer(layout.dtype);
    for (const ColumnSurvey& column : parts_[0].columns) {
      const bool same = spec.parts.empty()
                            ? fs::path(column.file).filename() == fs::path(spec.path).filename()
                            : column.name == spec.parts[0];
      if (!same) continue;
      labels_.binary = column.least == 0.0 && column.most == 1.0;
      constexpr double kMost = 1e6;  // else no numbers of classes
      const bool counted =
          !labels_.named && labels_.whole && column.least >= 0.0 && column.most < kMost;
      if (counted) labels_.classes = static_cast<int64_t>(*column.most) + 1;
    }
  }

  void say() const {
    std::string text;
    for (const SurveyedPart& part : parts_) {
      text += format_text("{}{}{}\n", escaped(given_), part.name.empty() ? "" : ": ", part.name);
      text += part_table(part) + "\n";
    }
    if (!fed_.empty())
      text += format_text("{} gets of row 0\n{}\n", address_of(options_.model), fed_table());
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
  fs::path file_;            // of `prepare`; else empty: the description would lie next to the data
  bool has_eval_ = false;    // the description has an evaluation part
  std::vector<Fed> fed_;
  LabelRows labels_;
};

}  // namespace

Status show_data(const Options& options, const Registry& registry) {
  return DataSurvey(options, registry).run();
}

Status prepare_data(const Options& options, const Registry& registry) {
  return DataSurvey(options, registry).prepare();
}

}  // namespace ofsdp::runtime
