#include "runtime/commands/demo.h"

#include <errno.h>  // program_invocation_name
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/escaped.h"
#include "kernels/base/own_folder.h"
#include "runtime/commands/demo_files.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;

using CommandWords = std::vector<std::string>;

constexpr std::string_view kMark = "#!/bin/sh\n# Written by fsdp-run demo.\n";

bool is_demo_folder(const fs::path& folder) {
  std::ifstream script(folder / "commands.sh", std::ios::binary);
  std::string start(kMark.size(), '\0');
  script.read(start.data(), static_cast<std::streamsize>(start.size()));
  return script.gcount() == static_cast<std::streamsize>(start.size()) && start == kMark;
}

Status check_demo_folder(const std::string& folder) {
  std::error_code error;
  const fs::file_status found = fs::status(folder, error);
  if (!fs::exists(found)) return {};
  if (!fs::is_directory(found)) {
    return input_error("--output-dir {}: expected a folder, found a file", folder);
  }
  const fs::directory_iterator entries(folder, error);
  if (error || entries == fs::directory_iterator() || is_demo_folder(folder)) return {};
  return input_error(
      "--output-dir {}: expected an empty folder or that of an earlier demo, found '{}' in it",
      folder, entries->path().filename().string());
}

Status make_demo_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0)
    error.assign(errno, std::generic_category());
  if (!error) return {};
  return input_error("--output-dir {}: expected a folder that can be written, found: {}", folder,
                     error.message());
}

// The command as a shell reads it.
std::string shell_line(const CommandWords& words) {
  std::string line;
  for (const std::string& word : words) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
    const bool plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    std::string quoted = plain ? word : "'";
    if (!plain) {
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      quoted += '\'';
    }
    line += (line.empty() ? "" : " ") + quoted;
  }
  return line;
}

std::vector<CommandWords> demo_commands(const std::string& folder) {
  const std::string program = program_invocation_name;
  const std::string model = folder + "/digits.onnx", trained = folder + "/trained.onnx";
  return {
      {program, "eval", model, "--loss", "cross_entropy"},
      {program, model, "--loss", "cross_entropy", "--nproc-per-node", "2", "--strategy",
       "full_shard", "--batch-size", "16", "--epochs", "6", "--lr", "0.005", "--lr-schedule",
       "cosine", "--output", trained},
      {program, "eval", trained, "--loss", "cross_entropy"},
  };
}

[[noreturn]] void become(const CommandWords& words, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(own_program().c_str(), argv.data());
  _exit(1);
}

// Runs this program with other words, to its end.
Result<int> run_command(const CommandWords& words) {
  print_lines(stdout, "\n$ " + shell_line(words) + "\n");
  std::fflush(stdout);
  const pid_t parent = getpid(), child = fork();
  if (child < 0) return fault("cannot start {}: fork: {}", words.front(), std::strerror(errno));
  if (child == 0) become(words, parent);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return fault("{} was killed by signal {}", shell_line(words), WTERMSIG(status));
}

Status refuse_as_rank() {
  OFSDP_ASSIGN_OR_RETURN(const auto identity, rank_identity_from_environment());
  if (!identity) return {};
  return input_error("fsdp-run demo: starts two ranks itself, found one that {} has started",
                     identity->started_by);
}

}  // namespace

Result<int> run_demo(const Options& options) {
  const std::string& folder = options.demo_folder;
  OFSDP_RETURN_IF_ERROR(refuse_as_rank());
  OFSDP_RETURN_IF_ERROR(check_demo_folder(folder));
  OFSDP_RETURN_IF_ERROR(make_demo_folder(folder));
  const std::vector<CommandWords> commands = demo_commands(folder);
  std::string script(kMark);
  for (const CommandWords& words : commands) script += shell_line(words) + "\n";
  OFSDP_RETURN_IF_ERROR(write_demo_file(folder + "/commands.sh", script));  // marks the folder
  OFSDP_RETURN_IF_ERROR(write_demo_file(folder + "/digits.onnx", demo_model()));
  OFSDP_RETURN_IF_ERROR(write_demo_data(folder));
  print_lines(stdout,
              format_text("wrote {}/digits.onnx, a convolutional network with random weights\n"
                          "wrote {}/data, {} images of digits to train on and {} to evaluate\n",
                          folder, folder, kDemoTrainingSamples, kDemoEvalSamples));
  for (const CommandWords& words : commands) {
    OFSDP_ASSIGN_OR_RETURN(const int status, run_command(words));
    if (status != 0) return status;
  }
  print_lines(stdout, format_text("\nThe trained file is {}/trained.onnx; the commands stand in "
                                  "{}/commands.sh.\n",
                                  folder, folder));
  return 0;
}

}  // namespace ofsdp::runtime
