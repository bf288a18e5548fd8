#include "runtime/commands/description.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/text.h"
#include "runtime/data/column_file.h"
#include "runtime/data/text_records.h"

namespace ofsdp::runtime {

namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kUsualLength = 128;  // tokens of a row, if the model does not say it
constexpr int64_t kLeastSplit = 20;    // rows

// In the place of names that nothing gives.
constexpr const char* kNoColumns = "[NAME, ...]";
constexpr const char* kNoFile = "{file: NAME}";

std::string quoted_name(const std::string& name) {
  const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' ||
           c == '/';
  });
  if (plain && name[0] != '-') return name;
  return OrderedJson(name).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Returns true if the name, in any case, is one of the names in small letters.
bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, lower_text(name)) != names.end();
}

bool is_label_name(const std::string& name) {
  return is_one_of(name, {"label", "labels", "target", "targets", "class", "y"});
}

bool is_row_number(const std::string& name) {
  return is_one_of(name, {"", "id", "index", "row", "unnamed: 0"});
}

// Writes the lines of a YAML file that feed a model, or any model, from a table.
class TableAdvice {
 public:
  TableAdvice(std::string file, const std::vector<ColumnSurvey>& columns) : file_(std::move(file)) {
    const DataFormat* const format = find_format(file_);
    key_ = format != nullptr ? format->part : "column";
    for (const ColumnSurvey& column : columns) free_.push_back(&column);
  }

  std::string lines(const std::vector<DataInput>& inputs) {
    const ColumnSurvey* const label = take_label(inputs);
    std::string text;
    for (const DataInput& input : inputs) masks_ = masks_ || is_auto_mask(input);
    for (const DataInput& input : inputs) text += line(input);
    if (inputs.empty()) text += line({"x", DType::kFloat32, {-1}});
    if (label != nullptr) {
      const bool of_tokens = is_row(*label) && !padded_.empty();
      text += format_text("  labels: {{file: {}, {}: {}{}{}}}\n", quoted_name(file_), key_,
                          quoted_name(label->name), label->missing > 0 ? ", missing: -100" : "",
                          of_tokens ? padded_ + ", pad_value: -100" : "");
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
    if (is_auto_mask(input)) {
      return format_text("  {}: auto\n", quoted_name(input.name));
    }
    if (is_integer(input.dtype)) {
      const auto text = std::ranges::find(free_, std::string("text"), &ColumnSurvey::type);
      if (text != free_.end()) return text_column(input, **text);
    }
    const auto list = std::ranges::find_if(
        free_, [&](const ColumnSurvey* one) { return is_row(*one) && fits_list(input, *one); });
    if (list != free_.end()) return one_column(input, **list);
    return number_columns(input);
  }

  std::string one_column(const DataInput& input, const ColumnSurvey& column) {
    take(&column);
    if (column.type == "text" && is_integer(input.dtype)) return text_column(input, column);
    const int64_t fixed = input.dims.size() == 1 ? input.dims[0] : -1;
    const bool pads = is_row(column) && (column.row[0] < 0 || masks_);
    if (pads) {
      padded_ = format_text(", pad_to: {}", fixed > 0 ? std::to_string(fixed) : "longest");
    }
    return format_text("  {}: {{file: {}, {}: {}{}{}}}\n", quoted_name(input.name),
                       quoted_name(file_), key_, quoted_name(column.name), pads ? padded_ : "",
                       missing_key(column.missing));
  }

  // A list of open length may be padded.
  static bool fits_list(const DataInput& input, const ColumnSurvey& list) {
    const bool open = input.dims.empty() || input.dims[0] < 0 || list.row[0] < 0;
    return list.least && input.dims.size() == 1 && (open || input.dims[0] == list.row[0]);
  }

  // Returns true for lists of numbers.
  static bool is_row(const ColumnSurvey& column) {
    return column.type == "list" && column.row.size() == 1;
  }

  // Returns true if the input can be made of a padded column's lengths.
  bool is_auto_mask(const DataInput& input) const {
    const bool own = std::ranges::any_of(
        free_, [&](const ColumnSurvey* column) { return column->name == input.name; });
    return !own && (input.dtype == DType::kBool || input.name.find("mask") != std::string::npos);
  }

  std::string text_column(const DataInput& input, const ColumnSurvey& column) {
    take(&column);
    const int64_t fixed = input.dims.size() == 1 ? input.dims[0] : -1;
    const int64_t length = fixed > 0 ? fixed : kUsualLength;
    return format_text("  {}: {{text: {}, {}: {}, tokenizer: {}, max_length: {}, pad_to: {}}}\n",
                       quoted_name(input.name), quoted_name(file_), key_, quoted_name(column.name),
                       kTokenizerFile, length, fixed > 0 ? std::to_string(length) : "longest");
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
    const std::string list = names.empty() ? kNoColumns : format_text("[{}]", joined(names, ", "));
    return format_text("  {}: {{file: {}, {}: {}{}}}\n", quoted_name(input.name),
                       quoted_name(file_), key_, list, missing_key(missing));
  }

  static std::string missing_key(int64_t missing) { return missing > 0 ? ", missing: 0" : ""; }

  const std::string file_;
  std::string key_;
  std::string padded_;  // the keys of padded lists; empty: none are
  bool masks_ = false;  // an input is a mask without a column
  std::vector<const ColumnSurvey*> free_;
};

// Writes a line for each input from columns that have files of their own.
class ColumnsAdvice {
 public:
  ColumnsAdvice(const ColumnSet& set, const std::vector<ColumnSurvey>& columns,
                const std::function<std::string(const std::string&)>& place)
      : place_(place) {
    for (size_t i = 0; i < columns.size(); ++i) free_.push_back({&set.columns[i], &columns[i]});
  }

