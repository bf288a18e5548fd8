// Speed of the collectives, next to a plain copy of the same bytes measured in turn.
//
//   bench_collectives [RANKS (2)] [MEGABYTES OF A SLOT (16)] [ROUNDS (50)] [HOSTS (1)]
//
// GB/s are bytes that a rank reads and writes: a gather R slices in and out; a reduce-scatter one
// span from R slots in; an all-reduce that, its span out, and R - 1 spans in and out. Best of the
// rounds; in each the copy and the collectives take turns; the last column is the part of
// the copy's GB/s. Several hosts are groups of processes on this one that speak over the loopback.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/stream_socket.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

using Clock = std::chrono::steady_clock;

struct Sizes {
  int ranks;
  int64_t numel;  // in a rank's span
  int rounds;
};

// One timed operation, and the best time.
struct Timed {
  const char* name;
  double bytes;
  std::function<void()> before, run;
  double best = 1e9;

  void once() {
    before();
    const auto begin = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
};

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
  auto together = [&] { must(c.barrier(site)); };
  auto post = [&] {
    must(c.acquire(0, everyone, site));
    c.post(0, everyone, {0, sizes.numel});
    must(c.barrier(site));
  };
  const double r = sizes.ranks, b = static_cast<double>(span);
  float sum = 0;
  auto sink = [&](int64_t, std::span<float> block) { sum += block[0]; };
  const int laps = 200;
  std::vector<Timed> all_timed = {
      {"memcpy", 2 * r * b, together, [&] { std::memcpy(all.data(), *base, slot); }},
      {"all_gather", 2 * r * b, together,
       [&] {
         must(c.all_gather(everyone, {0, 0, sizes.numel}, all.data(), DType::kFloat32, site));
       }},
      {"reduce_scatter", r * b, post,
       [&] {
         must(c.reduce_scatter(0, everyone, {0, sizes.numel}, sink, site));
       }},
      {"all_reduce", (r + 1 + 2 * (r - 1)) * b, post,
       [&] {
         must(c.all_reduce(0, everyone, {0, sizes.numel}, site));
       }},
      {"200 barriers", 0, together, [&] {
         for (int i = 0; i < laps; ++i) must(c.barrier(site));
       }}};
  for (int round = 0; round < sizes.rounds; ++round) {
    for (Timed& timed : all_timed) timed.once();
  }
  if (c.rank() != 0) return;
  const double copy = all_timed[0].bytes / all_timed[0].best;
  fmt::print("{} ranks, {}, {:.0f} MB a slot\n", c.size(), c.name(), r * b / 1e6);
  for (const Timed& timed : all_timed) {
    const double rate = timed.bytes / timed.best;
    fmt::print("{:16} {:9.1f} us {:7.2f} GB/s {:6.2f}\n", timed.name, timed.best * 1e6, rate / 1e9,
               rate / copy);
  }
}

int main_of_rank(const RankIdentity& identity, const Sizes& sizes) {
  MemoryLedger ledger;
  auto connected = connect_ranks(identity, std::chrono::seconds(60));
  if (!connected.ok()) must(std::move(connected).status());
  run(**connected, ledger, sizes);
  must((*connected)->leave());
  return 0;
}

RankIdentity identity_of(int rank, int ranks, int hosts, int port) {
  RankIdentity identity{rank, ranks, rank, format_text("bench-{}-{}", getpgrp(), port)};
  if (hosts == 1) return identity;
  const int here = ranks / hosts;
  identity.local_rank = rank % here;
  identity.local_world = here;
  identity.nodes = hosts;
  identity.node_rank = rank / here;
  identity.master_address = "127.0.0.1";
  identity.master_port = port;
  return identity;
}

int main_of(int ranks, int64_t megabytes, int rounds, int hosts) {
  const Sizes sizes{ranks, (megabytes << 18) / ranks, rounds};
  const int port = free_port();
  for (int rank = 1; rank < ranks; ++rank) {
    if (fork() == 0) _exit(main_of_rank(identity_of(rank, ranks, hosts, port), sizes));
  }
  const int status = main_of_rank(identity_of(0, ranks, hosts, port), sizes);
  while (wait(nullptr) > 0) {
  }
  return status;
}

}  // namespace
}  // namespace ofsdp

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  return ofsdp::main_of(argument(1, 2), argument(2, 16), argument(3, 50), argument(4, 1));
}
