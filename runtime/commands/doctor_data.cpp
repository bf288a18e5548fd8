// The doctor's checks on the data: labels, and values in the first rows.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "kernels/base/text.h"
#include "runtime/commands/commands.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kRowsSeen = 256;     // input rows that are checked
constexpr int64_t kLabelRows = 65536;  // label rows that are checked
constexpr int64_t kMaxBytes = int64_t{64} << 20;

// Returns a column's first rows as numbers; empty for other types.
Result<std::vector<double>> first_rows(RowSource& rows, int column, int64_t most) {
  const BoundColumn& c = rows.columns()[static_cast<size_t>(column)];
  const auto row_bytes = static_cast<int64_t>(std::max<size_t>(c.row_bytes(), 1));
  const int64_t count =
      std::min({rows.samples(), most, std::max<int64_t>(kMaxBytes / row_bytes, 1)});
  std::vector<int64_t> samples(static_cast<size_t>(count));
  std::iota(samples.begin(), samples.end(), int64_t{0});
  std::vector<std::byte> bytes(static_cast<size_t>(count * row_bytes));
  OFSDP_RETURN_IF_ERROR(rows.read_rows(column, samples, bytes.data()));
  std::vector<double> values;
  const auto take = [&]<typename T>(T) {
    const auto* data = reinterpret_cast<const T*>(bytes.data());
    values.assign(data, data + count * c.row.numel());
  };
  if (c.dtype == DType::kFloat32) take(float{});
  if (c.dtype == DType::kInt64) take(int64_t{});
  if (c.dtype == DType::kInt32) take(int32_t{});
  return values;
}

std::string subject(const BoundColumn& column) {
  return format_text("column '{}' ({})", escaped(column.name), escaped(column.source));
}

// Returns true if all values are finite.
bool check_finite(const BoundColumn& column, const std::vector<double>& values, bool training,
                  Findings& findings) {
  const auto bad = std::ranges::find_if_not(values, [](double v) { return std::isfinite(v); });
  if (bad == values.end()) return true;
  findings.add(format_text("{}: {}sample {} has a value that is {}", subject(column),
                           training ? "" : "evaluation ",
                           (bad - values.begin()) / std::max<int64_t>(column.row.numel(), 1),
                           std::isnan(*bad) ? "NaN" : "infinite"),
               format_text("leave such rows out of the file that {} names",
                           training ? "--data" : "--eval-data"),
               /*fatal=*/training);
  return false;
}

void check_values(const BoundColumn& column, const std::vector<double>& values,
                  Findings& findings) {
  if (column.dtype != DType::kFloat32 || values.empty()) return;
  if (!check_finite(column, values, /*training=*/true, findings)) return;
  const auto [least, most] = std::ranges::minmax(values);
  const bool whole = std::ranges::all_of(values, [](double v) { return v == std::floor(v); });
  if (whole && least >= 0 && most > 32 && most <= 255 && column.row.rank() >= 2) {
    findings.add(
        format_text("{}: values are whole numbers from {} to {}; they look like raw pixels",
                    subject(column), least, most),
        "add scale: 0.00392156862745098, mean: and std: of the column to the YAML file that "
        "--data names");
  }
}

class LabelCheck {
 public:
  LabelCheck(const ModelSetup& setup, const Options& options, const BoundColumn& column,
             const std::vector<double>& labels, Findings& findings)
      : count_(setup.counts.front()), options_(options), column_(column), findings_(findings) {
    for (const double label : labels) ++seen_[static_cast<int64_t>(label)];
    sorted_ = std::ranges::is_sorted(labels);
  }

