// All-gather across hosts: every byte comes to a host once. The ranks of the group on this host
// take turns to fetch the pieces of remote shards into their staging, and all read them there.
//
// Ownership: views. Threads: the rank's one. Errors: those of PeerWait.
#pragma once

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_staging.h"

namespace ofsdp::fsdp {

class HostGather {
 public:
  HostGather(const HostParts& parts, const HostStaging& staging)
      : parts_(parts), staging_(staging) {}

  Status gather(GroupView& view, const ShardSource& source, std::byte* dst, DType dst_dtype,
                const CollectiveSite& site);

 private:
  struct Plan;
  Status straight(const Plan& plan, const CollectiveSite& site);
  Status together(const Plan& plan, const CollectiveSite& site);
  void fetch(const Plan& plan, int64_t piece) const;

  HostParts parts_;
  HostStaging staging_;
  std::atomic<uint64_t> arrived_{0};  // pieces that went straight to their place
  uint64_t expected_ = 0;
};

}  // namespace ofsdp::fsdp
