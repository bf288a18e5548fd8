#include "runtime/cli/launch/core_shares.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

namespace ofsdp::cli {
namespace {

int number_in(const std::string& path) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? number : 0;
}

// Socket, memory node, core, and the processor's own number: in this order neighbours are close.
std::array<int, 4> place_of(const std::string& root, int processor) {
  const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(processor);
  int node = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("node")) node = std::atoi(name.c_str() + 4);
  }
  return {number_in(folder + "/topology/physical_package_id"), node,
          number_in(folder + "/topology/core_id"), processor};
}

}  // namespace

std::vector<cpu_set_t> core_shares(const cpu_set_t& all, int nproc, const std::string& root) {
  if (CPU_COUNT(&all) < nproc) return {};
  std::vector<std::array<int, 4>> places;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &all)) places.push_back(place_of(root, processor));
  }
  std::ranges::sort(places);
  std::vector<cpu_set_t> shares(static_cast<size_t>(nproc));
  for (size_t i = 0; i < places.size(); ++i) {
    CPU_SET(places[i][3], &shares[i * shares.size() / places.size()]);
  }
  return shares;
}

}  // namespace ofsdp::cli
