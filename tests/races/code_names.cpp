#include "tests/races/code_names.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <vector>

namespace ofsdp::races {
namespace {

std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return n > 0 ? std::string(path.data(), static_cast<size_t>(n)) : "";
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string all;
  std::array<char, 4096> part{};
  while (pipe && fgets(part.data(), part.size(), pipe.get()) != nullptr) all += part.data();
  return all;
}

// "void a::(anonymous namespace)::f<float, 4>(int)" is "f".
std::string identifier(std::string name) {
  constexpr const char* kAnonymous = "(anonymous namespace)";
  for (size_t at; (at = name.find(kAnonymous)) != std::string::npos;) name.erase(at, 21);
  name = name.substr(0, name.find_first_of("<("));
  const size_t before = name.find_last_of(": ");
  return before == std::string::npos ? name : name.substr(before + 1);
}

// ".../kernels/cuda/norm/norm.cu:72 (discriminator 3)" is "norm/norm.cu:72".
std::string shortened(const std::string& place) {
  const std::string path = place.substr(0, place.find(' '));
  size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) slash = path.rfind('/', slash - 1);
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// The lines for one address: function and place of each inlined call, innermost first.
CodeName name_of(const std::vector<std::string>& lines) {
  if (lines.size() < 2) return {"?", "?", "?"};
  const std::string inner = shortened(lines[1]), outer = shortened(lines[lines.size() / 2 * 2 - 1]);
  return {identifier(lines[lines.size() / 2 * 2 - 2]), outer.substr(0, outer.find(':')),
          inner == outer ? inner : inner + " from " + outer};
}

}  // namespace

void add_code_names(const std::set<uint32_t>& addresses, CodeNames& names) {
  std::ostringstream command;
  command << "addr2line -a -i -f -C -e '" << own_path() << "' 2>&1" << std::hex;
  std::vector<uint32_t> asked;
  for (const uint32_t address : addresses) {
    if (names.contains(address)) continue;
    asked.push_back(address);
    command << " 0x" << address;
  }
  std::istringstream output(asked.empty() ? "" : output_of(command.str()));
  std::vector<std::vector<std::string>> lines;  // for each
  for (std::string line; std::getline(output, line);) {
    if (line.starts_with("0x")) {
      lines.emplace_back();
    } else if (!lines.empty()) {
      lines.back().push_back(line);
    }
  }
  lines.resize(asked.size());
  for (size_t i = 0; i < asked.size(); ++i) names[asked[i]] = name_of(lines[i]);
}

}  // namespace ofsdp::races
