#include "runtime/cli/config/terminal_menu.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <optional>

namespace ofsdp::cli {
namespace {

// No echo, no lines, and the keys of signals are bytes; put back by the destructor.
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
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);  // a signal that waits comes now
  }

  // The next byte; nothing when a signal or the end of the terminal came first.
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

}  // namespace

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

}  // namespace ofsdp::cli
