// Every collective, on one to five ranks, against a plain loop over the ranks' values: bit for bit,
// for sizes from nothing to megabytes, again and again while the ranks drift apart.
#include "fsdp/comm/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/cpu/stored_floats.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace communicator_test {

constexpr size_t kValues = 65537;  // a prime, so that no slot or block is a period

// Numbers with mixed magnitude, so that another order of additions gives other bits.
const std::array<float, kValues> kTable = [] {
  std::array<float, kValues> table;
  std::mt19937 random(1);
  for (float& x : table) {
    const uint32_t bits = random();
    x = std::ldexp(static_cast<float>(bits >> 8) / 16777216.0f - 0.5f, int(bits % 21) - 10);
  }
  return table;
}();

// A rank's value, which any rank can compute; -1: no rank's.
float value(int rank, int round, int64_t i) {
  const auto of_rank = static_cast<uint64_t>(rank + 1) * 7919;
  const auto of_round = static_cast<uint64_t>(round) * 104729;
  return kTable[(static_cast<uint64_t>(i) + of_rank + of_round) % kValues];
}

// In rank order inside each host, then over the hosts.
float sum_over_ranks(const std::vector<int>& hosts, int round, int64_t i) {
  float sum = 0;
  int rank = 0;
  for (size_t h = 0; h < hosts.size(); ++h) {
    float of_host = value(rank++, round, i);
    for (int r = 1; r < hosts[h]; ++r) of_host += value(rank++, round, i);
    sum = h == 0 ? of_host : sum + of_host;
  }
  return sum;
}

std::vector<int> g_hosts;  // in the running test

