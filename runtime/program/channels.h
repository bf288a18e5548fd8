// Channels: the numbers of the channels on which ranks post what is complete and await that it is
// read (fsdp/comm/communicator.h). Each unit has two, all units share three, and each node that
// joins rows has one.
#pragma once

namespace ofsdp::runtime {

struct Channels {
  static constexpr int kOfUnit = 2, kOfAll = 3;

  int units = 0;

  int gradient(int unit) const { return unit; }
  int gradient_shard(int unit) const { return units + unit; }  // summed over copies
  int matrices() const { return kOfUnit * units; }             // the room for them, of all ranks
  int matrix_shards() const { return kOfUnit * units + 1; }    // and of those that share a copy
  int watch() const { return kOfUnit * units + 2; }
  int rows(int join) const { return kOfUnit * units + kOfAll + join; }
};

}  // namespace ofsdp::runtime
