// Run: fsdp-run in a process of its own, with the rows of its metrics file as they come.
//
// A thread of the run starts the process and waits for it, so that the process ends when this one
// does (PR_SET_PDEATHSIG is tied to a thread), whichever thread of the caller asks for rows. Rank 0
// writes rows to an inherited pipe. stderr is another: warnings go on to this process's stderr, and
// the line of an error becomes the run's.
//
// Ownership: owns processes, pipes and arrays. Threads: one at a time. Errors: kInput and kFault as
// the program's exit status says, with its line; kFault when it cannot be started or was killed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <optional>
#include <thread>

#include "library/array_files.h"

namespace ofsdp::library {

class Run {
 public:
  struct Request {
    std::vector<std::string> words;  // of the command line, without the program's name
    ArrayFiles arrays;
    bool prints = false;  // stdout stays this process's; else nobody reads it
    bool keeps = false;   // stdout is kept for `printed`
  };
  enum class Next { kRow, kNothingYet, kEnded };

  static Result<std::unique_ptr<Run>> start(Request request);
  Run(const Run&) = delete;
  ~Run();  // kills what is left

  // Waits at most so long for a row.
  Result<Next> next(int milliseconds);
  const std::string& row() const { return row_; }
  // The output of a process that has ended, where the request keeps it.
  const std::string& printed() const { return printed_; }

  void stop();
  bool stopped() const { return stopped_; }

 private:
  // One pipe from the process, and what has come of it.
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

// The program that runs ranks: OFSDP_PROGRAM, beside us, or in ../bin. kInput when it is nowhere.
Result<std::string> program_path();

}  // namespace ofsdp::library
