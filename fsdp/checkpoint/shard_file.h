// The bytes of the files that a rank writes: a shard file is an ONNX model whose initializers are
// slices, put together so that the data can be streamed to known offsets.
//
// A PlannedFile says what goes where: headers (ONNX's messages between the data) and slices, whose
// elements the writer takes from memory, or decodes a block at a time. plan_shard_files cuts a
// rank's slices into files of at most kShardFileMost bytes: protobuf reads no more than 2 GiB.
//
// Slices keep their order; one that is longer than a file is cut. Pure.
// Ownership: values; `source` is a view. Threads: any. FORMAT.md describes the bytes.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "fsdp/checkpoint/manifest.h"
#include "kernels/core/stored_state.h"

namespace ofsdp::fsdp {

inline constexpr int64_t kShardFileMost = int64_t{1} << 30;

// The elements of a slice: float32 in memory, or a state of fewer bits.
struct SliceSource {
  const float* values = nullptr;
  StoredState state = {};  // instead
  int64_t first = 0;       // its element that the slice begins with

  SliceSource from(int64_t count) const {
    return values != nullptr ? SliceSource{values + count, {}, 0}
                             : SliceSource{nullptr, state, first + count};
  }
};

struct SourceSlice {
  Slice slice;  // its offset and checksums come later
  Shape shape;  // of the whole tensor
  SliceSource source = {};
};

struct PlannedFile {
  struct Header {
    int64_t offset = 0;
    std::string bytes;
  };
  CheckpointFile file;  // slices with offsets, without checksums
  std::vector<Header> headers;
  std::vector<SliceSource> sources;  // a slice each
};

struct ShardIdentity {
  std::string save;  // Manifest::save
  int rank = 0;
  int world = 1;
};

std::vector<PlannedFile> plan_shard_files(const ShardIdentity& identity,
                                          const std::vector<SourceSlice>& slices,
                                          int64_t most_bytes = kShardFileMost);

// Writes the headers and slices of one planned file at their offsets, takes the checksums on the
// way, and brings all of it to disk. Returns what the manifest says of the file. The file may be
// there already and be written by other ranks too, at other offsets. REQUIRES: `room` for the bytes
// of a block, kChecksumBlock, where a source is to be decoded.
//
// Memory: nothing beyond the caller's; a block is checked and written while it is in the cache, and
// the disk is set to work after it. Threads: one a file; `cancelled` may be set by any and ends the
// write early. Errors: kFault naming the file.
Result<CheckpointFile> write_planned_file(const std::string& folder, const PlannedFile& planned,
                                          const std::atomic<bool>& cancelled,
                                          std::span<float> room = {});

}  // namespace ofsdp::fsdp
