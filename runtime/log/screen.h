// A run's lines on stdout: opening_text before the first step, Progress during training,
// closing_text after the last step; or, with --json, one object at the end. Rank 0 gathers the
// facts (runtime/train/run_facts.cpp) and prints.
//
// opening_text has at most kOpeningLines lines for any model where no terminal folds them; long
// lists end with a count: items left out. `plan` and --verbose print tables instead. Texts in facts
// are escaped (kernels/base/text.h) and have no newline.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/log/metrics.h"

namespace ofsdp::runtime {

struct OutputOptions {
  std::string output;            // empty: none
  std::string metrics;           // empty: none
  std::string trace;             // empty: none
  std::vector<std::string> log;  // as given: csv:FILE, tensorboard:FOLDER
  int64_t log_interval = 0;      // updates between lines of the log; 0: by time
  int64_t watch = 0;             // updates between two with kept norms; 0: no norms are kept
  bool verbose = false;          // all tables before the first step
  bool quiet = false;            // only warnings and the result
};

// Columns for lists where no terminal has another width.
inline constexpr size_t kTextColumns = 100;

// Returns the columns of the terminal on stdout. None if there is no terminal, or if mpirun, srun
// or torchrun started this process: their terminal may be a file's.
std::optional<size_t> terminal_columns();

// The facts in a line of progress.
struct LineFacts {
  int64_t epoch = 0;  // from 0; lines count from 1
  int64_t step = 0, total = 0;
  bool evaluates = false;  // steps of an evaluation
  std::optional<double> loss = {};
  double lr = std::numeric_limits<double>::quiet_NaN();  // NaN: left out, as zeros below
  int64_t skips = 0;
  double rate = 0;
  bool tokens = false;  // `rate` counts tokens
  uint64_t peak_bytes = 0;
  double eta = -1;  // seconds; negative: unknown
};

// The first byte of the bar in a line, and the byte after it.
struct BarPlace {
  size_t begin = 0, end = 0;
};

// Adds the line of a terminal with `columns` columns:
//
// epoch 1  [=====>              ] 250/938  loss 0.4321  lr 0.001  5321 samples/s  98.7 MiB  ...
//
// In place of `...` a line ends with the time left: `eta 0:12`. If float16 gradients were not
// finite in 3 updates, `skipped 3` follows the rate. A field that does not fit is left out whole:
// first the long bar, then lr, bar, epoch, skipped, memory, rate, eta, loss.
BarPlace add_bar_line(LineBuffer& text, const LineFacts& facts, size_t columns);

// Adds the line of a file, with all fields: "epoch 1  step 250/938  loss 0.4321  ...".
void add_log_line(LineBuffer& text, const LineFacts& facts);

// Returns the seconds between two lines of a file after `elapsed` seconds: 2, growing to 30.
double log_gap(double elapsed);

// Progress writes lines on stdout while a run trains, on rank 0. On a terminal one line is redrawn,
// at most ten times a second. Its width may change.
//
// Elsewhere a line is written after the first update, every log_interval updates or by time
// (log_gap), and after the last update.
//
// While an evaluation runs, a terminal shows `eval 12/40` in place of the step. Evaluations end
// with separate lines: `eval  step 938  loss 0.0412  accuracy 0.9871`. Lines by time have the
// update's line first.
//
// Colours are used on terminals unless NO_COLOR is set (https://no-color.org) or TERM is dumb.
// samples/s (tokens/s if a sample is a token row) is over the time since the previous line, eta
// over all steps so far. It counts the evaluations that are left once it knows their time. The
// memory is the rank's peak. A step does not allocate. A failing write is ignored, since the run
// matters more than the log.
struct ProgressOptions {
  int fd = 1;             // negative: write nothing
  bool terminal = false;  // redraw one line
  int64_t log_interval = OutputOptions().log_interval;
  int64_t first_step = 0;   // updates before this run, if it was resumed
  int64_t total_steps = 0;  // 0: unknown
  int64_t tokens_a_sample = 1;
  bool colours = false;
  // Returns how many evaluations follow update `step`; empty: none.
  std::function<int64_t(int64_t step)> evaluations_left = {};
};

// Returns options for stdout: a bar if terminal_columns() knows a terminal; nothing with --quiet.
ProgressOptions stdout_progress(const OutputOptions& files, int64_t first_step,
                                int64_t total_steps);

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(const ProgressOptions& options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // ends a remaining bar with a newline

  // Call once per update. `samples`: in this update, on all ranks.
  void step(const StepRow& row, int64_t samples);
  // Call before the first micro-batch of an evaluation with `done` 0, and after each.
  void evaluating(int64_t done, int64_t total);
  void eval(const EvalRow& row);     // ends the evaluation
  void line(std::string_view text);  // writes another line, not torn by the bar
  void leave_bar();                  // must be called before others print
  void end();                        // after the last update: it has a line

 private:
  bool is_due(int64_t step, Clock::time_point now) const;
  void draw(const StepRow& row, Clock::time_point now);
  void draw_pending();
  void draw_bar(const LineFacts& facts);
  double eta(int64_t step, Clock::time_point now) const;
  void write_all(std::string_view text);

  ProgressOptions options_;
  Clock::time_point start_;
  Clock::time_point last_drawn_;
  int64_t samples_since_drawn_ = 0;
  bool drawn_ = false;              // at least one line or bar
  bool bar_up_ = false;             // the cursor is after a bar
  bool eval_bar_up_ = false;        // and it is an evaluation's
  std::optional<StepRow> pending_;  // the last update, if no line has it
  std::optional<Clock::time_point> eval_began_;
  double eval_seconds_ = 0;
  int64_t evals_ = 0;
};

// Adds "eval  step 938  loss 0.0412  accuracy 0.9871".
void add_eval_line(LineBuffer& text, const EvalRow& row);

inline constexpr int kOpeningLines =
    20;  // a terminal has 24; a resumed run and the launcher print some too

// A share in the peak memory.
struct MemoryShare {
  std::string what;
  uint64_t bytes = 0;
};

struct DataFacts {
  std::string name = {};       // the file or folder
  int64_t rows = 0;            // 0: without an end
  int64_t batches = 0;         // in an epoch
  int64_t batch = 0;           // rows of an update
  int64_t eval_rows = 0;       // 0: no evaluation
  std::string eval_name = {};  // empty: it belongs to the data
};

struct WrittenFile {
  std::string path;  // not escaped
  std::string what;  // empty: the trained file
};

struct OpeningFacts {
  std::string model;
  bool trains = true;                                            // false: only evaluates
  int64_t tensors = 0, trained_tensors = 0, frozen_tensors = 0;  // frozen by the module
  int64_t numbers = 0, trained_numbers = 0;
  DataFacts data;
  std::string loss;                   // the samples or labels that divide it
  std::vector<std::string> settings;  // "lr 0.1"; options that differ from their defaults
  std::vector<std::string> notices;   // whole lines: device, types, offload
  std::vector<MemoryShare> memory;
  std::string device;  // empty: a notice names it
  std::string strategy;
  int64_t ranks = 1, threads = 1, units = 0;
  uint64_t planned_bytes = 0;      // for this rank
  std::vector<WrittenFile> files;  // that the run will write
};

// `columns`: the terminal's; none: lists have kTextColumns, and other lines are not folded.
std::string opening_text(const OpeningFacts& facts, std::optional<size_t> columns = {});
// Returns the lines after the tables of --verbose: model, data, ranks and units, files.
std::string after_tables_text(const OpeningFacts& facts);

// An evaluation's row, owned.
struct EvaluationFacts {
  int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::vector<MetricValue> metrics, losses;
  int bad_rank = -1;

