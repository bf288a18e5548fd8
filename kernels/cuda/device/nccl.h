// What this library uses of NCCL, as its public API has it, so that neither nccl.h is needed to build
// nor NCCL to load (libraries.h finds it, 2.18 or newer). Functions that came later may be absent.
//
// Ownership: a view of the opened library. Threads: any. Errors: `has_all` is false where a function
// that every accepted version has is not there.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

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

  int (*version)(int*) = nullptr;
  const char* (*error_string)(NcclResult) = nullptr;
  const char* (*last_error)(Comm) = nullptr;
  NcclResult (*unique_id)(NcclId*) = nullptr;
  NcclResult (*init)(Comm*, int count, NcclId, int place, NcclConfig*) = nullptr;
  NcclResult (*split)(Comm, int color, int key, Comm*, NcclConfig*) = nullptr;
  NcclResult (*destroy)(Comm) = nullptr;
  NcclResult (*abort)(Comm) = nullptr;
  NcclResult (*async_error)(Comm, NcclResult*) = nullptr;
  NcclResult (*all_gather)(const void*, void*, size_t, NcclType, Comm, cudaStream_t) = nullptr;
  NcclResult (*reduce_scatter)(const void*, void*, size_t, NcclType, NcclReduction, Comm,
                               cudaStream_t) = nullptr;
  NcclResult (*all_reduce)(const void*, void*, size_t, NcclType, NcclReduction, Comm,
                           cudaStream_t) = nullptr;

  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void*, size_t, NcclType, int place, Comm, cudaStream_t) = nullptr;
  NcclResult (*receive)(void*, size_t, NcclType, int place, Comm, cudaStream_t) = nullptr;

  NcclResult (*mem_alloc)(void**, size_t) = nullptr;  // 2.19
  NcclResult (*mem_free)(void*) = nullptr;
  NcclResult (*register_buffer)(Comm, void*, size_t, void**) = nullptr;
  NcclResult (*deregister_buffer)(Comm, void*) = nullptr;
  NcclResult (*register_window)(Comm, void*, size_t, Window*, int flags) = nullptr;  // 2.27
  NcclResult (*deregister_window)(Comm, Window) = nullptr;

  bool has_all() const;
  int number() const;        // 22809
  std::string text() const;  // "2.28.9"
};

const Nccl& nccl();

}  // namespace ofsdp::kernels::cuda
