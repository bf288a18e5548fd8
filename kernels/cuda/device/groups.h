// Communication among ranks: NCCL's functions, loaded at run time, and the Device methods that use
// them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/core/device.h"
#include "kernels/cuda/device/libraries.h"

struct ncclComm;  // NCCL's type names: the same types everywhere
struct ncclWindow_vidmem;

namespace ofsdp::kernels::cuda {

// NCCL's C API, declared here so that the build does not need the header and the library loads
// without NCCL (libraries.h opens it, version 2.18 or newer). Functions that newer versions added
// may be null.

enum NcclResult : int { kNcclSuccess = 0, kNcclInProgress = 7 };
enum NcclType : int {
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBFloat16 = 9
};
enum NcclReduction : int { kNcclSum = 0, kNcclMax = 2 };

struct NcclId {
  char internal[128];
};

// ncclConfig_t as in 2.18. Newer libraries fill in defaults, guided by `version`.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 1;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;

  static constexpr int kUndefined = -2147483647 - 1;  // INT_MIN
};

struct Nccl {
  using Comm = ncclComm*;
  using Window = ncclWindow_vidmem*;
  static constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC

#define OFSDP_NCCL(symbol, result, name, ...) \
  result (*name)(__VA_ARGS__) = function_of<result(__VA_ARGS__)>(Nvidia::kNccl, #symbol)
  OFSDP_NCCL(ncclGetVersion, int, version, int*);
  OFSDP_NCCL(ncclGetErrorString, const char*, error_string, NcclResult);
  OFSDP_NCCL(ncclGetLastError, const char*, last_error, Comm);
  OFSDP_NCCL(ncclGetUniqueId, NcclResult, unique_id, NcclId*);
  OFSDP_NCCL(ncclCommInitRankConfig, NcclResult, init, Comm*, int count, NcclId, int place,
             NcclConfig*);
  OFSDP_NCCL(ncclCommSplit, NcclResult, split, Comm, int color, int key, Comm*, NcclConfig*);
  OFSDP_NCCL(ncclCommDestroy, NcclResult, destroy, Comm);
  OFSDP_NCCL(ncclCommAbort, NcclResult, abort, Comm);
  OFSDP_NCCL(ncclCommGetAsyncError, NcclResult, async_error, Comm, NcclResult*);
  OFSDP_NCCL(ncclAllGather, NcclResult, all_gather, const void*, void*, size_t, NcclType, Comm,
             cudaStream_t);
  OFSDP_NCCL(ncclReduceScatter, NcclResult, reduce_scatter, const void*, void*, size_t, NcclType,
             NcclReduction, Comm, cudaStream_t);
  OFSDP_NCCL(ncclAllReduce, NcclResult, all_reduce, const void*, void*, size_t, NcclType,
             NcclReduction, Comm, cudaStream_t);
  OFSDP_NCCL(ncclGroupStart, NcclResult, group_start, );
  OFSDP_NCCL(ncclGroupEnd, NcclResult, group_end, );
  OFSDP_NCCL(ncclSend, NcclResult, send, const void*, size_t, NcclType, int place, Comm,
             cudaStream_t);
  OFSDP_NCCL(ncclRecv, NcclResult, receive, void*, size_t, NcclType, int place, Comm, cudaStream_t);
  OFSDP_NCCL(ncclMemAlloc, NcclResult, mem_alloc, void**, size_t);  // since 2.19
  OFSDP_NCCL(ncclMemFree, NcclResult, mem_free, void*);
  OFSDP_NCCL(ncclCommRegister, NcclResult, register_buffer, Comm, void*, size_t, void**);
  OFSDP_NCCL(ncclCommDeregister, NcclResult, deregister_buffer, Comm, void*);
  OFSDP_NCCL(ncclCommWindowRegister, NcclResult, register_window, Comm, void*, size_t, Window*,
             int flags);  // since 2.27
  OFSDP_NCCL(ncclCommWindowDeregister, NcclResult, deregister_window, Comm, Window);
#undef OFSDP_NCCL

  // Returns true if every function that 2.18 has was found.
  bool has_all() const;
  int number() const;        // 22809 for 2.28.9
  std::string text() const;  // "2.28.9"
};

const Nccl& nccl();

// Implements the methods of Device (kernels/core/device.h) that involve several ranks. One thread
// per device, but any thread may call abort_group. Errors are faults with NCCL's text, on one line.
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
