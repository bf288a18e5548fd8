#include "runtime/report/chart.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/base/text.h"

namespace ofsdp::runtime {

std::string html(std::string_view text) {
  std::string page;
  for (const char c : escaped_lines(text)) {
    switch (c) {
      case '&':
        page += "&amp;";
        break;
      case '<':
        page += "&lt;";
        break;
      case '>':
        page += "&gt;";
        break;
      case '"':
        page += "&quot;";
        break;
      default:
        page += c;
    }
  }
  return page;
}

namespace {

// An axis from `low` to `high`.
struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;

  double part(double value) const {
    if (!logarithmic) return (value - low) / (high - low);
    return value <= 0 ? -1 : std::log(value / low) / std::log(high / low);
  }
};

// Returns multiples of 1, 2 or 5 times a power of ten, at most `most` and a few.
std::vector<double> ticks(const Axis& axis, int most) {
  std::vector<double> values;
  if (axis.logarithmic) {
    const bool few = std::log10(axis.high / axis.low) < 2.5;
    for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high;
         power *= 10) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double value = digit * power;
        if ((digit == 1 || few) && value >= axis.low && value <= axis.high) values.push_back(value);
      }
    }
    return values;
  }
  const double span = axis.high - axis.low;
  double step = std::pow(10, std::floor(std::log10(span / most)));
  for (const double digit : {2.0, 2.5, 2.0}) {
    if (span / step > most) step *= digit;
  }
  for (double i = std::ceil(axis.low / step - 1e-9); i * step <= axis.high + 1e-9 * step; ++i) {
    values.push_back(i * step);
  }
  return values;
}

struct Box {
  double left, right, top, bottom;
};

Box box_of(const Chart& chart) {
  return {64, chart.wide ? 1110.0 : 540.0, 12, chart.wide ? 286.0 : 196.0};
}

Axis value_axis(const Chart& chart, bool logarithmic) {
  std::vector<double> means;
  for (const ChartLine& line : chart.lines) {
    for (const CurveBucket& bucket : line.curve->buckets()) {
      means.push_back(bucket.mean() / chart.divisor);
    }
  }
  std::ranges::sort(means);
  Axis axis{means.front(), means.back(), logarithmic};
  if (chart.cuts_peaks) axis.high = std::min(axis.high, 1.5 * means[(means.size() - 1) * 98 / 100]);
  if (chart.limit) axis.high = std::max(axis.high, *chart.limit / chart.divisor);
  if (logarithmic) return {axis.low / 1.1, axis.high * 1.1, true};
  const bool near_zero = axis.low > 0 && axis.low < 0.25 * axis.high;
  const bool zero = axis.low >= 0 && (chart.from_zero || near_zero);
  double span = axis.high - (zero ? 0 : axis.low);
  if (span <= 1e-9 * std::abs(axis.high)) span = axis.high == 0 ? 1 : std::abs(axis.high);
  return {zero ? 0 : axis.low - 0.05 * span, axis.high + 0.06 * span, false};
}

// Draws one chart, with a linear or a logarithmic axis of values.
class ChartPicture {
 public:
  ChartPicture(const Chart& chart, const RunCurves& run, bool logarithmic)
      : chart_(chart), run_(run), box_(box_of(chart)), values_(value_axis(chart, logarithmic)) {
    double first = HUGE_VAL, last = -HUGE_VAL;
    for (const ChartLine& line : chart.lines) {
      if (line.curve->empty()) continue;
      first = std::min(first, static_cast<double>(line.curve->buckets().front().first));
      last = std::max(last, static_cast<double>(line.curve->buckets().back().last));
    }
    steps_ = {first, last > first ? last : first + 1};
  }

  std::string text(const char* css) {
    svg_ = format_text(
        "<svg class=\"{}\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
        "data-frame=\"{:.1f} {:.1f} {:.0f} {:.0f} {:.1f} {:.1f} {:.9g} {:.9g} {}\">\n",
        css, box_.right + 10, box_.bottom + 24, html(chart_.title), box_.left, box_.right,
        steps_.low, steps_.high, box_.top, box_.bottom, values_.low, values_.high,
        values_.logarithmic ? 1 : 0);
    axes();
    // An inner picture cuts off lines that leave the frame.
    svg_ += format_text(
        "<svg y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" viewBox=\"0 {:.1f} {:.1f} "
        "{:.1f}\">",
        box_.top, box_.right + 10, box_.bottom - box_.top, box_.top, box_.right + 10,
        box_.bottom - box_.top);
    marks();
    for (const ChartLine& line : chart_.lines) draw(line);
    return svg_ + "</svg></svg>\n";
  }

 private:
  double x(double step) const { return box_.left + (box_.right - box_.left) * steps_.part(step); }
  // A value far outside stays a short number.
  double y(double value) const {
    const double part = std::clamp(values_.part(value / chart_.divisor), -1.0, 2.0);
    return box_.bottom - (box_.bottom - box_.top) * part;
  }

