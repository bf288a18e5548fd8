#include <poll.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <istream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/checkpoint/disk.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"
#include "runtime/cli/config/config_files.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

// Chooses one of several answers on a terminal with the arrow keys: one line an answer, the chosen
// one marked. Debian's libraries for this take the whole screen.
//
// The terminal is in raw mode only during the choice. It is restored after the answer, at Ctrl-C,
// and if SIGINT, SIGTERM, SIGHUP or SIGQUIT ends the process; these signals are blocked until then.
// Errors: kInput if Ctrl-C, Ctrl-D or a closed terminal ends the choice.

// Turns off echo, line mode and signal keys; the destructor restores them.
class RawTerminal {
 public:
  explicit RawTerminal(int terminal) : terminal_(terminal) {
    sigemptyset(&ending_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending_, signal);
    pthread_sigmask(SIG_BLOCK, &ending_, &mask_);
    signals_ = signalfd(-1, &ending_, SFD_CLOEXEC);
    tcgetattr(terminal_, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(terminal_, TCSADRAIN, &raw);
  }
  RawTerminal(const RawTerminal&) = delete;
  ~RawTerminal() {
    tcsetattr(terminal_, TCSADRAIN, &before_);
    if (signals_ >= 0) close(signals_);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);  // delivers a pending signal
  }

  // Returns the next byte; none if a signal or the end of the terminal comes first.
  std::optional<char> next() const {
    pollfd sources[2] = {{terminal_, POLLIN, 0}, {signals_, POLLIN, 0}};
    while (poll(sources, 2, -1) < 0) {
    }
    char byte = 0;
    if ((sources[1].revents & POLLIN) != 0 || read(terminal_, &byte, 1) != 1) return std::nullopt;
    return byte;
  }

 private:
  const int terminal_;
  int signals_ = -1;
  sigset_t ending_{}, mask_{};
  termios before_{};
};

enum class Key { kUp, kDown, kTake, kEnd, kOther };

Key key_of(const RawTerminal& terminal, char byte) {
  constexpr char kCtrlC = 3, kCtrlD = 4, kEscape = 27;
  if (byte == '\r' || byte == '\n') return Key::kTake;
  if (byte == kCtrlC || byte == kCtrlD) return Key::kEnd;
  if (byte == 'k') return Key::kUp;
  if (byte == 'j') return Key::kDown;
  if (byte != kEscape) return Key::kOther;
  const auto bracket = terminal.next();  // ESC [ A, or ESC O A
  const auto letter = bracket ? terminal.next() : std::nullopt;
  if (!letter) return Key::kEnd;
  return *letter == 'A' ? Key::kUp : *letter == 'B' ? Key::kDown : Key::kOther;
}

void write_text(int out, const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(out, text.data(), text.size());
}

std::string drawn(const std::vector<std::string>& answers, size_t chosen) {
  std::string text;
  for (size_t i = 0; i < answers.size(); ++i) {
    text += format_text("\r\x1b[K{} {}\n", i == chosen ? "  >" : "   ", answers[i]);
  }
  return text;
}

// Keys: up and down, k and j, digits, the first letter of a name; Enter takes the answer.
Result<size_t> choose_on_terminal(int in, int out, const std::vector<std::string>& answers,
                                  size_t chosen) {
  const RawTerminal terminal(in);
  const size_t count = answers.size();
  write_text(out, drawn(answers, chosen));
  while (const auto byte = terminal.next()) {
    const Key key = key_of(terminal, *byte);
    if (key == Key::kTake) return chosen;
    if (key == Key::kEnd) break;
    if (key == Key::kUp) chosen = (chosen + count - 1) % count;
    if (key == Key::kDown) chosen = (chosen + 1) % count;
    const size_t digit = static_cast<size_t>(*byte) - '1';
    if (key == Key::kOther && digit < count) chosen = digit;
    write_text(out, format_text("\x1b[{}A", count) + drawn(answers, chosen));
  }
  return input_error("config: ended before the last answer; nothing is written");
}

// A question about an option. `asked`: earlier answers make it necessary.
struct Question {
  std::string_view option;
  std::string_view text;
  bool (*asked)(const Options&);
  bool closed = false;  // one of a few names
};

bool always(const Options&) { return true; }

bool in_blocks(const Options& o) { return o.sharding.wrap == WrapPolicy::kTransformer; }
bool by_size(const Options& o) { return o.sharding.wrap == WrapPolicy::kSize; }
bool in_groups(const Options& o) {
  return o.sharding.strategy == Strategy::kHybridShard ||
         o.sharding.strategy == Strategy::kHybridShardZero2;
}
bool lower_precision(const Options& o) { return o.sharding.param_dtype != DType::kFloat32; }
bool scheduled(const Options& o) { return o.schedule.kind != ScheduleKind::kConstant; }
bool in_steps(const Options& o) { return o.schedule.kind == ScheduleKind::kStep; }
bool endless(const Options& o) { return o.run.data.kind == DataChoice::Kind::kSynthetic; }
bool ends(const Options& o) { return !endless(o); }
bool saves(const Options& o) { return !o.checkpoint.dir.empty(); }

