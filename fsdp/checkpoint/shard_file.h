// The files that a rank writes. A shard file is an ONNX model with slices as initializers, laid out
// so that the data can be streamed to known offsets. FORMAT.md describes the bytes.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "fsdp/checkpoint/manifest.h"
#include "kernels/core/stored_state.h"

namespace ofsdp::fsdp {

inline constexpr int64_t kMaxShardFile = int64_t{1} << 30;  // protobuf reads at most 2 GiB

// A view of a slice's elements: float32 in memory, or a state with fewer bits.
struct SliceSource {
  const float* values = nullptr;
  StoredState state = {};  // used if `values` is null
  int64_t first = 0;       // the slice's first element in `state`

  SliceSource from(int64_t count) const {
    return values != nullptr ? SliceSource{values + count, {}, 0}
                             : SliceSource{nullptr, state, first + count};
  }
};

struct SourceSlice {
  Slice slice;  // without offset and checksums
  Shape shape;  // the whole tensor's
  SliceSource source = {};
};

// A file's layout: headers (the ONNX messages between the data) and slices.
struct PlannedFile {
  struct Header {
    int64_t offset = 0;
    std::string bytes;
  };
  CheckpointFile file;  // slices with offsets, without checksums
  std::vector<Header> headers;
  std::vector<SliceSource> sources;  // by slice
};

struct ShardIdentity {
  std::string save;  // Manifest::save
  int rank = 0;
  int world = 1;
};

// Divides a rank's slices, in order, into files with at most `max_bytes`. A longer slice is cut.
std::vector<PlannedFile> plan_shard_files(const ShardIdentity& identity,
                                          const std::vector<SourceSlice>& slices,
                                          int64_t max_bytes = kMaxShardFile);

// Writes headers and slices at their offsets, computes the checksums, and syncs the file. Returns
// the manifest's entry for the file, or kFault with the file. Other ranks may write to the same
// file, at other offsets. Each block is checked and written while it is in the cache, and writeback
// to disk begins early. Any thread may set `cancelled` to end the write. REQUIRES: if a source must
// be decoded, `room` has kChecksumBlock bytes.
Result<CheckpointFile> write_planned_file(const std::string& folder, const PlannedFile& planned,
                                          const std::atomic<bool>& cancelled,
                                          std::span<float> room = {});

}  // namespace ofsdp::fsdp
