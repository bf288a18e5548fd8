// Messages between processes of this host that carry a file descriptor.
//
// A message is a few bytes of a trivially copyable struct, sent whole over a SOCK_SEQPACKET Unix
// socket, with at most one descriptor (SCM_RIGHTS). Received descriptors are close-on-exec.
//
// Ownership: the caller owns what it sends and what it gets. Threads: one a socket and direction.
// Errors: a closed or broken connection is a value (kClosed, false), since the callers know which
// rank it was.
#pragma once

#include <chrono>
#include <cstddef>
#include <type_traits>

#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

struct Received {
  enum class Kind { kMessage, kClosed, kTimeout };
  Kind kind = Kind::kClosed;
  UniqueFd fd;  // valid when the message carried one
};

// False when the peer is gone. `fd` -1 sends none; the caller keeps its own.
bool send_bytes(int socket, const void* message, size_t bytes, int fd);
// A message of another size than `bytes`, or with several descriptors, counts as kClosed: whoever
// sent it is no rank of ours.
Received receive_bytes(int socket, void* message, size_t bytes, std::chrono::milliseconds patience);

template <typename T>
bool send_message(int socket, const T& message, int fd) {
  static_assert(std::is_trivially_copyable_v<T>);
  return send_bytes(socket, &message, sizeof message, fd);
}

template <typename T>
Received receive_message(int socket, T& message, std::chrono::milliseconds patience) {
  static_assert(std::is_trivially_copyable_v<T>);
  return receive_bytes(socket, &message, sizeof message, patience);
}

}  // namespace ofsdp::fsdp
