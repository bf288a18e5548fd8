// cuda_races [--all] [--only TEXT] [--seed N] [--planted]
//
//   cuda_races            planted mistakes, the table at small sizes, and that it has every kernel
//   cuda_races --all      more types and sizes, with three seeds
//   --only TEXT           rows with this in their names
//   --planted             only planted mistakes
//
// Exit status: 0 no finding, 1 a finding, 2 a wrong call. Each finding is a line.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/races/coverage.h"
#include "tests/races/planted.h"
#include "tests/races/table.h"

namespace {

using namespace ofsdp::races;

struct Call {
  bool all = false, planted = false;
  std::string only;
  uint64_t seed = 1;
  int seeds = 1;
};

bool read(int count, char** words, Call& call) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--all") {
      call.all = true;
      call.seeds = 3;
    } else if (word == "--planted") {
      call.planted = true;
    } else if (word == "--only" && i + 1 < count) {
      call.only = words[++i];
    } else if (word == "--seed" && i + 1 < count) {
      call.seed = std::strtoull(words[++i], nullptr, 10);
    } else {
      return false;
    }
  }
  return true;
}

void add_rows(Table& table) {
  add_attention_rows(table);
  add_norm_rows(table);
  add_loss_rows(table);
  add_pointwise_rows(table);
  add_shape_rows(table);
  add_indexing_rows(table);
  add_image_rows(table);
  add_training_rows(table);
}

int run_table(Watched& watched, const Call& call) {
  int faults = 0;
  for (uint64_t seed = call.seed; seed < call.seed + static_cast<uint64_t>(call.seeds); ++seed) {
    emulator::set_seed(seed);
    Table table(&watched, call.all, call.only);
    add_rows(table);
    std::printf("seed %lu: %d launches in two orders, %d findings\n", seed, table.rows(),
                table.faults());
    faults += table.faults() + (table.rows() == 0 ? 1 : 0);
  }
  return faults;
}

int check_coverage(const Watched& watched) {
  const auto faults = coverage_faults(OFSDP_SOURCE_DIR, watched.kernels());
  for (const std::string& line : faults) std::printf("%s\n", line.c_str());
  return static_cast<int>(faults.size());
}

}  // namespace

int main(int count, char** words) {
  Call call;
  if (!read(count, words, call)) {
    std::fprintf(stderr, "cuda_races [--all] [--only TEXT] [--seed N] [--planted]\n");
    return 2;
  }
  Watched watched;
  if (call.planted) return check_planted(watched) == 0 ? 0 : 1;
  int faults = call.only.empty() ? check_planted(watched) : 0;
  faults += run_table(watched, call);
  if (call.only.empty()) faults += check_coverage(watched);
  return faults == 0 ? 0 : 1;
}