  void axes() {
    for (const double value : ticks(values_, chart_.wide ? 7 : 5)) {
      const double at = box_.bottom - (box_.bottom - box_.top) * values_.part(value);
      svg_ += format_text("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", box_.left, at,
                          box_.right);
      svg_ += format_text("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                          box_.left - 7, at + 4, tick_text(value));
    }
    for (const double step : ticks(steps_, chart_.wide ? 12 : 7)) {
      if (step != std::floor(step)) continue;
      svg_ += format_text("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                          x(step), box_.bottom + 17, readable_count(std::llround(step)));
    }
    svg_ += "\n";
  }

  static std::string tick_text(double value) {
    const double size = std::abs(value);
    if (size < 1e-12) return "0";
    if (size >= 1000 && size < 1e7) return readable_count(std::llround(value));
    return format_text("{:.4g}", value);
  }

  void vertical(const char* css, int64_t step, double from, const char* what) {
    const double at = x(static_cast<double>(step));
    if (at < box_.left || at > box_.right + 1) return;
    svg_ +=
        format_text("<path class=\"{}\" d=\"M{:.1f} {:.1f}V{:.1f}\"><title>{} {}</title></path>",
                    css, at, from, box_.bottom, what, step);
  }

  void marks() {
    for (const int64_t step : run_.resumed_at) {
      vertical("resumed", step, box_.top, "resumed before update");
    }
    const double tall = box_.bottom - 9;
    for (const int64_t step : run_.skipped_at) vertical("lost", step, tall, "skipped update");
    for (const int64_t step : run_.undefined_at) {
      vertical("lost", step, tall, "no finite loss in update");
    }
    if (!chart_.limit) return;
    svg_ += format_text("<path class=\"limit\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", box_.left,
                        y(*chart_.limit), box_.right);
    svg_ += format_text("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                        box_.right - 4, y(*chart_.limit) + 14, html(chart_.limit_name));
  }

  std::string path_of(std::span<const CurveBucket> buckets, std::span<const double> at) const {
    std::string path;
    for (size_t i = 0; i < buckets.size(); ++i) {
      path += format_text("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x(buckets[i].middle()), y(at[i]));
    }
    return path;
  }

  // The area between the least and the largest values.
  void band(std::span<const CurveBucket> buckets) {
    std::string path;
    for (const CurveBucket& bucket : buckets) {
      path += format_text("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(bucket.middle()),
                          y(bucket.largest));
    }
    for (size_t i = buckets.size(); i-- > 0;) {
      path += format_text("L{:.1f} {:.1f}", x(buckets[i].middle()), y(buckets[i].least));
    }
    svg_ += "<path class=\"band\" d=\"" + path + "Z\"/>\n";
  }

  // Returns the means of a running mean from either end, each over about a 25th of the buckets. On
  // a logarithmic axis these are geometric means.
  std::vector<double> smoothed(std::span<const double> values) const {
    const double keep = 1 - 2 / (static_cast<double>(values.size()) / 25 + 1);
    const bool logs = values_.logarithmic;
    std::vector<double> smooth(values.size());
    for (const bool backward : {false, true}) {
      double sum = 0, weight = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t at = backward ? values.size() - 1 - i : i;
        sum = keep * sum + (1 - keep) * (logs ? std::log(values[at]) : values[at]);
        weight = keep * weight + (1 - keep);
        smooth[at] += 0.5 * sum / weight;
      }
    }
    for (double& value : smooth) value = logs ? std::exp(value) : value;
    return smooth;
  }

  void draw(const ChartLine& line) {
    constexpr size_t kFewest = 40;  // to be smoothed
    const std::span<const CurveBucket> buckets = line.curve->buckets();
    std::vector<double> means;
    for (const CurveBucket& bucket : buckets) means.push_back(bucket.mean());
    const bool smooths = !line.dots && chart_.wide && means.size() >= kFewest;
    const bool joined = std::ranges::any_of(buckets, [](const auto& b) { return b.count > 1; });
    if (!line.dots && joined) band(buckets);
    const std::string name = format_text("data-name=\"{}\"", html(line.name));
    if (smooths) {
      svg_ += format_text("<path class=\"{} thin\" {} d=\"{}\"/>\n", line.css, name,
                          path_of(buckets, means));
    }
    // The page's script shows the values of the line with the name.
    svg_ += format_text("<path class=\"{} line\" {} d=\"{}\"/>\n", line.css, smooths ? "" : name,
                        path_of(buckets, smooths ? smoothed(means) : means));
    if (!line.dots && buckets.size() > 1) return;
    for (size_t i = 0; i < buckets.size() && buckets.size() <= 60; ++i) {
      svg_ += format_text("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"/>", line.css,
                          x(buckets[i].middle()), y(means[i]));
    }
  }

  const Chart& chart_;
  const RunCurves& run_;
  Box box_;
  Axis values_, steps_;
  std::string svg_;
};

}  // namespace

std::string figure(const Chart& chart, const RunCurves& run) {
  double least = HUGE_VAL, largest = 0;
  std::string legend;
  for (const ChartLine& line : chart.lines) {
    for (const CurveBucket& bucket : line.curve->buckets()) {
      least = std::min(least, bucket.mean());
      largest = std::max(largest, bucket.mean());
    }
    legend += format_text("<span><i class=\"{}\"></i>{}</span>", line.css, html(line.name));
  }
  if (chart.lines.size() < 2) legend.clear();
  if (chart.wide && run.skipped + run.undefined > 0) {
    legend += "<span><i class=\"bad\"></i>skipped, or no finite loss</span>";
  }
  std::string page = format_text("<figure{}>", chart.wide ? " class=\"wide\"" : "");
  // Both axes are in the page; without a script a radio button shows one.
  const bool both = chart.wide && least > 0 && largest > 10 * least;
  if (both) {
    page +=
        "<input type=\"radio\" name=\"scale\" id=\"scale_linear\" checked>"
        "<input type=\"radio\" name=\"scale\" id=\"scale_log\">";
  }
  page += format_text("<figcaption>{}{}<output></output></figcaption>", html(chart.title), legend);
  page += ChartPicture(chart, run, false).text("linear");
  if (both) {
    page += ChartPicture(chart, run, true).text("log");
    page +=
        "<label class=\"linear\" for=\"scale_linear\">linear</label>"
        "<label class=\"log\" for=\"scale_log\">logarithmic</label>";
  }
  return page + "</figure>\n";
}

}  // namespace ofsdp::runtime
