// What ranks of several hosts say to each other while they meet; see host_meeting.h. For its sources
// only. Numbers are little-endian, as on every processor that this program runs on.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "fsdp/comm/hosts/host_meeting.h"

namespace ofsdp::fsdp {

inline constexpr uint64_t kHostMagic = 0x74736f6864736f66;  // "fosdhost"
inline constexpr uint32_t kHostVersion = 2;
inline constexpr std::chrono::milliseconds kHostRetry{50};
inline constexpr std::chrono::seconds kStrangerPatience{2};

template <size_t N>
void put_text(char (&field)[N], const std::string& text) {
  std::strncpy(field, text.c_str(), N - 1);
  field[N - 1] = 0;
}
template <size_t N>
std::string get_text(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

struct HostHello {  // to rank 0
  uint64_t magic = kHostMagic;
  uint32_t version = kHostVersion;
  int32_t rank = 0, world = 0, local_world = 0, pid = 0, port = 0;
  uint64_t run = 0;       // of what the environment says of the run
  char machine[64] = {};  // equal on ranks that share a host
  char name[64] = {};     // of the host, for people
};

struct HostWelcome {  // from rank 0, before one HostEntry a rank
  uint64_t magic = kHostMagic;
  int32_t go = 0, world = 0;
  uint64_t token = 0;
};

struct HostEntry {
  int32_t host = 0, pid = 0, port = 0;
  char address[64] = {};  // empty: where rank 0 is
  char name[64] = {};
};

struct HostKnock {  // from a rank to the one that shall answer it, and back as the answer
  uint64_t magic = kHostMagic;
  uint64_t token = 0;
  int32_t from = 0, to = 0;
};

// To rank 0 on the connection of the hello, which it answers with a HostWelcome once all are there.
struct HostReport {
  enum Kind : int32_t {
    kConnected = 1,  // to all that this rank needs
    kMet,            // those of its host too
    kLate,           // it has waited in vain: `text` says for whom
    kFailed,
    kInput,
  };
  uint64_t magic = kHostMagic;
  int32_t kind = kFailed;
  char text[500] = {};
};

HostHello host_hello(const RankIdentity& identity, int port);

struct HostTable {
  uint64_t token = 0;
  std::vector<HostEntry> entries;       // by rank
  std::string master;                   // address at which this rank reached rank 0
  std::vector<HostConnection> sockets;  // to rank 0; there: to all others
};

Result<HostTable> gather_hosts(const RankIdentity& identity, MeetingPoint& point,
                               const HostHello& mine, std::chrono::seconds timeout);  // rank 0
Result<HostTable> visit_hosts(const RankIdentity& identity, const MeetingPoint& point,
                              const HostHello& mine, std::chrono::seconds timeout);  // the others

}  // namespace ofsdp::fsdp
