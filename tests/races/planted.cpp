#include "tests/races/planted.h"

#include <algorithm>
#include <cstdio>

namespace ofsdp::races {
namespace {

constexpr uint64_t kSeeds[] = {1, 2, 3};

bool names_all(const Planted& p, const std::string& line) {
  return line.find(p.words) != std::string::npos && line.find(p.kernel) != std::string::npos &&
         line.find("planted_kernels.cpp:") != std::string::npos;
}

void print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("  %s\n", line.c_str());
}

// Checks a planted mistake and its right twin, in one order.
bool is_right(Watched& watched, const Planted& p, bool backwards, bool first) {
  const auto run = [&](bool mistaken) {
    return watched.run(backwards, [&](Buffers& m) { return p.launch(m, mistaken); });
  };
  const std::vector<std::string> found = run(true), twin = run(false);
  const auto line = std::ranges::find_if(found, [&](const auto& l) { return names_all(p, l); });
  const bool right = line != found.end();
  if (first && right) print({*line});
  if (right && twin.empty()) return true;
  std::printf("planted %s: expected a line with \"%s\" and none of its twin; found:\n", p.kernel,
              p.words);
  print(found);
  std::printf(" of the twin:\n");
  print(twin);
  return false;
}

// Blocks run in a drawn order: another seed gives another last block, and backwards it is the
// first.
bool blocks_are_drawn(Watched& watched) {
  std::set<float> last;
  bool turned = true;
  for (uint64_t seed = 1; seed < 9; ++seed) {
    emulator::set_seed(seed);
    const float forwards = last_of_blocks(watched, false);
    turned = turned && forwards != last_of_blocks(watched, true);
    last.insert(forwards);
  }
  if (turned && last.size() > 1) return true;
  std::printf("blocks do not run in a drawn order\n");
  return false;
}

}  // namespace

int check_planted(Watched& watched) {
  int wrong = 0;
  for (const Planted& p : planted_kernels()) {
    for (const uint64_t seed : kSeeds) {
      emulator::set_seed(seed);
      for (const bool backwards : {false, true}) {
        wrong += is_right(watched, p, backwards, seed == kSeeds[0] && !backwards) ? 0 : 1;
      }
    }
  }
  wrong += blocks_are_drawn(watched) ? 0 : 1;
  emulator::set_seed(kSeeds[0]);
  return wrong;
}

}  // namespace ofsdp::races