  // Without a model each column feeds an input of its name.
  std::string lines(const std::vector<DataInput>& inputs) {
    std::string text;
    std::vector<const DataInput*> left;
    for (const DataInput& input : inputs) {
      const auto same = find([&](const Pair& one) { return one.spec->name == input.name; });
      if (same == free_.end()) left.push_back(&input);
      if (same != free_.end()) text += take(same, input);
    }
    for (const DataInput* input : left) {
      const auto fits = find([&](const Pair& one) { return feeds(*one.survey, *input); });
      text += fits != free_.end() ? take(fits, *input)
                                  : format_text("  {}: {}\n", quoted_name(input->name), kNoFile);
    }
    for (const Pair& pair : free_) {
      const bool label = is_label_name(pair.spec->name);
      if (inputs.empty()) text += line(pair.spec->name, pair, nullptr);
      if (!inputs.empty() && label) text += line("labels", pair, nullptr);
    }
    return text;
  }

 private:
  struct Pair {
    const ColumnSpec* spec;
    const ColumnSurvey* survey;
  };

  template <typename Fits>
  std::vector<Pair>::iterator find(const Fits& fits) {
    return std::ranges::find_if(free_, fits);
  }

  static bool feeds(const ColumnSurvey& column, const DataInput& input) {
    if (is_label_name(column.name) || column.row.size() != input.dims.size()) return false;
    for (size_t i = 0; i < input.dims.size(); ++i) {
      if (input.dims[i] >= 0 && input.dims[i] != column.row[i]) return false;
    }
    const auto dtype = dtype_from_name(column.type);
    return dtype && (is_floating(input.dtype) ? is_floating(*dtype) || *dtype == DType::kUInt8
                                              : is_integer(*dtype));
  }

  std::string take(std::vector<Pair>::iterator at, const DataInput& input) {
    const Pair pair = *at;
    free_.erase(at);
    return line(input.name, pair, &input);
  }

  std::string line(const std::string& name, const Pair& pair, const DataInput* input) const {
    const ColumnSpec& spec = *pair.spec;
    if (spec.images) return spec.images->classes ? class_line(name, spec) : image_line(name, spec);
    std::string keys = "file: " + quoted_name(place_(spec.path));
    const DataFormat* const format = find_format(spec.path);
    if (format != nullptr && !spec.parts.empty()) {
      keys += format_text(", {}: {}", format->part, quoted_name(spec.parts[0]));
    }
    const bool bytes =
        pair.survey->type == "uint8" && input != nullptr && is_floating(input->dtype);
    if (bytes) keys += format_text(", scale: {}", kPixelScale);
    return format_text("  {}: {{{}}}\n", quoted_name(name), keys);
  }

  // The classes of subfolders need no line.
  std::string class_line(const std::string& name, const ColumnSpec& spec) const {
    if (spec.images->shards.empty()) return "";
    return format_text("  {}: {{tar: {}, member: {}}}\n", quoted_name(name), shards(*spec.images),
                       spec.images->member);
  }

  std::string shards(const ImageSource& images) const {
    std::vector<std::string> names;
    for (const std::string& shard : images.shards) names.push_back(quoted_name(place_(shard)));
    return names.size() == 1 ? names[0] : format_text("[{}]", joined(names, ", "));
  }

  std::string image_line(const std::string& name, const ColumnSpec& spec) const {
    const ImageSource& images = *spec.images;
    std::string keys = images.shards.empty()
                           ? "images: " + quoted_name(place_(images.folders[0]))
                           : format_text("tar: {}, member: {}", shards(images), images.member);
    if (images.height) keys += format_text(", size: [{}, {}]", *images.height, *images.width);
    if (images.layout == ImageLayout::kHwc) keys += ", layout: hwc";
    return format_text("  {}: {{{}}}\n", quoted_name(name), keys);
  }

  const std::function<std::string(const std::string&)>& place_;
  std::vector<Pair> free_;
};

}  // namespace

std::string describe_table(const std::string& file, const std::vector<ColumnSurvey>& columns,
                           const std::vector<DataInput>& inputs) {
  return TableAdvice(file, columns).lines(inputs);
}

