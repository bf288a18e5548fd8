// The files of a trained model: their names, and the temporaries that become them.
//
// A temporary is next to its target as `.NAME.TOKEN.tmp` with a random TOKEN, so a rename makes it
// the target whole or not at all. Its process holds a lock on it (flock), which the kernel
// releases. A killed run can leave one; the next run with that target removes files without a lock.
//
// Threads: main thread of rank 0. Errors: kInput naming the path for impossible targets; kFault for
// later failures.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

// Before the first step: checks that `path` can be created or replaced, in an existing, writable
// folder.
Status check_output_path(const std::string& path);

// The same, and checks that writing the trained `input` there destroys no file of the input. The
// path of an input without external data is allowed here, because runtime/plan/run_files.h refuses
// it before.
Status check_output_path(const std::string& path, const OnnxFile& input);

// Returns the names of the data files next to `path`, in the order of the input. Keeps the names of
// the input if possible; if another file has the name (mostly the input's own) or it leads into a
// folder, they become NAME.data, NAME.1.data, ... after the NAME of the output.
Result<std::vector<std::string>> choose_locations(const std::string& path, const OnnxFile& input);

// Creates an empty temporary for `target` and removes stale ones.
Result<std::string> create_temporary(const std::string& target);
Result<std::string> create_temporary_folder(const std::string& target);

// Lets `fill` write a temporary, which becomes `path` on success.
Status write_whole(const std::string& path,
                   const std::function<Status(const std::string& temporary)>& fill);

// Before the first step: checks that `path` can become a folder, or is one with only files of
// `names`, which may be replaced as a whole.
Status check_output_folder(const std::string& path, const std::vector<std::string>& names);

// Renames the temporary to `path` and removes the previous folder.
Status replace_folder(const std::string& temporary, const std::string& path);

}  // namespace ofsdp::importer
