// The lines of a run while it trains and evaluates.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "kernels/base/posix_file.h"
#include "kernels/base/text.h"
#include "runtime/log/screen.h"

namespace ofsdp::runtime {

namespace {

constexpr std::chrono::milliseconds kRedraw(100);
constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kGreen = "\x1b[32m", kBold = "\x1b[1m", kPlain = "\x1b[0m";
constexpr double kShortestGap = 2, kLongestGap = 30;  // seconds between lines by time

double seconds_between(Progress::Clock::time_point from, Progress::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void add_time(LineBuffer& text, double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9));
  const int64_t hours = whole / 3600;
  const int64_t minutes = whole / 60 % 60;
  if (hours > 0) text.add("{}:{:02}:{:02}", hours, minutes, whole % 60);
  if (hours == 0) text.add("{}:{:02}", minutes, whole % 60);
}

// The terminal's columns now: a user may change them at any time.
size_t columns_of(int fd) {
  winsize size{};
  const bool known = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80u;
}

bool says(const char* variable, std::string_view value) {
  const char* const text = std::getenv(variable);
  return text != nullptr && value == text;
}

bool wants_colours() {
  const char* const none = std::getenv("NO_COLOR");
  return none == nullptr || *none == 0;
}

// Returns true if the environment has a variable of mpirun (Open MPI, MPICH), srun or torchrun. Our
// launcher sets torchrun's too.
bool has_other_launcher() {
  const bool own = std::getenv("OFSDP_RENDEZVOUS") != nullptr;
  constexpr std::string_view kTorchrun = "TORCHELASTIC_";
  constexpr std::string_view kSet[] = {
      "OMPI_COMM_WORLD_", "PMIX_RANK=",    "PMIX_NAMESPACE=", "PMIX_SERVER_", "PMI_RANK=",
      "SLURM_JOB_ID=",    "SLURM_PROCID=", "SLURM_STEP_ID=",  kTorchrun};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    for (const std::string_view start : kSet) {
      const bool found = std::string_view(*variable).starts_with(start);
      if (found && !(own && start == kTorchrun)) return true;
    }
  }
  return false;
}

// The fields of a line but the bar, in the order of the screen.
enum LineField { kEpoch, kStep, kLoss, kLr, kSkipped, kRate, kMemory, kEta, kFields };

// The text of every field; an absent one is empty.
class FieldTexts {
 public:
  // `step`: the words before the step.
  FieldTexts(const LineFacts& facts, std::string_view step) {
    if (facts.epoch >= 0) text_.add("epoch {}", facts.epoch + 1);
    end(kEpoch);
    text_.add("{}{}", step, facts.step);
    if (facts.total > 0) text_.add("/{}", facts.total);
    end(kStep);
    if (facts.loss) text_.add("loss {:.4f}", *facts.loss);
    end(kLoss);
    if (std::isfinite(facts.lr)) text_.add("lr {:.4g}", facts.lr);
    end(kLr);
    if (facts.skips > 0) text_.add("skipped {}", facts.skips);
    end(kSkipped);
    if (facts.rate > 0) text_.add("{:.0f} {}/s", facts.rate, facts.tokens ? "tokens" : "samples");
    end(kRate);
    if (facts.peak_bytes > 0) {
      const ByteCount memory = byte_count(facts.peak_bytes);
      text_.add("{:.{}f} {}", memory.value, memory.decimals, memory.unit);
    }
    end(kMemory);
    if (facts.eta >= 0) {
      text_.add("eta ");
      add_time(text_, facts.eta);
    }
    end(kEta);
  }

  std::string_view operator[](LineField field) const {
    const size_t begin = field == 0 ? 0 : ends_[field - 1];
    return text_.view().substr(begin, ends_[field] - begin);
  }

 private:
  void end(LineField field) { ends_[field] = text_.view().size(); }

  LineBuffer text_;
  std::array<size_t, kFields> ends_{};
};

// Chooses the fields that fit, and the cells of the bar.
class Chosen {
 public:
  static constexpr size_t kLong = 20, kShort = 10, kFrame = 3;  // the frame: "[", "] "