  void run() {
    if (seen_.empty()) return;
    const int64_t ignored = seen_.contains(count_.ignore_index) ? seen_[count_.ignore_index] : 0;
    std::map<int64_t, int64_t> kept = seen_;
    kept.erase(count_.ignore_index);
    if (kept.empty()) {
      return findings_.add(format_text("{}: all {} labels are the ignore-index {}",
                                       subject(column_), ignored, count_.ignore_index),
                           "--ignore-index another value, or --labels COLUMN", /*fatal=*/true);
    }
    if (outside(kept)) return;
    int64_t labels = 0;
    for (const auto& [label, times] : kept) labels += times;
    if (kept.size() == 1 && labels > 8) {
      return findings_.add(
          format_text("{}: all {} labels are {}", subject(column_), labels, kept.begin()->first),
          "--labels COLUMN with the right ones");
    }
    const bool in_order = sorted_ && kept.size() > 1 && labels >= 4 * int64_t(kept.size());
    if (in_order && !options_.run.shuffle) {
      findings_.add(format_text("{}: labels are sorted and --no-shuffle keeps them so: a batch has "
                                "one class",
                                subject(column_)),
                    "--shuffle");
    }
  }

 private:
  bool outside(const std::map<int64_t, int64_t>& kept) {
    std::vector<int64_t> bad;
    for (const auto& [label, times] : kept) {
      if (label < 0 || label >= count_.classes) bad.push_back(label);
    }
    if (count_.classes == 0 || bad.empty()) return false;
    const std::string what = format_text(
        "{}: label {}, but the prediction has classes 0..{}", subject(column_),
        bad.size() == 1 ? std::to_string(bad[0]) : format_text("{} to {}", bad.front(), bad.back()),
        count_.classes - 1);
    const bool from_one = bad.size() == 1 && bad[0] == count_.classes && !kept.contains(0);
    const bool more = bad.front() >= count_.classes && bad.size() > 1;
    findings_.add(
        what,
        from_one ? "labels count from 1: write them from 0, or --replace-head " +
                       std::to_string(count_.classes + 1)
        : more ? "--replace-head " + std::to_string(bad.back() + 1) + ", or --labels COLUMN"
               : "--ignore-index " + std::to_string(bad[0]) + " leaves it out, or --labels COLUMN",
        /*fatal=*/true);
    return true;
  }

  const LossCount& count_;
  const Options& options_;
  const BoundColumn& column_;
  Findings& findings_;
  std::map<int64_t, int64_t> seen_;
  bool sorted_ = false;
};

// The number that ends most rows, at least twice, and the rows that it ends.
struct Padding {
  int64_t value = 0;
  // one a row: where the padding begins; the row's length if there is none
  std::vector<int64_t> begins;
  int64_t rows = 0;  // rows with padding
};

Padding padding_of(const std::vector<double>& values, int64_t length) {
  Padding found;
  std::map<double, int64_t> ends;
  const auto rows = static_cast<int64_t>(values.size()) / length;
  for (int64_t r = 0; r < rows; ++r) {
    const double last = values[static_cast<size_t>((r + 1) * length - 1)];
    if (values[static_cast<size_t>((r + 1) * length - 2)] == last) ++ends[last];
  }
  const auto most = std::ranges::max_element(ends, {}, [](const auto& e) { return e.second; });
  if (most == ends.end()) return found;
  found.value = static_cast<int64_t>(most->first);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t begin = length;
    while (begin > 0 && values[static_cast<size_t>(r * length + begin - 1)] == most->first) --begin;
    found.begins.push_back(length - begin >= 2 ? begin : length);
    found.rows += length - begin >= 2;
  }
  return found;
}

// Reports rows that end in padding with labels that count.
void check_padding(const BoundColumn& ids, const std::vector<double>& values,
                   const std::vector<double>& labels, int64_t ignore_index, Findings& findings) {
  const int64_t length = ids.row.numel();
  if (ids.dtype == DType::kFloat32 || ids.row.rank() != 1 || length < 4) return;
  if (values.empty() || labels.size() < values.size()) return;
  const Padding padding = padding_of(values, length);
  const auto rows = static_cast<int64_t>(values.size()) / length;
  if (padding.rows * 4 < rows || padding.rows < 2) return;
  // If labels are the next token, a row's last label is arbitrary.
  std::map<int64_t, int64_t> of_padding;
  int64_t positions = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = padding.begins[static_cast<size_t>(r)]; i + 1 < length; ++i, ++positions) {
      ++of_padding[static_cast<int64_t>(labels[static_cast<size_t>(r * length + i)])];
    }
  }
  const auto most =
      std::ranges::max_element(of_padding, {}, [](const auto& e) { return e.second; });
  const bool same = most != of_padding.end() && most->second * 10 >= positions * 9;
  if (!same || most->first == ignore_index) return;
  findings.add(format_text("{}: {} of {} rows end in the number {} repeated, as padding does, and "
                           "the labels there count as {}",
                           subject(ids), padding.rows, rows, padding.value, most->first),
               format_text("--ignore-index {}", most->first));
}

