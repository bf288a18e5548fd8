#include "tests/support/run_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A launcher's variables around the tests are not meant for the program.
bool is_ours(std::string_view variable) {
  constexpr std::array<std::string_view, 8> kForeign = {
      "RANK=",        "WORLD_SIZE=",  "LOCAL_RANK=", "LOCAL_WORLD_SIZE=",
      "MASTER_ADDR=", "MASTER_PORT=", "OFSDP_",      "OMP_NUM_THREADS="};
  if (variable.starts_with("OFSDP_SECRET=")) return true;  // of the tests, like the next
  if (variable.starts_with("OFSDP_VERIFY_PASSES=")) return true;
  if (variable.starts_with("OFSDP_RUN_DIR=")) return true;
  for (const std::string_view name : kForeign) {
    if (variable.starts_with(name)) return false;
  }
  return true;
}

std::vector<std::string> environment_of(const Start& start) {
  std::vector<std::string> all;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (is_ours(*variable)) all.emplace_back(*variable);
  }
  all.insert(all.end(), start.environment.begin(), start.environment.end());
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string content_of(int fd) {
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t got;
       (got = pread(fd, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;)
    text.append(part.data(), static_cast<size_t>(got));
  return text;
}

// A process's state and parent, from /proc/PID/stat: the fields after the name in brackets.
struct ProcessState {
  char state = 'X';
  pid_t parent = 0;
};

ProcessState state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {};
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  ProcessState process;
  rest >> process.state >> process.parent;
  return process;
}

bool has_ended(char state) { return state == 'X' || state == 'Z'; }

}  // namespace

Program::Program(std::vector<std::string> words, const Start& start) : began_(now()) {
  for (const std::string& word : words) command_ += (command_.empty() ? "" : " ") + word;
  std::vector<std::string> environment = environment_of(start);
  const std::vector<char*> argv = pointers_to(words);
  const std::vector<char*> envp = pointers_to(environment);
  out_ = memfd_create("stdout", MFD_CLOEXEC);
  err_ = memfd_create("stderr", MFD_CLOEXEC);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out_, STDOUT_FILENO);
    dup2(err_, STDERR_FILENO);
    if (!start.folder.empty() && chdir(start.folder.c_str()) != 0) _exit(126);
    if (start.user != 0 && setuid(start.user) != 0) _exit(126);
    const rlimit space{start.address_space, start.address_space};
    if (start.address_space != 0 && setrlimit(RLIMIT_AS, &space) != 0) _exit(126);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  running_ = pid_ > 0;
  pidfd_ = running_ ? static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)) : -1;
  if (pidfd_ < 0) ADD_FAILURE() << command_ << ": cannot be started: " << std::strerror(errno);
}

Program::~Program() {
  if (running_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {pidfd_, out_, err_}) {
    if (fd >= 0) close(fd);
  }
}

Finished Program::run(std::vector<std::string> words, const Start& start) {
  return Program(std::move(words), start).wait(start.patience);
}

std::string Program::out() const { return content_of(out_); }
std::string Program::err() const { return content_of(err_); }

void Program::signal(int number) const {
  if (running_) kill(pid_, number);
}

bool Program::until_output(const std::string& text, double seconds) {
  const double end = now() + seconds;
  while (true) {
    const bool more = running_ && now() < end && !ended_within(0);
    if (out().find(text) != std::string::npos) return true;
    if (!more) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool Program::ended_within(double seconds) {
  pollfd look{pidfd_, POLLIN, 0};
  return poll(&look, 1, static_cast<int>(seconds * 1e3)) > 0;
}

Finished Program::wait(double seconds) {
  if (running_ && !ended_within(seconds)) {
    ADD_FAILURE() << command_ << "\ndid not end within " << seconds << " s; stderr:\n" << err();
    kill(pid_, SIGKILL);
  }
  rusage used{};
  if (running_) wait4(pid_, &status_, 0, &used);
  running_ = false;
  const int status = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {status, out(), err(), now() - began_, static_cast<size_t>(used.ru_maxrss) * 1024};
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const ProcessState process = state_of(pid);
    if (process.parent == parent && !has_ended(process.state)) children.push_back(pid);
  }
  return children;
}

bool is_alive(pid_t pid) { return !has_ended(state_of(pid).state); }

std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || !is_alive(pid)) continue;
    std::ifstream file(entry.path() / "cmdline");
    std::stringstream words;
    words << file.rdbuf();
    if (words.str().find(text) != std::string::npos) found.push_back(pid);
  }
  return found;
}

bool holds_within(double seconds, const std::function<bool()>& condition) {
  for (const double end = now() + seconds; !condition();) {
    if (now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace ofsdp