  Chosen(const FieldTexts& texts, bool has_bar, size_t width) : texts_(texts), width_(width) {
    bool room = true;
    for (const LineField field : {kStep, kLoss, kEta, kRate, kMemory, kSkipped, kEpoch}) {
      room = room && take(field);
    }
    if (!room || !has_bar || used_ + kShort + kFrame > width_) return;
    cells_ = kShort;
    used_ += kShort + kFrame;
    if (take(kLr) && used_ + kLong - kShort <= width_) cells_ = kLong;
  }

  bool has(LineField field) const { return taken_[field]; }
  size_t cells() const { return cells_; }  // 0: no bar

 private:
  bool take(LineField field) {
    const size_t size = texts_[field].size();
    if (size == 0) return true;
    const size_t needed = size + (used_ > 0 ? 2 : 0);
    if (used_ + needed > width_) return false;
    used_ += needed;
    return taken_[field] = true;
  }

  const FieldTexts& texts_;
  size_t width_;
  size_t used_ = 0, cells_ = 0;
  std::array<bool, kFields> taken_{};
};

void add_cells(LineBuffer& text, const LineFacts& facts, size_t cells) {
  const auto all = static_cast<int64_t>(cells);
  const int64_t full = std::min(all, facts.step * all / facts.total);
  text.add("[{:=<{}}{: <{}}]", "", full, full < all ? ">" : "", all - full);
}

}  // namespace

std::optional<size_t> terminal_columns() {
  if (isatty(STDOUT_FILENO) != 1 || has_other_launcher()) return std::nullopt;
  return columns_of(STDOUT_FILENO);
}

double log_gap(double elapsed) { return std::clamp(elapsed / 4, kShortestGap, kLongestGap); }

// The last column stays free: some terminals begin a new line after it.
BarPlace add_bar_line(LineBuffer& text, const LineFacts& facts, size_t columns) {
  const FieldTexts texts(facts, facts.evaluates ? "eval " : "");
  const Chosen chosen(texts, facts.total > 0, std::max<size_t>(columns, 1) - 1);
  BarPlace place;
  const size_t begin = text.view().size();
  for (int i = 0; i < kFields; ++i) {
    const auto field = static_cast<LineField>(i);
    if (!chosen.has(field)) continue;
    if (text.view().size() > begin) text.add("  ");
    if (field == kStep && chosen.cells() > 0) {
      place.begin = text.view().size();
      add_cells(text, facts, chosen.cells());
      place.end = text.view().size();
      text.add(" ");
    }
    text.add("{}", texts[field]);
  }
  return place;
}

void add_log_line(LineBuffer& text, const LineFacts& facts) {
  const FieldTexts texts(facts, facts.evaluates ? "eval " : "step ");
  bool first = true;
  for (int i = 0; i < kFields; ++i) {
    const std::string_view field = texts[static_cast<LineField>(i)];
    if (field.empty()) continue;
    text.add("{}{}", first ? "" : "  ", field);
    first = false;
  }
}

void add_eval_line(LineBuffer& text, const EvalRow& row) {
  text.add("eval");
  if (row.step > 0) text.add("  step {}", row.step);  // 0: the file itself
  row.has_label() ? text.add("  loss {:.4f}", row.loss) : text.add("  loss: no label");
  for (const MetricValue& metric : row.metrics) {
    if (!metric.value) continue;
    text.add("  ");
    for (const char c : metric.name) text.add("{}", static_cast<unsigned char>(c) < 0x20 ? '?' : c);
    text.add(" {:.4f}", *metric.value);
  }
}

