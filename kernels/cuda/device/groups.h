// NcclRanks: the calls of a Device (kernels/core/device.h) that concern several ranks, by NCCL.
//
// `ordinal` is the device's. Ownership: leave_group ends a group. Threads: one a device, but for
// abort_group. Errors: kFault in one line, with NCCL's own text.
#pragma once

#include <string>

#include "kernels/core/device.h"

namespace ofsdp::kernels::cuda {

class NcclRanks : public Device {
 public:
  Status can_join(int sharing, std::string& engine) const override;
  Status make_group_key(void* key) override;
  Result<ofsdp_group*> join_group(const void* key, int place, int count,
                                  const ofsdp_patience& patience) override;
  Result<ofsdp_group*> split_group(ofsdp_group* from, int color, int place) override;
  void abort_group(ofsdp_group* group) override;
  void leave_group(ofsdp_group* group) override;
  Status check_group(ofsdp_group* group) override;
  Status make_known(ofsdp_group* group, void* data, size_t bytes, bool same_offsets) override;
  Status all_gather(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                    size_t bytes) override;
  Status reduce_scatter(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                        int32_t dtype, int64_t count) override;
  Status all_reduce(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                    int32_t dtype, int64_t count, int32_t reduction) override;
  Status exchange_parts(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                        const size_t* offsets, int places, void* dst, size_t bytes) override;

 protected:
  explicit NcclRanks(int ordinal) : ordinal_(ordinal) {}

 private:
  int ordinal_;
};

}  // namespace ofsdp::kernels::cuda
