#include <algorithm>

#include "fsdp/comm/hosts/host_collectives.h"
#include "runtime/compile/compile.h"

namespace ofsdp::runtime {
namespace {

class AbsentRanks final : public Communicator {
 public:
  AbsentRanks(int world, int hosts, bool common_memory)
      : world_(world),
        hosts_(hosts),
        common_memory_(common_memory),
        self_(make_self_communicator()) {}

  int rank() const override { return 0; }
  int size() const override { return world_; }
  std::string name() const override { return "absent"; }
  int ranks_in_common() const override {
    return common_memory_ ? std::max(ranks_on_each_host(), 1) : 1;
  }
  int ranks_on_each_host() const override { return world_ % hosts_ == 0 ? world_ / hosts_ : 0; }
  size_t staging_bytes() const override { return hosts_ > 1 ? HostStaging::bytes(hosts_) : 0; }

  Result<std::byte*> allocate_shared(MemoryLedger&, size_t, Sizes) override { return refuse(); }
  Status all_gather(const RankGroup&, const ShardSource&, std::byte*, DType,
                    const CollectiveSite&) override {
    return refuse();
  }
  Status acquire(int, const RankGroup&, const CollectiveSite&) override { return refuse(); }
  void post(int, const RankGroup&, const SlotSource&) override {}
  Status reduce_scatter(int, const RankGroup&, const SlotSource&, BlockSink,
                        const CollectiveSite&) override {
    return refuse();
  }
  Status all_reduce(int, const RankGroup&, const SlotSource&, const CollectiveSite&) override {
    return refuse();
  }
  // All ranks have the same plan, so the other ranks would give the same numbers.
  Status exchange(std::span<const double> mine, std::span<double> all,
                  const CollectiveSite&) override {
    for (size_t i = 0; i < all.size(); ++i) all[i] = mine[i % mine.size()];
    return {};
  }
  Status barrier(const CollectiveSite&) override { return {}; }
  Result<std::span<const std::byte>> share_from_rank0(
      MemoryLedger& ledger, size_t bytes, const std::string& name,
      Status (*fill)(void* context, std::span<std::byte> bytes), void* context) override {
    return self_->share_from_rank0(ledger, bytes, name, fill, context);
  }

  bool fail(const Status& status) override { return self_->fail(status); }
  int exit_status() const override { return self_->exit_status(); }
  Status leave() override { return {}; }

 private:
  static Status refuse() { return fault("the other ranks of a plan are not there"); }

  int world_;
  int hosts_;
  bool common_memory_;
  std::unique_ptr<Communicator> self_;
};

}  // namespace

std::unique_ptr<Communicator> make_absent_ranks(int world, int hosts, bool common_memory) {
  return std::make_unique<AbsentRanks>(world, hosts, common_memory);
}

}  // namespace ofsdp::runtime