  void take(const EvalRow& row);
  EvalRow row() const { return {step, 0, loss, metrics, losses, bad_rank}; }
};

struct ClosingFacts {
  int64_t updates = 0;                // in this run
  int64_t step = 0, total = 0;        // the last update of all runs, and how many were planned
  int64_t epoch = 0;                  // of the last update, from 0
  std::optional<double> epochs = {};  // passed in all runs; none: the data have no end
  double loss = std::numeric_limits<double>::quiet_NaN();  // of the last update
  int64_t skipped = 0;                                     // updates skipped by float16
  bool stopped = false;                                    // by a signal
  bool stopped_early = false;                              // by --early-stop
  double seconds = 0;
  double samples_per_s = 0;     // without evaluation and saves
  int64_t tokens_a_sample = 1;  // above 1: the text counts tokens
  double median_step_ms = 0;
  std::vector<uint64_t> peak_bytes = {};           // one per rank
  std::string exposed = {};                        // exposed_time.h's lines, or empty
  std::optional<EvaluationFacts> evaluation = {};  // the last one
};

// Returns "done: ...", memory, communication and the last evaluation; written_text follows.
std::string closing_text(const ClosingFacts& facts);
std::string written_text(const std::vector<WrittenFile>& files);
// Returns the result for --quiet: the lines of the last update and the last evaluation.
std::string quiet_text(const ClosingFacts& facts);

// Returns the objects of --json, with a newline. Numbers that are not finite are null.
std::string training_json(const std::string& model, const ClosingFacts& facts,
                          const std::vector<WrittenFile>& files);
std::string evaluation_json(const std::string& model, const EvalRow& row, int64_t samples);

// Returns items separated by commas in at most `most` lines with `columns` columns after `label`.
// Lines end after an item. The last line says how many items are left out, and which option shows
// them.
std::string wrapped(const std::string& label, const std::vector<std::string>& items, int most,
                    size_t columns = kTextColumns);
// Returns the line in lines of at most `columns` columns, which end after an item (", ", "; ", two
// spaces) or a word; a longer word stays whole.
std::string folded(const std::string& line, size_t columns);
// The same for every line of `text`. `columns`: the terminal's; none: returns the text.
std::string folded_lines(const std::string& text, std::optional<size_t> columns);

}  // namespace ofsdp::runtime
