#include "runtime/train/setup/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "fsdp/checkpoint/disk.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/text.h"
#include "runtime/engine/shared_text.h"

namespace ofsdp::runtime {
namespace {

constexpr const char* kCommandFile = "command.txt";
constexpr const char* kIdFile = ".run";
constexpr int64_t kMaxText = 1 << 20;
constexpr int kMaxNames = 100000;  // NAME-2, NAME-3, ...

std::string today() {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  char text[16] = "";
  (void)strftime(text, sizeof text, "%Y-%m-%d", &local);
  return text;
}

// Returns PARENT/NAME, PARENT/NAME-2, ...
std::string numbered(const std::string& parent, const std::string& name, int number) {
  return join_path(parent, number == 1 ? name : format_text("{}-{}", name, number));
}

// Writes a temporary file and renames it.
Status write_renamed(const std::string& path, const std::string& text) {
  OFSDP_RETURN_IF_ERROR(write_whole_file(path + ".tmp", text));
  return take_name(path + ".tmp", path);
}

// Every rank saves its part of a checkpoint there; without this check the first save would fail.
Status check_shared(const std::string& path, Communicator& communicator) {
  const double sees = is_folder(path) ? 1 : 0;
  std::vector<double> all(static_cast<size_t>(communicator.size()));
  OFSDP_RETURN_IF_ERROR(communicator.exchange({&sees, 1}, all, {"folder of the run", -1, 0}));
  const auto blind = std::ranges::find(all, 0.0);
  OFSDP_REJECT_IF(blind != all.end(),
                  "--run-dir: {}: rank {} does not see it: expected a folder that the ranks of all "
                  "hosts share (--run-dir none keeps nothing)",
                  path, blind - all.begin());
  return {};
}

bool is_restarted() {
  const char* const restart = std::getenv("OFSDP_RESTART");
  return restart != nullptr && *restart != 0;
}

}  // namespace

std::string run_name(const Options& options, const ModelOrigin& origin) {
  if (!options.folder.name.empty()) return options.folder.name;
  const std::filesystem::path model(origin.artifacts.empty() ? options.model : origin.artifacts);
  const auto named = model.has_filename() ? model : model.parent_path();  // a slash at the end
  const std::string stem =
      origin.artifacts.empty() ? named.stem().string() : named.filename().string();
  return today() + "-" + stem;
}

std::string expected_run_folder(const Options& options, const ModelOrigin& origin) {
  const RunFolderOptions& folder = options.folder;
  if (!folder.taken.empty() || folder.parent.empty()) return folder.taken;
  const std::string name = run_name(options, origin);
  int number = 1;
  while (!is_absent(numbered(folder.parent, name, number)) && number < kMaxNames) ++number;
  return numbered(folder.parent, name, number);
}

std::string find_run_folder(const std::string& parent, const std::string& run_id) {
  if (parent.empty() || run_id.empty()) return "";
  const auto names = list_folder(parent);
  if (!names.ok()) return "";
  for (const std::string& name : *names) {
    const std::string folder = join_path(parent, name);
    const auto id = read_whole_file(join_path(folder, kIdFile), kMaxText);
    if (id.ok() && *id == run_id) return folder;
  }
  return "";
}

std::string checkpoint_folder(const Options& options, const std::string& run_folder) {
  if (!options.checkpoint.dir.empty()) return options.checkpoint.dir;
  return run_folder.empty() ? "" : join_path(run_folder, "checkpoints");
}

Result<RunCommand> read_run_command(const std::string& run_folder) {
  const std::string path = join_path(run_folder, kCommandFile);
  if (!is_file(path)) {
    const char* const found = is_folder(run_folder) ? "a folder without it" : "no folder";
    return input_error("resume {}: expected the folder of a run, with its {}, found {}", run_folder,
                       kCommandFile, found);
  }
  OFSDP_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxText));
  OFSDP_ASSIGN_OR_RETURN(const auto words, prefixed(path, shell_words(text)));
  const bool good = words.size() > 4 && words[0] == "cd" && words[2] == "&&";
  OFSDP_REJECT_IF(!good, "{}: expected `cd FOLDER && COMMAND`, found '{}'", path, text);
  return RunCommand{.folder = words[1], .words = {words.begin() + 3, words.end()}};
}

