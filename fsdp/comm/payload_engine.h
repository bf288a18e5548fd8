// PayloadEngine: moves bytes between ranks of different hosts over the cluster's own network
// (mpi_payload.h), so that the connections of the rendezvous carry requests only. Without one,
// bytes follow the answer on its connection.
//
// Ownership: the link owns its engine; buffers belong to the caller until reported done. Threads:
// one, the link's. Errors: kFault from progress, with the engine's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {

class PayloadEngine {
 public:
  struct Done {
    bool sent;  // else received
    int peer;
    uint32_t id;
  };

  virtual ~PayloadEngine() = default;
  virtual std::string name() const = 0;
  // Both sides name the receiver's request; a receive is begun before its request is sent.
  virtual Status receive(int peer, uint32_t id, std::span<std::byte> dst) = 0;
  virtual Status send(int peer, uint32_t id, std::span<const std::byte> src) = 0;
  virtual Status progress(std::vector<Done>& done) = 0;  // appends
  // After a failure: forgets what is under way, and nothing is begun again. Touches no other rank.
  virtual void abandon() = 0;
  virtual void close(bool in_order) = 0;  // nothing is under way any more
};

}  // namespace ofsdp::fsdp
