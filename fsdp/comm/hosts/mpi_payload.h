// The MPI of the launcher: where rank 0 can be met without MASTER_ADDR, and the engine that carries
// payloads (payload_engine.h).
//
// The library is chosen by who started the ranks (RankIdentity::engine) and loaded from beside the
// program, or from one folder above (tests), or from where the system finds libraries.
//
// MPI makes no progress by itself, so the link's thread drives it, and only while bytes are on their
// way: requests come over the connections of the meeting, on which it sleeps.
//
// Ownership: the engine owns the state of MPI; the library stays loaded until the process ends.
// Threads: one at a time. Errors: kInput when the library is not there, kFault with MPI's words.
#pragma once

#include <memory>
#include <string>

#include "fsdp/comm/hosts/host_meeting.h"
#include "fsdp/comm/hosts/mpi/mpi_library.h"
#include "fsdp/comm/hosts/payload_engine.h"
#include "fsdp/comm/rank_identity.h"

namespace ofsdp::fsdp {

class MpiPayload final : public PayloadEngine {
 public:
  static Result<std::unique_ptr<MpiPayload>> open(const RankIdentity& identity);
  ~MpiPayload() override;

  std::string name() const override { return table_->library(); }
  Status receive(int peer, uint32_t id, std::span<std::byte> dst) override;
  Status send(int peer, uint32_t id, std::span<const std::byte> src) override;
  Status progress(std::vector<Done>& done) override;
  void close(bool in_order) override;

  // Rank 0 listens, and MPI tells the others where.
  Result<MeetingPoint> meeting_point(const RankIdentity& identity);

 private:
  MpiPayload(const MpiTable* table, void* state) : table_(table), state_(state) {}
  Status failed(const MpiError& error) const;

  const MpiTable* table_;
  void* state_;
};

}  // namespace ofsdp::fsdp