ProgressOptions stdout_progress(const OutputOptions& files, int64_t first_step,
                                int64_t total_steps) {
  const bool terminal = terminal_columns().has_value() && !says("TERM", "dumb");
  return {.fd = files.quiet ? -1 : STDOUT_FILENO,
          .terminal = terminal,
          .log_interval = files.log_interval,
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
  if (is_due(row.step, now)) return draw(row, now);
  pending_ = row;
  pending_->losses = {};  // the caller's
  pending_->watch = {};
}

bool Progress::is_due(int64_t step, Clock::time_point now) const {
  if (!drawn_ || step == options_.total_steps) return true;
  if (options_.terminal) return now - last_drawn_ >= kRedraw;
  if (options_.log_interval > 0) return step % options_.log_interval == 0;
  return seconds_between(last_drawn_, now) >= log_gap(seconds_between(start_, now));
}

// Returns the seconds that updates and evaluations will take; negative: unknown.
double Progress::eta(int64_t step, Clock::time_point now) const {
  const int64_t done = step - options_.first_step, left = options_.total_steps - step;
  if (left <= 0 || done <= 0) return -1;
  const double updates = (seconds_between(start_, now) - eval_seconds_) / double(done);
  double seconds = updates * double(left);
  if (evals_ > 0 && options_.evaluations_left) {
    seconds += eval_seconds_ / double(evals_) * double(options_.evaluations_left(step));
  }
  return seconds;
}

void Progress::draw(const StepRow& row, Clock::time_point now) {
  const double seconds = std::max(1e-9, seconds_between(last_drawn_, now));
  const LineFacts facts{.epoch = row.epoch,
                        .step = row.step,
                        .total = options_.total_steps,
                        .loss = row.loss,
                        .lr = row.lr,
                        .skips = row.skips,
                        .rate = double(samples_since_drawn_ * options_.tokens_a_sample) / seconds,
                        .tokens = options_.tokens_a_sample > 1,
                        .peak_bytes = row.peak_bytes,
                        .eta = eta(row.step, now)};
  if (options_.terminal) {
    draw_bar(facts);
  } else {
    LineBuffer text;
    add_log_line(text, facts);
    text.add("\n");
    write_all(text.view());
  }
  last_drawn_ = now;
  samples_since_drawn_ = 0;
  drawn_ = true;
  pending_.reset();
}

void Progress::draw_pending() {
  if (pending_) draw(StepRow(*pending_), Clock::now());
}

// In one write, so that a reader sees whole bars.
void Progress::draw_bar(const LineFacts& facts) {
  LineBuffer bar, text;
  const BarPlace place = add_bar_line(bar, facts, columns_of(options_.fd));
  const std::string_view line = bar.view();
  text.add("{}{}", kClearLine, line.substr(0, place.begin));
  const bool coloured = options_.colours && place.end > place.begin;
  if (coloured) text.add("{}", kGreen);
  text.add("{}", line.substr(place.begin, place.end - place.begin));
  if (coloured) text.add("{}", kPlain);
  text.add("{}", line.substr(place.end));
  write_all(text.view());
  bar_up_ = true;
}

void Progress::evaluating(int64_t done, int64_t total) {
  if (options_.fd < 0) return;
  const bool by_count = !options_.terminal && options_.log_interval > 0;
  if (done == 0 && !by_count) draw_pending();
  const Clock::time_point now = Clock::now();
  if (done == 0) {
    eval_began_ = last_drawn_ = now;
    return;
  }
  if (!options_.terminal || !eval_began_ || now - last_drawn_ < kRedraw) return;
  if (!eval_bar_up_) leave_bar();
  const double each = seconds_between(*eval_began_, now) / double(done);
  draw_bar({.epoch = -1,
            .step = done,
            .total = total,
            .evaluates = true,
            .eta = each * double(total - done)});
  eval_bar_up_ = true;
  last_drawn_ = now;
}

void Progress::eval(const EvalRow& row) {
  if (options_.fd < 0) return;
  const Clock::time_point now = Clock::now();
  if (eval_began_) {
    eval_seconds_ += seconds_between(*eval_began_, now);
    ++evals_;
    eval_began_.reset();
  }
  if (eval_bar_up_) {
    write_all(kClearLine);
    bar_up_ = eval_bar_up_ = false;
  }
  leave_bar();
  LineBuffer text;
  add_eval_line(text, row);
  if (options_.colours) write_all(kBold);
  if (options_.terminal) {
    write_all(folded(std::string(text.view()), columns_of(options_.fd)));
  } else {
    write_all(text.view());
  }
  if (options_.colours) write_all(kPlain);
  write_all("\n");
  last_drawn_ = now;  // an evaluation's time does not count for the next steps
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
  bar_up_ = eval_bar_up_ = false;
}

void Progress::end() {
  draw_pending();
  leave_bar();
}

// If the terminal is gone, the run goes on.
void Progress::write_all(std::string_view text) {
  if (options_.fd < 0) return;
  [[maybe_unused]] const int lost = write_text(options_.fd, text);
}

}  // namespace ofsdp::runtime
