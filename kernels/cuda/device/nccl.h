// The part of NCCL that this library uses, as its public API has it, so that neither nccl.h is
// needed to build nor NCCL to load (libraries.h finds it, 2.18 or newer). Functions that came later
// may be absent.
//
// Ownership: a view of the opened library. Threads: any. Errors: `has_all` is false where a
// function that every accepted version has is not there.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "kernels/cuda/device/libraries.h"

struct ncclComm;  // NCCL's names, so that they are the same type for all
struct ncclWindow_vidmem;

namespace ofsdp::kernels::cuda {

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

// As of 2.18; a newer library takes the rest from `version`.
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
  OFSDP_NCCL(ncclMemAlloc, NcclResult, mem_alloc, void**, size_t);  // 2.19
  OFSDP_NCCL(ncclMemFree, NcclResult, mem_free, void*);
  OFSDP_NCCL(ncclCommRegister, NcclResult, register_buffer, Comm, void*, size_t, void**);
  OFSDP_NCCL(ncclCommDeregister, NcclResult, deregister_buffer, Comm, void*);
  OFSDP_NCCL(ncclCommWindowRegister, NcclResult, register_window, Comm, void*, size_t, Window*,
             int flags);  // 2.27
  OFSDP_NCCL(ncclCommWindowDeregister, NcclResult, deregister_window, Comm, Window);
#undef OFSDP_NCCL

  bool has_all() const;
  int number() const;        // 22809
  std::string text() const;  // "2.28.9"
};

const Nccl& nccl();

}  // namespace ofsdp::kernels::cuda