std::string normal(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().string();
}

// The parts of one `split` have no row in common.
bool other_rows(const ColumnSet& a, const ColumnSet& b) {
  return a.split && b.split && a.split->evaluation != b.split->evaluation &&
         a.split->part == b.split->part && a.split->seed == b.split->seed &&
         a.split->stratify == b.split->stratify;
}

bool same_files(const ColumnSet& a, const ColumnSet& b) {
  return std::ranges::all_of(a.columns, [&b](const ColumnSpec& column) {
    const ColumnSpec* other = b.find(column.name);
    return other != nullptr && normal(other->path) == normal(column.path);
  });
}

// A training run refuses labels out of range, wherever they are.
void check_all_labels(const ModelSetup& setup, Dataset& data, Findings& findings) {
  const Status status = check_labels(setup, data);
  if (!status.ok()) {
    findings.add(escaped(status.message()), "mend the labels, or --ignore-index", /*fatal=*/true);
  }
}

Status check_evaluation_rows(const ModelSetup& setup, Findings& findings) {
  RowSource& rows = setup.data.eval_rows();
  for (size_t i = 0; i < rows.columns().size(); ++i) {
    const BoundColumn& column = rows.columns()[i];
    OFSDP_ASSIGN_OR_RETURN(const auto values, first_rows(rows, static_cast<int>(i), kRowsSeen));
    if (column.dtype == DType::kFloat32) check_finite(column, values, /*training=*/false, findings);
  }
  check_all_labels(setup, *setup.data.eval, findings);
  return {};
}

}  // namespace

Status check_data(const ModelSetup& setup, const Options& options, Findings& findings) {
  if (setup.data.spec.synthetic || !setup.data.train) return {};
  RowSource& rows = setup.data.train_rows();
  const auto columns = rows.columns();
  const LossCount& count = setup.counts.front();
  const bool classes = count.by_label && count.classes > 0;
  std::vector<double> labels;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!classes || columns[i].name != count.labels) continue;
    OFSDP_ASSIGN_OR_RETURN(labels, first_rows(rows, static_cast<int>(i), kLabelRows));
    const size_t before = findings.list.size();
    LabelCheck(setup, options, columns[i], labels, findings).run();
    if (findings.list.size() == before) check_all_labels(setup, *setup.data.train, findings);
  }
  const auto row_of_labels = setup.source->settings().rows.find(count.labels);
  for (size_t i = 0; i < columns.size(); ++i) {
    const BoundColumn& column = columns[i];
    if (classes && column.name == count.labels) continue;
    OFSDP_ASSIGN_OR_RETURN(const auto values, first_rows(rows, static_cast<int>(i), kRowsSeen));
    check_values(column, values, findings);
    if (classes && row_of_labels != setup.source->settings().rows.end() &&
        row_of_labels->second.numel() == column.row.numel()) {
      check_padding(column, values, labels, count.ignore_index, findings);
    }
  }
  return {};
}

Status check_evaluation(const ModelSetup& setup, Findings& findings) {
  const DataSpec& spec = setup.data.spec;
  if (spec.synthetic || !spec.eval || !setup.data.eval) return {};
  if (!same_files(spec.train, *spec.eval)) return check_evaluation_rows(setup, findings);
  if (other_rows(spec.train, *spec.eval)) return check_evaluation_rows(setup, findings);
  findings.add(
      "the evaluation reads the files that training reads, so it cannot see what is "
      "learned by heart",
      "--eval-data with other rows");
  return {};
}

}  // namespace ofsdp::runtime
