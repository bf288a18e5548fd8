// Names for addresses in this program's code, from addr2line (binutils, which every g++ has).
// Threads: one. Errors: an unknown name is "?".
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace ofsdp::races {

struct CodeName {
  std::string function;  // without arguments and folders: "forward_held"
  std::string file;      // the path's last two parts: "norm/norm.cu"
  std::string place;     // "norm/norm.cu:72"; for inlined code with the outermost caller
};
using CodeNames = std::map<uint32_t, CodeName>;
// Adds the missing addresses, by one call to addr2line.
void add_code_names(const std::set<uint32_t>& addresses, CodeNames& names);

}  // namespace ofsdp::races
