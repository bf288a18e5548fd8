#include "runtime/log/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "kernels/base/posix_file.h"
#include "kernels/base/text.h"
#include "runtime/log/metrics.h"

namespace ofsdp::runtime {

namespace {

constexpr std::chrono::milliseconds kRedraw(100);
constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kGreen = "\x1b[32m", kBold = "\x1b[1m", kPlain = "\x1b[0m";

double seconds_between(Progress::Clock::time_point from, Progress::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void add_bar(LineBuffer& text, int64_t step, int64_t total) {
  constexpr int64_t kCells = 20;
  const int64_t full = std::min(kCells, step * kCells / total);
  text.add("[{:=<{}}{: <{}}] ", "", full, full < kCells ? ">" : "", kCells - full);
}

void add_time(LineBuffer& text, double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9));
  const int64_t hours = whole / 3600;
  const int64_t minutes = whole / 60 % 60;
  if (hours > 0) text.add("{}:{:02}:{:02}", hours, minutes, whole % 60);
  if (hours == 0) text.add("{}:{:02}", minutes, whole % 60);
}

size_t terminal_width(int fd) {
  winsize size{};
  const bool known = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1u : 79u;
}

bool says(const char* variable, std::string_view value) {
  const char* const text = std::getenv(variable);
  return text != nullptr && value == text;
}

bool wants_colours() {
  const char* const none = std::getenv("NO_COLOR");
  return none == nullptr || *none == 0;
}

}  // namespace

ProgressOptions stdout_progress(int64_t log_interval, int64_t first_step, int64_t total_steps) {
  const bool terminal = isatty(STDOUT_FILENO) == 1 && !says("TERM", "dumb");
  return {.fd = STDOUT_FILENO,
          .terminal = terminal,
          .log_interval = log_interval,
          .first_step = first_step,
          .total_steps = total_steps,
          .colours = terminal && wants_colours()};
}

Progress::Progress(const ProgressOptions& options)
    : options_(options), start_(Clock::now()), last_drawn_(start_) {}

Progress::~Progress() {
  if (bar_up_) write_all("\n");
}

void Progress::step(const StepRow& row, int64_t samples) {
  if (options_.fd < 0) return;
  samples_since_drawn_ += samples;
  const Clock::time_point now = Clock::now();
  if (!is_due(row.step, now)) return;
  draw(row, now);
  last_drawn_ = now;
  samples_since_drawn_ = 0;
  drawn_ = true;
}

bool Progress::is_due(int64_t step, Clock::time_point now) const {
  if (!drawn_ || step == options_.total_steps) return true;
  return options_.terminal ? now - last_drawn_ >= kRedraw : step % options_.log_interval == 0;
}

void Progress::draw(const StepRow& row, Clock::time_point now) {
  const int64_t total = options_.total_steps;
  const int64_t left = total - row.step;
  LineBuffer text;
  text.add("epoch {}  ", row.epoch + 1);
  if (!options_.terminal) text.add("step ");
  const size_t bar_begins = text.view().size();
  if (options_.terminal && total > 0) add_bar(text, row.step, total);
  const size_t bar_ends = text.view().size();
  text.add("{}", row.step);
  if (total > 0) text.add("/{}", total);
  text.add("  loss {:.4f}", row.loss);
  if (std::isfinite(row.lr)) text.add("  lr {:.4g}", row.lr);
  if (row.skips > 0) text.add("  skipped {}", row.skips);
  const double seconds = std::max(1e-9, seconds_between(last_drawn_, now));
  const double rows = static_cast<double>(samples_since_drawn_ * options_.tokens_a_sample);
  text.add("  {:.0f} {}/s", rows / seconds, options_.tokens_a_sample > 1 ? "tokens" : "samples");
  if (row.peak_bytes > 0) {
    const ByteCount memory = byte_count(row.peak_bytes);
    text.add("  {:.{}f} {}", memory.value, memory.decimals, memory.unit);
  }
  const int64_t done = row.step - options_.first_step;
  if (left > 0 && done > 0) {
    text.add("  eta ");
    add_time(text, seconds_between(start_, now) / static_cast<double>(done) * double(left));
  }
  if (options_.terminal) {
    text.cut(terminal_width(options_.fd));
    write_all(kClearLine);
    write_bar(text.view(), bar_begins, bar_ends);
    bar_up_ = true;
  } else {
    text.add("\n");
    write_all(text.view());
  }
}

// Writes `text` with the bar in colour; the bar is cut where the text is.
void Progress::write_bar(std::string_view text, size_t begin, size_t end) {
  if (!options_.colours) return write_all(text);
  begin = std::min(begin, text.size());
  end = std::min(end, text.size());
  write_all(text.substr(0, begin));
  write_all(kGreen);
  write_all(text.substr(begin, end - begin));
  write_all(kPlain);
  write_all(text.substr(end));
}

void Progress::eval(const EvalRow& row) {
  if (options_.fd < 0) return;
  LineBuffer text;
  text.add("eval");
  if (row.step > 0) text.add("  step {}", row.step);  // 0: the file itself
  std::isnan(row.loss) ? text.add("  loss: no label") : text.add("  loss {:.4f}", row.loss);
  for (const MetricValue& metric : row.metrics) {
    if (!metric.value) continue;
    text.add("  ");
    for (const char c : metric.name) text.add("{}", static_cast<unsigned char>(c) < 0x20 ? '?' : c);
    text.add(" {:.4f}", *metric.value);
  }
  leave_bar();
  if (options_.colours) write_all(kBold);
  write_all(text.view());
  if (options_.colours) write_all(kPlain);
  write_all("\n");
  last_drawn_ = Clock::now();  // an evaluation's time does not count for the next steps
  samples_since_drawn_ = 0;
}