RankGroup everyone(const Communicator& c) { return {0, c.size()}; }

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Now and then a rank is late, so that the others reach every kind of wait.
void drift(std::mt19937& random) {
  const uint32_t dice = random() % 64;
  if (dice == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
  if (dice < 8) {
    for (volatile uint32_t i = 0; i < random() % 20000;) i = i + 1;
  }
}

void fill_slot(float* slot, int64_t count, int rank, int round) {
  for (int64_t i = 0; i < count; ++i) slot[i] = value(rank, round, i);
}

Status check_block(const Communicator& c, int round, int64_t numel, int64_t begin,
                   std::span<float> block) {
  if (begin % kReduceBlock != 0 || block.size() > static_cast<size_t>(kReduceBlock)) {
    return fault("block of {} at {}", block.size(), begin);
  }
  for (size_t i = 0; i < block.size(); ++i) {
    const int64_t element = c.rank() * numel + begin + static_cast<int64_t>(i);
    const float expected = sum_over_ranks(g_hosts, round, element);
    if (!same_bits(block[i], expected)) {
      return fault("rank {} element {} of {}: {} expected {}", c.rank(), element, numel, block[i],
                   expected);
    }
  }
  return {};
}

Status reduce_once(Communicator& c, std::byte* base, size_t offset, int channel, int round,
                   int64_t numel) {
  const CollectiveSite site{"reduce-scatter", channel, round};
  OFSDP_RETURN_IF_ERROR(c.acquire(channel, everyone(c), site));
  fill_slot(reinterpret_cast<float*>(base + offset), numel * c.size(), c.rank(), round);
  c.post(channel, everyone(c), {offset, numel});
  Status found;
  int64_t next = 0;
  auto sink = [&](int64_t begin, std::span<float> block) {
    if (!found.ok()) return;
    found = begin == next ? check_block(c, round, numel, begin, block)
                          : fault("block at {}, expected {}", begin, next);
    next = begin + static_cast<int64_t>(block.size());
    for (float& x : block) x = -1;  // allowed, and must not reach a peer
  };
  OFSDP_RETURN_IF_ERROR(c.reduce_scatter(channel, everyone(c), {offset, numel}, sink, site));
  if (found.ok() && next != numel) return fault("{} of {} elements came", next, numel);
  return found;
}

// Adds onto old values, for a span outside this rank's shard: every rank asks for the same.
Status reduce_onto_once(Communicator& c, std::byte* base, int channel, int round, int64_t numel) {
  const CollectiveSite site{"reduce-scatter", channel, round};
  OFSDP_RETURN_IF_ERROR(c.acquire(channel, everyone(c), site));
  fill_slot(reinterpret_cast<float*>(base), 2 * numel, c.rank(), round);
  std::vector<float> before(static_cast<size_t>(numel));
  for (int64_t i = 0; i < numel; ++i) before[static_cast<size_t>(i)] = value(-1, round, i);
  Status found;
  auto sink = [&](int64_t begin, std::span<float> block) {
    for (size_t i = 0; i < block.size() && found.ok(); ++i) {
      const int64_t at = begin + static_cast<int64_t>(i);
      float expected = before[static_cast<size_t>(at)];
      for (int r = 0; r < c.size(); ++r) expected += value(r, round, numel + at);
      if (!same_bits(block[i], expected)) found = fault("{}: {}, {}", at, block[i], expected);
    }
  };
  const SlotSource slot{0, numel, DType::kFloat32, numel, before.data()};
  c.post(channel, everyone(c), slot);
  OFSDP_RETURN_IF_ERROR(c.reduce_scatter(channel, everyone(c), slot, sink, site));
  return found;
}

Status all_reduce_once(Communicator& c, std::byte* base, size_t offset, int channel, int round,
                       int64_t numel) {
  const CollectiveSite site{"all-reduce", channel, round};
  OFSDP_RETURN_IF_ERROR(c.acquire(channel, everyone(c), site));
  float* slot = reinterpret_cast<float*>(base + offset);
  fill_slot(slot, numel * c.size(), c.rank(), round);
  c.post(channel, everyone(c), {offset, numel});
  OFSDP_RETURN_IF_ERROR(c.all_reduce(channel, everyone(c), {offset, numel}, site));
  for (int64_t i = 0; i < numel * c.size(); ++i) {
    const float expected = sum_over_ranks(g_hosts, round, i);
    if (!same_bits(slot[i], expected)) {
      return fault("all-reduce: rank {} element {}: {} expected {}", c.rank(), i, slot[i],
                   expected);
    }
  }
  return {};
}

class Collectives : public testing::TestWithParam<HostCounts> {
 protected:
  void SetUp() override {
    g_hosts = GetParam().counts;
    if (!GetParam().available()) GTEST_SKIP() << GetParam().engine << " is not installed";
  }
};
INSTANTIATE_TEST_SUITE_P(OneHost, Collectives, testing::Values(1, 2, 3, 4, 5));
INSTANTIATE_TEST_SUITE_P(Hosts, Collectives,
                         testing::Values(HostCounts{1, 1}, HostCounts{2, 2}, HostCounts{1, 3},
                                         HostCounts{3, 2}, HostCounts{1, 1, 1},
                                         HostCounts{2, 1, 2}));
INSTANTIATE_TEST_SUITE_P(Mpi, Collectives,
                         testing::Values(HostCounts("openmpi", {1, 1}), HostCounts("mpich", {1, 1}),
                                         HostCounts("openmpi", {2, 1}),
                                         HostCounts("mpich", {2, 1})));

TEST_P(Collectives, SumsHaveTheBitsOfAPlainLoop) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    const int64_t sizes[] = {0, 1, 3, 15, 16, 17, 4095, 4096, 4097, 12289, 100003};
    const int64_t most = 100003 * c.size();
    const size_t slot = align_up(static_cast<size_t>(most) * sizeof(float), 64);
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, slot + 128));
    if (ledger.current() != region_bytes(slot + 128) + c.staging_bytes()) {
      return fault("ledger {}", ledger.current());
    }
    int round = 0;
    for (const int64_t numel : sizes) {
      OFSDP_RETURN_IF_ERROR(reduce_once(c, base, 128, 0, ++round, numel));
      OFSDP_RETURN_IF_ERROR(all_reduce_once(c, base, 128, 0, ++round, numel));
    }
    return c.barrier({"barrier", -1, round});
  });
  ranks.expect_success();
}

TEST_P(Collectives, MemoryInCommonIsSeenByAllAndCountedOnce) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    const int here = c.ranks_in_common();
    if (here == 1) return {};
    const int place = c.rank() % here, first = c.rank() - place;
    constexpr size_t kBytes = 5000;  // two pages each
    const size_t whole = static_cast<size_t>(here) * region_bytes(kBytes);
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_common(ledger, whole, kBytes));
    if (ledger.current() != region_bytes(kBytes) || ledger.peak() != ledger.current()) {
      return fault("ledger {}, at most {}", ledger.current(), ledger.peak());
    }
    auto* const values = reinterpret_cast<float*>(base);
    const auto mine = static_cast<int64_t>(region_bytes(kBytes) / sizeof(float));
    for (int round = 0; round < 20; ++round) {
      fill_slot(values + place * mine, mine, c.rank(), round);
      OFSDP_RETURN_IF_ERROR(c.barrier({"written", -1, round}));
      for (int r = 0; r < here; ++r) {
        for (int64_t i = 0; i < mine; ++i) {
          if (values[r * mine + i] != value(first + r, round, i)) return fault("{} at {}", r, i);
        }
      }
      OFSDP_RETURN_IF_ERROR(c.barrier({"read", -1, round}));
    }
    return {};
  });
  ranks.expect_success();
}

