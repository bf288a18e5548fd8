#include "library/run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "kernels/base/host_tasks.h"
#include "kernels/base/process.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/cli/options/option_table.h"
#include "runtime/data/column_file.h"
#include "runtime/log/log_parts.h"

namespace ofsdp::library {

Result<TemporaryFolder> TemporaryFolder::make() {
  std::error_code error;
  const auto system = std::filesystem::temp_directory_path(error);
  TemporaryFolder folder;
  folder.path_ = (error ? std::filesystem::path("/tmp") : system) / "onnx_fsdp-XXXXXX";
  if (mkdtemp(folder.path_.data()) != nullptr) return folder;
  const std::string wanted = std::exchange(folder.path_, {});
  return fault("{}: cannot be made: {}", wanted, std::strerror(errno));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<ArrayFiles> ArrayFiles::make(std::span<const ColumnArray> train,
                                    std::span<const ColumnArray> eval, bool trains) {
  ArrayFiles files;
  if (train.empty() && eval.empty()) return files;
  OFSDP_REJECT_IF(train.empty() && trains, "eval_data: expected data beside it, found none");
  OFSDP_ASSIGN_OR_RETURN(files.folder_, TemporaryFolder::make());
  std::string yaml;
  if (!train.empty()) {
    OFSDP_ASSIGN_OR_RETURN(const std::string columns, files.add(train));
    yaml = "train:\n" + columns;
  }
  if (!eval.empty()) {
    OFSDP_ASSIGN_OR_RETURN(const std::string columns, files.add(eval));
    yaml += "eval:\n" + columns;
  }
  files.data_ = join_path(files.folder_.path(), "data.yaml");
  std::ofstream file(files.data_);
  file << yaml << std::flush;
  OFSDP_FAULT_IF(!file, "{}: cannot be written: {}", files.data_, std::strerror(errno));
  return files;
}

// The YAML file's lines for the columns.
Result<std::string> ArrayFiles::add(std::span<const ColumnArray> arrays) {
  std::string lines;
  for (const ColumnArray& array : arrays) {
    const size_t number = memory_.size();
    OFSDP_RETURN_IF_ERROR(link(number, array));
    lines += format_text("  {}: {{file: {}.npy}}\n", cli::yaml_quoted(array.name), number);
  }
  return lines;
}

Status ArrayFiles::link(size_t number, const ColumnArray& array) {
  OFSDP_REJECT_IF(!npy_descr(array.dtype), "array '{}': {} is no type of a column", array.name,
                  dtype_name(array.dtype));
  const Result<int64_t> count = checked_numel(array.dims);
  if (!count.ok()) return input_error("array '{}': {}", array.name, count.error().message());
  const std::string header = npy_header(array.dtype, array.dims);
  OpenFile memory{.path = format_text("array '{}'", array.name),
                  .fd = UniqueFd(memory_file("ofsdp"))};
  OFSDP_FAULT_IF(!memory.fd.valid(), "{}: no memory for it: {}", memory.path, std::strerror(errno));
  OFSDP_RETURN_IF_ERROR(
      write_exactly(memory, 0, std::as_bytes(std::span(header.data(), header.size()))));
  const size_t bytes = static_cast<size_t>(*count) * dtype_size(array.dtype);
  OFSDP_RETURN_IF_ERROR(
      write_exactly(memory, static_cast<int64_t>(header.size()), {array.data, bytes}));
  const std::string name = join_path(folder_.path(), format_text("{}.npy", number));
  const std::string target = format_text("/proc/self/fd/{}", memory.fd.get());
  OFSDP_FAULT_IF(symlink(target.c_str(), name.c_str()) != 0, "{}: cannot be made: {}", name,
                 std::strerror(errno));
  memory_.push_back(std::move(memory.fd));
  return {};
}

namespace {

constexpr int kCannotStart = 127;  // as a shell says it

// Programs that this process's other threads start do not inherit the ends.
Status open_pipe(UniqueFd& reads, UniqueFd& writes) {
  int ends[2];
  OFSDP_FAULT_IF(pipe2(ends, O_CLOEXEC) != 0, "pipe: {}", std::strerror(errno));
  reads = UniqueFd(ends[0]);
  writes = UniqueFd(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {};
}

// null-terminated, for exec.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// This process's environment: under torchrun, mpirun or srun the run is this process's rank. A
// call makes no folder for its run unless its options ask for one.
std::vector<std::string> environment_of_run(int rows) {
  constexpr std::string_view kRows = "OFSDP_ROWS_FD=", kRunDir = "OFSDP_RUN_DIR=";
  std::vector<std::string> list{format_text("{}{}", kRows, rows), format_text("{}none", kRunDir)};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with(kRows) && !text.starts_with(kRunDir)) list.emplace_back(text);
  }
  return list;
}

}  // namespace

Result<std::string> program_path() {
  constexpr char kProgram[] = "fsdp-run";
  if (const char* named = std::getenv("OFSDP_PROGRAM"); named != nullptr && *named != 0) {
    OFSDP_REJECT_IF(access(named, X_OK) != 0, "OFSDP_PROGRAM: expected a program, found '{}'",
                    named);
    return std::string(named);
  }
  const auto folder = own_folder();
  std::string tried;
  for (const auto& path : {folder / kProgram, folder.parent_path() / "bin" / kProgram}) {
    if (access(path.c_str(), X_OK) == 0) return path.string();
    tried += (tried.empty() ? "" : ", ") + path.string();
  }
  return input_error("no program {} (looked for {}); OFSDP_PROGRAM may name it", kProgram, tried);
}

Result<std::unique_ptr<Run>> Run::start(Request request) {
  std::unique_ptr<Run> run(new Run(std::move(request)));
  OFSDP_RETURN_IF_ERROR(run->open_pipes());
  OFSDP_RETURN_IF_ERROR(run->launch());
  return run;
}

Status Run::open_pipes() {
  OFSDP_RETURN_IF_ERROR(open_pipe(rows_.fd, rows_end_));
  OFSDP_RETURN_IF_ERROR(open_pipe(errors_.fd, errors_end_));
  return request_.keeps ? open_pipe(output_.fd, output_end_) : Status{};
}

Status Run::launch() {
  OFSDP_ASSIGN_OR_RETURN(const std::string program, program_path());
  std::promise<int> started;  // 0, or errno of fork
  auto body = [this, program, &started] {
    std::vector<std::string> words = request_.words;
    words.insert(words.begin(), program);
    std::vector<std::string> variables = environment_of_run(rows_end_.get());
    const std::vector<char*> argv = pointers(words), environment = pointers(variables);
    const pid_t pid = fork();
    if (pid == 0) become_program(program.c_str(), argv.data(), environment.data());
    pid_ = std::max(pid, 0);
    started.set_value(pid < 0 ? errno : 0);  // from here on `started` is gone
    if (pid <= 0) return;
    // The process keeps its number until it has been waited for.
    siginfo_t ended{};
    while (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
    pid_ = 0;
    waitpid(pid, &wait_status_, 0);
  };
  OFSDP_ASSIGN_OR_RETURN(keeper_, start_thread("ofsdp-run", "the run", std::move(body)));
  const int error = started.get_future().get();
  rows_end_.reset();
  errors_end_.reset();
  output_end_.reset();
  OFSDP_FAULT_IF(error != 0, "{} cannot be started: {}", program, std::strerror(error));
  return {};
}

// In the child, between fork and exec: only calls that are safe there.
void Run::become_program(const char* program, char* const* argv, char* const* environment) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGPIPE, SIGTERM}) std::signal(number, SIG_DFL);
  fcntl(rows_end_.get(), F_SETFD, 0);
  for (const UniqueFd& memory : request_.arrays.inherited()) fcntl(memory.get(), F_SETFD, 0);
  dup2(errors_end_.get(), STDERR_FILENO);
  if (request_.keeps) dup2(output_end_.get(), STDOUT_FILENO);
  if (!request_.keeps && !request_.prints) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
  }
  execve(program, argv, environment);
  _exit(kCannotStart);
}

