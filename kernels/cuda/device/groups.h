// Several ranks by NCCL: the groups of kernels/core/device.h, as functions.
//
// `ordinal` is the device's. Ownership: leave_group ends a group. Threads: one a device, but for
// abort_group. Errors: kFault in one line, with NCCL's own text.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "kernels/core/device_values.h"

namespace ofsdp::kernels::cuda {

Status can_join_ranks(int sharing, std::string& engine);
Status make_group_key(void* key);
Result<ofsdp_group*> join_group(int ordinal, const void* key, int place, int count,
                                const ofsdp_patience& patience);
Result<ofsdp_group*> split_group(ofsdp_group* from, int color, int place);
void abort_group(ofsdp_group* group);
void leave_group(ofsdp_group* group);
Status check_group(ofsdp_group* group);
Status make_known(ofsdp_group* group, void* data, size_t bytes, bool same_offsets);
Status all_gather(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                  size_t bytes);
Status reduce_scatter(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                      int32_t dtype, int64_t count);
Status all_reduce(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                  int32_t dtype, int64_t count, int32_t reduction);
Status exchange_parts(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                      const size_t* offsets, int places, void* dst, size_t bytes);

}  // namespace ofsdp::kernels::cuda