TEST_P(Collectives, SumsOntoWhatWasThereBefore) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    if (c.name() != "self" && c.name() != "local") return {};  // hosts add partial sums
    constexpr int64_t kMax = 9001;
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, 2 * kMax * sizeof(float)));
    int round = 0;
    for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{17}, int64_t{4097}, kMax}) {
      OFSDP_RETURN_IF_ERROR(reduce_onto_once(c, base, 0, ++round, numel));
    }
    return c.barrier({"barrier", -1, round});
  });
  ranks.expect_success();
}

TEST_P(Collectives, RepeatedWhileRanksDrift) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    constexpr int kUnits = 3;
    const size_t slot = align_up(static_cast<size_t>(517 * c.size()) * sizeof(float), 64);
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, kUnits * slot));
    std::mt19937 random(static_cast<uint32_t>(c.rank()));
    for (int round = 0; round < 300; ++round) {
      for (int unit = 0; unit < kUnits; ++unit) {
        drift(random);
        const size_t offset = static_cast<size_t>(unit) * slot;
        const int64_t numel = 1 + (round * 31 + unit * 7) % 517;
        // The units' counters are independent: one only reduces, one only sums in place, one both.
        if (unit == 0 || (unit == 2 && round % 2 == 0)) {
          OFSDP_RETURN_IF_ERROR(reduce_once(c, base, offset, unit, round, numel));
        } else {
          OFSDP_RETURN_IF_ERROR(all_reduce_once(c, base, offset, unit, round, numel));
        }
      }
    }
    return {};
  });
  ranks.expect_success();
}

TEST_P(Collectives, PostsOfAllUnitsBeforeTheirReduces) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    constexpr int kUnits = 16;
    constexpr int64_t kNumel = 100;
    const size_t slot = static_cast<size_t>(kNumel * c.size()) * sizeof(float);
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, kUnits * slot));
    std::mt19937 random(static_cast<uint32_t>(c.rank()));
    for (int round = 0; round < 50; ++round) {
      const CollectiveSite site{"reduce-scatter", 0, round};
      for (int unit = 0; unit < kUnits; ++unit) {
        const size_t offset = static_cast<size_t>(unit) * slot;
        OFSDP_RETURN_IF_ERROR(c.acquire(unit, everyone(c), site));
        fill_slot(reinterpret_cast<float*>(base + offset), kNumel * c.size(), c.rank(),
                  round + unit);
        c.post(unit, everyone(c), {offset, kNumel});
        drift(random);
      }
      for (int unit = 0; unit < kUnits; ++unit) {
        Status found;
        auto sink = [&](int64_t begin, std::span<float> block) {
          found = check_block(c, round + unit, kNumel, begin, block);
        };
        const size_t offset = static_cast<size_t>(unit) * slot;
        OFSDP_RETURN_IF_ERROR(c.reduce_scatter(unit, everyone(c), {offset, kNumel}, sink, site));
        OFSDP_RETURN_IF_ERROR(std::move(found));
      }
    }
    return {};
  });
  ranks.expect_success();
}

// As in hybrid strategies: sums in bfloat16 among neighbours, then in float32 over opposite ranks
// in the pairs, while the channels of the two pairs have different counts.
class Groups : public Collectives {};
INSTANTIATE_TEST_SUITE_P(OneHost, Groups, testing::Values(4));
INSTANTIATE_TEST_SUITE_P(Hosts, Groups,
                         testing::Values(HostCounts{2, 2}, HostCounts{1, 3}, HostCounts{3, 1},
                                         HostCounts{1, 1, 1, 1}));
INSTANTIATE_TEST_SUITE_P(Mpi, Groups,
                         testing::Values(HostCounts("openmpi", {2, 2}),
                                         HostCounts("mpich", {1, 3})));

