#include "runtime/log/terminal_plot.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/text.h"
#include "runtime/log/run_curves.h"

namespace ofsdp::runtime {

namespace {

// A cell has one dot, or 2 x 4 with braille.
struct DotGrid {
  int across = 1, down = 1;
};

struct PlotRange {
  double low = 0, high = 1;
  bool logarithmic = false;

  // Returns 0 at the bottom, 1 at the top.
  double place(double value) const {
    if (logarithmic) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
    return (value - low) / (high - low);
  }
  double value(double place) const {
    if (logarithmic) return low * std::pow(high / low, place);
    return low + place * (high - low);
  }
};

PlotRange plot_range(const std::vector<const Curve*>& curves) {
  PlotRange range{HUGE_VAL, -HUGE_VAL};
  for (const Curve* curve : curves) {
    for (const CurveBucket& bucket : curve->buckets()) {
      range.low = std::min(range.low, bucket.mean());
      range.high = std::max(range.high, bucket.mean());
    }
  }
  range.logarithmic = range.low > 0 && range.high >= 100 * range.low;
  if (range.high - range.low > 1e-12 * std::abs(range.high)) return range;
  const double around = range.low == 0 ? 1 : 0.1 * std::abs(range.low);
  return {range.low - around, range.high + around, false};
}

struct Steps {
  int64_t first = INT64_MAX, last = 0;

  int column(double step, int columns) const {
    if (last <= first) return 0;
    const double part = (step - static_cast<double>(first)) / static_cast<double>(last - first);
    return std::clamp(static_cast<int>(std::lround(part * (columns - 1))), 0, columns - 1);
  }
};

class PlotCells {
 public:
  PlotCells(int width, int height, bool braille)
      : width_(width),
        height_(height),
        braille_(braille),
        dots_(braille ? DotGrid{2, 4} : DotGrid{}),
        bits_(static_cast<size_t>(width * height)),
        marks_(bits_.size()) {}

  int columns() const { return width_ * dots_.across; }
  int rows() const { return height_ * dots_.down; }
  // From the top.
  int row(double place) const {
    return std::clamp(static_cast<int>(std::lround((1 - place) * (rows() - 1))), 0, rows() - 1);
  }