RunFolder::RunFolder(RunFolder&& other) noexcept { *this = std::move(other); }

RunFolder& RunFolder::operator=(RunFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(parent_, other.parent_);
  std::swap(new_, other.new_);
  std::swap(log_, other.log_);
  return *this;
}

RunFolder::~RunFolder() {
  if (new_) remove();
}

// Nobody else has written there: the folder is new, and its run has not begun.
void RunFolder::remove() {
  log_.reset();
  (void)remove_all(path_);
  if (!parent_.empty()) rmdir(parent_.c_str());  // fails if another run has a folder there
}

Result<RunFolder> RunFolder::open(const Options& options, const ModelOrigin& origin,
                                  Communicator& communicator, const std::string& run_id) {
  RunFolder folder;
  const RunFolderOptions& asked = options.folder;
  if (asked.taken.empty() && asked.parent.empty()) return folder;
  if (communicator.rank() == 0) {
    folder.path_ = asked.taken;
    if (folder.path_.empty() && is_restarted()) {
      folder.path_ = find_run_folder(asked.parent, run_id);
    }
    if (folder.path_.empty()) {
      OFSDP_RETURN_IF_ERROR(folder.make(asked.parent, run_name(options, origin), run_id));
    }
  }
  OFSDP_ASSIGN_OR_RETURN(folder.path_, text_of_rank0(communicator, folder.path_));
  OFSDP_RETURN_IF_ERROR(check_shared(folder.path_, communicator));
  return folder;
}

Status RunFolder::make(const std::string& parent, const std::string& name,
                       const std::string& run_id) {
  const bool absent = is_absent(parent);
  if (const Status made = make_folders(parent); !made.ok()) {
    return input_error("--run-dir: {} (--run-dir none keeps nothing)", made.message());
  }
  std::string path = numbered(parent, name, 1);
  for (int number = 2; mkdir(path.c_str(), 0777) != 0; ++number) {
    if (errno != EEXIST || number > kMaxNames) {
      return input_error(
          "--run-dir: {}: folder cannot be created: {} (--run-dir none keeps nothing)", path,
          std::strerror(errno));
    }
    path = numbered(parent, name, number);
  }
  path_ = path;
  parent_ = absent ? parent : "";
  new_ = true;
  return run_id.empty() ? ok_status() : write_renamed(join_path(path_, kIdFile), run_id);
}

void RunFolder::fill(Options& options, const ModelOrigin& origin) const {
  if (path_.empty()) return;
  options.folder.path = path_;
  options.folder.keeps_checkpoints = options.checkpoint.dir.empty();
  options.checkpoint.dir = checkpoint_folder(options, path_);
  OutputOptions& files = options.files;
  if (files.metrics.empty()) files.metrics = join_path(path_, "metrics.jsonl");
  if (!files.output.empty()) return;
  options.folder.keeps_model = true;
  files.output = join_path(path_, origin.artifacts.empty() ? "model.onnx" : "model");
}

Status RunFolder::begin(const std::vector<std::string>& command, const std::string& configuration) {
  if (path_.empty()) return {};
  const std::string path = join_path(path_, kCommandFile);
  if (!command.empty() && !is_file(path)) {
    std::error_code error;
    const std::string here = std::filesystem::current_path(error).string();
    const std::string line = shell_line({"cd", here}) + " && " + shell_line(command) + "\n";
    OFSDP_RETURN_IF_ERROR(write_renamed(path, line));
  }
  OFSDP_RETURN_IF_ERROR(write_renamed(join_path(path_, "config.yaml"), configuration));
  const std::string log = join_path(path_, "log.txt");
  log_ =
      UniqueFd(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (log_.valid()) return {};
  return fault("{}: cannot be opened: {}", log, std::strerror(errno));
}

// As with the screen, the run matters more than the log.
void RunFolder::log(std::string_view text) const {
  if (!log_.valid()) return;
  [[maybe_unused]] const int lost = write_text(log_.get(), text);
}

}  // namespace ofsdp::runtime