constexpr Question kQuestions[] = {
    {"nproc-per-node", "How many ranks on this host?", always},
    {"strategy", "What is sharded over them?", always, true},
    {"shard-size", "How many ranks share one copy?", in_groups},
    {"wrap", "What becomes a unit, gathered at once?", always, true},
    {"wrap-layers", "Which repeated blocks (class names, comma-separated)?", in_blocks},
    {"min-params", "Fewest parameters in a unit?", by_size},
    {"param-dtype", "In which type are parameters gathered and used?", always, true},
    {"reduce-dtype", "In which type are gradients summed?", lower_precision, true},
    {"activation-checkpointing", "What is computed again in backward to save memory?", always,
     true},
    {"memory-limit", "Most memory of a rank (such as 12GiB)?", always},
    {"data", "Where are the training data?", always},
    {"loss", "Which loss?", always, true},
    {"optimizer", "Which optimizer?", always, true},
    {"lr", "Learning rate?", always},
    {"weight-decay", "Weight decay?", always},
    {"lr-schedule", "How does the learning rate change?", always, true},
    {"step-size", "How many epochs between two changes?", in_steps},
    {"warmup-steps", "Updates of warm-up?", scheduled},
    {"clip-grad-norm", "Largest norm of the gradient?", always},
    {"batch-size", "Samples a rank puts through one forward?", always},
    {"grad-accum", "Forwards before an update?", always},
    {"epochs", "How many epochs?", ends},
    {"steps", "How many updates?", endless},
    {"checkpoint-dir", "Where do checkpoints go?", always},
    {"checkpoint-interval", "How often (Nepoch, Nstep)?", saves},
    {"output", "Where does the trained ONNX file go?", always}};

class Questions {
 public:
  Questions(const Options& options, std::istream& in, bool terminal)
      : options_(options), in_(in), terminal_(terminal) {
    options_.files.output.clear();  // -o names the YAML
    if (options_.run.steps && !options_.run.epochs) options_.run.epochs = 1;
  }

  Status ask() {
    std::puts("An empty line takes the answer in [ ].");
    for (const Question& question : kQuestions) {
      if (!question.asked(options_)) continue;
      const OptionEntry& entry = *find_entry(table_, question.option);
      const std::vector<std::string> choices = list_choices(question, entry);
      OFSDP_RETURN_IF_ERROR(choices.empty() ? ask_text(question, entry)
                                            : ask_choice(question, entry, choices));
      asked_.insert(entry.name);
      if (entry.name == "optimizer") take_defaults();
      if (entry.name == "param-dtype") options_.sharding.reduce_dtype = DType::kFloat32;
    }
    return ok_status();
  }

  // Returns the answers and the options of the command line. Defaults that were kept are comments:
  // as keys they would overrule MODEL.yaml.
  std::string yaml() const {
    std::string text = format_text(
        "# fsdp-run {} --config THIS_FILE\n# Lines that begin with # are defaults.\n", model());
    const Options defaults;
    for (const OptionEntry& entry : table_) {
      if (!entry.in_files || !entry.no_effect(options_).beside.empty()) continue;
      const std::string value = entry.show(options_);
      const bool said = chosen_.count(entry.name) > 0 || value != entry.show(defaults);
      const bool kept = !said && asked_.count(entry.name) > 0;
      const bool without_end = entry.name == "epochs" && endless(options_);
      if ((!said && !kept) || without_end) continue;
      text += format_text("{}{}: {}  # {}\n", kept ? "# " : "", yaml_key(entry.name), value,
                          entry.help);
    }
    return text;
  }

  std::string model() const { return options_.model.empty() ? "MODEL.onnx" : options_.model; }

  // Makes paths, which were typed relative to the current folder, relative to the folder of the
  // file.
  void move_paths(const std::filesystem::path& file) {
    const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
    for (const OptionEntry& entry : table_) {
      if (!entry.is_path || entry.kind == OptionEntry::Kind::kRepeated) continue;
      Options plain;
      const std::string path = shown(entry, options_);
      if (path == shown(entry, plain) || path == "none" || path == "synthetic" ||
          path == "latest") {
        continue;
      }
      std::error_code error;
      const auto moved = std::filesystem::proximate(std::filesystem::absolute(path), folder, error);
      const bool absolute = std::filesystem::path(path).is_absolute();
      if (!error && !absolute) (void)entry.set(options_, moved.string());
    }
  }

 private:
  // Removes YAML quotes; ~ becomes a computed default.
  static std::string shown(const OptionEntry& entry, const Options& options) {
    const std::string value = entry.show(options);
    if (value.size() >= 2 && value.front() == '"') return value.substr(1, value.size() - 2);
    if (entry.name == "wrap-layers" && value.front() == '[') {
      return joined(options.sharding.wrap_layers, ",");
    }
    if (value != "~") return value;
    return entry.name == "data"         ? "data/ next to the model"
           : entry.name == "batch-size" ? "8"
           : entry.name == "grad-accum" ? "1"
                                        : "none";
  }

