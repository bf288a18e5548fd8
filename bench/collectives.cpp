// How fast the collectives of one host are, beside a plain copy of the same bytes.
//
//   bench_collectives [RANKS (2)] [MEGABYTES OF A SLOT (16)] [ROUNDS (50)]
//
// GB/s are bytes that a rank reads and writes: a gather R slices in and out; a reduce-scatter one
// span of R slots in; an all-reduce that, its span out, and R - 1 spans in and out. Best of the
// rounds.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "fsdp/local_communicator.h"

namespace ofsdp {
namespace {

using Clock = std::chrono::steady_clock;

struct Sizes {
  int ranks;
  int64_t numel;  // of a rank's span
  int rounds;
};

double best_seconds(int rounds, const std::function<void()>& before,
                    const std::function<void()>& timed) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    before();
    const auto begin = Clock::now();
    timed();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

void must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}\n", status.message());
  std::_Exit(1);
}

void run(Communicator& c, MemoryLedger& ledger, const Sizes& sizes) {
  const CollectiveSite site{"bench", 0, 0};
  const RankGroup everyone{0, c.size()};
  const size_t span = static_cast<size_t>(sizes.numel) * sizeof(float);
  const size_t slot = span * static_cast<size_t>(sizes.ranks);
  auto base = c.allocate_shared(ledger, slot);
  if (!base.ok()) must(std::move(base).status());
  std::vector<std::byte> all(slot, std::byte{1});
  auto report = [&](const char* name, double seconds, double bytes) {
    if (c.rank() != 0) return;
    fmt::print("{:16} {:9.1f} us {:7.2f} GB/s\n", name, seconds * 1e6, bytes / seconds / 1e9);
  };
  auto together = [&] { must(c.barrier(site)); };
  auto post = [&] {
    must(c.acquire(0, everyone, site));
    c.post(0, everyone, {0, sizes.numel});
    must(c.barrier(site));
  };
  const double r = sizes.ranks, b = static_cast<double>(span);

  report("memcpy",
         best_seconds(sizes.rounds, together, [&] { std::memcpy(all.data(), *base, slot); }),
         2 * r * b);
  report("all_gather",
         best_seconds(
             sizes.rounds, together,
             [&] {
               must(c.all_gather(everyone, {0, 0, sizes.numel}, all.data(), DType::kFloat32, site));
             }),
         2 * r * b);
  float sum = 0;
  auto sink = [&](int64_t, std::span<float> block) { sum += block[0]; };
  report("reduce_scatter",
         best_seconds(sizes.rounds, post,
                      [&] {
                        must(c.reduce_scatter(0, everyone, {0, sizes.numel}, sink, site));
                      }),
         r * b);
  report("all_reduce",
         best_seconds(sizes.rounds, post,
                      [&] {
                        must(c.all_reduce(0, everyone, {0, sizes.numel}, site));
                      }),
         (r + 1 + 2 * (r - 1)) * b);
  const int laps = 2000;
  const double lap = best_seconds(5, together, [&] {
    for (int i = 0; i < laps; ++i) must(c.barrier(site));
  });
  report("barrier", lap / laps, 0);
}

int main_of_rank(int rank, const Sizes& sizes, const std::string& name) {
  MemoryLedger ledger;
  auto connected = connect_local({rank, sizes.ranks, rank, name, ""}, std::chrono::seconds(60));
  if (!connected.ok()) must(std::move(connected).status());
  run(**connected, ledger, sizes);
  (*connected)->leave();
  return 0;
}

}  // namespace
}  // namespace ofsdp

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t megabytes = argc > 2 ? std::atoi(argv[2]) : 16;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 50;
  const ofsdp::Sizes sizes{ranks, (megabytes << 18) / ranks, rounds};
  const std::string name = fmt::format("bench-{}", getpid());
  for (int rank = 1; rank < ranks; ++rank) {
    if (fork() == 0) _exit(ofsdp::main_of_rank(rank, sizes, name));
  }
  const int status = ofsdp::main_of_rank(0, sizes, name);
  while (wait(nullptr) > 0) {
  }
  return status;
}
