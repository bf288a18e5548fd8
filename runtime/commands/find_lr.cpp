// --find-lr's learning rate sweep (Smith, "Cyclical learning rates for training neural networks",
// 2017), and its curve as text and SVG.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/text.h"
#include "runtime/commands/commands.h"

namespace ofsdp::runtime {

namespace {

constexpr int64_t kPoints = 100;
constexpr double kMin = 1e-7, kMax = 10;
constexpr double kSmoothing = 0.8;  // for the running mean
constexpr int64_t kFewest = 5;

// Scales points to 0 .. 1: the rate's logarithm, and losses up to the first one.
struct Frame {
  explicit Frame(const std::vector<LrPoint>& points)
      : left(std::log10(points.front().lr)), right(std::log10(points.back().lr)) {
    bottom = std::ranges::min(points, {}, &LrPoint::loss).loss;
    top = 1.2 * points.front().loss - 0.2 * bottom;
    if (top <= bottom) top = bottom + 1;
  }
  double x(double lr) const { return (std::log10(lr) - left) / (right - left); }
  double y(double loss) const { return std::clamp((loss - bottom) / (top - bottom), 0.0, 1.0); }

  double left, right, bottom = 0, top = 0;
};

}  // namespace

Result<std::vector<LrPoint>> lr_sweep(const RunContext& context) {
  Options options = context.options;
  options.optimizer.lr = kMin;
  options.schedule = {};
  options.schedule.kind = ScheduleKind::kExponential;
  options.schedule.unit = StepUnit::kStep;
  options.schedule.gamma = std::pow(kMax / kMin, 1.0 / (kPoints - 1));
  const RunContext sweeping{
      options,       context.origin, context.registry, context.optimizers, context.communicator,
      context.ledger};
  double least = HUGE_VAL;
  const auto goes_on = [&least](const StepRow& row) {
    least = std::min(least, row.loss);
    return std::isfinite(row.loss) && row.loss <= 4 * std::abs(least) + 1e-3;
  };
  OFSDP_ASSIGN_OR_RETURN(const SomeUpdates some, run_updates(sweeping, kPoints, false, goes_on));
  std::vector<LrPoint> points;
  double mean = 0, weight = 0;
  for (const StepRow& row : some.rows) {
    mean = kSmoothing * mean + (1 - kSmoothing) * row.loss;
    weight = kSmoothing * weight + (1 - kSmoothing);
    points.push_back({row.lr, mean / weight});
  }
  if (static_cast<int64_t>(points.size()) < kFewest) {
    return input_error("--find-lr: expected a loss at {} rates, found {}; {}", kFewest,
                       points.size(), some.failure);
  }
  return points;
}

double suggested_lr(const std::vector<LrPoint>& points) {
  constexpr size_t kReach = 5;  // points each way, which evens out different batches
  size_t best = points.size() / 2;
  double steepest = 0;
  // Few losses make the mean of the first points.
  for (size_t i = 2 * kReach; i + kReach < points.size(); ++i) {
    const double fall = points[i - kReach].loss - points[i + kReach].loss;
    if (fall <= steepest) continue;
    steepest = fall;
    best = i;
  }
  return points[best].lr;
}

std::string curve_text(const std::vector<LrPoint>& points) {
  constexpr size_t kWidth = 64, kHeight = 14;
  const Frame frame(points);
  std::vector<std::string> rows(kHeight, std::string(kWidth, ' '));
  const auto column = [&](double lr) {
    return static_cast<size_t>(std::lround(frame.x(lr) * (kWidth - 1)));
  };
  const double chosen = suggested_lr(points);
  for (std::string& row : rows) row[column(chosen)] = '|';
  for (const LrPoint& p : points) {
    const auto up = static_cast<size_t>(std::lround(frame.y(p.loss) * (kHeight - 1)));
    rows[kHeight - 1 - up][column(p.lr)] = '*';
  }
  std::string text = "the smoothed loss at learning rates that grow from update to update\n";
  for (size_t i = 0; i < kHeight; ++i) {
    const double share = 1 - static_cast<double>(i) / (kHeight - 1);
    const bool labelled = i == 0 || i + 1 == kHeight || i == kHeight / 2;
    const std::string label =
        labelled ? format_text("{:>9.4g}", frame.bottom + share * (frame.top - frame.bottom))
                 : std::string(9, ' ');
    text += label + " |" + rows[i] + "\n";
  }
  text += std::string(10, ' ') + "+" + std::string(kWidth, '-') + "\n";
  text += format_text("{:>11}{:<32.1e}{:>32.1e}\n", "", points.front().lr, points.back().lr);
  return text + format_text("the loss falls fastest at --lr {:.2g}\n", chosen);
}

std::string curve_svg(const std::vector<LrPoint>& points) {
  constexpr double kLeft = 70, kTop = 20, kWide = 600, kHigh = 320;
  const Frame frame(points);
  const auto x = [&](double lr) { return kLeft + kWide * frame.x(lr); };
  const auto y = [&](double loss) { return kTop + kHigh * (1 - frame.y(loss)); };
  std::string line;
  for (const LrPoint& p : points) line += format_text("{:.1f},{:.1f} ", x(p.lr), y(p.loss));
  const double chosen = suggested_lr(points);
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 700 400\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"700\" height=\"400\" fill=\"white\"/>\n";
  svg += format_text("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#888\"/>\n", kLeft, kTop,
                     kTop + kHigh, kLeft + kWide);
  for (double power = std::ceil(frame.left); power <= frame.right; ++power) {
    svg += format_text("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">1e{:.0f}</text>\n",
                       x(std::pow(10, power)), kTop + kHigh + 18, power);
  }
  for (const double loss : {frame.bottom, (frame.bottom + frame.top) / 2, frame.top}) {
    svg += format_text("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.3g}</text>\n", kLeft - 6,
                       y(loss) + 4, loss);
  }
  svg += format_text("<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#d62728\" stroke-dasharray=\"4\"/>\n",
                     x(chosen), kTop, kTop + kHigh);
  svg += format_text("<text x=\"{:.1f}\" y=\"{}\" fill=\"#d62728\">--lr {:.2g}</text>\n",
                     x(chosen) + 5, kTop + 12, chosen);
  svg +=
      "<polyline points=\"" + line + "\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\"/>\n";
  return svg + format_text(
                   "<text x=\"{}\" y=\"395\" text-anchor=\"middle\">learning rate; the "
                   "smoothed loss upwards</text>\n</svg>\n",
                   kLeft + kWide / 2);
}

}  // namespace ofsdp::runtime
