// Names of addresses of this program's code, as addr2line gives them (binutils, which every g++
// has). Threads: one. Errors: what is not known is "?".
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace ofsdp::races {

struct CodeName {
  std::string function;  // its own, without arguments and folders: "forward_held"
  std::string file;      // the last two parts of the path: "norm/norm.cu"
  std::string place;     // "norm/norm.cu:72"; with the outermost caller where it was inlined
};
using CodeNames = std::map<uint32_t, CodeName>;
// Adds those that are not there yet, by one call of addr2line.
void add_code_names(const std::set<uint32_t>& addresses, CodeNames& names);

}  // namespace ofsdp::races
