// What the first rank of a host and its others say to each other while they meet; see rendezvous.h. For its two
// sides only (rendezvous_host.cpp, rendezvous.cpp).
//
// Messages, in order: Hello with the guest's lifeline; Welcome with the control page, or called
// off; then one kMagic with a lifeline for each other rank, in rank order. Threads: one.
#pragma once

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "fsdp/comm/local/rendezvous.h"

namespace ofsdp::fsdp {

inline constexpr uint64_t kMagic = 0x6f66736470303031;  // "ofsdp001"
inline constexpr std::chrono::milliseconds kRendezvousRetry{20};

struct Hello {
  uint64_t magic;
  int32_t place, here, pid;
  cpu_set_t cores;
};

struct Welcome {
  int32_t go;  // 0: called off
  int32_t cores;
};

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Address address_of(const std::string& rendezvous);
UniqueFd new_socket();
bool same_user(int socket);  // is the other end a process of this user?
// Sends do not block for ever on a rank that is stopped.
void limit_sends(int socket, std::chrono::seconds timeout);

Hello hello_of(const LocalSeat& seat);
Status open_lifeline(Meeting& meeting, const LocalSeat& seat);

Result<Meeting> host_meeting(const LocalSeat& seat, std::chrono::seconds timeout);  // first rank

}  // namespace ofsdp::fsdp
