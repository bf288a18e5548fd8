// The library's runs: the temporary folder, the arrays as files, the process.
//
// TemporaryFolder: this user's folder in the system's temporary folder.
//
// The destructor removes the folder and everything in it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"
#include "library/settings.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::library {

class TemporaryFolder {
 public:
  static Result<TemporaryFolder> make();
  TemporaryFolder() = default;
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// ArrayFiles: a caller's arrays as a `--data` file for a run's processes: each array in memory
// without a name, as .npy, which the processes inherit; a folder with links names them, and a YAML
// file beside the links the columns.
//
// Owns memory and folder. An array that cannot be a column is an input error; no room or no
// temporary folder is a fault.

class ArrayFiles {
 public:
  // Without arrays `data` is empty. `trains`: `eval` needs `train` beside it.
  static Result<ArrayFiles> make(std::span<const ColumnArray> train,
                                 std::span<const ColumnArray> eval, bool trains);

  const std::string& data() const { return data_; }  // the value for --data
  const std::vector<UniqueFd>& inherited() const { return memory_; }

 private:
  Result<std::string> add(std::span<const ColumnArray> arrays);
  Status link(size_t number, const ColumnArray& array);

  TemporaryFolder folder_;
  std::string data_;
  std::vector<UniqueFd> memory_;
};

// Run: fsdp-run in a separate process, with the metrics file's rows as they come.
//
// The run's thread starts the process and waits for it, so that the process ends when this one does
// (PR_SET_PDEATHSIG is tied to a thread), whichever thread asks for rows. Rank 0 writes rows to an
// inherited pipe. stderr is another: warnings go on to this process's stderr, and an error line
// becomes the run's error.
//
// Owns processes, pipes and arrays. One thread at a time. Errors have the program's line and follow
// its exit status; it is a fault if the program cannot be started or was killed.

class Run {
 public:
  struct Request {
    std::vector<std::string> words;  // the command line without the program's name
    ArrayFiles arrays;
    bool prints = false;  // stdout stays this process's; else nobody reads it
    bool keeps = false;   // stdout is kept for `printed`
  };
  enum class Next { kRow, kNothingYet, kEnded };

  static Result<std::unique_ptr<Run>> start(Request request);
  Run(const Run&) = delete;
  ~Run();  // kills the processes that still run

  // Waits for a row, at most for the given time.
  Result<Next> next(int milliseconds);
  const std::string& row() const { return row_; }
  // An ended process's output, if the request keeps it.
  const std::string& printed() const { return printed_; }

  void stop();
  bool stopped() const { return stopped_; }

 private:
  // One pipe from the process, and the text read so far.
  struct Stream {
    UniqueFd fd;
    std::string text;
    bool open() const { return fd.valid(); }
  };

  explicit Run(Request request) : request_(std::move(request)) {}

  Status open_pipes();
  Status launch();
  void become_program(const char* program, char* const* argv, char* const* environment) const;
  bool take_row();
  void take_warnings();
  void drain(Stream& stream) const;
  Status outcome();

  Request request_;
  Stream rows_, errors_, output_;
  UniqueFd rows_end_, errors_end_, output_end_;  // the process's
  std::string row_, printed_, said_;
  std::atomic<pid_t> pid_ = 0;  // 0: not started or ended
  int wait_status_ = 0;         // after the thread's end
  bool stopped_ = false;
  std::thread keeper_;
};

// Returns the path to the program that runs ranks: OFSDP_PROGRAM, beside us, or in ../bin; an input
// error if there is none.
Result<std::string> program_path();

}  // namespace ofsdp::library
