// LoneRank: a communicator that claims to be one of several and never waits for the others. So a
// test can set up one rank after another in one process. Collectives that move data are failures.
//
// Ownership: owns its shared segment. Threads: one.
#pragma once

#include <algorithm>

#include "fsdp/comm/communicator.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

class LoneRank final : public Communicator {
 public:
  LoneRank(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "lone"; }
  Result<std::byte*> allocate_shared(MemoryLedger& ledger, size_t bytes, Sizes) override {
    OFSDP_ASSIGN_OR_RETURN(shared_,
                           Region::map(ledger, bytes, Region::Sharing::kPrivate, "shared"));
    return shared_.data();
  }
  Status all_gather(const RankGroup&, const ShardSource&, std::byte*, DType,
                    const CollectiveSite&) override {
    return none();
  }
  Status acquire(int, const RankGroup&, const CollectiveSite&) override { return none(); }
  void post(int, const RankGroup&, const SlotSource&) override {}
  Status reduce_scatter(int, const RankGroup&, const SlotSource&, BlockSink,
                        const CollectiveSite&) override {
    return none();
  }
  Status all_reduce(int, const RankGroup&, const SlotSource&, const CollectiveSite&) override {
    return none();
  }
  // Every rank receives the same numbers from all.
  Status exchange(std::span<const double>, std::span<double> all, const CollectiveSite&) override {
    std::ranges::fill(all, 4711.0);
    return {};
  }
  Status barrier(const CollectiveSite&) override { return {}; }
  Result<std::span<const std::byte>> share_from_rank0(MemoryLedger&, size_t, const std::string&,
                                                      Status (*)(void*, std::span<std::byte>),
                                                      void*) override {
    return none();
  }
  bool fail(const Status&) override { return true; }
  int exit_status() const override { return 0; }
  Status leave() override { return {}; }

 private:
  static Status none() { return fault("a lone rank has nobody to talk to"); }

  int rank_, size_;
  Region shared_;
};

}  // namespace ofsdp
