// ArrayFiles: a caller's arrays as a `--data` file for the processes of a run: each array in memory
// without a name, as .npy, which the processes inherit; a folder of links names them, and a YAML
// file beside the links the columns.
//
// Ownership: owns memory and folder. Threads: one. Errors: kInput for an array that no column can
// be; kFault of the system (no room, no temporary folder).
#pragma once

#include <string>
#include <vector>

#include "kernels/base/posix_file.h"
#include "library/temporary_folder.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::library {

class ArrayFiles {
 public:
  // Without arrays: none, and `data` is empty.
  static Result<ArrayFiles> make(std::span<const ColumnArray> train,
                                 std::span<const ColumnArray> eval);

  const std::string& data() const { return data_; }  // the value of --data
  const std::vector<UniqueFd>& inherited() const { return memory_; }

 private:
  Result<std::string> add(std::span<const ColumnArray> arrays);
  Status link(size_t number, const ColumnArray& array);

  TemporaryFolder folder_;
  std::string data_;
  std::vector<UniqueFd> memory_;
};

}  // namespace ofsdp::library
