// The folder of the program or library that this code is in: fsdp-run, a test, or libonnx_fsdp.so,
// wherever it was copied to. Our own files (libraries that are loaded at run time, the program that
// runs ranks) are found from there.
//
// Returns an empty path if the system does not say.
#pragma once

#include <array>
#include <filesystem>
#include <string>

namespace ofsdp::base {

std::filesystem::path own_folder();

// Returns where to look for a library of ours that is loaded at run time, in this order: next to
// us, in the folder above (for tests), and by the name alone, where the loader looks. No further
// up: in a folder like /tmp others may have put one.
std::array<std::string, 3> own_library_paths(const std::string& name);

// Returns the path of the running program, to start it again: by the name, so that a list of
// processes shows it; through /proc if the file has been replaced.
std::string own_program();

}  // namespace ofsdp::base