TEST_P(Groups, SumAmongNeighboursThenOverCopies) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    constexpr int64_t kNumel = 5000;
    const RankGroup pair{c.rank() / 2 * 2, 2, 1}, copies{c.rank() % 2, 2, 2};
    const size_t partial = 2 * kNumel * sizeof(uint16_t);
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, partial + kNumel * 4));
    auto* slot = reinterpret_cast<uint16_t*>(base);
    auto* shard = reinterpret_cast<float*>(base + partial);
    std::mt19937 random(static_cast<uint32_t>(c.rank()));
    for (int round = 0; round < 40; ++round) {
      const CollectiveSite site{"sum", 0, round};
      const int own = c.rank() < 2 ? 0 : 1;  // a channel a pair
      for (int extra = 0; extra <= own; ++extra) {
        OFSDP_RETURN_IF_ERROR(c.acquire(own, pair, site));
        for (int64_t i = 0; i < 2 * kNumel; ++i) {
          slot[i] = float_to_bfloat16(value(c.rank(), round, i));
        }
        drift(random);
        c.post(own, pair, {0, kNumel, DType::kBFloat16});
        auto sink = [&](int64_t begin, std::span<float> block) {
          std::copy(block.begin(), block.end(), shard + begin);
        };
        OFSDP_RETURN_IF_ERROR(
            c.reduce_scatter(own, pair, {0, kNumel, DType::kBFloat16}, sink, site));
      }
      c.post(2, copies, {partial, kNumel / 2});
      OFSDP_RETURN_IF_ERROR(c.all_reduce(2, copies, {partial, kNumel / 2}, site));
      auto rounded = [&](int rank, int64_t i) {
        return bfloat16_to_float(float_to_bfloat16(value(rank, round, i)));
      };
      for (int64_t i = 0; i < kNumel; ++i) {
        const int64_t at = c.rank() % 2 * kNumel + i;
        const float expected =
            (rounded(0, at) + rounded(1, at)) + (rounded(2, at) + rounded(3, at));
        if (!same_bits(shard[i], expected)) {
          return fault("rank {} element {}: {} expected {}", c.rank(), i, shard[i], expected);
        }
      }
      OFSDP_RETURN_IF_ERROR(c.barrier(site));
    }
    return {};
  });
  ranks.expect_success();
}

TEST_P(Collectives, GatherSeesWhatRanksWroteBeforeABarrier) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    const size_t most = size_t{4} << 20;
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, most));
    std::vector<std::byte> all(most * static_cast<size_t>(c.size()));
    int round = 0;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4093}, size_t{65537}, most}) {
      ++round;
      const size_t offset = most - bytes;
      for (size_t i = 0; i < bytes; ++i) {
        base[offset + i] =
            static_cast<std::byte>(i * 3 + static_cast<size_t>(c.rank() * 7 + round));
      }
      OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, round}));
      OFSDP_RETURN_IF_ERROR(c.all_gather(everyone(c),
                                         {offset, 0, static_cast<int64_t>(bytes), DType::kUInt8},
                                         all.data(), DType::kUInt8, {"gather", 0, round}));
      for (size_t r = 0; r < static_cast<size_t>(c.size()); ++r) {
        for (size_t i = 0; i < bytes; ++i) {
          const auto expected = static_cast<std::byte>(i * 3 + r * 7 + static_cast<size_t>(round));
          if (all[r * bytes + i] != expected) return fault("byte {} of rank {}", i, r);
        }
      }
      OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, round}));
    }
    return {};
  });
  ranks.expect_success();
}

// float32 shards as bfloat16 and float16, strided, by all together and by one rank.
TEST_P(Collectives, GatherConverts) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    constexpr int64_t kNumel = 150001;  // two pieces and some
    constexpr size_t kBytes = kNumel * sizeof(float), kStride = kBytes + 64 - kBytes % 64;
    const auto ranks = static_cast<size_t>(c.size());
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, kStride * ranks));
    const auto mine = static_cast<size_t>(c.rank());
    int round = 7;
    bool again = false;
    fill_slot(reinterpret_cast<float*>(base + mine * kStride), kNumel, c.rank(), round);
    OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
    std::vector<uint16_t> all(kNumel * ranks);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kBFloat16}) {
      CollectiveSite site{"gather", 0, 0};
      site.alone = std::exchange(again, true) && dtype == DType::kBFloat16;
      if (site.alone) {  // another value, so that old data in the staging is wrong
        ++round;
        fill_slot(reinterpret_cast<float*>(base + mine * kStride), kNumel, c.rank(), round);
        OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
      }
      OFSDP_RETURN_IF_ERROR(c.all_gather(everyone(c), {0, kStride, kNumel},
                                         reinterpret_cast<std::byte*>(all.data()), dtype, site));
      std::vector<uint16_t> expected(kNumel);
      for (int r = 0; r < c.size(); ++r) {
        std::vector<float> theirs(kNumel);
        fill_slot(theirs.data(), kNumel, r, round);
        narrow(theirs.data(), dtype, expected.data(), kNumel);
        if (!std::equal(expected.begin(), expected.end(), all.begin() + r * kNumel)) {
          return fault("rank {}: shard of rank {} as {}", c.rank(), r, dtype_name(dtype));
        }
      }
      OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
    }
    return {};
  });
  ranks.expect_success();
}

