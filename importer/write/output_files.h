// The files of a trained model: their names, and the temporaries that become them.
//
// A temporary is next to its target as `.NAME.TOKEN.tmp`, TOKEN a random number, so that a rename
// makes it the target whole or not at all. Its process holds a lock on it (flock), which the kernel
// releases. A killed run can leave one; the next run with that target removes those that nobody
// has locked.
//
// Threads: rank 0's main thread. Errors: kInput for targets that cannot be, naming the path; kFault
// for later failures.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

// Before the first step: `path` can be created or replaced, its folder is there and can be written.
Status check_output_path(const std::string& path);

// The same, and writing what was trained from `input` there destroys nothing of the input's. The
// path of an input without external data is fine here: runtime/plan/run_files.h refuses it before.
Status check_output_path(const std::string& path, const OnnxFile& input);

// Returns the names of the data files next to `path`, in the order of input's: as the input names
// them where that is possible, else (a name is taken by another file, most often the input's own,
// or leads into a folder) NAME.data, NAME.1.data, ... after the output's NAME.
Result<std::vector<std::string>> choose_locations(const std::string& path, const OnnxFile& input);

// A new, empty temporary for `target`, in place of stale ones.
Result<std::string> create_temporary(const std::string& target);
Result<std::string> create_temporary_folder(const std::string& target);

// Lets `fill` write a temporary, which becomes `path` when that succeeds.
Status write_whole(const std::string& path,
                   const std::function<Status(const std::string& temporary)>& fill);

// Before the first step: `path` can be made a folder, or is one that holds nothing but files of
// `names`, which may be replaced as a whole.
Status check_output_folder(const std::string& path, const std::vector<std::string>& names);

// The temporary becomes `path`; what was there goes.
Status replace_folder(const std::string& temporary, const std::string& path);

}  // namespace ofsdp::importer