std::string describe_text(const std::string& file, const std::vector<DataInput>& inputs) {
  const std::string name = quoted_name(file);
  const DataInput* tokens = nullptr;
  for (const DataInput& input : inputs) {
    if (tokens == nullptr && is_integer(input.dtype)) tokens = &input;
  }
  const int64_t fixed = tokens != nullptr && tokens->dims.size() == 1 ? tokens->dims[0] : -1;
  const auto mask = std::ranges::find_if(inputs, [](const DataInput& input) {
    return input.dtype == DType::kBool || input.name.find("mask") != std::string::npos;
  });
  if (tokens != nullptr && mask != inputs.end() && tokens != &*mask) {
    return format_text(
        "  {}: {{text: {}, tokenizer: {}, max_length: {}, pad_to: {}}}\n  {}: auto\n"
        "  labels: {{file: labels.npy}}  # one for each line of the text\n",
        quoted_name(tokens->name), name, kTokenizerFile, fixed > 0 ? fixed : kUsualLength,
        fixed > 0 ? std::to_string(fixed) : "longest", quoted_name(mask->name));
  }
  const std::string keys = format_text("text: {}, tokenizer: {}, sequence_length: {}", name,
                                       kTokenizerFile, fixed > 0 ? fixed : kUsualLength);
  return format_text("  {}: {{{}}}\n  labels: {{{}, next_token: true}}\n",
                     tokens != nullptr ? quoted_name(tokens->name) : "input_ids", keys, keys);
}

namespace {
const std::string kTokenizerKey = format_text("tokenizer: {},", kTokenizerFile);
}

std::string input_without_columns(const std::string& lines) {
  const size_t at = std::min(lines.find(kNoColumns), lines.find(kNoFile));
  if (at == lines.npos) return "";
  const size_t line = lines.rfind('\n', at) + 1;  // 0 in the first line
  return lines.substr(line + 2, lines.find(": {", line) - line - 2);
}

bool names_tokenizer(const std::string& lines) { return lines.find(kTokenizerKey) != lines.npos; }

std::string with_tokenizer(std::string lines, const std::string& file) {
  const std::string key = format_text("tokenizer: {},", quoted_name(file));
  for (size_t at = 0; (at = lines.find(kTokenizerKey, at)) != lines.npos; at += key.size()) {
    lines.replace(at, kTokenizerKey.size(), key);
  }
  return lines;
}

std::string describe_columns(const ColumnSet& set, const std::vector<ColumnSurvey>& columns,
                             const std::vector<DataInput>& inputs,
                             const std::function<std::string(const std::string&)>& place) {
  return ColumnsAdvice(set, columns, place).lines(inputs);
}

std::string describe_split(const std::vector<ColumnSurvey>& columns, const std::string& lines) {
  if (columns.empty() || columns.front().rows < kLeastSplit) return "";
  const bool labels = lines.find("  labels: {") != std::string::npos;
  const auto label = std::ranges::find_if(
      columns, [](const ColumnSurvey& one) { return one.type == "class" && one.missing == 0; });
  const bool by_class = labels && label != columns.end() &&
                        lines.find(": " + quoted_name(label->name) + "}") != std::string::npos;
  return by_class ? "split: 0.1\nstratify: labels\n" : "split: 0.1\n";
}

namespace {

// The loss over classes for scores of each, as the last node leaves them.
std::string loss_of_scores(const std::string& last) {
  if (last == "Softmax") return "nll_probabilities";
  return last == "LogSoftmax" ? "nll" : "cross_entropy";
}

// Returns the only output with axes; none if there are several or none.
std::optional<ValueId> only_prediction(const Graph& graph) {
  std::optional<ValueId> only;
  for (const ValueId id : graph.outputs) {
    if (graph.value(id).declared.size() < 2) continue;
    if (only) return std::nullopt;
    only = id;
  }
  return only;
}

}  // namespace

int64_t scores_a_row(const Graph& graph) {
  const auto prediction = only_prediction(graph);
  if (!prediction || graph.value(*prediction).declared.size() != 2) return 0;
  return std::max<int64_t>(graph.value(*prediction).declared[1].size, 0);
}

std::string fitting_loss(const Graph& graph, const LabelRows& labels) {
  const auto prediction = only_prediction(graph);
  if (!prediction || labels.row.empty()) return "";
  const Node* const maker = maker_of(graph, *prediction);
  const std::string last = maker == nullptr ? "" : maker->op->full_name();
  const auto& axes = graph.value(*prediction).declared;
  const int64_t width = axes.back().size;
  const size_t own = labels.row.size() - 1;  // without the samples
  if (labels.named || labels.whole) {
    if (own + 2 == axes.size() && width != 1) return loss_of_scores(last);
    if (labels.named || width != 1) return "";
    if (labels.binary) return last == "Sigmoid" ? "bce" : "bce_with_logits";
  }
  const bool same = own + 1 == axes.size() || (own == 0 && axes.size() == 2 && width == 1);
  return same ? "mse" : "";
}

}  // namespace ofsdp::runtime