// Far more than the staging between hosts can hold.
class Large : public Collectives {};
INSTANTIATE_TEST_SUITE_P(OneHost, Large, testing::Values(2));
INSTANTIATE_TEST_SUITE_P(Hosts, Large, testing::Values(HostCounts{1, 1}, HostCounts{2, 1}));
// With many hosts pieces are smaller (HostStaging::incoming_bytes).
INSTANTIATE_TEST_SUITE_P(FourteenHosts, Large,
                         testing::Values(HostCounts{1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
INSTANTIATE_TEST_SUITE_P(Mpi, Large,
                         testing::Values(HostCounts("openmpi", {1, 1}),
                                         HostCounts("mpich", {2, 1})));

TEST_P(Large, SixteenMebibytesAndOddSizes) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    constexpr size_t kBytes = size_t{16} << 20;
    OFSDP_ASSIGN_OR_RETURN(std::byte * base, c.allocate_shared(ledger, kBytes));
    const int64_t most = static_cast<int64_t>(kBytes / sizeof(float)) / c.size();
    int round = 0;
    for (const int64_t numel : {most, most - 1, kReduceBlock * 16 + 1}) {
      OFSDP_RETURN_IF_ERROR(reduce_once(c, base, 0, 1, ++round, numel));
    }
    OFSDP_RETURN_IF_ERROR(all_reduce_once(c, base, 0, 1, ++round, most - 5));
    std::vector<float> all(kBytes / sizeof(float));
    const ShardSource source{0, 0, most};  // every rank now has the whole sum
    OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, round}));
    OFSDP_RETURN_IF_ERROR(c.all_gather(everyone(c), source,
                                       reinterpret_cast<std::byte*>(all.data()), DType::kFloat32,
                                       {"gather", 1, round}));
    for (int r = 0; r < c.size(); ++r) {
      if (std::memcmp(all.data() + r * most, base, static_cast<size_t>(most) * 4) != 0) {
        return fault("rank {}: gathered from rank {}", c.rank(), r);
      }
    }
    return c.barrier({"barrier", -1, round});
  });
  ranks.expect_success();
}

TEST_P(Collectives, ExchangeGivesEveryoneEveryonesNumbers) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger&) -> Status {
    std::mt19937 random(static_cast<uint32_t>(c.rank()));
    for (int round = 0; round < 2000; ++round) {
      drift(random);
      const size_t n = static_cast<size_t>(round % (kMaxExchange + 1));
      std::vector<double> mine(n), all(n * static_cast<size_t>(c.size()), -1);
      for (size_t i = 0; i < n; ++i) mine[i] = c.rank() * 1e6 + round * 100.0 + double(i);
      OFSDP_RETURN_IF_ERROR(c.exchange(mine, all, {"exchange", -1, round}));
      for (size_t i = 0; i < all.size(); ++i) {
        const double expected = double(i / n) * 1e6 + round * 100.0 + double(i % n);
        if (all[i] != expected) return fault("round {}: {} expected {}", round, all[i], expected);
      }
    }
    return {};
  });
  ranks.expect_success();
}

Status fill_column(void* context, std::span<std::byte> bytes) {
  ++*static_cast<int*>(context);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 5 + 1);
  return {};
}

TEST_P(Collectives, BytesOfRank0AreSharedAndCountedOnce) {
  RankProcesses ranks(GetParam(), [](Communicator& c, MemoryLedger& ledger) -> Status {
    int calls = 0;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1} << 20}) {
      calls = 0;
      OFSDP_ASSIGN_OR_RETURN(auto view,
                             c.share_from_rank0(ledger, bytes, "input", fill_column, &calls));
      if (view.size() != bytes) return fault("{} bytes, expected {}", view.size(), bytes);
      for (size_t i = 0; i < bytes; ++i) {
        if (view[i] != static_cast<std::byte>(i * 5 + 1)) return fault("byte {}", i);
      }
      OFSDP_RETURN_IF_ERROR(c.barrier({"barrier", -1, 0}));
    }
    const size_t counted = c.is_first_on_host() ? kPageBytes + (size_t{1} << 20) : 0;
    if (ledger.current() != counted) return fault("{}, expected {}", ledger.current(), counted);
    if (calls != (c.is_first_on_host() ? 1 : 0))
      return fault("rank {} filled {} times", c.rank(), calls);
    return {};
  });
  ranks.expect_success();
}

}  // namespace communicator_test
}  // namespace ofsdp