  // Returns the names of a closed set, without patterns (output:NAME) and names that the program
  // lacks.
  std::vector<std::string> list_choices(const Question& question, const OptionEntry& entry) const {
    std::vector<std::string> names;
    if (!question.closed) return names;
    for (const std::string& name : split_list(entry.values)) {
      Options tried = options_;
      const bool word = name.find(':') == std::string::npos;
      if (word && entry.set(tried, name).fine) names.push_back(name);
    }
    return names;
  }

  Result<std::string> line() {
    std::fflush(stdout);
    std::string text;
    if (!std::getline(in_, text)) {
      if (terminal_) return input_error("config: ended before the last answer; nothing is written");
      ended_ = true;
    }
    while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.pop_back();
    return text;
  }

  // Returns true if `text` is a valid answer; else prints the mistake.
  Result<bool> take(const OptionEntry& entry, const std::string& text) {
    Options tried = options_;
    if (entry.kind == OptionEntry::Kind::kRepeated) entry.clear(tried);
    const Verdict verdict = entry.set(tried, text);
    if (verdict.fine) {
      options_ = std::move(tried);
      chosen_.insert(entry.name);
      return true;
    }
    const std::string wrong =
        format_text("expected {}, found '{}'{}", verdict.expected, text, verdict.hint);
    if (ended_ || in_.eof()) return input_error("config: {}: {}", entry.name, wrong);
    std::printf("  %s\n", wrong.c_str());
    return false;
  }

  Status ask_text(const Question& question, const OptionEntry& entry) {
    while (true) {
      const std::string before = shown(entry, options_);
      const bool must = entry.name == "steps" && before == "none";
      print_lines(stdout,
                  format_text("{}{} ", question.text, must ? "" : format_text(" [{}]", before)));
      OFSDP_ASSIGN_OR_RETURN(const std::string text, line());
      if (!terminal_) std::puts("");
      if (text.empty() && !must) return ok_status();
      OFSDP_ASSIGN_OR_RETURN(const bool good, take(entry, text));
      if (good && !(must && !options_.run.steps)) return ok_status();
    }
  }

  Status ask_choice(const Question& question, const OptionEntry& entry,
                    const std::vector<std::string>& choices) {
    const std::string before = shown(entry, options_);
    const auto found = std::find(choices.begin(), choices.end(), before);
    const size_t chosen = found == choices.end() ? 0 : static_cast<size_t>(found - choices.begin());
    print_lines(stdout, format_text("{} ({})\n", question.text, entry.help));
    std::fflush(stdout);
    if (terminal_) {
      OFSDP_ASSIGN_OR_RETURN(const size_t which,
                             choose_on_terminal(STDIN_FILENO, STDOUT_FILENO, choices, chosen));
      return which == chosen ? ok_status() : take(entry, choices[which]).status();
    }
    for (size_t i = 0; i < choices.size(); ++i)
      std::printf("  %zu  %s\n", i + 1, choices[i].c_str());
    while (true) {
      std::printf("[%s] ", before.c_str());
      OFSDP_ASSIGN_OR_RETURN(std::string text, line());
      std::puts("");
      if (text.empty()) return ok_status();
      const auto number = static_cast<size_t>(parse_integer(text, 1).value_or(0));
      if (number >= 1 && number <= choices.size()) text = choices[number - 1];
      OFSDP_ASSIGN_OR_RETURN(const bool good, take(entry, text));
      if (good) return ok_status();
    }
  }

  // Another optimizer has other defaults.
  void take_defaults() {
    if (options_.optimizer.kind == before_.kind) return;
    take_defaults_unless(options_.optimizer, [](const char*) { return false; });
  }

  const std::vector<OptionEntry> table_ = option_table();
  Options options_;
  const OptimizerOptions before_ = options_.optimizer;
  std::istream& in_;
  const bool terminal_;
  bool ended_ = false;
  std::set<std::string> asked_, chosen_;
};

Status write_by_name(const std::string& path, const std::string& text) {
  const Status written = write_whole(
      path, [&](const std::string& temporary) { return write_whole_file(temporary, text); });
  return written.ok() ? ok_status() : input_error("{}", written.message());
}

}  // namespace

Status ask_configuration(const Options& options, std::istream& in, bool terminal) {
  const std::string path = options.files.output.empty() ? "config.yaml" : options.files.output;
  if (!options.model.empty() && !is_file(options.model)) {
    return input_error("config: {}: no such file", options.model);
  }
  if (options.files.output.empty() && is_file(path)) {
    return input_error("{}: the file is there; -o FILE names another, or this one to replace it",
                       path);
  }
  Questions questions(options, in, terminal);
  OFSDP_RETURN_IF_ERROR(questions.ask());
  questions.move_paths(path);
  OFSDP_RETURN_IF_ERROR(write_by_name(path, questions.yaml()));
  print_lines(stdout,
              format_text("wrote {}; fsdp-run {} --config {}\n", path, questions.model(), path));
  return ok_status();
}

}  // namespace ofsdp::cli