Run::~Run() {
  if (const pid_t pid = pid_; pid > 0) kill(pid, SIGKILL);
  if (keeper_.joinable()) keeper_.join();
}

void Run::stop() {
  if (const pid_t pid = pid_; pid > 0 && !stopped_) kill(pid, SIGINT);
  stopped_ = true;
}

// Reads all available bytes; closes the pipe at the end.
void Run::drain(Stream& stream) const {
  std::array<char, 16384> piece;
  while (stream.open()) {
    const ssize_t got = read(stream.fd.get(), piece.data(), piece.size());
    if (got > 0) {
      stream.text.append(piece.data(), static_cast<size_t>(got));
    } else if (got == 0) {
      stream.fd.reset();
    } else if (errno != EINTR) {
      return;
    }
  }
}

bool Run::take_row() {
  const size_t end = rows_.text.find('\n');
  if (end == std::string::npos) return false;
  row_ = rows_.text.substr(0, end);
  rows_.text.erase(0, end + 1);
  return true;
}

// Prints warnings; other lines belong to the error.
void Run::take_warnings() {
  for (size_t end; (end = errors_.text.find('\n')) != std::string::npos;) {
    const std::string line = errors_.text.substr(0, end + 1);
    errors_.text.erase(0, end + 1);
    constexpr std::string_view kName = "fsdp-run: ";
    const bool ours = line.starts_with(kName);
    if (ours && !line.substr(kName.size()).starts_with("warning: ")) {
      said_ += line.substr(kName.size());
    } else if (!said_.empty() && !ours) {
      said_ += line;  // advice follows an error
    } else {
      print_lines(stderr, line);
    }
  }
}

Result<Run::Next> Run::next(int milliseconds) {
  if (take_row()) return Next::kRow;
  std::array<pollfd, 3> waits{};
  for (size_t i = 0; const Stream* stream : {&rows_, &errors_, &output_}) {
    waits[i++] = {.fd = stream->fd.get(), .events = POLLIN, .revents = 0};  // -1 is left out
  }
  if (rows_.open() || errors_.open() || output_.open()) {
    poll(waits.data(), waits.size(), milliseconds);
  }
  for (Stream* stream : {&rows_, &errors_, &output_}) drain(*stream);
  take_warnings();
  if (take_row()) return Next::kRow;
  if (rows_.open() || errors_.open() || output_.open()) return Next::kNothingYet;
  OFSDP_RETURN_IF_ERROR(outcome());
  return Next::kEnded;
}

// Says how the process ended. REQUIRES: all pipes have been closed.
Status Run::outcome() {
  if (keeper_.joinable()) keeper_.join();
  printed_ = output_.text;
  if (stopped_) return {};
  const int status = WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : 0;
  if (WIFEXITED(wait_status_) && status == 0) return {};
  std::string line = said_.empty() ? errors_.text : said_;
  while (line.ends_with('\n')) line.pop_back();
  if (WIFSIGNALED(wait_status_)) {
    line = format_text("fsdp-run was killed by signal {}", WTERMSIG(wait_status_));
  } else if (const int number = runtime::stopped_by(status); number != 0) {
    line = format_text("fsdp-run was stopped by signal {}", number);
  } else if (line.empty()) {
    line = format_text("fsdp-run ended with status {}", status);
  }
  return Status(status == 2 ? ErrorKind::kInput : ErrorKind::kFault, line);
}

}  // namespace ofsdp::library
