// RestartPoint: where the ranks of a run would go on from after a failure: the latest checkpoint
// that this run itself has saved, or else the place where it was started.
//
// Checkpoints that lay in the folder before do not count: a run that was started afresh beside old
// ones must not continue those.
//
// Ownership: values. Threads: one at a time. Errors: none; a folder that cannot be read holds none.
#pragma once

#include <cstdint>
#include <string>

namespace ofsdp::cli {

class RestartPoint {
 public:
  // At the start of the run. `dir` empty: it saves nothing.
  explicit RestartPoint(const std::string& dir);
  bool has_saved() const;
  // ": from the latest checkpoint in DIR"
  std::string text() const;

 private:
  struct Latest {
    std::string name;
    uint64_t file = 0;  // the number of its manifest: a checkpoint saved again is another file
    bool operator==(const Latest&) const = default;
  };
  Latest latest() const;

  std::string dir_;
  Latest before_;
};

}  // namespace ofsdp::cli