  void dot(int column, int row) {
    // The bits of U+2800: 1 2 3 7 down the left column, 4 5 6 8 down the right one.
    static constexpr int kBits[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    bits_[cell(column / dots_.across, row / dots_.down)] |=
        kBits[column % dots_.across][row % dots_.down];
  }
  void mark(int column, int row) { marks_[cell(column / dots_.across, row / dots_.down)] = true; }

  std::string line(int row) const {
    std::string text;
    for (int column = 0; column < width_; ++column) {
      const size_t at = cell(column, row);
      if (marks_[at]) {
        text += "o";
      } else if (bits_[at] == 0) {
        text += " ";
      } else {
        text += braille_ ? braille(bits_[at]) : "*";
      }
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

 private:
  size_t cell(int column, int row) const { return static_cast<size_t>(row * width_ + column); }

  // U+2800 + bits in UTF-8.
  static std::string braille(int bits) {
    return {'\xe2', static_cast<char>(0xa0 | bits >> 6), static_cast<char>(0x80 | (bits & 0x3f))};
  }

  int width_, height_;
  bool braille_;
  DotGrid dots_;
  std::vector<int> bits_;
  std::vector<bool> marks_;
};

// Returns the mean of each column's updates; none for a column without one.
std::vector<std::optional<double>> column_means(const Curve& curve, const Steps& steps,
                                                int columns) {
  std::vector<double> sums(static_cast<size_t>(columns));
  std::vector<int64_t> counts(sums.size());
  for (const CurveBucket& bucket : curve.buckets()) {
    const auto at = static_cast<size_t>(steps.column(bucket.middle(), columns));
    sums[at] += bucket.sum;
    counts[at] += bucket.count;
  }
  std::vector<std::optional<double>> means(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) means[i] = sums[i] / static_cast<double>(counts[i]);
  }
  return means;
}

// Joins two points: columns between them are interpolated, a jump between neighbours is filled.
void join_points(PlotCells& cells, int column, int row, int to_column, int to_row) {
  for (int between = column + 1; between < to_column; ++between) {
    const double part = static_cast<double>(between - column) / (to_column - column);
    cells.dot(between, row + static_cast<int>(std::lround(part * (to_row - row))));
  }
  const int step = to_row > row ? 1 : -1;
  for (int at = row; to_column == column + 1 && at != to_row; at += step) {
    if (at != row) cells.dot(to_column, at);
  }
}

void draw_line(PlotCells& cells, const Curve& curve, const Steps& steps, const PlotRange& range) {
  const auto means = column_means(curve, steps, cells.columns());
  int before = -1, before_row = 0;
  for (int column = 0; column < cells.columns(); ++column) {
    const std::optional<double>& mean = means[static_cast<size_t>(column)];
    if (!mean) continue;
    const int row = cells.row(range.place(*mean));
    cells.dot(column, row);
    if (before >= 0) join_points(cells, before, before_row, column, row);
    before = column;
    before_row = row;
  }
}

// Returns the first, the middle and the last step under `width` columns.
std::string step_labels(const Steps& steps, int width) {
  const auto columns = static_cast<size_t>(width);
  std::string line = std::to_string(steps.first);
  const auto add = [&line](const std::string& text, size_t at) {
    if (at <= line.size()) return;
    line += std::string(at - line.size(), ' ') + text;
  };
  if (steps.last <= steps.first) return line;
  const std::string middle = std::to_string(steps.first + (steps.last - steps.first) / 2);
  const std::string last = std::to_string(steps.last);
  const size_t end = columns - std::min(columns, last.size());
  const size_t centre = columns / 2 - std::min(columns / 2, middle.size() / 2);
  if (centre + middle.size() < end) add(middle, centre);
  add(last, end);
  return line;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == 0) continue;
    std::string text = value;
    std::ranges::transform(text, text.begin(),
                           [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return text.find("UTF-8") != std::string::npos || text.find("UTF8") != std::string::npos;
  }
  return false;
}

}  // namespace

PlotShape stdout_plot() {
  PlotShape shape{.braille = locale_is_utf8()};
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
  if (known) shape.width = size.ws_col;
  return shape;
}

namespace {

Steps steps_of(const std::vector<const Curve*>& curves) {
  Steps steps;
  for (const Curve* curve : curves) {
    if (curve->empty()) continue;
    steps.first = std::min(steps.first, curve->buckets().front().first);
    steps.last = std::max(steps.last, curve->buckets().back().last);
  }
  return steps;
}

// Returns a text for each row: a value every four rows and at the bottom.
std::vector<std::string> value_labels(const PlotRange& range, int rows) {
  std::vector<std::string> labels(static_cast<size_t>(rows));
  for (int row = 0; row < rows; ++row) {
    const bool bottom = row == rows - 1;
    if (!bottom && (row % 4 != 0 || row > rows - 3)) continue;
    const double value = range.value(1 - static_cast<double>(row) / (rows - 1));
    labels[static_cast<size_t>(row)] = format_text("{:.3g}", value);
  }
  return labels;
}

}  // namespace

std::string loss_plot(const RunCurves& curves, const PlotShape& shape) {
  const bool evaluated = !curves.evaluations.empty();
  const Curve none, &evaluation = evaluated ? curves.evaluations.front().curve : none;
  const std::vector<const Curve*> drawn = {&curves.loss, &evaluation};
  const Steps steps = steps_of(drawn);
  if (steps.first > steps.last) return "";
  const PlotRange range = plot_range(drawn);
  const int rows = std::max(shape.height - 3, 3);
  const std::vector<std::string> labels = value_labels(range, rows);
  const size_t label_width = std::ranges::max(labels, {}, &std::string::size).size();
  const int width = std::max(shape.width, 20) - static_cast<int>(label_width) - 3;
  PlotCells cells(width, rows, shape.braille);
  draw_line(cells, curves.loss, steps, range);
  for (const CurveBucket& bucket : evaluation.buckets()) {
    cells.mark(steps.column(bucket.middle(), cells.columns()),
               cells.row(range.place(bucket.mean())));
  }
  std::string text = format_text("loss by update{}{}\n", range.logarithmic ? ", logarithmic" : "",
                                 evaluation.empty() ? "" : "; o evaluation");
  for (int row = 0; row < rows; ++row) {
    const std::string& label = labels[static_cast<size_t>(row)];
    text += std::string(label_width - label.size(), ' ') + label + " |" + cells.line(row) + "\n";
  }
  text += std::string(label_width + 1, ' ') + "+" + std::string(static_cast<size_t>(width), '-');
  return text + "\n" + std::string(label_width + 2, ' ') + step_labels(steps, width) + "\n";
}

}  // namespace ofsdp::runtime