void Progress::line(std::string_view text) {
  leave_bar();
  write_all(text);
  write_all("\n");
}

// A finished step's bar stays above the line, since it would be redrawn only at the next step.
void Progress::leave_bar() {
  if (bar_up_) write_all("\n");
  bar_up_ = false;
}

// If the terminal is gone, the run goes on.
void Progress::write_all(std::string_view text) {
  if (options_.fd < 0) return;
  [[maybe_unused]] const int lost = write_text(options_.fd, text);
}

namespace {

constexpr size_t kWidth = 100;
constexpr int kSettingLines = 6;
constexpr int kNoticeLines = 7;    // there can be no more
constexpr size_t kShares = 5;      // of memory
constexpr size_t kPeaksShown = 4;  // ranks

std::string memory_line(const OpeningFacts& facts) {
  std::vector<MemoryShare> shares = facts.memory;
  std::ranges::stable_sort(shares, std::greater(), &MemoryShare::bytes);
  shares.resize(std::min(shares.size(), kShares));
  std::vector<std::string> parts;
  for (const MemoryShare& share : shares) {
    if (share.bytes > 0) parts.push_back(share.what + " " + readable_bytes(share.bytes));
  }
  return wrapped(format_text("memory: {} a rank: ", readable_bytes(facts.planned_bytes)), parts, 2);
}

std::string peak_line(const std::vector<uint64_t>& peaks) {
  if (peaks.size() == 1) return "peak memory: " + readable_bytes(peaks[0]) + "\n";
  if (peaks.size() <= kPeaksShown) {
    std::vector<std::string> each;
    for (const uint64_t bytes : peaks) each.push_back(readable_bytes(bytes));
    return format_text("peak memory: {} (ranks 0 to {})\n", joined(each, ", "), peaks.size() - 1);
  }
  const auto [least, most] = std::ranges::minmax_element(peaks);
  return format_text("peak memory: {} (rank {}, which has most) to {} (rank {})\n",
                     readable_bytes(*most), most - peaks.begin(), readable_bytes(*least),
                     least - peaks.begin());
}

std::string skipped_text(const ClosingFacts& facts) {
  if (facts.skipped == 0) return "";
  return format_text(" ({} skipped: gradients in float16 were not finite)", facts.skipped);
}

}  // namespace

std::string wrapped(const std::string& label, const std::vector<std::string>& items, int most) {
  const std::string more = ", ... and 9999 more (--verbose on)";
  size_t left = 0;  // columns for the items that are left
  for (const std::string& item : items) left += item.size() + 2;
  std::string text = label;
  size_t width = label.size();
  int lines = 1;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string& item = items[i];
    const bool all_fit = width + left <= kWidth;
    const size_t room = lines == most && !all_fit ? kWidth - more.size() : kWidth - 1;
    if (i > 0 && width + item.size() + 2 > room) {
      if (lines == most) {
        return text + format_text(", ... and {} more (--verbose on)\n", items.size() - i);
      }
      text += ",\n" + std::string(label.size(), ' ');
      width = label.size();
      ++lines;
    } else if (i > 0) {
      text += ", ";
      width += 2;
    }
    text += item;
    width += item.size();
    left -= item.size() + 2;
  }
  return text + "\n";
}

std::string opening_text(const OpeningFacts& facts) {
  std::string text = format_text(
      "{}: trains {} of {}, {} numbers (all: --verbose on)\n", facts.model, facts.trained_tensors,
      plural(facts.tensors, "tensor"), readable_count(facts.trained_numbers));
  text += "loss: " + facts.loss + "\n";
  if (!facts.settings.empty()) text += wrapped("settings: ", facts.settings, kSettingLines);
  if (!facts.fused.empty()) text += wrapped("fused: ", facts.fused, 1);
  if (!facts.wrap_notice.empty()) text += facts.wrap_notice + "\n";
  const auto notices = std::min<size_t>(facts.notices.size(), kNoticeLines);
  for (size_t i = 0; i < notices; ++i) text += facts.notices[i] + "\n";
  text += memory_line(facts);
  return text + ranks_line(facts);
}

std::string ranks_line(const OpeningFacts& facts) {
  return format_text("{}, {}, {} each, {}\n", facts.strategy, plural(facts.ranks, "rank"),
                     plural(facts.threads, "thread"), plural(facts.units, "unit"));
}

std::string closing_text(const ClosingFacts& facts) {
  std::string text =
      format_text("done: {}{}{} in {}, {} {}/s, {} ms an update (median)\n",
                  plural(facts.updates, "update"), skipped_text(facts),
                  facts.stopped_early ? ", stopped early," : "", readable_seconds(facts.seconds),
                  readable_number(facts.rate), facts.rated, readable_number(facts.median_step_ms));
  return text + peak_line(facts.peak_bytes) + facts.exposed + "\n";
}

std::string written_text(const std::vector<WrittenFile>& files) {
  std::string text;
  for (const WrittenFile& file : files) {
    text += format_text("wrote {}{}\n", file.path,
                        file.what.empty() ? "" : format_text(" ({})", file.what));
  }
  return text;
}

}  // namespace ofsdp::runtime
