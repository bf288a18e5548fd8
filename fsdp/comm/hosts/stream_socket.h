// TCP between hosts: to listen, to connect, and to move whole messages within a deadline.
//
// Connections send at once (no Nagle) and notice a cut network: what is sent and not acknowledged,
// and a line that answers no probe, break them after `patience`.
//
// Ownership: UniqueFd. Threads: one a socket. Errors: kFault with the system's words from listen_on
// and connect_to; send_whole and receive_whole are false when the peer is gone or late.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/local/fd_channel.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {

using StreamClock = std::chrono::steady_clock;

// At all addresses of this host. Port 0: any; `port` says which it is.
Result<UniqueFd> listen_on(int& port);
// One try, at every address that the name has.
Result<UniqueFd> connect_to(const std::string& address, int port, StreamClock::time_point deadline);
// Not valid when nobody came. A stranger's connection may come too.
UniqueFd accept_one(int listener, StreamClock::time_point deadline);

void tune(int socket, std::chrono::seconds patience);
std::string peer_address(int socket);      // as numbers
std::vector<std::string> own_addresses();  // of this host, without loopback
bool send_whole(int socket, const void* bytes, size_t count, StreamClock::time_point deadline);
bool receive_whole(int socket, void* bytes, size_t count, StreamClock::time_point deadline);

}  // namespace ofsdp::fsdp
